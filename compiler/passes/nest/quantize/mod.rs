//! Quantized and low-precision numbers: contractions in floats or by dot products, and the arithmetic between
//! a reduction and its store.

pub mod bf16_dot;
pub mod exact_sums;
pub mod few_bits;
pub mod flush_weights;
pub mod fold_requantize;
pub mod half_products;
pub mod integer_dot;
pub mod lookup_tables;
pub mod widen_factors;
pub mod widen_integers;
