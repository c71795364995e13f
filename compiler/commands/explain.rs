//! `onnxc explain`: the tables of diagnostics and limits.

use crate::diag::{Error, Result, codes, limits};

/// Runs the command.
pub fn explain(code: Option<&str>) -> Result<()> {
    match code {
        None => {
            codes::TABLE.iter().for_each(|(c, _, title, _)| println!("{c}  {title}"));
            println!("limits what a model may ask of the compiler");
        }
        Some("limits") => limits::TABLE.iter().for_each(|l| {
            println!("{:14} {:>9}  {}\n{:14} {:>9}  instead: {}", l.name, l.value, l.bounds, "", "", l.help)
        }),
        Some(text) => match codes::find(text) {
            Some((c, _, title, help)) => println!("{c}: {title}\n\n{help}"),
            None => {
                return Error::new(codes::OPTION, format!("there is no diagnostic \"{text}\""))
                    .help("`onnxc explain` lists all of them")
                    .fail();
            }
        },
    }
    Ok(())
}
