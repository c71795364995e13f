//! The header of .npy files (numpy's format description, versions 1 to 3): element type, order, shape.

use std::io::{Error, ErrorKind, Read, Result, Write};

const MAGIC: &[u8] = b"\x93NUMPY";
/// Longer headers describe structured types, which are not supported.
const MOST: usize = 1 << 16;

/// The contents of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The element type in numpy's spelling, `<f4`; for structured types the whole list.
    pub descr: String,
    /// The first dimension varies fastest.
    pub fortran_order: bool,
    /// The shape.
    pub shape: Vec<i64>,
}

impl Header {
    /// Reads a header; the elements follow.
    pub fn read(r: &mut impl Read) -> Result<Header> {
        let mut head = [0; 8];
        r.read_exact(&mut head)?;
        if !head.starts_with(MAGIC) {
            return Err(bad("no .npy file: it does not begin with \\x93NUMPY"));
        }
        let mut len = [0; 4];
        match head[6] {
            1 => r.read_exact(&mut len[..2])?,
            2 | 3 => r.read_exact(&mut len)?,
            v => return Err(bad(&format!("version {v} of the .npy format, and versions 1 to 3 are known"))),
        }
        let len = u32::from_le_bytes(len) as usize;
        if len > MOST {
            return Err(bad(&format!("a header of {len} bytes")));
        }
        let mut text = vec![0; len];
        r.read_exact(&mut text)?;
        let text = String::from_utf8_lossy(&text);
        parse(&text).ok_or_else(|| {
            bad(&format!("a header that is no dict of descr, fortran_order and shape: {}", text.trim()))
        })
    }
    /// Writes a header of version 1. The elements that follow it are aligned to 64 bytes.
    pub fn write(&self, w: &mut impl Write) -> Result<()> {
        let shape: String = self.shape.iter().map(|d| format!("{d}, ")).collect();
        // A shape of one dimension ends with a comma, one of several does not.
        let shape = if self.shape.len() > 1 { shape.trim_end_matches(", ") } else { shape.trim_end() };
        let order = if self.fortran_order { "True" } else { "False" };
        let mut text =
            format!("{{'descr': '{}', 'fortran_order': {order}, 'shape': ({shape}), }}", self.descr);
        let before = MAGIC.len() + 4;
        while !(before + text.len() + 1).is_multiple_of(64) {
            text.push(' ');
        }
        text.push('\n');
        let len = u16::try_from(text.len()).map_err(|_| bad("a shape that is too long for a header"))?;
        w.write_all(MAGIC)?;
        w.write_all(&[1, 0])?;
        w.write_all(&len.to_le_bytes())?;
        w.write_all(text.as_bytes())
    }
}

fn bad(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what)
}

/// Parses a Python dict with the three keys in any order.
fn parse(text: &str) -> Option<Header> {
    let inside = text.trim().strip_prefix('{')?.strip_suffix('}')?;
    let (mut descr, mut order, mut shape) = (None, None, None);
    let mut rest = inside.trim_start();
    while !rest.is_empty() {
        let (key, tail) = quoted(rest)?;
        let tail = tail.trim_start().strip_prefix(':')?.trim_start();
        let (value, tail) = value(tail)?;
        match key {
            "descr" => descr = Some(quoted(value).map_or(value, |(d, _)| d).to_owned()),
            "fortran_order" => order = Some(value == "True"),
            "shape" => shape = Some(dims(value)?),
            _ => return None,
        }
        rest = tail.trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
    Some(Header { descr: descr?, fortran_order: order?, shape: shape? })
}

/// A string in either kind of quotes, and the rest of the text.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    text[1..].split_once(quote)
}

/// The text up to a comma outside quotes and brackets, and the rest of the text.
fn value(text: &str) -> Option<(&str, &str)> {
    let (mut depth, mut quote) = (0usize, None);
    for (i, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), c) if q == c => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth = depth.checked_sub(1)?,
            (None, ',') if depth == 0 => return Some((text[..i].trim_end(), &text[i..])),
            _ => {}
        }
    }
    (depth == 0 && quote.is_none()).then_some((text.trim_end(), ""))
}

/// `(3, 4)`, `(3,)`, `()`; numpy of Python 2 wrote `3L`.
fn dims(text: &str) -> Option<Vec<i64>> {
    let inside = text.strip_prefix('(')?.strip_suffix(')')?;
    let parts = inside.split(',').map(str::trim).filter(|p| !p.is_empty());
    parts.map(|p| p.trim_end_matches('L').parse::<i64>().ok().filter(|d| *d >= 0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_they_were_written() {
        for shape in [vec![], vec![3], vec![3, 0, 5]] {
            let h = Header { descr: "<f4".into(), fortran_order: false, shape };
            let mut bytes = vec![];
            h.write(&mut bytes).expect("a header");
            assert_eq!(bytes.len() % 64, 0);
            assert_eq!(Header::read(&mut bytes.as_slice()).expect("a header"), h);
        }
    }

    #[test]
    fn headers_of_others() {
        let read = |text: &str| {
            let mut b = b"\x93NUMPY\x02\x00".to_vec();
            b.extend((text.len() as u32).to_le_bytes());
            b.extend(text.as_bytes());
            Header::read(&mut b.as_slice())
        };
        let h = read("{\"shape\": (2L, 3), 'descr':'|S7','fortran_order' : True}   \n").expect("a header");
        assert_eq!(h, Header { descr: "|S7".into(), fortran_order: true, shape: vec![2, 3] });
        let h =
            read("{'descr': [('a', '<f4'), ('b', '<i2', (2,))], 'fortran_order': False, 'shape': (1,), }")
                .expect("a header");
        assert_eq!(h.descr, "[('a', '<f4'), ('b', '<i2', (2,))]");
        for wrong in [
            "",
            "{}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
            "{'descr': '<f4', 'shape': (1",
            "{'x': 1}",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert!(Header::read(&mut &b"PK\x03\x04...."[..]).is_err());
        assert!(Header::read(&mut &b"\x93NUMPY\x02\x00\xff\xff\xff\xff"[..]).is_err());
        assert!(Header::read(&mut &b"\x93NUMPY\x09\x00\x00\x00"[..]).is_err());
    }
}
