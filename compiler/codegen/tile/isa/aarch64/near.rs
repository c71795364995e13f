//! Loads that elements share: elements of one buffer that are near each other are lanes of one vector.
//!
//! No load reads beyond the first or the last of the elements, which a function reads in any case: what is
//! between them belongs to the buffer.

/// A load, and the elements that are taken from it.
pub(super) struct Window {
    /// Displacement of its first lane.
    pub first: i32,
    /// Number of lanes.
    pub count: usize,
    /// Index in the list of elements, and the lane.
    pub elements: Vec<(usize, u8)>,
}

/// Loads of `counts` lanes (in descending order; single ones are always possible) of `size` bytes for
/// elements at these displacements, in ascending order. A load ends at the last element at the latest, and
/// begins before the elements that it is for if there are not enough behind them.
pub(super) fn windows(places: &[i32], size: i32, counts: &[usize]) -> Vec<Window> {
    let (Some(low), Some(high)) = (places.first(), places.last()) else { return vec![] };
    let (low, high) = (*low, high.saturating_add(size));
    let mut out = vec![];
    let mut k = 0;
    while k < places.len() {
        // Elements from `k` on that a load of so many lanes has, and where it begins.
        let window = |count: usize| {
            let bytes = size * count as i32;
            let first = places[k].min(high - bytes);
            let lane = |p: &i32| {
                let at = p.wrapping_sub(first);
                (at % size == 0 && (0..bytes).contains(&at)).then_some((at / size) as u8)
            };
            let elements: Vec<(usize, u8)> =
                places[k..].iter().map_while(lane).enumerate().map(|(i, lane)| (k + i, lane)).collect();
            Window { first, count, elements }
        };
        // The least lanes that have as many elements as any.
        let all = counts.iter().chain(&[1]).map(|c| window(*c)).filter(|w| w.first >= low);
        let Some(w) = all.min_by_key(|w| (std::cmp::Reverse(w.elements.len()), w.count)) else { return out };
        k += w.elements.len().max(1);
        out.push(w);
    }
    out
}
