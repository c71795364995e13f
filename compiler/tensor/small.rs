//! Floats of 8 bits and less: their formats, and bit-exact conversions from and to f32.
//!
//! Rounding is to nearest even. Overflow gives infinity or NaN, whichever the format has, as in IEEE 754;
//! formats with neither saturate. Operators that require saturation in other formats clamp explicitly.
//! `float8e8m0` holds powers of two and rounds up.

use super::ElemType;

/// A binary float format with a sign, of 8 bits or less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SmallFloat {
    /// Bits of the exponent.
    pub exp: u32,
    /// Bits of the mantissa.
    pub man: u32,
    /// Bias of the exponent.
    pub bias: i32,
    /// Code of the largest finite value.
    pub max: u8,
    /// Code of an overflow: infinity or NaN, or the largest finite value in formats with neither.
    pub over: u8,
    /// Code of a NaN result.
    pub nan: u8,
    /// True for formats without infinities and negative zero, in which the code of negative zero is NaN.
    pub uz: bool,
}

impl SmallFloat {
    /// The format of an element type, if it is one of these (`float8e8m0` is not).
    pub const fn of(t: ElemType) -> Option<SmallFloat> {
        Some(match t {
            ElemType::F8E4M3FN => {
                SmallFloat { exp: 4, man: 3, bias: 7, max: 0x7e, over: 0x7f, nan: 0x7f, uz: false }
            }
            ElemType::F8E4M3FNUZ => {
                SmallFloat { exp: 4, man: 3, bias: 8, max: 0x7f, over: 0x80, nan: 0x80, uz: true }
            }
            ElemType::F8E5M2 => {
                SmallFloat { exp: 5, man: 2, bias: 15, max: 0x7b, over: 0x7c, nan: 0x7e, uz: false }
            }
            ElemType::F8E5M2FNUZ => {
                SmallFloat { exp: 5, man: 2, bias: 16, max: 0x7f, over: 0x80, nan: 0x80, uz: true }
            }
            // NaN is not representable: it becomes a negative zero, as in the ONNX reference.
            ElemType::F4E2M1 => {
                SmallFloat { exp: 2, man: 1, bias: 1, max: 0x7, over: 0x7, nan: 0x8, uz: false }
            }
            ElemType::F6E2M3 => {
                SmallFloat { exp: 2, man: 3, bias: 1, max: 0x1f, over: 0x1f, nan: 0x20, uz: false }
            }
            ElemType::F6E3M2 => {
                SmallFloat { exp: 3, man: 2, bias: 3, max: 0x1f, over: 0x1f, nan: 0x20, uz: false }
            }
            _ => return None,
        })
    }
    /// The largest finite value.
    pub fn largest(&self) -> f32 {
        self.decode(self.max)
    }
    /// True if codes above the largest finite value are infinity or NaN.
    pub fn has_specials(&self) -> bool {
        self.over != self.max
    }
    /// The value of a code.
    pub fn decode(&self, raw: u8) -> f32 {
        let body = raw & ((1 << (self.exp + self.man)) - 1);
        let negative = raw >> (self.exp + self.man) & 1 == 1;
        if self.uz && raw == self.nan {
            return f32::NAN;
        }
        if body > self.max {
            // Only e5m2 has an infinity.
            let v = if body == self.over && self.over != self.nan { f32::INFINITY } else { f32::NAN };
            return if negative { -v } else { v };
        }
        let (e, m) = (i32::from(body >> self.man), i32::from(body & ((1 << self.man) - 1)));
        let m = if e == 0 { m } else { m + (1 << self.man) };
        let v = (f64::from(m) * exp2(e.max(1) - self.bias - self.man as i32)) as f32;
        if negative { -v } else { v }
    }
    /// The code of a value.
    pub fn encode(&self, x: f32) -> u8 {
        let sign = u8::from(x.is_sign_negative()) << (self.exp + self.man);
        let body = if x.is_nan() {
            if self.has_specials() { self.nan } else { return self.nan }
        } else {
            let a = f64::from(x.abs());
            let e = ((a.to_bits() >> 52) as i32 - 1023).max(1 - self.bias);
            if e + self.bias >= 1 << (self.exp + 1) {
                self.over
            } else {
                // A carry out of the mantissa increments the exponent.
                let q = (a / exp2(e - self.man as i32)).round_ties_even() as i32;
                let code = ((e + self.bias - 1) << self.man) + q;
                if code > i32::from(self.max) { self.over } else { code as u8 }
            }
        };
        if self.uz && (body == 0 || body == self.nan) { body } else { body | sign }
    }
}

/// 2^e for exponents of normal f64.
fn exp2(e: i32) -> f64 {
    f64::from_bits(((e + 1023) as u64) << 52)
}

/// The value of a float8e8m0 code: a power of two, or NaN.
pub fn e8m0_decode(raw: u8) -> f32 {
    match raw {
        0xff => f32::NAN,
        0 => f32::from_bits(0x40_0000),
        e => f32::from_bits(u32::from(e) << 23),
    }
}

/// The float8e8m0 code of a magnitude, rounded up: NaN above 2^127, the smallest power below 2^-127.
pub fn e8m0_encode(x: f32) -> u8 {
    let a = x.to_bits() & 0x7fff_ffff;
    if a <= 0x40_0000 { 0 } else { ((a + 0x7f_ffff) >> 23).min(0xff) as u8 }
}

/// The f32 value of a code of a float type of at most 8 bits; `None` for other types.
pub fn decode(t: ElemType, raw: u8) -> Option<f32> {
    match SmallFloat::of(t) {
        Some(s) => Some(s.decode(raw)),
        None => (t == ElemType::F8E8M0).then(|| e8m0_decode(raw)),
    }
}

/// The reverse of [`decode`].
pub fn encode(t: ElemType, x: f32) -> Option<u8> {
    match SmallFloat::of(t) {
        Some(s) => Some(s.encode(x)),
        None => (t == ElemType::F8E8M0).then(|| e8m0_encode(x)),
    }
}
