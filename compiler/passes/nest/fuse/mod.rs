//! Fusion: which nodes share a kernel, and which kernels exist.

pub mod drop_dead_kernels;
pub mod fold_constants;
pub mod fuse_channel_blocks;
pub mod fuse_conv_pool;
pub mod fuse_depthwise;
pub mod fuse_epilogues;
pub mod gate_weights;
pub mod inline_elementwise;
pub mod inline_producers;
pub mod join_rows;
pub mod pair_chains;
pub mod split_rows;
