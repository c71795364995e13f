//! Loads, stores and addresses.

use super::{Builder, Count};
use crate::codegen::tile::ir::{Bits, Class, Form, Mem, Node, Op, Un, Value};

impl Builder {
    /// A vector of a constant in memory, to which a parameter points: loaded once, at the entry.
    pub(in crate::codegen::tile) fn load_at_entry(
        &mut self,
        form: Form,
        mem: Mem,
        mask: Option<Value>,
    ) -> Value {
        let args: Vec<Value> = mask.into_iter().collect();
        let same = |n: &&Node| n.op == Op::Load(form) && n.mem == Some(mem) && n.args == args;
        if let Some(v) = self.hoisted.iter().find(same).and_then(|n| n.def) {
            return v;
        }
        let def = self.fresh(Class::Vector);
        let (mem, line) = (Some(mem), self.line);
        self.hoisted.push(Node { op: Op::Load(form), args, mem, literal: None, def: Some(def), line });
        def
    }
    /// Loads a vector.
    pub fn load(&mut self, form: Form, mem: Mem, mask: Option<Value>) -> Value {
        if let Some(n) = mask.and_then(|k| self.lanes_of(k)).filter(|_| self.has(Op::LoadFirst(form, 1))) {
            return self.value(Op::LoadFirst(form, n as u8), &[], Some(mem), Class::Vector);
        }
        let mask = mask.map(|k| self.mask_for(k, form.lane()));
        self.value(Op::Load(form), mask.as_slice(), Some(mem), Class::Vector)
    }
    /// Prefetches a cache line.
    pub fn prefetch(&mut self, mem: Mem, far: bool) {
        self.push(Op::Prefetch { far }, &[], Some(mem), None);
    }
    /// Loads an element into all lanes.
    pub fn broadcast(&mut self, form: Form, mem: Mem) -> Value {
        self.value(Op::Broadcast(form), &[], Some(mem), Class::Vector)
    }
    /// Stores a vector.
    pub fn store(&mut self, form: Form, mem: Mem, v: Value, mask: Option<Value>) {
        if let Some(n) = mask.and_then(|k| self.lanes_of(k)).filter(|_| self.has(Op::StoreFirst(form, 1))) {
            self.push(Op::StoreFirst(form, n as u8), &[v], Some(mem), None);
            return;
        }
        let mask = mask.map(|k| self.mask_for(k, form.lane()));
        let args: Vec<Value> = std::iter::once(v).chain(mask).collect();
        self.push(Op::Store(form), &args, Some(mem), None);
    }
    /// Stores the first `n` lanes at a constant stride of `step` bytes; false if displacements are out of
    /// range.
    pub(in crate::codegen::tile) fn store_lanes(
        &mut self,
        form: Form,
        mem: Mem,
        v: Value,
        n: u32,
        step: i64,
    ) -> bool {
        if self.has(Op::StoreStrided(form)) {
            let step = self.int(step);
            self.store_lanes_strided(form, mem, v, n, step);
            return true;
        }
        let each = if form == Form::B64 { 2 } else { 4 };
        let last = step.checked_mul(i64::from(n)).and_then(|x| x.checked_add(i64::from(mem.disp)));
        if last.is_none_or(|x| i32::try_from(x).is_err()) {
            return false;
        }
        let mut part = v;
        for lane in 0..n {
            if lane > 0 && lane % each == 0 {
                part = self.un(Un::Part((lane / each) as u8), v);
            }
            let disp = mem.disp.wrapping_add((step * i64::from(lane)) as i32);
            self.push(Op::StoreLane(form, (lane % each) as u8), &[part], Some(Mem { disp, ..mem }), None);
        }
        true
    }
    /// The same with a stride in a register.
    pub(in crate::codegen::tile) fn store_lanes_strided(
        &mut self,
        form: Form,
        mem: Mem,
        v: Value,
        n: u32,
        step: Value,
    ) {
        if self.has(Op::StoreStrided(form)) {
            let mask = (n < self.lanes()).then(|| self.first_lanes(Count::Fixed(i64::from(n))));
            return self.store_strided(form, mem, (v, step), mask);
        }
        let each = if form == Form::B64 { 2 } else { 4 };
        let (mut part, mut base) = (v, self.address(mem));
        for lane in 0..n {
            if lane > 0 {
                base = self.add(base, step);
                if lane % each == 0 {
                    part = self.un(Un::Part((lane / each) as u8), v);
                }
            }
            self.push(Op::StoreLane(form, (lane % each) as u8), &[part], Some(Mem::at(base, 0)), None);
        }
    }
    /// Stores the lanes of a mask at a stride in a register.
    pub(in crate::codegen::tile) fn store_strided(
        &mut self,
        form: Form,
        mem: Mem,
        (v, step): (Value, Value),
        mask: Option<Value>,
    ) {
        let args: Vec<Value> = [v, step].into_iter().chain(mask).collect();
        self.push(Op::StoreStrided(form), &args, Some(mem), None);
    }
    /// Stores lanes at the offsets of an index vector.
    pub(in crate::codegen::tile) fn scatter(
        &mut self,
        form: Form,
        index: Value,
        mem: Mem,
        v: Value,
        mask: Value,
    ) {
        let base = self.address(mem);
        let own = self.masks(Op::MaskAnd, mask, mask);
        self.push(Op::Scatter(form), &[v, index, own], Some(Mem::at(base, 0)), None);
    }
    /// Stores the first lane.
    pub fn store_scalar(&mut self, mem: Mem, v: Value, bits: Bits) {
        self.push(Op::StoreScalar(bits), &[v], Some(mem), None);
    }
    /// Computes an address.
    pub(in crate::codegen::tile) fn address(&mut self, mem: Mem) -> Value {
        if mem.index.is_none() {
            return self.add_imm(mem.base, i64::from(mem.disp));
        }
        self.value(Op::Address, &[], Some(mem), Class::Int)
    }
    /// Loads elements at the offsets of an index vector; see [`Op::Gather`].
    pub(in crate::codegen::tile) fn gather(
        &mut self,
        form: Form,
        index: Value,
        mem: Mem,
        mask: Option<Value>,
    ) -> Value {
        let base = self.address(mem);
        let mask = mask.unwrap_or_else(|| self.all_lanes(true));
        let mask = self.mask_for(mask, form.lane());
        // The instruction clobbers its mask.
        let own = self.masks(Op::MaskAnd, mask, mask);
        self.value(Op::Gather(form), &[index, own], Some(Mem::at(base, 0)), Class::Vector)
    }
}
