//! schedule: tiles for contractions, vectors for the rest (stage Scheduled).

use super::{contract, lanes};
use crate::diag::Result;
use crate::nest::{Module, Stage, visit};
use crate::target::Level;

/// Runs the pass.
pub fn run(m: &mut Module, level: &Level) -> Result<()> {
    let facts = level.facts;
    let kernels = visit::calls(&m.driver);
    for k in kernels {
        if facts.lanes == 1 {
            lanes::estimate(m, k);
        } else if !contract::schedule(m, k, facts) {
            lanes::schedule(m, k, i64::from(facts.lanes));
        }
    }
    m.stage = Stage::Scheduled;
    Ok(())
}
