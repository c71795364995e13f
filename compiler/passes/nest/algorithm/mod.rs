//! Algorithms: kernels that compute the same results with fewer or cheaper operations.

pub mod attention;
pub mod fuse_products;
pub mod separable_pooling;
pub mod simplify_erf;
pub mod strassen;
pub mod unit_extents;
pub mod winograd;
