//! Passes over the nest IR, in groups. A file of a group is one pass and one row of [`super::table`], which
//! has their order; what a pass keeps to itself lies in a folder of its name.
//!
//! | group | what its passes decide |
//! |---|---|
//! | [`fuse`] | which nodes share a kernel |
//! | [`algorithm`] | which sums a kernel computes: direct, Winograd, Strassen, separable windows, attention by blocks of rows |
//! | [`quantize`] | the arithmetic of quantized and of low-precision numbers |
//! | [`layout`] | the order and the element types of buffers in memory |
//! | [`schedule`] | tiles, vectors, unrolling, tasks: one pass, in a folder |
//! | [`memory`] | where every buffer lies |
//!
//! [`analysis`] has what several passes ask about kernels: it changes nothing by itself.

pub mod algorithm;
pub mod analysis;
pub mod fuse;
pub mod layout;
pub mod memory;
pub mod quantize;
pub mod schedule;
