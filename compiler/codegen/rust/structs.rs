//! Structs of inputs and outputs, for interfaces with many.

use super::*;

impl Rust<'_> {
    /// `Inputs`, `Outputs` and `infer_io`.
    pub(super) fn structs(&self, o: &mut String) {
        let i = self.i;
        let args = self.args();
        let (inputs, rest) = args.split_at(i.inputs.len());
        let (outputs, rest) =
            rest.split_at(i.outputs.len() + i.outputs.iter().filter(|t| from_data(i, t)).count());
        let lends = |list: &[Arg]| self.lends() && list.iter().any(|a| a.rust.contains("Str<"));
        for (name, what, list) in [("Inputs", "inputs", inputs), ("Outputs", "outputs", outputs)] {
            let lifetimes = if list.iter().all(Arg::is_shared) {
                ""
            } else if lends(list) {
                "<'a, 's>"
            } else {
                "<'a>"
            };
            let _ = writeln!(o, "\n/// The {what} of [`infer_io`].\npub struct {name}{lifetimes} {{");
            for a in list.iter().filter(|a| !a.is_shared()) {
                let about =
                    tensors(i).find(|(_, t)| t.ident == a.name).map_or("Dims.".into(), |(what, t)| {
                        format!(
                            "{} `\"{}\"`: {}.",
                            if what == "input" { "Input" } else { "Output" },
                            plain(&t.name),
                            code(&type_text(i, t))
                        )
                    });
                let _ = writeln!(
                    o,
                    "    /// {about}\n    pub {}: {},",
                    a.name,
                    a.rust.replacen('&', "&'a ", 1).replace("'_", "'a")
                );
            }
            o.push_str("}\n");
        }
        let of = |list: &[Arg]| {
            if list.iter().all(Arg::is_shared) {
                ""
            } else if lends(list) {
                "<'_, 's>"
            } else {
                "<'_>"
            }
        };
        let mut params =
            vec![format!("inputs: &Inputs{}", of(inputs)), format!("outputs: &mut Outputs{}", of(outputs))];
        let mut given: Vec<String> = inputs
            .iter()
            .filter(|a| !a.is_shared())
            .map(|a| format!("inputs.{}", a.name))
            .chain(outputs.iter().map(|a| format!("outputs.{}", a.name)))
            .collect();
        if self.dynamic {
            params.insert(0, "dims: &Dims".into());
            given.insert(0, "dims".into());
        }
        params.extend(rest.iter().map(|a| format!("{}: {}", a.name, a.rust)));
        given.extend(rest.iter().map(|a| a.name.clone()));
        let unused = if inputs.iter().all(Arg::is_shared) {
            "    let _ = inputs;\n"
        } else if outputs.is_empty() {
            "    let _ = outputs;\n"
        } else {
            ""
        };
        let _ = writeln!(
            o,
            "/// [`infer`] with the tensors in structs.\npub fn infer_io{}({}) -> Result<(), Error> \
                {{\n{unused}    infer({})\n}}",
            if self.lends() { "<'s>" } else { "" },
            params.join(", "),
            given.join(", ")
        );
    }
}
