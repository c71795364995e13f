//! Parts of the Rust module that are independent of the model.

/// Exact arithmetic on sizes in the generated module.
pub(super) const SIZE: &str = r"/// Exact arithmetic on sizes: no value on overflow and on division by zero.
#[allow(dead_code)]
mod size {
    pub fn add(a: Option<i64>, b: Option<i64>) -> Option<i64> { a?.checked_add(b?) }
    pub fn mul(a: Option<i64>, b: Option<i64>) -> Option<i64> { a?.checked_mul(b?) }
    pub fn floordiv(a: Option<i64>, b: Option<i64>) -> Option<i64> {
        let (a, b) = (a?, b?);
        let q = a.checked_div(b)?;
        Some(if a % b != 0 && (a < 0) != (b < 0) { q - 1 } else { q })
    }
    pub fn floormod(a: Option<i64>, b: Option<i64>) -> Option<i64> {
        let (a, b) = (a?, b?);
        let r = a.checked_rem(b)?;
        Some(if r != 0 && (r < 0) != (b < 0) { r + b } else { r })
    }
    pub fn min(a: Option<i64>, b: Option<i64>) -> Option<i64> { Some(a?.min(b?)) }
    pub fn max(a: Option<i64>, b: Option<i64>) -> Option<i64> { Some(a?.max(b?)) }
    /// As an index type.
    pub fn index(n: Option<i64>, text: &'static str) -> Result<usize, super::Error> {
        n.and_then(|n| usize::try_from(n).ok()).ok_or(super::Error::local(super::Status::Dim, text, n.unwrap_or(-1), 0))
    }
}
";

/// The arguments of custom operators' functions.
pub(super) const CUSTOM: &str = include_str!("../rust_custom.rs.txt");
/// The execution context of a call.
pub(super) const EXEC: &str = include_str!("../rust_exec.rs.txt");

/// Workspace of a fixed size.
pub(super) const FIXED_WORKSPACE: &str = "
/// Scratch memory for one call at a time. `const fn new` so that it can be a `static`; no allocation.
#[repr(C, align(64))]
pub struct Workspace(core::mem::MaybeUninit<[u8; WORKSPACE_SIZE]>);
impl Workspace {
    /// Contents are undefined, before a call as well as after it.
    pub const fn new() -> Self { Workspace(core::mem::MaybeUninit::uninit()) }
}
impl Default for Workspace { fn default() -> Self { Self::new() } }
";

/// Workspace of a size that depends on dims.
pub(super) const SLICE_WORKSPACE: &str = "
/// 64 aligned bytes that a [`Workspace`] is made of.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Block([core::mem::MaybeUninit<u8>; 64]);
impl Block {
    /// Contents are undefined.
    pub const fn new() -> Self { Block([core::mem::MaybeUninit::uninit(); 64]) }
    /// How many blocks hold that many bytes.
    pub const fn count(bytes: usize) -> usize { bytes.div_ceil(64) }
}
impl Default for Block { fn default() -> Self { Self::new() } }

/// Scratch memory of the caller for one call at a time, which is checked to be large enough.
pub struct Workspace<'a>(&'a mut [Block]);
impl<'a> Workspace<'a> {
    /// [`Block::count`] tells how many blocks a size takes. Where values whose size follows from data need
    /// more, the error tells how much: `Error::workspace_size`.
    pub const fn new(blocks: &'a mut [Block]) -> Self { Workspace(blocks) }
    /// The aligned part of any memory: up to 126 bytes at its ends are not used.
    pub fn from_bytes(bytes: &'a mut [core::mem::MaybeUninit<u8>]) -> Self {
        // SAFETY: a block is 64 bytes of any contents, initialised or not.
        Workspace(unsafe { bytes.align_to_mut::<Block>() }.1)
    }
    /// Its bytes.
    pub const fn size(&self) -> usize { core::mem::size_of_val::<[Block]>(self.0) }
}
";

/// Elements of tensors of strings.
pub(super) const STR: &str = "
/// A string in memory that someone else owns: an element of a tensor of strings.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Str<'a> {
    data: *const u8,
    #[cfg(target_pointer_width = \"32\")]
    padding: u32,
    len: i64,
    of: core::marker::PhantomData<&'a str>,
}
impl<'a> Str<'a> {
    /// No bytes: what elements of outputs may be before a call.
    pub const EMPTY: Self = Str::new(\"\");
    /// Shows a string.
    pub const fn new(s: &'a str) -> Self {
        Str {
            data: s.as_ptr(),
            #[cfg(target_pointer_width = \"32\")]
            padding: 0,
            len: s.len() as i64,
            of: core::marker::PhantomData,
        }
    }
    /// The string.
    pub const fn as_str(self) -> &'a str {
        // SAFETY: address and length are those of a string, or were written by the model, which cuts and
        // joins strings between code points only.
        unsafe { core::str::from_utf8_unchecked(core::slice::from_raw_parts(self.data, self.len as usize)) }
    }
}
impl<'a> From<&'a str> for Str<'a> { fn from(s: &'a str) -> Self { Str::new(s) } }
impl Default for Str<'_> { fn default() -> Self { Str::EMPTY } }
impl PartialEq for Str<'_> { fn eq(&self, o: &Self) -> bool { self.as_str() == o.as_str() } }
impl core::fmt::Debug for Str<'_> { fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result { \
self.as_str().fmt(f) } }
impl core::fmt::Display for Str<'_> { fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result \
{ f.write_str(self.as_str()) } }
// SAFETY: it is a shared reference to a string.
unsafe impl Send for Str<'_> {}
// SAFETY: as above.
unsafe impl Sync for Str<'_> {}
";
