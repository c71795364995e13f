//! Queries about kernels that several passes share, and builders of common parts of nests.

pub(crate) use crate::nest::form;

pub mod borders;
pub mod columns;
pub mod copies;
pub mod cost;
pub mod gates;
pub mod lanes64;
pub mod machine;
pub mod shape;
pub mod strides;
pub mod uses;
pub mod vectors;
