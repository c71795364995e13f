//! join_borders: the sides of a padded buffer's border are filled by one kernel. They are short, so that
//! calls and the code around their loops would outweigh the stores.
//!
//! ```text
//! call side1  call side2   ->   call side1: { par i { b[0, i] = 0 }  par i { b[n, i] = 0 } }
//! ```

use crate::diag::Result;
use crate::nest::{Buf, Expr, Kernel, Module, Stmt, TASK_WORK, visit};
use crate::sym::Dim;
use std::collections::HashMap;

/// Sides of at least this work, in scalar operations, stay kernels of their own, which threads share.
const LARGE: i64 = 2 * TASK_WORK;

/// Runs the pass.
pub fn run(m: &mut Module) -> Result<()> {
    let mut calls: HashMap<Kernel, usize> = HashMap::new();
    visit::calls(&m.driver).into_iter().for_each(|k| *calls.entry(k).or_default() += 1);
    let mut driver = std::mem::take(&mut m.driver);
    join(m, &mut driver, &|k| calls.get(&k) == Some(&1));
    m.driver = driver;
    Ok(())
}

/// Joins adjacent calls of kernels that are called `once`, nested ones too.
fn join(m: &mut Module, driver: &mut Vec<Stmt>, once: &dyn Fn(Kernel) -> bool) {
    // The last call, and what it fills.
    let mut last: Option<(Kernel, Buf)> = None;
    driver.retain_mut(|s| {
        s.bodies_mut().for_each(|b| join(m, b, once));
        let side = match s {
            Stmt::Call(k) if once(*k) => filled(m, *k).map(|b| (*k, b)),
            _ => None,
        };
        match (last, side) {
            (Some((into, b)), Some((k, other))) if b == other => {
                append(m, into, k);
                false
            }
            _ => {
                last = side;
                true
            }
        }
    });
}

/// The buffer that a kernel fills with a constant, if it does nothing else and is short.
fn filled(m: &Module, k: Kernel) -> Option<Buf> {
    let data = &m.kernels[k];
    let [b] = visit::stores(&data.body)[..] else { return None };
    let mut constant = true;
    visit::walk(&data.body, &mut |s| constant &= matches!(s, Stmt::For { .. } | Stmt::Store { .. }));
    visit::walk_exprs(&data.body, &mut |e| constant &= matches!(e, Expr::Const(_)));
    (constant && data.work.as_const().is_none_or(|w| w < LARGE)).then(|| m.storage(b))
}

/// Moves the statements of a kernel to the end of another.
fn append(m: &mut Module, to: Kernel, from: Kernel) {
    let data = &mut m.kernels[from];
    let (body, schedules) = (std::mem::take(&mut data.body), std::mem::take(&mut data.schedules));
    let work = std::mem::replace(&mut data.work, Dim::constant(0));
    let into = &mut m.kernels[to];
    into.body.extend(body);
    into.schedules.extend(schedules);
    into.work = into.work + work;
}
