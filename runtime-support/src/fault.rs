//! Errors of failing calls: [`Error`], and the message of a check with its values.

#![allow(unsafe_code, reason = "reads foreign metadata")]

use crate::abi::{Status, onnxc_check_info, onnxc_fault, onnxc_model};
use std::ffi::{CStr, c_char};
use std::fmt;

/// Bytes of the metadata's struct in versions without checks.
pub(crate) const WITHOUT_CHECKS: usize = 168;

/// The index that means no check.
pub(crate) const NO_CHECK: u32 = u32::MAX;

/// The reason why a call failed. Its text names the node, the tensors and the sizes.
#[derive(Clone, Debug)]
pub struct Error {
    status: Status,
    message: String,
    fault: Option<onnxc_fault>,
}

impl Error {
    pub(crate) fn new(status: Status, message: impl Into<String>) -> Error {
        Error { status, message: message.into(), fault: None }
    }
    pub(crate) fn of_fault(status: Status, message: String, fault: onnxc_fault) -> Error {
        Error { status, message, fault: (fault.check != NO_CHECK).then_some(fault) }
    }
    /// The status of the error.
    pub fn status(&self) -> Status {
        self.status
    }
    /// The record of the model, if one of its own checks failed.
    pub fn fault(&self) -> Option<&onnxc_fault> {
        self.fault.as_ref()
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Error {
        Error::new(status, "")
    }
}

impl PartialEq<Status> for Error {
    fn eq(&self, other: &Status) -> bool {
        self.status == *other
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.message.is_empty() {
            self.status.fmt(f)
        } else {
            write!(f, "{}: {}", self.status, self.message)
        }
    }
}

impl std::error::Error for Error {}

/// The message of a check: operator and node, then its text with the values substituted for each `%lld`.
pub fn sentence(node: &str, op: &str, text: &str, values: &[i64]) -> String {
    let mut out = op.to_owned();
    if !node.is_empty() {
        out += if op.is_empty() { "\"" } else { " \"" };
        out += node;
        out.push('"');
    }
    if !out.is_empty() {
        out += ": ";
    }
    let (mut rest, mut values) = (text, values.iter());
    while let Some((before, after)) = rest.split_once('%') {
        out += before;
        rest = match after.strip_prefix("lld") {
            Some(after) => {
                out += &values.next().unwrap_or(&0).to_string();
                after
            }
            None => {
                out.push('%');
                after.strip_prefix('%').unwrap_or(after)
            }
        };
    }
    out + rest
}

/// Whether the metadata has a table of checks, which older compilers did not write.
pub(crate) fn has_checks(m: &onnxc_model) -> bool {
    m.struct_size as usize >= size_of::<onnxc_model>() && !m.checks.is_null()
}

/// The message of a fault; empty if the metadata has none.
pub(crate) fn message(m: &'static onnxc_model, fault: &onnxc_fault) -> String {
    if !has_checks(m) || fault.check >= m.n_checks {
        return String::new();
    }
    // SAFETY: the promise of whoever made the model known: there are as many rows, of constant texts.
    let (c, text): (&onnxc_check_info, _) = unsafe {
        (&*m.checks.add(fault.check as usize), |p: *const c_char| {
            if p.is_null() { String::new() } else { CStr::from_ptr(p).to_string_lossy().into_owned() }
        })
    };
    let rule = text(c.text);
    let general = Status::check(fault.status).err().map_or(String::new(), |s| s.to_string());
    sentence(&text(c.node), &text(c.op_type), if rule.is_empty() { &general } else { &rule }, &fault.values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences() {
        assert_eq!(
            sentence("a", "Add", "x is %lld, 100 %% of %lld", &[-5, i64::MIN]),
            format!("Add \"a\": x is -5, 100 % of {}", i64::MIN)
        );
        assert_eq!(sentence("", "", "%lld %l %", &[]), "0 %l %");
        assert_eq!(Error::from(Status::Dim).to_string(), "bad dimension");
        assert_eq!(Error::new(Status::Dim, "x").to_string(), "bad dimension: x");
    }
}
