//! The requirements of the ONNX IR, one entry each: tests/spec/*.spec holds models, verdicts and expected
//! findings, tests/spec/ids.txt the list of all requirements. docs/SPEC.md is generated from both.
//!
//! ```text
//! cargo test --test spec WIRE-03              one requirement
//! ONNXC_UPDATE=1 cargo test --test spec page  writes docs/SPEC.md
//! ```
//!
//! # Format
//!
//! ```text
//! # a comment
//! === R-WIRE-03
//! verdict: holds                       or: decided (against the requirement; `why` gives the reason)
//! why: text for docs/SPEC.md, on one line; optional for `holds`
//! see: R-SHAPE-01, tests/fuzz.py       instead of or beside tests: other entries and files of the repository
//!
//! --- accept                           compiles without a finding
//! --- warn E0011 "text" "more text"    compiles; each warning has this code, one of them all the texts; an error with --strict
//! --- note E0013 "text"                the same for notes, which --strict leaves alone
//! --- error E0001 "text"               fails with this one error (`@errors N` for several)
//! --- unsupported E0108 "text"         the same, and the message says so
//! --- accept [--dim N=4 --strict]      flags as on the command line
//! x (float[2] x) => (float[2] y) { y = Relu(x) }
//! ```
//!
//! A model is ONNX text. Without a header it gets `<ir_version: 10, opset_import: ["" : 21]>`, and a test
//! without a model takes the one of the example above. `$(1..40: text #)` stands for forty copies of the text
//! with `#` replaced by the number. What ONNX text cannot say is told by lines that begin with `@`, in order:
//!
//! ```text
//! @set graph.node[0].op_type = "Abs"   replaces a field; `graph.node[0]` is an element, `graph.node` all of them
//! @add graph.node = { op_type: "Abs" input: ["x", "y"] }       appends a field, also one that is there already
//! @clear graph.name                    removes it
//! @raw graph = 0a 01 78                appends bytes to a message; `.` is the model
//! @wrap 99 graph.input[0].type = { sequence_type: { elem_type: $ } }    replaces a message 99 times; `$` is the old one
//! @cut 3                               drops bytes at the end of the file
//! @bytes 08 0a                         the whole file
//! @file w.bin = 00 00 80 3f            a file beside the model; `zeros 4096` and "text" are contents, too
//! @link w.bin -> other.bin             a symbolic link; also @hardlink; @dir NAME and @fifo NAME
//! @stdin                               the model has no folder
//! ```
//!
//! Values are integers, floats, strings with `\xNN`, messages in braces, lists in brackets for repeated
//! fields. What to look at behind the compilation:
//!
//! ```text
//! @run float[2] x = {1, 2} -> float[2] y = {1, 2}     calls the model; `-> error "text"` if it must fail
//! @shows header "text"                                something that --emit writes holds the text; also @hides
//! @cc                                                 the header passes a C compiler (where there is one)
//! @same                                               the code is that of the test before
//! @errors 2                                           number of errors, 1 otherwise
//! ```

#[path = "spec/format.rs"]
mod format;
#[path = "spec/page.rs"]
mod page;
#[path = "spec/perform.rs"]
mod perform;
#[path = "spec/recipe.rs"]
mod recipe;

use libtest_mimic::{Arguments, Failed, Trial};
use std::path::PathBuf;

/// A path inside the repository.
pub fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn main() {
    let entries = match format::read_all(&repository("tests/spec")) {
        Ok(e) => e,
        Err(e) => {
            eprintln!("{e}");
            std::process::exit(1);
        }
    };
    let all = entries.clone();
    let mut trials = vec![Trial::test("page", move || page::check(&all).map_err(Failed::from))];
    let all: Vec<String> = entries.iter().filter(|e| !e.tests.is_empty()).map(|e| e.id.clone()).collect();
    for e in entries {
        let all = all.clone();
        trials.push(Trial::test(e.id.clone(), move || perform::entry(&e, &all).map_err(Failed::from)));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
