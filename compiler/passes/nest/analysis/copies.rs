//! Copies: the nests of a network's layers are equal except for the buffers that they access. What a pass
//! emits for the first of them is copied for the others, with their buffers.
//!
//! Copies share registers and loop variables with the first body (rule 6 of `nest`), so that their dims are
//! the same. Builds with debug assertions emit the first copy of each body as well and compare, which takes
//! a copy of the module.

use crate::nest::key::{Key, Writer};
use crate::nest::{Buf, BufData, Kernel, Module, Place, Stmt};
use std::collections::HashMap;
use std::sync::Arc;

/// The bodies that a pass has emitted, each with facts `T` about it, in terms of its loop variables.
pub(crate) struct Copies<T> {
    known: HashMap<Key, First<T>>,
}

/// The first body with a key.
struct First<T> {
    /// Its kernel, after which its scratch is named.
    name: String,
    /// The buffers of the key.
    bufs: Vec<Buf>,
    /// Buffers that were added with it.
    made: Vec<Made>,
    body: Vec<Stmt>,
    facts: T,
    /// A copy was compared with what the pass emits.
    compared: bool,
}

/// A buffer that was added with a body.
struct Made {
    buf: Buf,
    /// For a constant: the number of the buffer in the key whose rearrangement it is.
    from: Option<usize>,
}

/// What a pass emits.
pub(crate) struct Emitted<T> {
    pub body: Vec<Stmt>,
    pub facts: T,
    /// True if it depends on nothing but its key.
    pub alone: bool,
}

impl<T> Default for Copies<T> {
    fn default() -> Self {
        Copies { known: HashMap::new() }
    }
}

impl<T: Clone> Copies<T> {
    /// The body that `make` emits for kernel `k`. `of` is the key of everything that it depends on, apart
    /// from what is the same in the whole pass, with the buffers in it. If it turns out to depend on more, or
    /// if `make` adds anything to the module besides registers, loop variables, scratch and rearrangements of
    /// constants in the key, the body is not copied.
    pub fn emit(
        &mut self,
        m: &mut Module,
        k: Kernel,
        of: (Key, Vec<Buf>),
        make: impl FnOnce(&mut Module) -> Emitted<T>,
    ) -> (Vec<Stmt>, T) {
        let (key, bufs) = of;
        let (next, kernels) = (m.bufs.next_key(), m.kernels.len());
        let known = self.known.get_mut(&key);
        let before = known.as_ref().filter(|f| cfg!(debug_assertions) && !f.compared).map(|_| m.clone());
        if let Some(first) = known
            && let Some(body) = first.copy(m, k, &bufs)
        {
            if let Some(mut other) = before {
                first.compared = true;
                let made = make(&mut other);
                let same = whole(&other, &made.body, next) == whole(m, &body, next);
                assert!(same, "{} is no copy of {}", m.kernels[k].name, first.name);
            }
            return (body, first.facts.clone());
        }
        let Emitted { body, facts, alone } = make(m);
        let made: Option<Vec<Made>> = added(m, next).map(|b| Made::of(m, b, &bufs)).collect();
        if let Some(made) = made.filter(|_| alone && kernels == m.kernels.len()) {
            let (name, facts) = (m.kernels[k].name.clone(), facts.clone());
            self.known.insert(key, First { name, bufs, made, body: body.clone(), facts, compared: false });
        }
        (body, facts)
    }
}

impl Made {
    /// A buffer that was added; `None` if it cannot be added again for other buffers in place of `bufs`.
    fn of(m: &Module, buf: Buf, bufs: &[Buf]) -> Option<Made> {
        match &m.bufs[buf].place {
            Place::Temp | Place::View(_) => Some(Made { buf, from: None }),
            Place::Const(c) => {
                let is_source =
                    |b: &Buf| m.constant_data(*b).is_some_and(|from| c.again(from, from).is_some());
                Some(Made { buf, from: Some(bufs.iter().position(is_source)?) })
            }
            _ => None,
        }
    }
}

impl<T> First<T> {
    /// The body for kernel `k`, whose buffers are `bufs`.
    fn copy(&self, m: &mut Module, k: Kernel, bufs: &[Buf]) -> Option<Vec<Stmt>> {
        let mut to: HashMap<Buf, Buf> = self.bufs.iter().copied().zip(bufs.iter().copied()).collect();
        let mut data: Vec<(Buf, BufData)> = vec![];
        for made in &self.made {
            let mut new = m.bufs[made.buf].clone();
            let pairs = self.bufs.iter().zip(bufs).map(|(a, b)| [&m.bufs[*a].name, &m.bufs[*b].name]);
            let names = match made.from {
                None => std::iter::once([&self.name, &m.kernels[k].name]).chain(pairs).collect(),
                Some(i) => pairs.skip(i).take(1).collect(),
            };
            if let Some(name) = renamed(&new.name, names) {
                new.name = name;
            }
            if let (Some(i), Place::Const(c)) = (made.from, &new.place) {
                let again = c.again(m.constant_data(self.bufs[i])?, m.constant_data(bufs[i])?)?;
                new.place = Place::Const(Arc::new(again));
            }
            data.push((made.buf, new));
        }
        for (buf, mut new) in data {
            if let Place::View(of) = &mut new.place {
                *of = *to.get(of).unwrap_or(of);
            }
            to.insert(buf, m.bufs.push(new));
        }
        let mut body = self.body.clone();
        body.iter_mut().for_each(|s| s.rename(&|b| *to.get(&b).unwrap_or(&b)));
        Some(body)
    }
}

/// The name of an added buffer, which begins with the name of the kernel or of another buffer: old and new
/// names of these.
fn renamed(name: &str, names: Vec<[&String; 2]>) -> Option<String> {
    let fits = names.into_iter().filter(|[old, _]| !old.is_empty() && name.starts_with(old.as_str()));
    let [old, new] = fits.max_by_key(|[old, _]| old.len())?;
    Some(format!("{new}{}", &name[old.len()..]))
}

/// The key of a body, and the names of the constants that were added with it.
fn whole(m: &Module, body: &[Stmt], next: Buf) -> (Key, Vec<String>) {
    let mut w = Writer::new(m);
    w.block(body);
    let constants = added(m, next).filter(|b| m.is_constant(*b));
    (w.finish().0, constants.map(|b| m.bufs[b].name.clone()).collect())
}

/// The buffers from `next` on.
fn added(m: &Module, next: Buf) -> impl Iterator<Item = Buf> {
    (next.as_u32()..m.bufs.next_key().as_u32()).map(Buf::from_u32)
}
