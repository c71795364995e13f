//! The comment of a header that explains how to call the model.

use super::*;

impl Header<'_> {
    /// The comment before `infer`.
    pub(super) fn manual(&self, o: &mut String) {
        let (i, u) = (self.i, &self.macros);
        o.push_str(
            "/* Runs the model once. Re-entrant: touches only its arguments and read-only data; no \
            allocation, no locks,\n   no errno, no FPU-mode change. Any thread may call it at any time with \
            its own workspace.\n",
        );
        if i.asks_cpu {
            let levels = if i.cpu.contains(',') { "levels" } else { "level" };
            let _ = writeln!(
                o,
                "   The object has code for the CPU {levels} {}. What this machine has is found out once \
                    and kept\n   in four bytes of the object, its only writable data: every thread writes \
                    the same value.",
                i.cpu.replace(',', ", ")
            );
        }
        if i.refuses_cpu {
            let _ = writeln!(
                o,
                "   ONNXC_E_CPU: the machine lacks instructions of the {} level.",
                if i.cpu.contains(',') { "first" } else { "only" }
            );
        }
        for p in &i.dim_params {
            let _ =
                writeln!(o, "   {}: dimension \"{}\", {} to {}.", p.ident, plain(&p.name), p.lo, dim_max(p));
        }
        let one = |v: &[Tensor]| if let [t] = v { Some(t.ident.clone()) } else { None };
        let _ = match (one(&i.inputs), one(&i.outputs)) {
            (Some(x), Some(y)) if i.outputs[0].aliases_input.is_none() => {
                writeln!(o, "   {x}, {y}: element alignment only; {y} must not overlap {x} or workspace.")
            }
            _ => writeln!(
                o,
                "   Inputs and outputs: element alignment only; an output must not overlap an input, \
                    another output or workspace."
            ),
        };
        for t in &i.outputs {
            if let Some(x) = t.aliases_input.and_then(|k| i.inputs.get(k as usize)) {
                let _ = writeln!(
                    o,
                    "   {0} may be the same memory as {1}: then what {1} holds stays, and only what is new \
                        is stored.",
                    t.ident, x.ident
                );
            }
            if let Some(d) = &t.described {
                let _ = writeln!(
                    o,
                    "   {}: filled by the call, {}; what it points to is valid until the next use of \
                        workspace.",
                    t.ident,
                    plain(&d.text(type_name(t.ty)))
                );
            }
            if from_data(i, t) {
                let _ = writeln!(
                    o,
                    "   {0}: {1} entries; in: the dims that {2} has room for; out: its dims, also with \
                        ONNXC_E_CAPACITY.",
                    self.out_dims(t),
                    t.dims.len(),
                    t.ident
                );
            }
        }
        if i.outputs.iter().any(|t| t.ty == ElemType::Str) {
            o.push_str(
                "   Strings of outputs lie in the memory of inputs, of weights, or in workspace: \
                copy what must outlive these.\n",
            );
        }
        for name in &i.foreign {
            let _ = writeln!(
                o,
                "   Calls {name}, which you link: onnxc_runtime.h tells what it does, the library \
                    onnxc-runtime has it."
            );
        }
        if i.weights.external {
            let _ = writeln!(
                o,
                "   weights: the contents of {}, at least {u}_WEIGHTS_SIZE bytes aligned to \
                    {u}_WEIGHTS_ALIGN, such as a mapping; only read.",
                plain(&i.weights.file)
            );
        }
        let size = if fixed_workspace(i).is_some() {
            format!("{u}_WORKSPACE_SIZE bytes")
        } else {
            format!("as many bytes as {}_workspace_size tells,", self.m)
        };
        if i.heap > 0 {
            let _ = writeln!(
                o,
                "   {} bytes of these hold values whose size follows from data. {m}_infer_exec takes \
                    another size: less will do where it is\n   enough, and on ONNXC_E_CAPACITY the fault \
                    tells a workspace_size to call again with.",
                i.heap,
                m = self.m
            );
        }
        let _ = writeln!(
            o,
            "   workspace: {size} aligned to {u}_WORKSPACE_ALIGN; contents in and out \
                undefined.\n   Returns ONNXC_OK or a positive ONNXC_E_ code; on error the outputs are \
                unspecified. */"
        );
    }
}
