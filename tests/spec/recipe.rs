//! Builds the file of a test: ONNX text, then edits on the wire format by the names of onnx.proto.

use super::format::{Test, unescape};
use onnxc::onnx::wire::{Field, Kind, MESSAGES, message};
use prost::Message;

const HEADER: &str = "<ir_version: 10, opset_import: [\"\" : 21]>";
const DEFAULT: &str = "g (float[2] x) => (float[2] y) { y = Relu(x) }";

/// The bytes of a test's model.
pub fn build(t: &Test) -> Result<Vec<u8>, String> {
    let mut bytes = match t.steps.iter().find(|(c, _)| c == "bytes") {
        Some((_, hex)) => content(hex)?,
        None => from_text(&t.model)?,
    };
    for (command, rest) in &t.steps {
        let step = match command.as_str() {
            "set" | "add" | "clear" | "raw" | "wrap" => edit(&bytes, command, rest),
            "cut" => rest
                .parse()
                .map_err(|_| "a number".to_owned())
                .map(|n: usize| bytes[..bytes.len().saturating_sub(n)].to_vec()),
            _ => continue,
        };
        bytes = step.map_err(|e| format!("@{command} {rest}: {e}"))?;
    }
    Ok(bytes)
}

fn from_text(text: &str) -> Result<Vec<u8>, String> {
    let text = if text.trim().is_empty() { DEFAULT } else { text };
    let text = if text.trim_start().starts_with('<') { text.to_owned() } else { format!("{HEADER}\n{text}") };
    let model =
        onnxc::onnx::text::parse_model(repeat(&text)?.as_bytes(), "model").map_err(|e| e.to_string())?;
    Ok(model.encode_to_vec())
}

/// `$(1..4: text #)` -> four times the text.
fn repeat(text: &str) -> Result<String, String> {
    let Some(at) = text.find("$(") else { return Ok(text.to_owned()) };
    let inner = &text[at + 2..];
    let mut depth = 1;
    let end = inner.find(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth == 0
    });
    let end = end.ok_or("$( is open")?;
    let (range, body) = inner[..end].split_once(':').ok_or("$(1..4: text)")?;
    let (lo, hi) = range.split_once("..").ok_or("$(1..4: text)")?;
    let (lo, hi): (u64, u64) =
        (lo.trim().parse().map_err(|_| "a number")?, hi.trim().parse().map_err(|_| "a number")?);
    let copies: String = (lo..=hi).map(|i| body.replace('#', &i.to_string())).collect();
    Ok(format!("{}{copies}{}", &text[..at], repeat(&inner[end + 1..])?))
}

/// Hex bytes, `zeros N` or a string in quotes.
pub fn content(text: &str) -> Result<Vec<u8>, String> {
    if let Some(n) = text.strip_prefix("zeros ") {
        return n.trim().parse().map(|n| vec![0; n]).map_err(|_| "zeros N".into());
    }
    if let Some(s) = text.strip_prefix('"') {
        return unescape(s).map(|(b, _)| b).ok_or("a quote is open".into());
    }
    let digits: String = text.split_whitespace().collect();
    let byte = |i: usize| {
        digits
            .get(i..i + 2)
            .and_then(|d| u8::from_str_radix(d, 16).ok())
            .ok_or(format!("\"{text}\" is not hex"))
    };
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// One field on the wire: number and whole encoding.
struct Raw {
    number: u32,
    wire: u8,
    /// The tag and, for wire type 2, the length are no part of it.
    value: Vec<u8>,
}

fn varint(mut v: u64, out: &mut Vec<u8>) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

fn read_varint(b: &[u8], at: &mut usize) -> Result<u64, String> {
    let mut v = 0u64;
    for shift in (0..70).step_by(7) {
        let c = *b.get(*at).ok_or("an edit behind broken bytes")?;
        *at += 1;
        v |= u64::from(c & 0x7f).checked_shl(shift).unwrap_or(0);
        if c < 0x80 {
            return Ok(v);
        }
    }
    Err("an edit behind broken bytes".into())
}

fn split(b: &[u8]) -> Result<Vec<Raw>, String> {
    let (mut at, mut out) = (0, vec![]);
    while at < b.len() {
        let tag = read_varint(b, &mut at)?;
        let start = at;
        let end = match tag & 7 {
            0 => {
                read_varint(b, &mut at)?;
                at
            }
            1 => at + 8,
            2 => {
                let n = read_varint(b, &mut at)? as usize;
                out.push(Raw {
                    number: (tag >> 3) as u32,
                    wire: 2,
                    value: b.get(at..at + n).ok_or("an edit behind broken bytes")?.to_vec(),
                });
                at += n;
                continue;
            }
            5 => at + 4,
            _ => return Err("an edit behind a group".into()),
        };
        out.push(Raw {
            number: (tag >> 3) as u32,
            wire: (tag & 7) as u8,
            value: b.get(start..end).ok_or("an edit behind broken bytes")?.to_vec(),
        });
        at = end;
    }
    Ok(out)
}

fn join(list: &[Raw]) -> Vec<u8> {
    let mut out = vec![];
    for r in list {
        varint(u64::from(r.number) << 3 | u64::from(r.wire), &mut out);
        if r.wire == 2 {
            varint(r.value.len() as u64, &mut out);
        }
        out.extend(&r.value);
    }
    out
}

fn field(message: usize, name: &str) -> Result<&'static Field, String> {
    let m = &MESSAGES[message];
    m.fields.iter().find(|f| f.name == name).ok_or(format!("{} has no field \"{name}\"", m.name))
}

fn edit(bytes: &[u8], command: &str, rest: &str) -> Result<Vec<u8>, String> {
    let root = message("ModelProto").ok_or("no ModelProto")?;
    let (times, rest) = match (command, rest.split_once(' ')) {
        ("wrap", Some((n, rest))) => (n.parse().map_err(|_| "@wrap N path = value")?, rest),
        _ => (1, rest),
    };
    let (path, value) = rest.split_once('=').map_or((rest, ""), |(p, v)| (p, v.trim()));
    let steps: Vec<&str> = path.trim().split('.').filter(|s| !s.is_empty()).collect();
    if command == "raw" {
        return at_message(bytes, root, &steps, &mut |_, b| Ok([b, &content(value)?].concat()));
    }
    let (last, parents) = steps.split_last().ok_or("a path")?;
    let (name, index) = indexed(last)?;
    at_message(bytes, root, parents, &mut |m, b| {
        let f = field(m, name)?;
        let mut list = split(b)?;
        let places: Vec<usize> = (0..list.len()).filter(|i| list[*i].number == f.number).collect();
        let chosen = match index {
            Some(i) => vec![*places.get(i).ok_or(format!("there is no {last}"))?],
            None if command == "add" => vec![],
            None => places,
        };
        let new = match command {
            "clear" => vec![],
            "wrap" => {
                let mut old = list
                    .get(*chosen.first().ok_or("nothing to wrap")?)
                    .map(|r| r.value.clone())
                    .unwrap_or_default();
                for _ in 0..times {
                    old = Values { text: value, old: Some(&old) }.fields(f)?.pop().ok_or("a value")?.value;
                }
                vec![Raw { number: f.number, wire: 2, value: old }]
            }
            _ => Values { text: value, old: None }.fields(f)?,
        };
        let at = chosen.first().copied().unwrap_or(list.len());
        chosen.iter().rev().for_each(|i| drop(list.remove(*i)));
        list.splice(at..at, new);
        Ok(join(&list))
    })
}

fn indexed(step: &str) -> Result<(&str, Option<usize>), String> {
    match step.split_once('[') {
        None => Ok((step, None)),
        Some((name, i)) => {
            Ok((name, Some(i.trim_end_matches(']').parse().map_err(|_| format!("{step}: an index"))?)))
        }
    }
}

type Change<'a> = dyn FnMut(usize, &[u8]) -> Result<Vec<u8>, String> + 'a;

/// Changes the message that a path leads to; a message on the way that is not there is made.
fn at_message(bytes: &[u8], message: usize, path: &[&str], change: &mut Change) -> Result<Vec<u8>, String> {
    let Some((step, rest)) = path.split_first() else { return change(message, bytes) };
    let (name, index) = indexed(step)?;
    let f = field(message, name)?;
    let Kind::Message(inner) = f.kind else { return Err(format!("{name} is no message")) };
    let mut list = split(bytes)?;
    let found = (0..list.len()).filter(|i| list[*i].number == f.number).nth(index.unwrap_or(0));
    let at = match (found, index) {
        (Some(at), _) => at,
        (None, Some(_)) => return Err(format!("there is no {step}")),
        (None, None) => {
            list.push(Raw { number: f.number, wire: 2, value: vec![] });
            list.len() - 1
        }
    };
    list[at].value = at_message(&list[at].value, inner, rest, change)?;
    Ok(join(&list))
}

/// Reader of values.
struct Values<'a> {
    text: &'a str,
    old: Option<&'a [u8]>,
}

impl Values<'_> {
    /// The whole text as occurrences of a field.
    fn fields(mut self, f: &Field) -> Result<Vec<Raw>, String> {
        let v = self.value(f)?;
        self.space();
        if self.text.is_empty() { Ok(v) } else { Err(format!("\"{}\" is left over", self.text)) }
    }
    fn space(&mut self) {
        self.text = self.text.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
    }
    fn eat(&mut self, c: char) -> bool {
        self.space();
        let rest = self.text.strip_prefix(c);
        self.text = rest.unwrap_or(self.text);
        rest.is_some()
    }
    fn word(&mut self) -> &str {
        self.space();
        let n = self
            .text
            .find(|c: char| c.is_whitespace() || matches!(c, ',' | ':' | ']' | '}' | '{' | '['))
            .unwrap_or(self.text.len());
        let (word, rest) = self.text.split_at(n);
        self.text = rest;
        word
    }
    fn value(&mut self, f: &Field) -> Result<Vec<Raw>, String> {
        if self.eat('[') {
            let mut out = vec![];
            while !self.eat(']') {
                out.extend(self.value(f)?);
            }
            return Ok(out);
        }
        let (wire, value) = match f.kind {
            Kind::Message(m) => (2, self.message(m)?),
            Kind::Text | Kind::Bytes => {
                if !self.eat('"') {
                    return Err(format!("{}: a string", f.name));
                }
                let (bytes, n) = unescape(self.text).ok_or("a quote is open")?;
                self.text = &self.text[n..];
                (2, bytes)
            }
            Kind::Varint => {
                let word = self.word();
                let n: i128 = word.parse().map_err(|_| format!("{}: \"{word}\" is no integer", f.name))?;
                let mut out = vec![];
                varint(n as u64, &mut out);
                (0, out)
            }
            Kind::Float => (5, self.word().parse::<f32>().map_err(|_| "a float")?.to_le_bytes().to_vec()),
            Kind::Double => (1, self.word().parse::<f64>().map_err(|_| "a float")?.to_le_bytes().to_vec()),
        };
        Ok(vec![Raw { number: f.number, wire, value }])
    }
    fn message(&mut self, m: usize) -> Result<Vec<u8>, String> {
        if self.eat('$') {
            return self.old.map(<[u8]>::to_vec).ok_or("$ stands in @wrap only".into());
        }
        if !self.eat('{') {
            return Err(format!("{}: a message in braces", MESSAGES[m].name));
        }
        let mut list = vec![];
        while !self.eat('}') {
            let f = field(m, self.word())?;
            self.eat(':');
            list.extend(self.value(f)?);
        }
        Ok(join(&list))
    }
}
