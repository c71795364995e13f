//! Memory of the interpreter: shapes and locations of buffers, checked loads and stores.

use super::code::Access;
use super::*;

/// True if elements lie in row-major order, whatever the layout says about dimensions of size 1.
fn dense_in_order(dims: &[i64], strides: &[i64]) -> bool {
    let mut step = 1i64;
    dims.iter().zip(strides).rev().all(|(n, s)| {
        let ok = *n <= 1 || *s == step;
        step = step.saturating_mul((*n).max(1));
        ok
    })
}

/// The buffer that owns the memory.
pub(super) fn storage(m: &Module, b: Buf) -> Res<Buf> {
    let mut s = b;
    for _ in 0..=m.bufs.len() {
        match m.bufs.get(s).map(|d| &d.place) {
            Some(Place::View(of)) => s = *of,
            Some(_) => return Ok(s),
            None => return msg(format!("there is no buffer {s}")),
        }
    }
    msg(format!("{b} is a view of itself"))
}

pub(super) enum Region<'a> {
    Unused,
    Input(&'a [u8]),
    Const(bytes::Bytes),
    Own(Vec<u8>),
}

impl Region<'_> {
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Region::Unused => &[],
            Region::Input(b) => b,
            Region::Const(b) => b,
            Region::Own(b) => b,
        }
    }
    /// As a writable region of at least `len` bytes.
    fn grow(&mut self, len: usize) {
        match self {
            Region::Own(v) if v.len() >= len => {}
            Region::Own(v) => v.resize(len, 0xff),
            r => *r = Region::Own(vec![0xff; len]),
        }
    }
}

/// Shape and location of a buffer, given the current values of symbols.
pub(super) struct Shape {
    pub(super) dims: Vec<i64>,
    pub(super) strides: Vec<i64>,
    pub(super) region: usize,
    /// First byte, and size.
    pub(super) base: usize,
    pub(super) len: usize,
}

impl State<'_> {
    fn dim(&self, d: Dim, what: &str) -> Res<i64> {
        let value =
            |s: Sym| self.set.get(s.0 as usize).copied().unwrap_or(false).then(|| self.vars[s.0 as usize]);
        match d.eval(&value) {
            Some(v) => Ok(v),
            None => msg(format!("{what} is {}, which has no value", d.display(&self.m.syms))),
        }
    }
    pub(super) fn shape(&mut self, b: usize) -> Res<&Shape> {
        if self.shapes.get(b).is_none_or(Option::is_none) {
            self.resolve(b)?;
        }
        match self.shapes.get(b) {
            Some(Some(s)) => Ok(s),
            _ => msg("a buffer without a shape"),
        }
    }
    /// Dimensions, strides and bytes.
    fn geometry(&self, b: Buf) -> Res<(Vec<i64>, Vec<i64>, usize)> {
        let Some(d) = self.m.bufs.get(b) else { return msg(format!("there is no buffer {b}")) };
        let what = format!("a dimension of {b} \"{}\"", d.name);
        let dims = d.dims.iter().map(|x| self.dim(*x, &what)).collect::<Res<Vec<i64>>>()?;
        let bits = u64::from(self.m.element_bits(b));
        let len = crate::tensor::count(&dims)
            .and_then(|n| n.checked_mul(bits))
            .map(|n| n.div_ceil(8))
            .filter(|n| *n <= i64::MAX as u64 / 16);
        let Some(len) = len.and_then(|n| usize::try_from(n).ok()) else {
            return msg(format!("{b} \"{}\" has dimensions {dims:?}", d.name));
        };
        let order: Vec<usize> = match &d.layout {
            Layout::RowMajor => (0..dims.len()).collect(),
            Layout::Permuted(p) => {
                let mut sorted = p.clone();
                sorted.sort_unstable();
                if !sorted.iter().copied().eq(0..dims.len()) {
                    return msg(format!("{b} \"{}\" of rank {} has layout {p:?}", d.name, dims.len()));
                }
                p.clone()
            }
        };
        let mut strides = vec![0; dims.len()];
        let mut step = 1i64;
        for i in order.into_iter().rev() {
            strides[i] = step;
            step = step.saturating_mul(dims[i].max(1));
        }
        Ok((dims, strides, len))
    }
    /// Finds a buffer's shape and memory.
    pub(super) fn resolve(&mut self, b: usize) -> Res<()> {
        let buf = Buf::from_u32(b as u32);
        let (dims, strides, len) = self.geometry(buf)?;
        let own = storage(self.m, buf)?;
        let o = &self.m.bufs[own];
        if own != buf {
            let (own_dims, own_strides, n) = self.geometry(own)?;
            // of a growable buffer, and of what has become of it, views show the first elements.
            let part = matches!(o.place, Place::Growable | Place::Arena(_)) && len < n;
            if n != len && !part {
                return msg(format!("{buf} of {len} bytes is a view of {own} \"{}\" of {n} bytes", o.name));
            }
            if !dense_in_order(&own_dims, &own_strides) && o.layout != self.m.bufs[buf].layout {
                return msg(format!("{buf} is a view of {own} \"{}\", which is not row-major", o.name));
            }
        }
        let mut region = own.as_u32() as usize;
        let mut base = 0;
        match &o.place {
            Place::Input(i) => match self.inputs.get(*i as usize) {
                Some(x) if x.len() == len || o.ty == ElemType::Str && x.len() >= len => {
                    self.mem[region] = Region::Input(x)
                }
                Some(x) => {
                    return msg(format!(
                        "input {i} \"{}\" of dimensions {dims:?}: found {} bytes, expected {len}",
                        o.name,
                        x.len()
                    ));
                }
                None => return msg(format!("there is no input {i}")),
            },
            Place::Const(c) => {
                if matches!(self.mem[region], Region::Unused) {
                    self.mem[region] = Region::Const(c.bytes());
                }
                let found = self.mem[region].bytes().len();
                if found != len && !(o.ty == ElemType::Str && found >= len) {
                    return msg(format!(
                        "constant {own} \"{}\" of dimensions {dims:?}: found {} bytes, expected {len}",
                        o.name,
                        self.mem[region].bytes().len()
                    ));
                }
            }
            Place::Output(_) | Place::Temp | Place::Growable | Place::Foreign => {
                self.mem[region].grow(len);
            }
            Place::Arena(s) => {
                let Some(slot) = self.m.slots.get(*s) else { return msg(format!("there is no slot {s}")) };
                let (at, size) =
                    (self.dim(slot.offset, "a slot's offset")?, self.dim(slot.size, "a slot's size")?);
                let all = self.dim(self.m.workspace, "the workspace")?;
                let fits =
                    at >= 0 && size >= len as i64 && at.checked_add(size).is_some_and(|end| end <= all);
                if !fits {
                    return msg(format!(
                        "{own} \"{}\" of {len} bytes is in {s} of {size} bytes at {at} of a workspace of \
                            {all}",
                        o.name
                    ));
                }
                region = self.mem.len() - 1;
                base = at as usize;
                self.mem[region].grow(all as usize);
            }
            Place::Pointer(_) => return msg(format!("{own} \"{}\" is behind an address", o.name)),
            Place::View(_) => return msg(format!("{buf} has no memory")),
        }
        self.shapes[b] = Some(Shape { dims, strides, region, base, len });
        Ok(())
    }
    #[cold]
    pub(super) fn outside<T>(&self, a: &Access) -> Res<T> {
        let at: Vec<String> =
            a.at.iter()
                .map(|x| x.eval(&self.vars).map_or("overflow".to_owned(), |v| v.to_string()))
                .collect();
        let dims =
            self.shapes.get(a.buf).and_then(Option::as_ref).map(|s| s.dims.clone()).unwrap_or_default();
        let b = Buf::from_u32(a.buf as u32);
        let name = self.m.bufs.get(b).map_or("", |d| &d.name);
        msg(format!("{b} \"{name}\" is accessed at [{}], its dimensions are {dims:?}", at.join(", ")))
    }
    /// Region, first byte and element number of an access.
    #[inline]
    pub(super) fn locate(&mut self, a: &Access) -> Res<(usize, usize, usize)> {
        if self.shapes[a.buf].is_none() {
            self.resolve(a.buf)?;
        }
        let Some(s) = &self.shapes[a.buf] else { return msg("a buffer without a shape") };
        let mut offset = 0i64;
        for ((x, n), step) in a.at.iter().zip(&s.dims).zip(&s.strides) {
            match x.eval(&self.vars) {
                Some(i) if (i as u64) < *n as u64 => offset += i * step,
                _ => return self.outside(a),
            }
        }
        Ok((s.region, s.base, offset as usize))
    }
    #[inline]
    pub(super) fn load(&mut self, a: &Access) -> Res<u64> {
        let (region, base, i) = self.locate(a)?;
        let bytes = self.mem[region].bytes();
        if a.ty == ElemType::F32 {
            return match bytes.get(base + i * 4..).and_then(|b| b.first_chunk()) {
                Some(b) => Ok(u64::from(u32::from_le_bytes(*b))),
                None => self.outside(a),
            };
        }
        let bits = a.bits as usize;
        let at = base + i * bits / 8;
        let raw = match bits {
            64 => bytes.get(at..).and_then(|b| b.first_chunk()).map(|b| u64::from_le_bytes(*b)),
            32 => bytes.get(at..).and_then(|b| b.first_chunk()).map(|b| u64::from(u32::from_le_bytes(*b))),
            16 => bytes.get(at..).and_then(|b| b.first_chunk()).map(|b| u64::from(u16::from_le_bytes(*b))),
            8 => bytes.get(at).map(|b| u64::from(*b)),
            _ => bytes.get(at).map(|b| u64::from(*b) >> (i * bits % 8) & ((1 << bits) - 1)),
        };
        match raw {
            Some(raw) => Ok(from_storage(a.ty, raw).bits),
            None => self.outside(a),
        }
    }
    pub(super) fn store(&mut self, a: &Access, v: u64) -> Res<()> {
        let (region, base, i) = self.locate(a)?;
        let raw =
            if a.ty == ElemType::F32 { v } else { to_storage(a.ty, Scalar { ty: a.ty.compute(), bits: v }) };
        let bits = a.bits as usize;
        let at = base + i * bits / 8;
        let Region::Own(bytes) = &mut self.mem[region] else {
            return msg(format!(
                "a store to \"{}\", which is read-only",
                self.m.bufs[Buf::from_u32(a.buf as u32)].name
            ));
        };
        let le = raw.to_le_bytes();
        if bits >= 8 {
            if let Some(to) = bytes.get_mut(at..at + bits / 8) {
                to.copy_from_slice(&le[..bits / 8]);
                return Ok(());
            }
        } else if let Some(to) = bytes.get_mut(at) {
            let (shift, mask) = (i * bits % 8, (1u8 << bits) - 1);
            *to = *to & !(mask << shift) | (le[0] & mask) << shift;
            return Ok(());
        }
        self.outside(a)
    }
    pub(super) fn foreign(&mut self, f: &Foreign) -> Res<()> {
        let (&[from], &[to], false) =
            (&f.from[..], &f.to[..], matches!(f.function, foreign::Function::Custom(_)))
        else {
            return msg("nothing says what a custom operator computes: the interpreter cannot run it");
        };
        let place = |s: &Shape| (s.region, s.base, s.base + s.len, s.dims.clone());
        let (region, first, end, _) = place(self.shape(from.as_u32() as usize)?);
        let from = self.mem[region].bytes().get(first..end).unwrap_or(&[]).to_vec();
        let (region, first, end, dims) = place(self.shape(to.as_u32() as usize)?);
        let Some(data) = f.function.run(&from, &dims) else { return leave(Status::Value) };
        match &mut self.mem[region] {
            Region::Own(bytes) if data.len() == end - first && end <= bytes.len() => {
                bytes[first..end].copy_from_slice(&data)
            }
            _ => return msg(format!("{} has no room for its result", f.function.name())),
        }
        Ok(())
    }
}
