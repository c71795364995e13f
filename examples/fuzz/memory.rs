//! Buffers between inaccessible pages, on Unix. Elsewhere they are plain memory.

#![allow(unsafe_code)]

#[cfg(unix)]
mod unix {
    use std::ffi::{c_int, c_void};

    unsafe extern "C" {
        fn mmap(
            address: *mut c_void,
            length: usize,
            protection: c_int,
            flags: c_int,
            file: c_int,
            offset: i64,
        ) -> *mut c_void;
        fn mprotect(address: *mut c_void, length: usize, protection: c_int) -> c_int;
        fn munmap(address: *mut c_void, length: usize) -> c_int;
    }

    const PAGE: usize = 16384;
    const GUARD: usize = 1 << 20;
    const READ: c_int = 1;
    const WRITE: c_int = 2;
    const PRIVATE: c_int = 2;
    const ANONYMOUS: c_int = if cfg!(target_os = "linux") { 0x20 } else { 0x1000 };

    /// A buffer that ends, or begins, at an inaccessible page.
    pub struct Memory {
        map: *mut u8,
        pages: usize,
        at: usize,
        size: usize,
        fill: u8,
    }

    impl Memory {
        /// One whose size is no multiple of `align` ends less than that before the page.
        pub fn new(size: usize, align: usize, end: bool, fill: u8) -> Memory {
            let pages = size.next_multiple_of(PAGE);
            // SAFETY: a new mapping of our own; the pages between the guards are made accessible before they
            // are written.
            unsafe {
                let map =
                    mmap(std::ptr::null_mut(), pages + 2 * GUARD, 0, PRIVATE | ANONYMOUS, -1, 0).cast::<u8>();
                assert!(map as isize != -1, "memory for a buffer of {size} bytes");
                if pages > 0 {
                    assert_eq!(mprotect(map.add(GUARD).cast(), pages, READ | WRITE), 0, "pages of a buffer");
                    map.add(GUARD).write_bytes(fill, pages);
                }
                Memory {
                    map,
                    pages,
                    at: GUARD + if end { (pages - size) / align * align } else { 0 },
                    size,
                    fill,
                }
            }
        }
        pub fn address(&self) -> *mut u8 {
            // SAFETY: `at` lies in the mapping.
            unsafe { self.map.add(self.at) }
        }
        /// From here on nobody may write to it.
        pub fn seal(&self) {
            if self.pages == 0 {
                return;
            }
            // SAFETY: the accessible pages of this mapping.
            let status = unsafe { mprotect(self.map.add(GUARD).cast(), self.pages, READ) };
            assert_eq!(status, 0, "pages of a buffer");
        }
        pub fn bytes(&self) -> &[u8] {
            // SAFETY: readable pages of this mapping. Generated code writes them only while `call` runs.
            unsafe { std::slice::from_raw_parts(self.address(), self.size) }
        }
        /// Copies the beginning of a buffer.
        pub fn write(&mut self, data: &[u8]) {
            assert!(data.len() <= self.size);
            // SAFETY: writable pages of this mapping, until `seal`.
            unsafe { self.address().copy_from_nonoverlapping(data.as_ptr(), data.len()) }
        }
        /// True if bytes beside the buffer changed.
        pub fn disturbed(&self) -> bool {
            // SAFETY: the accessible pages of this mapping.
            let pages = unsafe { std::slice::from_raw_parts(self.map.add(GUARD), self.pages) };
            let before = self.at - GUARD;
            pages[..before.min(self.pages)]
                .iter()
                .chain(pages.get(before + self.size..).unwrap_or(&[]))
                .any(|b| *b != self.fill)
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            // SAFETY: the mapping is ours, and nothing refers to it any more.
            unsafe { munmap(self.map.cast(), self.pages + 2 * GUARD) };
        }
    }

    #[repr(C)]
    struct Limit {
        now: u64,
        most: u64,
    }

    /// Allocations beyond this many bytes end the process.
    #[cfg(target_os = "linux")]
    pub fn limit_memory(bytes: u64) {
        limit(2, bytes);
    }
    #[cfg(not(target_os = "linux"))]
    pub fn limit_memory(_: u64) {}

    /// The process ends with SIGXCPU once it has computed for so many seconds, whatever else the machine does
    /// meanwhile.
    #[cfg(target_os = "linux")]
    pub fn limit_seconds(seconds: u64) {
        limit(0, seconds);
    }
    #[cfg(not(target_os = "linux"))]
    pub fn limit_seconds(_: u64) {}

    #[cfg(target_os = "linux")]
    fn limit(resource: c_int, most: u64) {
        unsafe extern "C" {
            fn setrlimit(resource: c_int, limit: *const Limit) -> c_int;
        }
        // SAFETY: the struct is the one of the C library.
        unsafe { setrlimit(resource, &Limit { now: most, most }) };
    }
}

#[cfg(not(unix))]
mod plain {
    /// A buffer that nothing guards.
    pub struct Memory {
        data: Vec<[u64; 8]>,
        size: usize,
    }

    impl Memory {
        pub fn new(size: usize, _: usize, _: bool, fill: u8) -> Memory {
            Memory { data: vec![[u64::from_ne_bytes([fill; 8]); 8]; size / 64 + 1], size }
        }
        pub fn address(&self) -> *mut u8 {
            self.data.as_ptr().cast::<u8>().cast_mut()
        }
        pub fn seal(&self) {}
        pub fn bytes(&self) -> &[u8] {
            // SAFETY: the vector has at least so many bytes.
            unsafe { std::slice::from_raw_parts(self.address(), self.size) }
        }
        pub fn write(&mut self, data: &[u8]) {
            assert!(data.len() <= self.size);
            // SAFETY: the vector has at least so many bytes.
            unsafe { self.address().copy_from_nonoverlapping(data.as_ptr(), data.len()) }
        }
        pub fn disturbed(&self) -> bool {
            false
        }
    }

    pub fn limit_memory(_: u64) {}
    pub fn limit_seconds(_: u64) {}
}

#[cfg(not(unix))]
pub use plain::*;
#[cfg(unix)]
pub use unix::*;
