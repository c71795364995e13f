//! The core that schedules are made for, as far as CPU levels do not determine it: cache sizes and threads.
//! Thresholds of passes are multiples of these numbers.
//!
//! The numbers are those of the cores on which the thresholds were measured (Zen 5: 48 KiB of first-level
//! cache in 12 ways, 1 MiB of second-level cache, four threads; method in `BENCHMARKS.md`), except for the
//! ways: other cores have 8.

use crate::sym::Dim;

/// Bytes of a cache line.
pub(crate) const LINE: i64 = 64;
/// Bytes of a page, and of one way of the first-level cache: lines at a distance of a multiple of it share a
/// set.
pub(crate) const PAGE: i64 = 4 << 10;
/// Minimum ways of the first-level cache: lines of a set.
pub(crate) const WAYS: i64 = 8;
/// Sets of the first-level cache.
pub(crate) const SETS: i64 = PAGE / LINE;
/// Sets of the first-level cache that lines at a distance of `step` bytes, a multiple of a line, fall into.
pub(crate) fn sets_at(step: i64) -> i64 {
    SETS >> (step / LINE).trailing_zeros().min(SETS.trailing_zeros())
}
/// Bytes of the first-level cache.
pub(crate) const L1: i64 = 48 << 10;
/// Bytes of the second-level cache that data may occupy.
pub(crate) const L2: i64 = 1 << 20;
/// Bytes of the third-level cache that a model's constants may occupy.
pub(crate) const L3: i64 = 32 << 20;
/// Threads for which a call is divided at least. More threads still find work with as many pieces.
pub(crate) const THREADS: i64 = 4;

/// Maximum parts of scratch for the tasks of a kernel, each of which uses one part for all of its iterations.
pub(crate) const SLOTS: i64 = 32;

/// The parts of scratch for `total` iterations that use `bytes` each, and the tasks: no more than stay in the
/// second-level cache, but one for each thread.
pub(crate) fn slots(total: Dim, bytes: Option<i64>) -> i64 {
    let most = bytes.map_or(SLOTS, |b| (L2 / b.max(1)).clamp(THREADS, SLOTS));
    total.as_const().map_or(most, |t| t.clamp(1, most))
}
