//! What families share: attributes and contexts of operators, schemas, pieces of nests. A family never has
//! its home here.

pub mod attrs;
pub mod bits;
pub mod cx;
pub mod radix;
pub mod runtime;
pub mod schema;
pub mod scores;
pub mod text;
