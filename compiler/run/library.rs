//! Functions of custom operators in a shared library, for models that run in this process.

use crate::codegen::interface::Interface;
use crate::diag::{Error, Failure, Result, codes};
use libloading::Library;
use std::path::Path;

/// Loads a library and finds the functions of a model's custom operators in it.
pub fn open(path: &Path, i: &mut Interface) -> Result<Library> {
    // A name without a folder would be searched for in those of the system.
    let file = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let io = |e: libloading::Error| Failure::Io(path.display().to_string(), e.to_string());
    // SAFETY: what a library does when it is loaded is up to the user who names it.
    #[allow(unsafe_code)]
    let library = unsafe { Library::new(file) }.map_err(io)?;
    for (symbol, _) in &i.customs {
        // SAFETY: nothing is called here; generated code calls it as the header declares it.
        #[allow(unsafe_code)]
        let found = unsafe { library.get::<*const u8>(symbol.as_bytes()) };
        match found {
            Ok(f) => i.symbols.push((symbol, (*f).addr())),
            Err(e) => {
                return Error::new(codes::OPTION, format!("--custom-library: there is no function {symbol}"))
                    .row("file", path.display().to_string())
                    .row("found", e.to_string())
                    .help("export it from the library: no static, no hidden visibility")
                    .fail();
            }
        }
    }
    Ok(library)
}
