//! The core that schedules are made for, where CPU levels do not tell: sizes of caches, threads. Thresholds
//! of passes are multiples of these, so that one place says what they rest on.
//!
//! The numbers are those of the cores on which the thresholds were measured (Zen 5: 48 KiB of first-level
//! cache in 12 ways, 1 MiB of second-level cache, four threads; method in `BENCHMARKS.md`), but for the ways,
//! of which other cores have 8.

/// Bytes of a line of memory.
pub(crate) const LINE: i64 = 64;
/// Bytes of a page, and of what one way of the first-level cache holds: lines that lie a multiple of it apart
/// share a set.
pub(crate) const PAGE: i64 = 4 << 10;
/// Ways of the first-level cache at least: lines of a set.
pub(crate) const WAYS: i64 = 8;
/// Sets of the first-level cache.
pub(crate) const SETS: i64 = PAGE / LINE;
/// Bytes of the first-level cache.
pub(crate) const L1: i64 = 48 << 10;
/// Bytes of the second-level cache that data may count on.
pub(crate) const L2: i64 = 1 << 20;
/// Threads that a call is divided for at least: with as many pieces, more threads still find work.
pub(crate) const THREADS: i64 = 4;
