//! `Value` of the generated Rust module: sequences, optionals and maps with a safe interface in both
//! directions.

/// Included in modules with inputs or outputs that are not tensors.
pub(super) const VALUE: &str = r#"
/// Numbers of ONNX `TensorProto.DataType`.
#[allow(dead_code, missing_docs)]
pub mod dtype {
    pub const F32: i32 = 1; pub const U8: i32 = 2; pub const I8: i32 = 3; pub const U16: i32 = 4; pub const I16: i32 = 5;
    pub const I32: i32 = 6; pub const I64: i32 = 7; pub const STR: i32 = 8; pub const BOOL: i32 = 9; pub const F16: i32 = 10; pub const F64: i32 = 11;
    pub const U32: i32 = 12; pub const U64: i32 = 13; pub const C64: i32 = 14; pub const C128: i32 = 15; pub const BF16: i32 = 16;
}
mod sealed {
    pub trait Element<'a>: Copy { fn holds(dtype: i32) -> bool; }
}
macro_rules! elements { ($($t:ty: $($n:ident)|+;)*) => { $(impl<'a> sealed::Element<'a> for $t { fn holds(d: i32) -> bool { $(d == dtype::$n)||+ } })* }; }
elements! { f32: F32; f64: F64; i8: I8; i16: I16; i32: I32; i64: I64; u8: U8 | BOOL; u16: U16 | F16 | BF16; u32: U32; u64: U64; [f32; 2]: C64; [f64; 2]: C128; }

/// What is no single tensor: a sequence, an optional, a map, or a tensor in one of them. It borrows what it
/// is made of; a result borrows the workspace.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Value<'a> {
    kind: i32, dtype: i32, key_dtype: i32, rank: i32, len: i64,
    dims: *const i64, data: *const core::ffi::c_void, keys: *const core::ffi::c_void, items: *const Value<'a>,
    of: core::marker::PhantomData<&'a ()>,
}
// SAFETY: it is a shared borrow of plain numbers.
unsafe impl Send for Value<'_> {}
// SAFETY: the same.
unsafe impl Sync for Value<'_> {}
impl<'a> Value<'a> {
    /// An optional without an element; also what a result is before the call.
    pub const NONE: Value<'a> = Value { kind: 0, dtype: 0, key_dtype: 0, rank: 0, len: 0, dims: core::ptr::null(), data: core::ptr::null(), keys: core::ptr::null(), items: core::ptr::null(), of: core::marker::PhantomData };
    /// A row-major tensor of elements of a type in [`dtype`], which `T` must be able to hold.
    pub fn tensor<T: sealed::Element<'a>>(dtype: i32, dims: &'a [i64], data: &'a [T]) -> Result<Value<'a>, Error> {
        let n = dims.iter().try_fold(1i64, |n, d| if *d < 0 { None } else { n.checked_mul(*d) });
        if n != i64::try_from(data.len()).ok() { return Err(Error::local(Status::Dim, "a tensor has %lld elements, and its dims tell %lld (-1: none)", data.len() as i64, n.unwrap_or(-1))); }
        if !T::holds(dtype) { return Err(Error::local(Status::Value, "a tensor of dtype %lld is made of elements of another type", dtype as i64, 0)); }
        let rank = i32::try_from(dims.len()).map_err(|_| Error::local(Status::Dim, "a tensor has %lld dims", dims.len() as i64, 0))?;
        Ok(Value { kind: 1, dtype, rank, len: data.len() as i64, dims: dims.as_ptr(), data: data.as_ptr().cast(), ..Value::NONE })
    }
    /// A sequence of tensors.
    pub fn sequence(items: &'a [Value<'a>]) -> Value<'a> {
        Value { kind: 2, len: items.len() as i64, items: items.as_ptr(), ..Value::NONE }
    }
    /// A map.
    pub fn map<K: sealed::Element<'a>, V: sealed::Element<'a>>(key_dtype: i32, keys: &'a [K], dtype: i32, values: &'a [V]) -> Result<Value<'a>, Error> {
        if keys.len() != values.len() { return Err(Error::local(Status::Dim, "a map has %lld keys and %lld values", keys.len() as i64, values.len() as i64)); }
        if !K::holds(key_dtype) || !V::holds(dtype) { return Err(Error::local(Status::Value, "a map of dtypes %lld and %lld is made of elements of other types", key_dtype as i64, dtype as i64)); }
        Ok(Value { kind: 3, dtype, key_dtype, len: keys.len() as i64, data: values.as_ptr().cast(), keys: keys.as_ptr().cast(), ..Value::NONE })
    }
    /// True for an optional without an element.
    pub fn is_none(&self) -> bool { self.kind == 0 }
    /// Type of the elements of a tensor, or of the values of a map: a number in [`dtype`].
    pub fn dtype(&self) -> i32 { self.dtype }
    /// Type of the keys of a map.
    pub fn key_dtype(&self) -> i32 { self.key_dtype }
    /// Dims of a tensor; empty for all else.
    pub fn dims(&self) -> &'a [i64] {
        if self.kind != 1 || self.rank <= 0 { return &[]; }
        // SAFETY: made from a slice, or by the call, which fills as many.
        unsafe { core::slice::from_raw_parts(self.dims, self.rank as usize) }
    }
    fn list<T>(&self, p: *const T) -> &'a [T] {
        if self.len <= 0 { return &[]; }
        // SAFETY: made from a slice of that many, or by the call, which fills as many.
        unsafe { core::slice::from_raw_parts(p, self.len as usize) }
    }
    /// Items of a sequence; empty for all else.
    pub fn items(&self) -> &'a [Value<'a>] { if self.kind == 2 { self.list(self.items) } else { &[] } }
    /// Elements of a tensor, or values of a map, if `T` is what they are stored as.
    pub fn data<T: sealed::Element<'a>>(&self) -> Option<&'a [T]> {
        (matches!(self.kind, 1 | 3) && T::holds(self.dtype)).then(|| self.list(self.data.cast()))
    }
    /// Keys of a map, if `K` is what they are stored as.
    pub fn keys<K: sealed::Element<'a>>(&self) -> Option<&'a [K]> {
        (self.kind == 3 && K::holds(self.key_dtype)).then(|| self.list(self.keys.cast()))
    }
}
"#;

/// Follows [`VALUE`] if there are strings.
pub(super) const STRINGS: &str =
    "impl<'a> sealed::Element<'a> for Str<'a> { fn holds(d: i32) -> bool { d == dtype::STR } }\n";
