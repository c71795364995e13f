//! Strings as bytes. Generated code takes and gives elements with addresses ([`onnxc_str`]); where a tensor
//! is plain bytes, an element is the position of the string's bytes, counted from the first element, and how
//! many they are, and behind the elements stand the bytes of all of them.

#![allow(unsafe_code, reason = "follows the addresses that generated code hands out")]

use crate::abi::onnxc_str;

/// Bytes of an element, in both forms.
pub const SIZE: usize = 16;

/// Strings with their elements in front.
pub fn encode<T: AsRef<[u8]>>(list: &[T]) -> Vec<u8> {
    let mut out = Vec::with_capacity(encoded_len(list) as usize);
    let mut at = (list.len() * SIZE) as u64;
    for s in list {
        let n = s.as_ref().len() as u64;
        out.extend(at.to_le_bytes());
        out.extend(n.to_le_bytes());
        at += n;
    }
    list.iter().for_each(|s| out.extend_from_slice(s.as_ref()));
    out
}

/// Bytes that [`encode`] makes.
pub fn encoded_len<T: AsRef<[u8]>>(list: &[T]) -> u64 {
    list.iter().map(|s| (s.as_ref().len() + SIZE) as u64).sum()
}

/// Position and length of element `i`, if its bytes are there.
pub fn place(data: &[u8], i: usize) -> Option<(usize, usize)> {
    let word = |k: usize| {
        data.get(i.checked_mul(SIZE)?.checked_add(k)?..)?.first_chunk().map(|w| u64::from_le_bytes(*w))
    };
    let (at, n) = (usize::try_from(word(0)?).ok()?, usize::try_from(word(8)?).ok()?);
    (at.checked_add(n)? <= data.len()).then_some((at, n))
}

/// The first `n` strings.
pub fn decode(data: &[u8], n: usize) -> Option<Vec<&[u8]>> {
    (0..n).map(|i| place(data, i).and_then(|(at, n)| data.get(at..at + n))).collect()
}

/// The first `n` elements, as bytes, with the addresses that they have where the data begin at `base`.
pub fn addressed(data: &[u8], n: usize, base: *const u8) -> Option<Vec<u8>> {
    let element = |(at, len): (usize, usize)| {
        [(base.wrapping_add(at).expose_provenance() as i64).to_ne_bytes(), (len as i64).to_ne_bytes()]
            .concat()
    };
    (0..n).map(|i| place(data, i).map(element)).collect::<Option<Vec<_>>>().map(|list| list.concat())
}

/// Elements that generated code wrote, as bytes.
///
/// # Safety
/// Each element shows `len` readable bytes at its address, or none.
pub unsafe fn encode_elements(list: &[onnxc_str]) -> Vec<u8> {
    let bytes = |s: &onnxc_str| -> &[u8] {
        match usize::try_from(s.len) {
            // SAFETY: the caller's promise.
            Ok(n) if n > 0 && !s.data.is_null() => unsafe { std::slice::from_raw_parts(s.data.cast(), n) },
            _ => &[],
        }
    };
    encode(&list.iter().map(bytes).collect::<Vec<&[u8]>>())
}

/// `n` elements that stand in bytes as generated code wrote them.
pub fn read_elements(data: &[u8], n: usize) -> Vec<onnxc_str> {
    let word =
        |c: &[u8], k: usize| c.get(k..).and_then(|c| c.first_chunk()).map_or(0, |w| i64::from_ne_bytes(*w));
    data.chunks_exact(SIZE)
        .take(n)
        .map(|c| onnxc_str::new(std::ptr::with_exposed_provenance(word(c, 0) as usize), word(c, 8)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let list = ["", "ä", "a\0b", ""];
        let data = encode(&list);
        assert_eq!(data.len() as u64, encoded_len(&list));
        assert_eq!(decode(&data, 4), Some(list.iter().map(|s| s.as_bytes()).collect()));
        assert_eq!(decode(&data, 6), None);
        assert_eq!(decode(&data[..60], 4), None);
        let with_addresses = addressed(&data, 4, data.as_ptr()).unwrap();
        // SAFETY: `data` is still there.
        assert_eq!(unsafe { encode_elements(&read_elements(&with_addresses, 4)) }, data);
    }
}
