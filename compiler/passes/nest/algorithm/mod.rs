//! Algorithms: kernels that compute the same results with fewer or cheaper operations.

pub mod attention;
pub mod fuse_products;
pub mod separable_pooling;
pub mod short_extents;
pub mod simplify_erf;
pub mod strassen;

pub mod winograd;
