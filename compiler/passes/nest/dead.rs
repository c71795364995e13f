//! drop_dead: removes kernels whose results nobody reads.

use crate::diag::Result;
use crate::nest::{Buf, Module, Place, Stmt, visit};
use cranelift_entity::SecondaryMap;

/// Runs the pass.
pub fn run(m: &mut Module) -> Result<()> {
    let mut needed: SecondaryMap<Buf, bool> = SecondaryMap::new();
    let driver = std::mem::take(&mut m.driver);
    let mut kept = vec![];
    for s in driver.into_iter().rev() {
        if let Stmt::Call(k) = &s {
            let body = &m.kernels[*k].body;
            let live = visit::stores(body).into_iter().any(|b| {
                let b = m.storage(b);
                needed[b] || matches!(m.bufs[b].place, Place::Output(_))
            });
            if !live {
                continue;
            }
            for b in visit::loads(body) {
                needed[m.storage(b)] = true;
            }
        }
        kept.push(s);
    }
    kept.reverse();
    m.driver = kept;
    Ok(())
}
