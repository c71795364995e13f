//! Memory accesses with displacements in and out of range.

use super::encode::{Emit, number};
use super::table;
use crate::codegen::tile::ir::{Bits, Form, Mem, Node, Op};
use crate::diag::{Failure, Result};
use crate::target::Adjacent;
use regalloc2::Allocation;

/// The scratch register for addresses and lanes.
const OWN: u32 = 16;
const SECOND: u32 = 17;

/// True for displacements that accesses have in bytes. LLVM's table of the Neoverse N1 counts a load of a
/// vector with such a displacement as one operation, one with a displacement in elements as two, and one of
/// two vectors as three; for no other core does it say that the first takes longer.
pub(super) fn is_near(displacement: i64) -> bool {
    (-256..256).contains(&displacement)
}

/// True for adjacent vectors at these displacements that one instruction loads.
pub(super) fn loads_together(adjacent: Adjacent, displacements: [i32; 2]) -> bool {
    match adjacent {
        Adjacent::Apart => false,
        Adjacent::ApartIfNear => !displacements.iter().all(|d| is_near((*d).into())),
        Adjacent::Together => true,
    }
}

impl Emit<'_> {
    /// Base and displacement of a memory operand whose registers follow `args` arguments.
    fn at(&mut self, m: Mem, args: usize, al: &[Allocation]) -> (u32, i64) {
        let base = number(al[args]);
        match m.index {
            None => (base, i64::from(m.disp)),
            Some((_, scale)) => {
                self.far = None;
                self.code.three(table::ADD | scale.trailing_zeros() << 10, OWN, base, number(al[args + 1]));
                (OWN, i64::from(m.disp))
            }
        }
    }
    /// An access of `bytes` bytes with an immediate displacement, or with the address in the scratch
    /// register.
    pub(super) fn access(&mut self, [scaled, plain]: [u32; 2], bytes: u32, t: u32, (base, disp): (u32, i64)) {
        let size = i64::from(bytes);
        let fits = |d: i64| (0..4096 * size).contains(&d) && d % size == 0;
        let reaches = |d: i64| fits(d) || is_near(d);
        let (base, disp) = if reaches(disp) {
            (base, disp)
        } else if let Some((_, far)) = self.far.filter(|f| f.0 == base && reaches(disp - f.1)) {
            (OWN, disp - far)
        } else {
            let low = disp & 0xfff;
            let low = if fits(low) || low < 256 { low } else { 0 };
            self.code.add(OWN, base, disp - low);
            self.far = (base != OWN).then_some((base, disp - low));
            (OWN, low)
        };
        // Loads prefer displacements in bytes: see `is_near`.
        if fits(disp) && !(scaled & table::VECTOR_LOAD == table::VECTOR_LOAD && is_near(disp)) {
            self.code.push(scaled | ((disp / size) as u32) << 10 | base << 5 | t);
        } else {
            self.code.push(plain | (disp as u32 & 0x1ff) << 12 | base << 5 | t);
        }
    }
    /// The address itself in a register.
    fn address(&mut self, (base, disp): (u32, i64)) -> u32 {
        if disp == 0 {
            return base;
        }
        self.far = None;
        self.code.add(OWN, base, disp);
        OWN
    }
    /// Loads the first bytes of a vector register and clears the others, or stores them.
    fn bytes(&mut self, bytes: u32, store: bool, t: u32, at: (u32, i64)) {
        if matches!(bytes, 1 | 2 | 4 | 8 | 16) {
            return self.access(table::vector_access(bytes, store), bytes, t, at);
        }
        // Three elements: two, and a lane after them.
        let (two, one) = (bytes / 3 * 2, bytes / 3);
        let base = self.address(at);
        self.access(table::vector_access(two, store), two, t, (base, 0));
        self.code.add(SECOND, base, i64::from(two));
        self.code.two(table::lane_access(one, 2, store), t, SECOND);
    }
    /// Extends elements in memory format to lanes.
    fn widen(&mut self, form: Form, d: u32) {
        match form {
            Form::F16 => self.code.two(table::FCVTL, d, d),
            Form::I8 => [table::SXTL[0], table::SXTL[1]].into_iter().for_each(|w| self.code.two(w, d, d)),
            Form::U8 => [table::UXTL[0], table::UXTL[1]].into_iter().for_each(|w| self.code.two(w, d, d)),
            Form::I16 => self.code.two(table::SXTL[1], d, d),
            Form::U16 => self.code.two(table::UXTL[1], d, d),
            Form::B32 | Form::B64 | Form::NearU8 => {}
        }
    }
    /// Operations that access memory.
    pub(super) fn memory(&mut self, n: &Node, al: &[Allocation]) -> Result<()> {
        let missing = |what: &str| Err(Failure::bug("encoding of a tile", what));
        let (Some(m), args) = (n.mem, n.args.len()) else { return missing("a memory operand is missing") };
        let lanes = if self.f.long { 2 } else { 4 };
        let at = self.at(m, args, al);
        let d = al.last().map_or(0, |a| number(*a));
        match n.op {
            Op::Address => {
                if at.0 != d || at.1 != 0 {
                    self.code.add(d, at.0, at.1);
                }
            }
            Op::Load(_) | Op::Broadcast(_) | Op::Store(_)
                if args > usize::from(matches!(n.op, Op::Store(_))) =>
            {
                return missing("an access under a mask");
            }
            Op::Load(form) => {
                self.bytes(form.bytes() * lanes, false, d, at);
                self.widen(form, d);
            }
            Op::LoadFirst(form, k) => {
                self.bytes(form.bytes() * u32::from(k), false, d, at);
                self.widen(form, d);
            }
            Op::Broadcast(form @ (Form::B32 | Form::B64)) if at.1 == 0 => {
                self.code.two(table::load_dup(form.lane()), d, at.0)
            }
            Op::Broadcast(form) => {
                self.bytes(form.bytes(), false, d, at);
                self.widen(form, d);
                self.code.two(table::dup_lane(form.lane(), 0), d, d);
            }
            Op::Prefetch { far } => self.access(table::PREFETCH, 8, if far { 2 } else { 0 }, at),
            Op::Store(form) => self.bytes(form.bytes() * lanes, true, number(al[0]), at),
            Op::StoreFirst(form, k) => self.bytes(form.bytes() * u32::from(k), true, number(al[0]), at),
            Op::StoreScalar(bits) => {
                self.bytes(if bits == Bits::B64 { 8 } else { 4 }, true, number(al[0]), at)
            }
            // Lanes of 32 bits hold the elements, truncated.
            Op::StoreLane(form, 0) => self.bytes(form.bytes(), true, number(al[0]), at),
            Op::StoreLane(form, lane) => {
                let bytes = form.bytes();
                // Compute a distant address before the value occupies its register.
                let at = (self.address(at), 0);
                self.code.two(
                    table::umov(bytes, lane * (form.lane_bytes() / bytes) as u8),
                    SECOND,
                    number(al[0]),
                );
                self.access(table::int_access(bytes, true), bytes, SECOND, at);
            }
            _ => return missing("an operation without an instruction"),
        }
        Ok(())
    }
}
