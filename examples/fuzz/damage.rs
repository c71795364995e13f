//! Random damage to files.

use crate::exprs::Rng;

/// Flips, overwrites, cuts, repeats; mostly in the part that is structure, not weights.
pub fn damage(bytes: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut b = bytes.to_vec();
    for _ in 0..1 + rng.below(6) {
        let at = rng.below(b.len());
        match rng.below(8) {
            0 => b.truncate(at),
            1 => b[at] = 0xff,
            2 => b[at] = 0,
            3 => {
                let n = rng.below(16).min(b.len() - at);
                b.drain(at..at + n);
            }
            4 => {
                let part: Vec<u8> = b[at..(at + 1 + rng.below(40)).min(b.len())].to_vec();
                let to = rng.below(b.len());
                b.splice(to..to, part);
            }
            5 => b[at] = b[at].wrapping_add(1),
            _ => b[at] ^= 1 << rng.below(8),
        }
        if b.is_empty() {
            b.push(8);
        }
    }
    b
}
