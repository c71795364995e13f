//! Kernels that differ in literals only share code, which reads those literals from its frame.

use crate::maps::{Map, Set};
use crate::nest::key::{Key, Writer};
use crate::nest::{Expr, Kernel, Module, Scalar, Stmt, literals, visit};
use crate::tensor::ElemType;
use rayon::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;

/// Words of the key of a body whose code is larger than the function that fills a frame for it: for the
/// frame, and for each literal in it.
const LEAST: [usize; 2] = [100, 10];

/// The share of a kernel in code.
#[derive(Clone)]
pub struct Shared {
    /// The kernel from which the code is generated.
    pub first: Kernel,
    /// The literals of all kernels that share it.
    pub passed: Arc<Passed>,
    /// The words of the frame for those that differ.
    pub values: Vec<Scalar>,
}

/// Literals of the kernels that share code.
#[derive(Default)]
pub struct Passed {
    /// Which word of the frame holds a literal of the body, unless it is the same in all of them.
    words: Vec<Option<usize>>,
    /// Numbers that occur in none of the bodies and stand for these words.
    pub marks: Vec<Scalar>,
}

impl Passed {
    /// The body from which code is generated: marks in place of literals that the frame holds. `None` for the
    /// body itself.
    pub fn body(&self, body: &[Stmt]) -> Option<Vec<Stmt>> {
        if self.marks.is_empty() {
            return None;
        }
        let mut body = body.to_vec();
        let mut words = self.words.iter();
        literals::each(&mut body, &mut |s| {
            if let Some(Some(w)) = words.next() {
                *s = self.marks[*w];
            }
        });
        Some(body)
    }
}

/// A kernel, and its literals.
type Member<'a> = (Kernel, &'a [Scalar]);

/// Those of the kernels that share code; `embedded` and `tiles` as for [`Writer::code`]. Without tiles their
/// literals may differ: tiles have another way (`tile::merge`).
pub fn shared(m: &Module, kernels: &[Kernel], embedded: bool, tiles: bool) -> HashMap<Kernel, Shared> {
    let keys: Vec<Option<(Key, Vec<Scalar>)>> = kernels
        .par_iter()
        .map(|k| {
            let body = &m.kernels[*k].body;
            if tiles {
                return Some((Writer::code(m, body, embedded, tiles)?, vec![]));
            }
            let (mut body, mut values) = (body.to_vec(), vec![]);
            literals::each(&mut body, &mut |s| {
                values.push(*s);
                s.bits = 0;
            });
            Some((Writer::code(m, &body, embedded, tiles)?, values))
        })
        .collect();
    let mut of: HashMap<&Key, Vec<Member>> = HashMap::new();
    for (k, key) in kernels.iter().zip(&keys) {
        if let Some((key, values)) = key {
            of.entry(key).or_default().push((*k, values));
        }
    }
    of.into_iter().flat_map(|(key, group)| share(m, key, &group)).collect()
}

/// The shares of kernels whose bodies are equal but for literals.
fn share(m: &Module, key: &Key, group: &[Member]) -> Vec<(Kernel, Shared)> {
    let Some((first, literals)) = group.first() else { return vec![] };
    // A word for all literals that are equal in each of the kernels.
    let mut columns: Vec<Vec<Scalar>> = vec![];
    let mut numbers: Map<Vec<Scalar>, usize> = Map::default();
    let words = (0..literals.len())
        .map(|i| {
            let column: Vec<Scalar> = group.iter().map(|g| g.1[i]).collect();
            column.iter().any(|s| *s != column[0]).then(|| {
                *numbers.entry(column).or_insert_with_key(|c| {
                    columns.push(c.clone());
                    columns.len() - 1
                })
            })
        })
        .collect();
    if !columns.is_empty() && key.words() < LEAST[0] + LEAST[1] * columns.len() {
        let mut equal: Map<&[Scalar], Vec<Member>> = Map::default();
        group.iter().for_each(|g| equal.entry(g.1).or_default().push(*g));
        return equal.into_values().flat_map(|g| share(m, key, &g)).collect();
    }
    if group.len() < 2 {
        return vec![];
    }
    let passed = Arc::new(Passed { words, marks: marks(m, group, &columns) });
    let one = |(i, g): (usize, &Member)| {
        let values = columns.iter().map(|c| c[i]).collect();
        (g.0, Shared { first: *first, passed: passed.clone(), values })
    };
    group.iter().enumerate().map(one).collect()
}

/// A number for each column that is in no body.
fn marks(m: &Module, group: &[Member], columns: &[Vec<Scalar>]) -> Vec<Scalar> {
    let mut taken: Set<Scalar> = Set::default();
    for (k, _) in group.iter().filter(|_| !columns.is_empty()) {
        visit::walk_exprs(&m.kernels[*k].body, &mut |e| {
            if let Expr::Const(s) = e {
                taken.insert(*s);
            }
        });
    }
    let mut mark = |c: &Vec<Scalar>| {
        let ty = c[0].ty;
        // Floats somewhat above 1, and integers of that size.
        let from = if ty == ElemType::F64 { 0x3ff1_0000_0000_0001 } else { 0x3f88_0001 };
        let mut s = Scalar { ty, bits: from };
        while !taken.insert(s) {
            s.bits += 1;
        }
        s
    };
    columns.iter().map(&mut mark).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diag::Origin;
    use crate::sym::{Dim, SymTable};
    use crate::tensor::ElemType;

    /// Kernels that add and multiply by turns, `steps` times, each with its first factor and its addend.
    fn kernels(steps: usize, numbers: &[(f32, f32)]) -> (Module, Vec<Kernel>) {
        let mut m = Module::new("m", SymTable::default());
        let dims = vec![Dim::constant(8)];
        let x = m.temp("x", ElemType::F32, dims.clone());
        let make = |(first, addend): &(f32, f32)| {
            let y = m.temp("y", ElemType::F32, dims.clone());
            m.map(y, &Origin::default(), |kb, at| {
                let begin = kb.load(x, at) * Expr::f32(*first);
                (0..steps).fold(begin, |e, _| (e + Expr::f32(*addend)) * Expr::f32(2.0))
            })
        };
        let kernels = numbers.iter().map(make).collect();
        (m, kernels)
    }

    #[test]
    fn kernels_pass_the_literals_that_differ() {
        let (m, k) = kernels(40, &[(0.5, 3.0), (0.25, 3.0), (0.5, 4.0)]);
        let s = shared(&m, &k, true, false);
        let values = |k: &Kernel| s[k].values.iter().map(|v| v.to_f64()).collect::<Vec<_>>();
        assert_eq!(k.iter().map(values).collect::<Vec<_>>(), [[0.5, 3.0], [0.25, 3.0], [0.5, 4.0]]);
        assert!(k.iter().all(|k| s[k].first == self::first(&s) && s[k].passed.marks.len() == 2));
        // The bodies with marks differ in nothing but buffers, and keep what is the same in all of them.
        let bodies: Vec<Vec<Stmt>> = k.iter().filter_map(|k| s[k].passed.body(&m.kernels[*k].body)).collect();
        let keys: Vec<_> = bodies.iter().map(|b| Writer::code(&m, b, true, false)).collect();
        assert!(keys.len() == 3 && keys.iter().all(|k| k.is_some() && *k == keys[0]));
        assert!(visit::any_expr(&bodies[0], &mut |e| *e == Expr::f32(2.0)));
        assert!(!visit::any_expr(&bodies[0], &mut |e| *e == Expr::f32(0.5)));
        // Where there are tiles, bodies are equal or share nothing.
        assert!(shared(&m, &k, true, true).is_empty());
    }

    fn first(s: &HashMap<Kernel, Shared>) -> Kernel {
        s.values().map(|s| s.first).min().unwrap()
    }

    #[test]
    fn small_kernels_share_only_if_they_are_equal() {
        let (m, k) = kernels(2, &[(0.5, 3.0), (0.25, 3.0), (0.5, 3.0)]);
        let s = shared(&m, &k, true, false);
        assert!(s.len() == 2 && s[&k[2]].first == k[0] && s[&k[2]].values.is_empty());
        assert!(s[&k[0]].passed.body(&m.kernels[k[0]].body).is_none());
    }

    #[test]
    fn marks_are_no_numbers_of_a_body() {
        let mark = f32::from_bits(0x3f88_0001);
        let (m, k) = kernels(40, &[(mark, 3.0), (0.25, 3.0)]);
        let s = shared(&m, &k, true, false);
        assert!(s[&k[0]].passed.marks[0] != Scalar::f32(mark));
    }

    #[test]
    fn powers_of_two_among_divisors_belong_to_the_code() {
        let mut m = Module::new("m", SymTable::default());
        let dims = vec![Dim::constant(8)];
        let x = m.temp("x", ElemType::F32, dims.clone());
        let mut k = vec![];
        for by in [3.0, 4.0] {
            let y = m.temp("y", ElemType::F32, dims.clone());
            k.push(m.map(y, &Origin::default(), |kb, at| {
                (0..40).fold(kb.load(x, at), |e, _| e / Expr::f32(by) + kb.load(x, at))
            }));
        }
        assert!(shared(&m, &k, true, false).is_empty());
    }
}
