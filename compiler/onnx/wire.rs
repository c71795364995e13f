//! The wire format of protocol buffers, checked before the messages are decoded.
//!
//! The decoder (prost) is stricter than the format in two points, and its errors have no position. It rejects
//! a known field with another wire type, which the format treats as unknown, and a `string` that is not
//! UTF-8, which proto2 readers accept. [`check`] walks a message with the table of onnx.proto's fields, which
//! build.rs writes. It reads tags and lengths only, allocates nothing for them, and reports the byte and the
//! path of a fault.

/// The kind of a field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An integer or a member of an enumeration.
    Varint,
    /// 32 bits.
    Float,
    /// 64 bits.
    Double,
    /// UTF-8.
    Text,
    /// Any bytes.
    Bytes,
    /// A message: position in [`MESSAGES`].
    Message(usize),
}

/// A field of a message.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its number on the wire.
    pub number: u32,
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// True for lists.
    pub repeated: bool,
}

/// A message.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// Its name, without those of enclosing messages.
    pub name: &'static str,
    /// Its fields.
    pub fields: &'static [Field],
}

include!("generated/schema.rs");

/// Messages nest at most this deep, as in the other protobuf libraries.
pub const MAX_DEPTH: usize = 100;
/// Most places of one kind that are kept for a report.
const MAX_PLACES: usize = 5;

/// Position of a message in [`MESSAGES`].
pub fn message(name: &str) -> Option<usize> {
    MESSAGES.iter().position(|m| m.name == name)
}

/// A violation of the format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Offset in the file.
    pub byte: usize,
    /// Fields from the outermost message on, e.g. `graph.node[2]`.
    pub path: String,
    /// The rule.
    pub what: String,
    /// True if messages nest too deeply.
    pub deep: bool,
}

/// Contents that decode but are not part of the format: places in the order of the file, and their number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Oddities {
    /// Fields that no message has, or that have another wire type.
    pub unknown: Vec<String>,
    /// Count of these.
    pub unknowns: usize,
    /// True if a known field has another wire type.
    pub mistyped: bool,
    /// Texts that are not UTF-8.
    pub not_utf8: Vec<String>,
    /// True for a GraphProto with its inputs and outputs as strings in fields 3 and 4, as before October
    /// 2017.
    pub obsolete_graph: bool,
}

impl Oddities {
    /// True if the message conforms to onnx.proto.
    pub fn is_empty(&self) -> bool {
        *self == Oddities::default()
    }
    /// True if the decoder accepts the bytes only after [`repaired`].
    pub fn need_repair(&self) -> bool {
        self.mistyped || !self.not_utf8.is_empty()
    }
}

/// Checks a message of this kind, a position in [`MESSAGES`].
pub fn check(bytes: &[u8], kind: usize) -> Result<Oddities, Fault> {
    let mut w = Walker { bytes, path: vec![], odd: Oddities::default() };
    w.message(kind, 0, bytes.len())?;
    Ok(w.odd)
}

/// True if a message that passed [`check`] has the field.
pub fn has(bytes: &[u8], kind: usize, field: &str) -> bool {
    let w = Walker { bytes, path: vec![], odd: Oddities::default() };
    let mut at = 0;
    while at < bytes.len() {
        let Ok(item) = w.item(&mut at, bytes.len()) else { return false };
        if MESSAGES[kind]
            .fields
            .iter()
            .any(|f| f.name == field && f.number == item.number && fits(f, item.wire))
        {
            return true;
        }
    }
    false
}

/// One field on the wire.
struct Item {
    number: u32,
    wire: u8,
    /// Offset of the tag.
    tag: usize,
    /// Payload; for wire type 2 without its length.
    start: usize,
    end: usize,
}

struct Walker<'a> {
    bytes: &'a [u8],
    path: Vec<(&'static str, Option<usize>)>,
    odd: Oddities,
}

/// A varint of at most ten bytes.
fn varint(b: &[u8], at: &mut usize, end: usize) -> Result<u64, &'static str> {
    let mut v = 0u64;
    for k in 0..10 {
        if *at >= end {
            return Err("a number is cut off");
        }
        let c = b[*at];
        *at += 1;
        v |= u64::from(c & 0x7f) << (7 * k);
        if c < 0x80 {
            return Ok(v);
        }
    }
    Err("a number of more than ten bytes")
}

impl Walker<'_> {
    fn fault<T>(&self, byte: usize, what: impl Into<String>) -> Result<T, Fault> {
        Err(Fault { byte, path: self.shown(), what: what.into(), deep: false })
    }
    fn shown(&self) -> String {
        let step = |(name, index): &(&str, Option<usize>)| {
            index.map_or((*name).to_owned(), |i| format!("{name}[{i}]"))
        };
        self.path.iter().map(step).collect::<Vec<_>>().join(".")
    }
    /// The field that begins at `at`, which is advanced past it.
    fn item(&self, at: &mut usize, end: usize) -> Result<Item, Fault> {
        let tag_at = *at;
        let tag = varint(self.bytes, at, end).or_else(|e| self.fault(tag_at, e))?;
        let (number, wire) = ((tag >> 3) as u32, (tag & 7) as u8);
        if number == 0 || tag >> 3 > (1 << 29) - 1 {
            return self.fault(tag_at, format!("field number {} does not exist", tag >> 3));
        }
        let mut start = *at;
        let length = match wire {
            0 => {
                varint(self.bytes, at, end).or_else(|e| self.fault(start, e))?;
                return Ok(Item { number, wire, tag: tag_at, start, end: *at });
            }
            1 => 8,
            2 => {
                let n = varint(self.bytes, at, end).or_else(|e| self.fault(start, e))?;
                start = *at;
                n
            }
            3 => {
                self.group(number, at, end, 0)?;
                return Ok(Item { number, wire, tag: tag_at, start, end: *at });
            }
            5 => 4,
            4 => return self.fault(tag_at, format!("the end of a group {number} that does not begin")),
            _ => {
                return self
                    .fault(tag_at, format!("field {number} has wire type {wire}, which does not exist"));
            }
        };
        if length > (end - start) as u64 {
            return self.fault(
                tag_at,
                format!(
                    "field {number} of {length} bytes runs past its message, which has {} more",
                    end - start
                ),
            );
        }
        *at = start + length as usize;
        Ok(Item { number, wire, tag: tag_at, start, end: *at })
    }
    /// Skips a group including its end.
    fn group(&self, number: u32, at: &mut usize, end: usize, depth: usize) -> Result<(), Fault> {
        let begin = *at;
        if depth + self.path.len() >= MAX_DEPTH {
            return Err(self.deep(begin));
        }
        loop {
            let tag_at = *at;
            if tag_at >= end {
                return self.fault(begin, format!("group {number} does not end"));
            }
            let tag = varint(self.bytes, at, end).or_else(|e| self.fault(tag_at, e))?;
            match tag & 7 {
                4 if (tag >> 3) as u32 == number => return Ok(()),
                3 => self.group((tag >> 3) as u32, at, end, depth + 1)?,
                _ => {
                    *at = tag_at;
                    self.item(at, end)?;
                }
            }
        }
    }
    fn deep(&self, byte: usize) -> Fault {
        Fault {
            byte,
            path: String::new(),
            what: format!("messages nest deeper than {MAX_DEPTH} levels"),
            deep: true,
        }
    }
    fn note_unknown(&mut self, item: &Item, kind: usize, known: Option<&Field>) {
        self.odd.unknowns += 1;
        self.odd.mistyped |= known.is_some();
        self.odd.obsolete_graph |=
            MESSAGES[kind].name == "GraphProto" && matches!(item.number, 3 | 4) && item.wire == 2;
        if self.odd.unknown.len() < MAX_PLACES {
            let place = self.shown();
            let dot = if place.is_empty() { "" } else { "." };
            let name = known.map_or(String::new(), |f| format!(" ({})", f.name));
            self.odd.unknown.push(format!(
                "{place}{dot}{}{name}, wire type {}, at byte {}",
                item.number, item.wire, item.tag
            ));
        }
    }
    fn message(&mut self, kind: usize, start: usize, end: usize) -> Result<(), Fault> {
        if self.path.len() >= MAX_DEPTH {
            return Err(self.deep(start));
        }
        let fields = MESSAGES[kind].fields;
        let mut counts = vec![0usize; fields.len()];
        let mut at = start;
        while at < end {
            let item = self.item(&mut at, end)?;
            let place = fields.iter().position(|f| f.number == item.number);
            let Some(k) = place.filter(|k| fits(&fields[*k], item.wire)) else {
                self.note_unknown(&item, kind, place.map(|k| &fields[k]));
                continue;
            };
            let f = &fields[k];
            if matches!(f.kind, Kind::Bytes) {
                continue;
            }
            self.path.push((f.name, f.repeated.then_some(counts[k])));
            counts[k] += 1;
            self.value(f, &item)?;
            self.path.pop();
        }
        Ok(())
    }
    fn value(&mut self, f: &Field, item: &Item) -> Result<(), Fault> {
        let (start, end) = (item.start, item.end);
        match f.kind {
            Kind::Message(m) => self.message(m, start, end)?,
            Kind::Text if std::str::from_utf8(&self.bytes[start..end]).is_err() => {
                let place = self.shown();
                self.odd.not_utf8.push(format!("{place}: \"{}\"", escaped(&self.bytes[start..end])));
            }
            Kind::Varint if item.wire == 2 => {
                let mut at = start;
                while at < end {
                    let here = at;
                    varint(self.bytes, &mut at, end).or_else(|e| self.fault(here, e))?;
                }
            }
            Kind::Float | Kind::Double if item.wire == 2 => {
                let size = if f.kind == Kind::Float { 4 } else { 8 };
                if (end - start) % size != 0 {
                    return self.fault(
                        start,
                        format!("{} bytes of packed numbers of {size} bytes each", end - start),
                    );
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// True if a field may have this wire type. Lists of numbers may be packed or not.
fn fits(f: &Field, wire: u8) -> bool {
    match f.kind {
        Kind::Varint => wire == 0 || wire == 2 && f.repeated,
        Kind::Float => wire == 5 || wire == 2 && f.repeated,
        Kind::Double => wire == 1 || wire == 2 && f.repeated,
        Kind::Text | Kind::Bytes | Kind::Message(_) => wire == 2,
    }
}

/// Bytes as text. Bytes that are not UTF-8 become `\xNN`.
pub fn escaped(bytes: &[u8]) -> String {
    let mut out = String::new();
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|b| out.push_str(&format!("\\x{b:02x}")));
    }
    out
}

/// The message without fields of a wrong wire type, and with all texts converted to UTF-8. The message must
/// have passed [`check`].
pub fn repaired(bytes: &[u8], kind: usize) -> Vec<u8> {
    let w = Walker { bytes, path: vec![], odd: Oddities::default() };
    w.repair(kind, 0, bytes.len())
}

impl Walker<'_> {
    fn repair(&self, kind: usize, start: usize, end: usize) -> Vec<u8> {
        let (mut out, mut at) = (vec![], start);
        while at < end {
            let Ok(item) = self.item(&mut at, end) else { return out };
            let Some(f) =
                MESSAGES[kind].fields.iter().find(|f| f.number == item.number && fits(f, item.wire))
            else {
                continue;
            };
            let inner = match f.kind {
                Kind::Message(m) => self.repair(m, item.start, item.end),
                Kind::Text => escaped(&self.bytes[item.start..item.end]).into_bytes(),
                _ => {
                    out.extend_from_slice(&self.bytes[item.tag..item.end]);
                    continue;
                }
            };
            put_varint(u64::from(item.number) << 3 | 2, &mut out);
            put_varint(inner.len() as u64, &mut out);
            out.extend(inner);
        }
        out
    }
}

fn put_varint(mut v: u64, out: &mut Vec<u8>) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}
