//! The tiles of an object: distinct functions, and code that several of them share.

use super::{Compiled, Source};
use crate::codegen::{debug, tile};
use crate::diag::Result;
use cranelift_codegen::binemit::Reloc;
use cranelift_module::{FuncId, ModuleReloc, ModuleRelocTarget};
use rayon::prelude::*;
use std::collections::{HashMap, HashSet};

/// Indices of the distinct tiles among the functions of the object.
pub(super) type TileNumbers<'a> = HashMap<&'a tile::Func, usize>;

/// A tile of the object.
pub(super) struct WideTile {
    /// The name of the first function that calls it, with the suffix ".tile"; ".shared" follows if several
    /// tiles share it.
    pub name: String,
    /// The variant of that function.
    pub variant: Option<usize>,
    pub code: tile::Code,
    /// The code to which it jumps.
    pub jump: Option<Jump>,
    /// Its operations as text, if requested.
    pub listing: String,
}

/// A jump to another tile, which precedes.
pub(super) struct Jump {
    to: usize,
    at: u32,
    kind: Reloc,
    addend: i64,
    /// The alignment of the function that jumps.
    pub(super) align: u64,
}

impl Jump {
    /// Its relocation.
    pub(super) fn reloc(&self, tiles: &[FuncId]) -> ModuleReloc {
        let name = ModuleRelocTarget::user(0, tiles[self.to].as_u32());
        ModuleReloc { offset: self.at, kind: self.kind, name, addend: self.addend }
    }
}

/// A distinct tile, its name, and the function that calls it.
struct Distinct<'a> {
    f: &'a tile::Func,
    name: String,
    source: &'a Source,
}

impl Distinct<'_> {
    /// The tile as a stub of the code with the index `to`.
    fn passing(&self, stub: tile::Stub, to: usize, stack: u32) -> WideTile {
        let rows = debug::rows(self.source.line, std::iter::empty());
        WideTile {
            name: self.name.clone(),
            variant: self.source.id.variant,
            code: tile::Code { bytes: stub.bytes, steps: vec![], rows, stack },
            jump: Some(Jump { to, at: stub.jump, kind: stub.kind, addend: stub.addend, align: stub.align }),
            listing: String::new(),
        }
    }
}

/// The distinct tiles of all functions, with their code.
pub(super) fn wide_tiles(
    done: &[(Source, Compiled)],
    listing: bool,
) -> Result<(TileNumbers<'_>, Vec<WideTile>)> {
    let mut names: HashSet<String> = done.iter().map(|(s, _)| s.name.clone()).collect();
    let mut seen = HashSet::new();
    let mut distinct: Vec<Distinct> = vec![];
    for (s, _) in done {
        let mut number = 1;
        for f in s.tiles.iter().filter(|f| seen.insert(*f)) {
            let mut name = format!("{}.tile", s.name);
            while !names.insert(name.clone()) {
                number += 1;
                name = format!("{}.tile.{number}", s.name);
            }
            distinct.push(Distinct { f, name, source: s });
        }
    }
    let all: Vec<&tile::Func> = distinct.iter().map(|d| d.f).collect();
    let merged = tile::merge(&all);
    let codes = merged.par_iter().map(|m| tile::compile(&m.func)).collect::<Result<Vec<_>>>()?;
    let (mut index, mut out) = (HashMap::new(), vec![]);
    for (m, code) in merged.into_iter().zip(codes) {
        let Some(first) = m.users.first().map(|u| &distinct[u.0]) else { continue };
        let (to, stack) = (out.len(), code.stack);
        let is_shared = m.users.iter().any(|u| u.1.is_some());
        let name = if is_shared { unused(&mut names, &first.name) } else { first.name.clone() };
        let rows = debug::rows(first.source.line, code.rows.into_iter());
        let listing = if listing { tile::text::print(&m.func) } else { String::new() };
        let code = tile::Code { rows, ..code };
        out.push(WideTile { name, variant: first.source.id.variant, code, jump: None, listing });
        for (user, stub) in m.users {
            let d = &distinct[user];
            index.insert(d.f, if stub.is_some() { out.len() } else { to });
            out.extend(stub.map(|s| d.passing(s, to, stack)));
        }
    }
    Ok((index, out))
}

/// A name for the code that several tiles share.
fn unused(names: &mut HashSet<String>, first: &str) -> String {
    let mut name = format!("{first}.shared");
    while !names.insert(name.clone()) {
        name.push('_');
    }
    name
}
