//! The sizes that a caller chooses, and the sizes that depend on them.

use super::*;

impl Rust<'_> {
    /// `Dims`, its sizes, and `workspace_size`.
    pub(super) fn dims(&self, o: &mut String) {
        let i = self.i;
        let n = i.dim_params.len();
        o.push_str(
            "\n/// Sizes that the caller chooses.\n#[derive(Clone, Copy, Debug, PartialEq, Eq, \
            Hash)]\npub struct Dims {\n",
        );
        for p in &i.dim_params {
            let _ = writeln!(
                o,
                "    /// Dimension `{}`: {} to {}.\n    pub {}: usize,",
                plain(&p.name),
                p.lo,
                dim_max(p),
                p.ident
            );
        }
        let _ = writeln!(o, "}}\nimpl Dims {{\n    fn values(&self) -> Result<[i64; {n}], Error> {{");
        for p in &i.dim_params {
            let text =
                format!("dimension {} is %lld: it must be from {} to {}", named(&p.name), p.lo, dim_max(p));
            let _ = writeln!(
                o,
                "        if !i64::try_from(self.{0}).is_ok_and(|n| ({1}..={2}).contains(&n)) {{ return \
                    Err(Error::local(Status::Dim, {text:?}, self.{0} as i64, 0)); }}",
                p.ident,
                p.lo,
                dim_max(p)
            );
        }
        let list: Vec<String> = i.dim_params.iter().map(|p| format!("self.{} as i64", p.ident)).collect();
        let _ = writeln!(o, "        Ok([{}])\n    }}", list.join(", "));
        let param = |p: &DimParam| {
            format!("Some(v[{}])", i.dim_params.iter().position(|q| q.sym == p.sym).unwrap_or(0))
        };
        let d = Dialect { call: "size::", number: &number, param: &param };
        for (what, t) in tensors(i).filter(|(_, t)| from_params(i, t)) {
            let (x, rank) = (&t.ident, t.dims.len());
            let used = t.dims.iter().any(|d| d.as_const().is_none());
            let _ =
                writeln!(o, "    /// Dims of {what} `\"{}\"`: {}.", plain(&t.name), code(&type_text(i, t)));
            let _ = writeln!(
                o,
                "    pub fn {x}_dims(&self) -> Result<[usize; {rank}], Error> {{\n        let {} = \
                    self.values()?;",
                if used { "v" } else { "_" }
            );
            let text = |k: usize| {
                format!(
                    "{what} {} dimension {k} would be %lld: it must not be negative or too large",
                    named(&t.name)
                )
            };
            let list: Vec<String> = t
                .dims
                .iter()
                .enumerate()
                .map(|(k, e)| format!("size::index({}, {:?})?", d.dim(i, *e), text(k)))
                .collect();
            let _ = writeln!(o, "        Ok([{}])\n    }}", list.join(", "));
            let (note, count) = match t.ty.bytes() {
                Some(_) => ("Elements", "Some(n)".to_owned()),
                None => (
                    "Bytes",
                    format!(
                        "size::floordiv(size::add(size::mul(Some(n), Some({})), Some(7)), Some(8))",
                        t.ty.bits()
                    ),
                ),
            };
            let large = format!("{what} {} would be too large", named(&t.name));
            let _ =
                writeln!(o, "    /// {note} of {what} `\"{}\"`: the length of its slice.", plain(&t.name));
            let _ = writeln!(
                o,
                "    pub fn {x}_len(&self) -> Result<usize, Error> {{\n        let n = \
                    self.{x}_dims()?.iter().try_fold(1i64, |n, d| n.checked_mul(*d as \
                    i64)).ok_or(Error::local(Status::Dim, {large:?}, 0, 0))?;\n        size::index({count}, \
                    {large:?})\n    }}"
            );
        }
        o.push_str("}\n");
        let list: Vec<String> = (0..n).map(|k| format!("v[{k}]")).collect();
        let _ = writeln!(
            o,
            "/// Bytes of workspace that [`infer`] needs for these dims.\npub fn workspace_size(dims: \
                &Dims) -> Result<usize, Error> {{\n    let v = dims.values()?;\n    let mut bytes = 0u64;"
        );
        let _ = writeln!(
            o,
            "    // SAFETY: the pointer is to a live `u64`; all else are numbers.\n    let rc = unsafe {{ \
                sys::{}_workspace_size({}, &mut bytes) }};",
            i.name,
            list.join(", ")
        );
        let nulls: Vec<String> = self
            .args()
            .iter()
            .map(|a| {
                if a.c.starts_with("*const") {
                    "core::ptr::null()".into()
                } else {
                    "core::ptr::null_mut()".into()
                }
            })
            .collect();
        let _ = writeln!(
            o,
            "    if rc != 0 {{\n        let mut fault = NO_FAULT;\n        let exec = exec(0, &mut fault, \
                &mut Exec::default());\n        // SAFETY: the sizes are checked before any memory is read \
                or written, and these fail.\n        let rc = unsafe {{ sys::{}_infer_exec({}, {}, &exec) \
                }};\n        status(rc, &fault)?;\n    }}\n    usize::try_from(bytes).map_err(|_| \
                Error::local(Status::Capacity, \"the workspace would be too large\", 0, 0))\n}}",
            i.name,
            list.join(", "),
            nulls.join(", ")
        );
    }
}
