//! Code shared by families: attributes and contexts of operators, schemas, pieces of nests. No family is
//! implemented here.

pub mod arg;
pub mod attrs;
pub mod bits;
pub mod cx;
pub mod power;
pub mod radix;
pub mod runtime;
pub mod schema;
pub mod scores;
pub mod text;
