//! Passes over the nest IR, in groups. A file of a group is a pass and a row of [`super::table`], which
//! defines their order. Helpers of a single pass are in a folder of its name.
//!
//! | group | what its passes decide |
//! |---|---|
//! | [`fuse`] | which nodes share a kernel |
//! | [`fuse`] | which nodes share a kernel |

pub mod algorithm;
pub mod analysis;
pub mod fuse;
pub mod layout;
pub mod memory;
pub mod quantize;
pub mod schedule;
