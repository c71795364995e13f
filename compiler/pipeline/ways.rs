//! A module on its way through the nest passes: one copy for all CPU levels at first, more where passes do
//! not do the same for each of them.

use super::Stopped;
use crate::diag::Result;
use crate::nest::Module;
use crate::options::OptLevel;
use crate::passes::table::{Differs, NEST_PASSES, NestPass};
use crate::target::{Facts, Level, Target};
use rayon::prelude::*;

/// A module, and the levels that it is for: positions in `Ways::levels`, ascending.
struct Way {
    levels: Vec<usize>,
    module: Module,
}

/// The modules of all levels.
pub(super) struct Ways {
    levels: Vec<Level>,
    /// In the order of their first level.
    list: Vec<Way>,
    /// Whether levels that no pass has a use for are gone.
    pruned: bool,
}

impl Ways {
    pub fn new(module: Module, target: &Target) -> Ways {
        Ways {
            levels: target.levels.clone(),
            list: vec![Way { levels: (0..target.levels.len()).collect(), module }],
            pruned: false,
        }
    }
    /// Gives the levels for which a pass differs modules of their own. Before the first of these passes,
    /// levels that are there for the sake of a pass are dropped if it has no use for them in this model.
    pub fn part(&mut self, pass: &NestPass, target: &mut Target, opt: OptLevel) {
        if !matches!(pass.differs, Differs::Never) && !self.pruned {
            self.prune(target, opt);
        }
        for w in std::mem::take(&mut self.list) {
            let variant = |l: usize| match pass.differs {
                Differs::Never => 0,
                Differs::By(f) => f(&w.module, &self.levels[l].facts),
                Differs::Always => l as u32,
            };
            let mut parts: Vec<(u32, Vec<usize>)> = vec![];
            for l in w.levels {
                let v = variant(l);
                match parts.iter_mut().find(|p| p.0 == v) {
                    Some(p) => p.1.push(l),
                    None => parts.push((v, vec![l])),
                }
            }
            let last = parts.pop();
            self.list.extend(parts.into_iter().map(|(_, levels)| Way { levels, module: w.module.clone() }));
            self.list.extend(last.map(|(_, levels)| Way { levels, module: w.module }));
        }
        self.list.sort_by_key(|w| w.levels.first().copied());
    }
    fn prune(&mut self, target: &mut Target, opt: OptLevel) {
        self.pruned = true;
        let Some(Way { module, .. }) = self.list.first() else { return };
        let serves = || NEST_PASSES.iter().filter_map(|p| Some((p.level <= opt, p.serves.as_ref()?)));
        target.keep(|f: &Facts| {
            let list: Vec<_> = serves().filter(|(_, s)| (s.level)(f)).collect();
            list.is_empty() || list.iter().any(|(runs, s)| *runs && (s.useful)(module, f))
        });
        self.levels = target.levels.clone();
        self.list[0].levels = (0..self.levels.len()).collect();
    }
    /// Does something to every module, with the first level that it is for.
    pub fn each(&mut self, f: impl Fn(&Level, &mut Module) -> Result<()> + Sync) -> Result<()> {
        let levels = &self.levels;
        self.list.par_iter_mut().try_for_each(|w| f(&levels[w.levels[0]], &mut w.module))
    }
    /// The module of the last level.
    pub fn best(&self) -> Option<&Module> {
        let last = self.levels.len().checked_sub(1)?;
        self.list.iter().find(|w| w.levels.contains(&last)).map(|w| &w.module)
    }
    /// What there is after a pass.
    pub fn stopped(mut self) -> Stopped {
        match self.list.len() {
            1 => Stopped::Nest(Box::new(self.list.remove(0).module)),
            _ => Stopped::Levels(
                self.list.into_iter().map(|w| (self.levels[w.levels[0]].clone(), w.module)).collect(),
            ),
        }
    }
    /// One module for each level, in order.
    pub fn modules(self) -> Vec<Module> {
        let mut out: Vec<(usize, Module)> = vec![];
        for w in self.list {
            for l in w.levels.iter().skip(1) {
                out.push((*l, w.module.clone()));
            }
            out.extend(w.levels.first().map(|l| (*l, w.module)));
        }
        out.sort_by_key(|x| x.0);
        out.into_iter().map(|x| x.1).collect()
    }
}
