//! fuse_channel_blocks: a depthwise convolution, the copy of its image and the transposition of its result
//! become one kernel, which processes a few channels of an image at a time.
//!
//! ```text
//! par images, groups of channels {
//!     image = border, elements of planes
//!     result = sums over windows of image
//!     planes = result
//! }
//! ```
//!
//! Channels do not depend on each other. A group has as many as a cache line, innermost in scratch of the
//! task (`nest`, rule 12), which stays in a cache of the core: images of all channels would be written to
//! memory and read again twice. Images that fit the first-level cache with all channels stay as they are: a
//! loop over all channels starts fewer small loops.

use crate::diag::Result;
use crate::nest::{Buf, Kernel, KernelBuilder, Layout, Module, Stmt, visit};
use crate::passes::nest::analysis::cost;
use crate::passes::nest::analysis::form::{depends, loop_or_zero, par_loops, peel, wrap};
use crate::passes::nest::analysis::machine::{L1, L2, LINE, SLOTS, THREADS};
use crate::passes::nest::analysis::shape::{Uses, in_slots, is_temp};
use crate::passes::nest::analysis::strides::stride;
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;

/// Channels of a group.
const WIDTH: i64 = LINE / 4;
/// Largest image of all channels that few tasks may share: other threads would find no work worth waking for.
const SMALL: i64 = L2 / 2;
/// Fewest groups of larger images. Three of four threads take as long as all of them with images in memory.
const GROUPS: i64 = THREADS - 1;
/// Rows and columns that an image of run-time size is assumed to have.
const ASSUMED: i64 = 32 * 32;

/// Runs the pass.
pub fn run(m: &mut Module, lanes: u32) -> Result<()> {
    if lanes == 1 {
        return Ok(());
    }
    let mut uses = Uses::new(m);
    for k in uses.order.clone() {
        if let Some(chain) = chain(m, &uses, k).filter(|c| c.pays(m)) {
            chain.rewrite(m, &mut uses);
        }
    }
    Ok(())
}

/// A kernel with a loop over channels and maybe one over images.
struct Member {
    kernel: Kernel,
    n: Option<Sym>,
    c: Sym,
}

impl Member {
    /// Kernel `k` if it accesses elements `at` of an image for all of the image's channels.
    fn of(m: &Module, k: Kernel, image: Buf, at: &[Dim]) -> Option<Member> {
        let (loops, _) = par_loops(&m.kernels[k].body);
        let dims = &m.bufs[image].dims;
        let n = loop_or_zero(&loops, at[0])?;
        let c = loop_or_zero(&loops, at[1])?.filter(|c| c.1 == dims[1])?;
        let all = n.map_or(Dim::constant(1), |n| n.1) == dims[0];
        let inside = at[2..].iter().any(|d| d.contains(c.0) || n.is_some_and(|n| d.contains(n.0)));
        (all && !inside).then_some(Member { kernel: k, n: n.map(|n| n.0), c: c.0 })
    }
}

/// An image with channels innermost that only the kernels of a chain access.
#[derive(Clone, Copy)]
struct Own {
    image: Buf,
    channels: i64,
}

impl Own {
    fn of(m: &Module, uses: &Uses, image: Buf) -> Option<Own> {
        let b = &m.bufs[image];
        let Layout::Permuted(order) = &b.layout else { return None };
        let innermost = (3..=5).contains(&order.len()) && order.last() == Some(&1) && order[0] == 0;
        let own = is_temp(m, image) && b.ty == ElemType::F32 && !uses.pinned(image) && !uses.viewed(image);
        (innermost && own).then_some(Own { image, channels: b.dims[1].as_const()? })
    }
    /// Elements of a channel.
    fn plane(&self, m: &Module) -> Dim {
        Dim::product(m.bufs[self.image].dims[2..].iter().copied())
    }
}

/// Kernels that become one, in their order.
struct Chain {
    members: Vec<Member>,
    images: Vec<Own>,
    /// Images of the batch.
    batch: Dim,
}

fn chain(m: &Module, uses: &Uses, k: Kernel) -> Option<Chain> {
    let p = m.form(k).contraction()?;
    let image = p.a.0;
    let own = Own::of(m, uses, image).filter(|_| uses.readers(image) == [k])?;
    let window = Member::of(m, k, image, &p.a.1).filter(|w| depends(&p.b.1, w.c))?;
    let (out, at) = p.store()?;
    let same = at.get(..2) == p.a.1.get(..2);
    let planes =
        Own::of(m, uses, out).filter(|_| same).and_then(|o| Some((o, transposition(m, uses, o, k)?)));
    let last = planes.as_ref().map_or(k, |p| p.1.kernel);
    let mut members = vec![];
    for w in uses.writers(image) {
        members.push(copy(m, *w, image).filter(|_| uses.may_move(m, *w, last))?);
    }
    let copied = |c: &Member| !visit::loads(&m.kernels[c.kernel].body).is_empty();
    if !members.iter().any(copied) {
        return None;
    }
    members.push(window);
    let (mut images, batch) = (vec![own], m.bufs[image].dims[0]);
    if let Some((result, member)) = planes {
        images.push(result);
        members.push(member);
    }
    Some(Chain { members, images, batch })
}

/// A kernel that fills a part of an image with a constant or with elements of planes. Elements whose channels
/// are contiguous already are copied faster all channels at a time.
fn copy(m: &Module, k: Kernel, image: Buf) -> Option<Member> {
    let map = m.form(k).map().filter(|map| map.buf == image)?;
    let member = Member::of(m, k, image, &map.at)?;
    // Of numbers per channel there are few.
    let image_like = |at: &[Dim]| map.loops.iter().any(|l| l.0 != member.c && depends(at, l.0));
    let contiguous = |b: Buf, at: &[Dim]| image_like(at) && stride(m, b, at, member.c) == Some(1);
    let mut planes = true;
    map.value.each_load(&mut |b, at| planes &= b != image && !contiguous(b, at));
    planes.then_some(member)
}

/// The map that alone reads the result of kernel `k`, and stores it in planes.
fn transposition(m: &Module, uses: &Uses, result: Own, k: Kernel) -> Option<Member> {
    let [reader] = uses.readers(result.image) else { return None };
    let may = uses.writers(result.image) == [k] && uses.may_move(m, k, *reader);
    let map = m.form(*reader).map().filter(|_| may)?;
    let mut reads: Vec<Vec<Dim>> = vec![];
    map.value.each_load(&mut |b, at| reads.extend((b == result.image).then(|| at.to_vec())));
    let [at] = reads.as_slice() else { return None };
    let member = Member::of(m, *reader, result.image, at)?;
    (stride(m, map.buf, &map.at, member.c) != Some(1)).then_some(member)
}

impl Chain {
    fn channels(&self) -> i64 {
        self.images[0].channels
    }
    /// Channels of a group.
    fn width(&self) -> i64 {
        self.channels().min(WIDTH)
    }
    fn groups(&self) -> i64 {
        (self.channels() + self.width() - 1) / self.width()
    }
    /// True if the images are larger than the first-level cache, and groups are several and enough for
    /// several threads where several are worth it. Sizes of run time are assumed to be large.
    fn pays(&self, m: &Module) -> bool {
        let plane = |i: &Own| i.plane(m).as_const().unwrap_or(ASSUMED);
        let bytes = 4 * self.images.iter().map(plane).sum::<i64>() * self.channels();
        let batch = self.batch.as_const();
        let (all, groups) = (bytes * batch.unwrap_or(1), batch.unwrap_or(1) * self.groups());
        let several = groups > 1 || batch.is_none();
        all > L1 && several && (all <= SMALL || groups >= GROUPS)
    }
    fn rewrite(&self, m: &mut Module, uses: &mut Uses) {
        let Some(last) = self.members.last().map(|x| x.kernel) else { return };
        let (groups, channels, width) = (self.groups(), self.channels(), self.width());
        let total = self.batch * groups;
        let slots = total.as_const().unwrap_or(groups.max(THREADS)).min(SLOTS);
        let window = &m.kernels[self.members[self.members.len() - self.images.len()].kernel];
        let (name, origin) = (window.name.clone(), window.origin.clone());
        let scratch: Vec<(Buf, Buf)> =
            self.images.iter().map(|i| (i.image, group(m, i, slots, width))).collect();
        let work = self.members.iter().map(|x| cost::work(m, &m.kernels[x.kernel].body));
        let work = Dim::sum(work);
        let id = m.kernel(&name, &origin, |kb| {
            in_slots(kb, total, slots, &mut |kb, slot, i| {
                let (n, first) = (i.floor_div(groups), i.modulo(groups) * width);
                // The last group overlaps the previous one: both store the same values there.
                let first =
                    if channels % width == 0 { first } else { first.min(Dim::constant(channels - width)) };
                for member in &self.members {
                    Group { scratch: &scratch, slot, n, first, width }.emit(kb, member);
                }
            });
        });
        m.kernels[id].work = work;
        m.driver.pop();
        visit::splice_call(&mut m.driver, last, false, vec![Stmt::Call(id)]);
        visit::drop_calls(&mut m.driver, &|k| self.members.iter().any(|x| x.kernel == k));
        let new = [id];
        let replaced: Vec<(Kernel, &[Kernel])> =
            self.members.iter().map(|x| (x.kernel, if x.kernel == last { &new[..] } else { &[] })).collect();
        uses.update(m, &[], &replaced);
    }
}

/// Scratch for a group of channels of an image in every slot.
fn group(m: &mut Module, image: &Own, slots: i64, width: i64) -> Buf {
    let plane = m.bufs[image.image].dims[2..].to_vec();
    let dims = [slots.into()].into_iter().chain(plane).chain([width.into()]);
    m.temp(m.bufs[image.image].name.clone(), ElemType::F32, dims.collect::<Vec<Dim>>())
}

/// A group of channels of an image.
struct Group<'a> {
    /// Images and their scratch.
    scratch: &'a [(Buf, Buf)],
    slot: Dim,
    n: Dim,
    /// The first channel, and their number.
    first: Dim,
    width: i64,
}

impl Group<'_> {
    /// Adds what a kernel does for the group.
    fn emit(&self, kb: &mut KernelBuilder, member: &Member) {
        let l = kb.m.syms.loop_var("l", Dim::constant(0), Dim::constant(self.width));
        let nest = peel(&kb.m.kernels[member.kernel].body);
        let loops = nest.loops.into_iter().filter(|v| Some(v.0) != member.n);
        let loops: Vec<(Sym, Dim)> =
            loops.map(|v| if v.0 == member.c { (l, self.width.into()) } else { v }).collect();
        let own = |buf: Buf, at: &[Dim]| {
            let (_, scratch) = self.scratch.iter().find(|s| s.0 == buf)?;
            let at = [self.slot].into_iter().chain(at[2..].iter().copied()).chain([l.into()]);
            Some((*scratch, at.collect::<Vec<Dim>>()))
        };
        let put = |s: Sym| match s {
            s if s == member.c => Some(self.first + l),
            s if Some(s) == member.n => Some(self.n),
            _ => None,
        };
        let body = nest.body.into_iter().map(|s| s.map_accesses(&own).subst(&put));
        let body = body.collect();
        wrap(&loops, body).into_iter().for_each(|s| kb.push(s));
    }
}
