//! Values of flags: what clap calls on each, so that a wrong one is a usage error (exit code 2) before
//! anything is read.

use crate::arrays;
use crate::options::{Declaration, Weights};
use crate::sym::text::{DimOption, parse_dim_option};
use crate::target::{LEVELS, Target};
use crate::{emit, pipeline};
use clap::builder::PossibleValuesParser;
use std::path::{Path, PathBuf};

type Parsed<T> = std::result::Result<T, String>;

/// `--emit`: a kind of the emit table.
pub fn kinds() -> PossibleValuesParser {
    PossibleValuesParser::new(
        emit::KINDS.iter().map(|k| clap::builder::PossibleValue::new(k.name).help(k.help)),
    )
}

/// `--stop-after`: a pass of the pass tables.
pub fn passes() -> PossibleValuesParser {
    PossibleValuesParser::new(pipeline::pass_names())
}

/// The candidate that a misspelt word is most likely meant to be.
fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let rated =
        candidates.into_iter().map(|c| (strsim::jaro(word, c), c)).filter(|(likeness, _)| *likeness > 0.7);
    rated.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, c)| c)
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map_or(String::new(), |n| format!("; a similar one is '{n}'"))
}

/// `--cpu`: names of levels, whichever architecture they are of. Whether they fit the target is checked with
/// it.
pub fn cpu(text: &str) -> Parsed<String> {
    let names = || LEVELS.iter().map(|l| l.name).chain(["native"]);
    for level in text.split(',').map(str::trim) {
        let name = level.strip_suffix('+').unwrap_or(level);
        if !names().any(|n| n == name) {
            return Err(format!(
                "there is no CPU level '{name}'{}\nlevels: {}",
                suggestion(nearest(name, names())),
                names().collect::<Vec<_>>().join(", ")
            ));
        }
    }
    Ok(text.to_owned())
}

/// Triples that a misspelt one may be meant to be.
const TRIPLES: &[&str] = &[
    "x86_64-unknown-linux-gnu",
    "x86_64-unknown-linux-musl",
    "x86_64-apple-darwin",
    "x86_64-pc-windows-msvc",
    "x86_64-pc-windows-gnu",
    "x86_64-unknown-freebsd",
    "x86_64-unknown-none",
    "x86_64-unknown-uefi",
    "x86_64-linux-android",
    "aarch64-unknown-linux-gnu",
    "aarch64-unknown-linux-musl",
    "aarch64-apple-darwin",
    "aarch64-apple-ios",
    "aarch64-linux-android",
    "aarch64-unknown-none",
    "aarch64-unknown-uefi",
    "riscv64gc-unknown-linux-gnu",
    "riscv64gc-unknown-none-elf",
    "riscv64imac-unknown-none-elf",
];

/// `--target`: a triple that code can be made for.
pub fn triple(text: &str) -> Parsed<String> {
    match Target::triple(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(e) => {
            let why: Vec<String> = std::iter::once(e.title)
                .chain(e.rows.into_iter().map(|(l, v)| format!("{l}: {v}")))
                .collect();
            Err(format!(
                "{}{}",
                why.join("\n"),
                suggestion(nearest(text, TRIPLES.iter().copied()).filter(|n| *n != text))
            ))
        }
    }
}

/// `--dim`.
pub fn dim(text: &str) -> Parsed<(String, DimOption)> {
    parse_dim_option(text)
}

/// `--size`: `N=4`.
pub fn size(text: &str) -> Parsed<(String, i64)> {
    let (name, value) = pair(text)?;
    match value.parse() {
        Ok(n) if n >= 0 => Ok((name, n)),
        _ => {
            Err(format!("'{value}' is not a size: expected a number that is not negative, such as {name}=4"))
        }
    }
}

/// `name=value`.
pub fn pair(text: &str) -> Parsed<(String, String)> {
    match text.rsplit_once('=') {
        Some((a, b)) if !a.is_empty() && !b.is_empty() => Ok((a.to_owned(), b.to_owned())),
        _ => Err("expected NAME=VALUE".into()),
    }
}

/// Arrays in a file: `NAME=FILE`, or `FILE.npz` for all arrays of the file.
#[derive(Clone, Debug)]
pub struct ArrayFile {
    /// The tensor; `None` for all that the file holds or is to hold.
    pub name: Option<String>,
    /// The file.
    pub path: PathBuf,
}

/// `--input` and `--output`.
pub fn array_file(text: &str) -> Parsed<ArrayFile> {
    let (name, file) = match text.rsplit_once('=') {
        Some((name, file)) if !name.is_empty() => (Some(name.to_owned()), file),
        Some(_) => return Err("the name before = is missing: expected NAME=FILE".into()),
        None => (None, text),
    };
    match arrays::format(Path::new(file)) {
        None => Err(format!("'{file}' has no known format: expected {}", arrays::FORMATS)),
        Some(f) if name.is_none() && f != arrays::Format::Npz => {
            Err(format!("which tensor is '{file}'? Expected NAME=FILE; only .npz files hold names"))
        }
        Some(_) => Ok(ArrayFile { name, path: file.into() }),
    }
}

/// `--heap`: bytes, or a number with K, M or G.
pub fn bytes(text: &str) -> Parsed<i64> {
    let (digits, shift) = match text.char_indices().next_back() {
        Some((at, 'K')) => (&text[..at], 10),
        Some((at, 'M')) => (&text[..at], 20),
        Some((at, 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let size = digits
        .parse::<i64>()
        .ok()
        .and_then(|n| n.checked_mul(1 << shift))
        .filter(|n| (0..=1 << 40).contains(n));
    size.ok_or_else(|| "expected bytes, or a number with K, M or G, up to 1024G".into())
}

/// `--custom`.
pub fn custom(text: &str) -> Parsed<Declaration> {
    crate::options::custom(text)
}

/// `--weights`.
pub fn weights(text: &str) -> Parsed<Weights> {
    match text.split_once('=') {
        None if text == "embed" => Ok(Weights::Embed),
        None if text == "file" => Ok(Weights::File(None)),
        Some(("file", p)) if !p.is_empty() => Ok(Weights::File(Some(p.into()))),
        _ => Err("expected embed, file or file=PATH".into()),
    }
}

/// `--name`: an identifier of C and Rust.
pub fn identifier(text: &str) -> Parsed<String> {
    if crate::codegen::names::is_identifier(text) {
        Ok(text.to_owned())
    } else {
        Err("expected an identifier of C and Rust, such as my_model".into())
    }
}

/// `--seconds`.
pub fn seconds(text: &str) -> Parsed<f64> {
    text.parse()
        .ok()
        .filter(|s| *s > 0.0 && *s <= 86_400.0)
        .ok_or_else(|| "expected a number of seconds above 0".into())
}

/// `--reference`: what `verify --per-node` compares with.
#[derive(Clone, Debug)]
pub enum Reference {
    /// The package onnxruntime.
    OnnxRuntime,
    /// The reference implementation of the package onnx.
    Onnx,
    /// Arrays that were saved.
    File(PathBuf),
}

/// `--reference`.
pub fn reference(text: &str) -> Parsed<Reference> {
    match text {
        "onnxruntime" => Ok(Reference::OnnxRuntime),
        "onnx" => Ok(Reference::Onnx),
        file if arrays::format(Path::new(file)) == Some(arrays::Format::Npz) => {
            Ok(Reference::File(file.into()))
        }
        _ => Err(format!(
            "expected onnxruntime, onnx or a file that ends in .npz{}",
            suggestion(nearest(text, ["onnxruntime", "onnx"]))
        )),
    }
}

/// A tolerance.
pub fn tolerance(text: &str) -> Parsed<f64> {
    text.parse()
        .ok()
        .filter(|t: &f64| *t >= 0.0)
        .ok_or_else(|| "expected a number that is not negative".into())
}
