//! Stack usage of calls.

use super::{Compiled, Id, Source, Unit, wide_tiles};
use crate::codegen::clif::{TILE_NAMESPACE, entry};
use crate::codegen::tile;
use crate::diag::Result;
use cranelift_codegen::FinalizedRelocTarget;
use cranelift_codegen::ir::ExternalName;
use std::collections::HashMap;

impl Unit<'_> {
    /// Most bytes of stack that a call uses on any CPU level: return addresses and frames of its longest call
    /// chain. The stack of the caller's own functions, of libm and of custom operators is not included.
    pub fn stack(&self) -> Result<u64> {
        let (done, _) = self.compile()?;
        let (index, code) = wide_tiles(&done, false)?;
        let tile =
            |f: &tile::Func| index.get(f).and_then(|i| code.get(*i)).map_or(0, |t| u64::from(t.code.stack));
        let functions: HashMap<Id, &(Source, Compiled)> = done.iter().map(|f| (f.0.id, f)).collect();
        let mut chains = Chains { functions: &functions, known: HashMap::new(), tile: &tile };
        let own = |number| functions.get(&Id { variant: None, number }).map_or(0, |f| u64::from(f.1.stack));
        let from = |number| Id { variant: None, number };
        let longest = chains.longest(from(entry::INFER)).max(chains.longest(from(entry::INFER_EXEC)));
        // The caller's scheduler may run tasks on the stack of the call, through a pointer.
        Ok(longest + own(entry::LAUNCH) + own(entry::TASK))
    }
}

/// Longest chains of calls.
struct Chains<'a> {
    functions: &'a HashMap<Id, &'a (Source, Compiled)>,
    known: HashMap<Id, u64>,
    /// The stack of a tile.
    tile: &'a dyn Fn(&tile::Func) -> u64,
}

impl Chains<'_> {
    /// The longest chain of a function and the functions it refers to, which it calls or passes on to be
    /// called.
    fn longest(&mut self, id: Id) -> u64 {
        if let Some(n) = self.known.get(&id) {
            return *n;
        }
        let Some((s, c)) = self.functions.get(&id) else { return 0 };
        let mut below = 0;
        for r in &c.relocs {
            let FinalizedRelocTarget::ExternalName(ExternalName::User(u)) = &r.target else { continue };
            let name = &c.func.params.user_named_funcs()[*u];
            below = below.max(match name.namespace {
                entry::LOCAL_NAMESPACE => {
                    let to = super::called_as(s.id, name.index);
                    let there = |id: Id| self.functions.contains_key(&id).then_some(id);
                    there(to).or_else(|| there(Id { variant: None, ..to })).map_or(0, |id| self.longest(id))
                }
                TILE_NAMESPACE => s.tiles.get(name.index as usize).map_or(0, self.tile),
                _ => 0,
            });
        }
        let all = u64::from(c.stack) + below;
        self.known.insert(id, all);
        all
    }
}
