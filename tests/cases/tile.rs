//! Cases of the tile backend: a function of the tile IR as text, and what each machine selects for it; with a line
//! `; words` its code as well, in words of 32 bits.

use super::snapshot;
use onnxc::codegen::tile::ir::Width;
use onnxc::codegen::tile::{compile, select, text};
use std::fmt::Write;
use std::path::Path;

const WIDTHS: &[(&str, Width)] = &[
    ("avx2", Width::Avx2),
    ("avx512", Width::Avx512),
    ("neon", Width::Neon),
    ("rvv128", Width::Rvv128),
    ("rvv256", Width::Rvv256),
    ("rvv512", Width::Rvv512),
];

/// Runs the case of a file.
pub fn case(path: &Path) -> Result<(), String> {
    let file = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let (head, body) = file.split_at(file.find("tile ").ok_or("no tile")?);
    let f = text::parse(body)?;
    let again = text::print(&f);
    if again != body {
        return Err(format!("the text reads back as\n{again}"));
    }
    let machines =
        head.lines().find_map(|l| l.strip_prefix("; machines: ")).ok_or("a case names its machines")?;
    let mut out = String::new();
    for name in machines.split(", ") {
        let width = WIDTHS.iter().find(|w| w.0 == name).ok_or("no such machine")?.1;
        let f = onnxc::codegen::tile::Func { width, ..f.clone() };
        let selected = select(&f).map_err(|e| e.to_string())?;
        let code = compile(&f).map_err(|e| e.to_string())?;
        let _ = write!(out, "{}; {} bytes of code\n\n", text::print(&selected), code.bytes.len());
        if head.contains("; words\n") {
            let words = code.bytes.chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]));
            words.for_each(|w| _ = writeln!(out, "{w:08x}"));
        }
    }
    snapshot(path, &stem, "selected", &out)
}
