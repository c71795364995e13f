//! Maps and sets of what the compiler numbers itself: buffers, registers, symbols, values of code.
//!
//! No input chooses the keys, so a fast hash is safe. The order of iteration is no one's to rely on.

/// A map from such a key.
pub type Map<K, V> = std::collections::HashMap<K, V, rustc_hash::FxBuildHasher>;
/// A set of such keys.
pub type Set<K> = std::collections::HashSet<K, rustc_hash::FxBuildHasher>;
