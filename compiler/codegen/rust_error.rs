//! `Error` of the generated Rust module: the status of a failed call, the check that failed, and its values.

use super::header::STATUS;
use super::rust::sentence;
use std::fmt::Write;

/// The fault types of the object, in `mod sys`.
pub(super) const FAULT_TYPES: &str = "    #[repr(C)] pub struct Fault { pub check: u32, pub status: i32, \
    pub values: [i64; 4], pub workspace_size: u64 }
    #[repr(C)] pub struct Check { pub node: *const core::ffi::c_char, pub op_type: *const \
    core::ffi::c_char, pub text: *const core::ffi::c_char,
        pub tensors: [*const core::ffi::c_char; 4], pub dims: [i32; 4], pub status: i32, pub n_values: u32 }
    #[repr(C)] pub struct Model { abi_version: u32, struct_size: u32, names: [*const core::ffi::c_char; 4], \
    model_sha256: [u8; 32],
        sizes: [u64; 4], tables: [*const core::ffi::c_void; 4], counts: [u32; 4], functions: [*const \
        core::ffi::c_void; 2],
        pub checks: *const Check, pub n_checks: u32, reserved: u32 }
";

const ERROR: &str = r#"
/// Why a call failed: printed, it names the node, the tensors and the sizes. The outputs are unspecified
/// then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error { status: Status, check: Option<u32>, text: &'static str, values: [i64; 4], workspace_size: u64 }
impl Error {
    /// What kind of error it is.
    pub const fn status(&self) -> Status { self.status }
    /// Number of the check that failed in the table of the metadata; none for one that this module makes.
    pub const fn check(&self) -> Option<u32> { self.check }
    /// The values that the check looked at.
    pub const fn values(&self) -> [i64; 4] { self.values }
    /// Where the call ran out of workspace: bytes that would have been enough up to there.
    pub const fn workspace_size(&self) -> Option<u64> { if self.workspace_size == 0 { None } else { Some(self.workspace_size) } }
    const fn local(status: Status, text: &'static str, a: i64, b: i64) -> Self { Error { status, check: None, text, values: [a, b, 0, 0], workspace_size: 0 } }
}
impl core::fmt::Display for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        use core::fmt::Write;
        let mut text = self.text;
        // SAFETY: the table has as many rows, and its texts are constant.
        let checks = unsafe { if sys::MODEL.n_checks == 0 { &[][..] } else { core::slice::from_raw_parts(sys::MODEL.checks, sys::MODEL.n_checks as usize) } };
        if let Some(c) = self.check.and_then(|c| checks.get(c as usize)) {
            // SAFETY: as above.
            let [node, op, rule] = [c.node, c.op_type, c.text].map(|p| unsafe { core::ffi::CStr::from_ptr(p) }.to_str().unwrap_or("?"));
            f.write_str(op)?;
            if !node.is_empty() { write!(f, "{}\"{node}\"", if op.is_empty() { "" } else { " " })?; }
            if !node.is_empty() || !op.is_empty() { f.write_str(": ")?; }
            if !rule.is_empty() { text = rule; }
        }
        if text.is_empty() { return self.status.fmt(f); }
        let mut values = self.values.iter();
        while let Some((before, after)) = text.split_once('%') {
            f.write_str(before)?;
            match after.strip_prefix("lld") {
                Some(rest) => { write!(f, "{}", values.next().unwrap_or(&0))?; text = rest; }
                None => { f.write_char('%')?; text = after.strip_prefix('%').unwrap_or(after); }
            }
        }
        f.write_str(text)
    }
}
impl core::error::Error for Error {}
"#;

/// `Status`, `Error` and their constructors.
pub(super) fn error(o: &mut String, model: &str) {
    o.push_str(
        "\n/// What kind of error it is.\n#[derive(Clone, Copy, Debug, PartialEq, \
        Eq)]\n#[non_exhaustive]\npub enum Status {\n",
    );
    for (_, _, variant, _, doc) in STATUS {
        let _ = writeln!(o, "    /// {}.\n    {variant},", sentence(doc));
    }
    o.push_str(
        "    /// A status of a later version.\n    Unknown(i32),\n}\nimpl core::fmt::Display for \
        Status {\n    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result \
        {\n        f.write_str(match self {\n",
    );
    for (_, _, variant, text, _) in STATUS {
        let _ = writeln!(o, "            Status::{variant} => \"{text}\",");
    }
    o.push_str(
        "            Status::Unknown(n) => return write!(f, \"unknown status {n}\"),\n        })\n    }\n}",
    );
    o.push_str(&ERROR.replace("sys::MODEL", &format!("sys::{model}_model")));
    o.push_str(
        "fn status(rc: i32, fault: &sys::Fault) -> Result<(), Error> {\n    let status = match rc \
        {\n        0 => return Ok(()),\n",
    );
    for (n, _, variant, _, _) in STATUS {
        let _ = writeln!(o, "        {n} => Status::{variant},");
    }
    o.push_str(
        "        n => Status::Unknown(n),\n    };\n    Err(Error { status, check: Some(fault.check), \
        text: \"\", values: fault.values, workspace_size: fault.workspace_size })\n}\n",
    );
}
