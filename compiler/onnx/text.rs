//! ONNX textual syntax (docs/Syntax.md of the ONNX project) -> ModelProto.
//!
//! Accepts what `onnx.parser` accepts and yields the same protobuf, except where that parser drops or wraps
//! its input. Such text is either an error here (values out of range, references inside lists), or has its
//! intended meaning (lists of tensors, graphs and types; lists that mix integers and floats; quoted names of
//! graph attributes).

mod cursor;
#[cfg(test)]
mod tests;
mod values;

use super::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    StringStringEntryProto, TensorProto, ValueInfoProto,
};
use crate::diag::{Error, Origin, Result, codes};
use cursor::Cursor;

/// Graphs and types nest at most this deep.
const MAX_DEPTH: usize = 64;

/// Number of bytes of a file that [`looks_like_text`] examines.
const PREFIX: usize = 4096;

/// True for bytes that can only be text: the start contains no control characters, which every protobuf
/// message has in its tags and lengths, and begins, after comments, with a header `<` or a name followed by
/// an arrow.
pub fn looks_like_text(b: &[u8]) -> bool {
    let b = b.strip_prefix(b"\xef\xbb\xbf").unwrap_or(b);
    let prefix = &b[..b.len().min(PREFIX)];
    if prefix.iter().any(|c| c.is_ascii_control() && !matches!(c, b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)) {
        return false;
    }
    let mut rest = b.trim_ascii_start();
    while rest.first() == Some(&b'#') {
        let end = rest.iter().position(|c| *c == b'\n').unwrap_or(rest.len());
        rest = rest[end..].trim_ascii_start();
    }
    match rest.first() {
        Some(b'<') => true,
        Some(c) if c.is_ascii_alphabetic() || matches!(c, b'_' | b'"') => rest.windows(2).any(|w| w == b"=>"),
        _ => false,
    }
}

/// Parses a model; `name` is the text's name in errors.
pub fn parse_model(b: &[u8], name: &str) -> Result<ModelProto> {
    let text = match std::str::from_utf8(b) {
        Ok(t) => t.strip_prefix('\u{feff}').unwrap_or(t),
        Err(e) => {
            let line = b[..e.valid_up_to()].iter().filter(|c| **c == b'\n').count() + 1;
            let at = Origin::file(name).element(format!("line {line}"));
            return Error::new(codes::TEXT_SYNTAX, "the text is not UTF-8")
                .at(&at)
                .found_expected(format!("an invalid sequence at byte {}", e.valid_up_to()), "UTF-8")
                .fail();
        }
    };
    let mut p = Parser { c: Cursor::new(text, name), depth: 0 };
    p.model()
}

struct Parser<'a> {
    c: Cursor<'a>,
    depth: usize,
}

impl Parser<'_> {
    /// Runs `f` one level deeper, with a limit, so that hostile text cannot exhaust the stack.
    fn nested<T>(&mut self, f: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= MAX_DEPTH {
            let m = self.c.mark();
            return Err(self.c.error_at(m, &format!("graphs and types nest deeper than {MAX_DEPTH} levels")));
        }
        self.depth += 1;
        let r = f(self);
        self.depth -= 1;
        r
    }
    /// Items separated by commas, up to `close`. The opening character has been consumed.
    fn list(&mut self, close: char, what: &str, mut item: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        if u8::try_from(close).is_ok_and(|c| self.c.eat(c)) {
            return Ok(());
        }
        loop {
            item(self)?;
            if !self.c.eat(b',') {
                return self.c.expect(close, &format!("or \",\" {what}"));
            }
        }
    }
    fn model(&mut self) -> Result<ModelProto> {
        let mut m = ModelProto::default();
        if self.c.eat(b'<') {
            self.list('>', "after a header field", |p| p.model_field(&mut m))?;
        }
        m.graph = Some(self.graph()?);
        while self.c.peek().is_some() {
            m.functions.push(self.function()?);
        }
        Ok(m)
    }
    fn key(&mut self, what: &str) -> Result<(usize, String)> {
        let at = self.c.mark();
        let key = self.c.ident(what)?.to_owned();
        self.c.expect(':', "after the field's name")?;
        Ok((at, key))
    }
    fn model_field(&mut self, m: &mut ModelProto) -> Result<()> {
        const KEYS: &str = "ir_version, opset_import, producer_name, producer_version, domain, \
            model_version, doc_string or metadata_props";
        let all = i128::from(i64::MIN)..=i128::from(i64::MAX);
        let (at, key) = self.key(KEYS)?;
        match key.as_str() {
            "ir_version" => m.ir_version = Some(self.c.int("the IR version", all)?),
            "model_version" => m.model_version = Some(self.c.int("the model version", all)?),
            "opset_import" => self.opsets(&mut m.opset_import)?,
            "producer_name" => m.producer_name = Some(self.c.string()?),
            "producer_version" => m.producer_version = Some(self.c.string()?),
            "domain" => m.domain = Some(self.c.string()?),
            "doc_string" => m.doc_string = Some(self.c.string()?),
            "metadata_props" => {
                self.c.expect('[', "before the properties")?;
                self.entries(&mut m.metadata_props)?;
            }
            _ => return Err(self.c.found(at, &format!("\"{key}\""), KEYS)),
        }
        Ok(())
    }
    fn opsets(&mut self, out: &mut Vec<OperatorSetIdProto>) -> Result<()> {
        self.c.expect('[', "before the operator sets")?;
        self.list(']', "after an operator set", |p| {
            let domain = Some(p.c.string()?);
            p.c.expect(':', "after the domain")?;
            let version =
                Some(p.c.int("the operator set version", i128::from(i64::MIN)..=i128::from(i64::MAX))?);
            out.push(OperatorSetIdProto { domain, version });
            Ok(())
        })
    }
    /// `"key": "value", ...` up to the closing bracket.
    fn entries(&mut self, out: &mut Vec<StringStringEntryProto>) -> Result<()> {
        self.list(']', "after an entry", |p| {
            let key = Some(p.c.string()?);
            p.c.expect(':', "after the key")?;
            out.push(StringStringEntryProto { key, value: Some(p.c.string()?) });
            Ok(())
        })
    }
    fn graph(&mut self) -> Result<GraphProto> {
        self.nested(|p| {
            let mut g = GraphProto { name: Some(p.c.name("the graph's name")?), ..Default::default() };
            if p.c.eat(b'(') {
                p.list(')', "after an input", |p| {
                    let v = p.value_info()?;
                    p.initializer(&v, &mut g.initializer)?;
                    g.input.push(v);
                    Ok(())
                })?;
            }
            p.c.arrow()?;
            p.c.expect('(', "before the outputs")?;
            p.list(')', "after an output", |p| {
                g.output.push(p.value_info()?);
                Ok(())
            })?;
            if p.c.eat(b'<') {
                p.list('>', "after an initializer", |p| {
                    let v = p.value_info()?;
                    if !p.initializer(&v, &mut g.initializer)? {
                        g.value_info.push(v);
                    }
                    Ok(())
                })?;
            }
            g.node = p.nodes()?;
            Ok(g)
        })
    }
    fn value_info(&mut self) -> Result<ValueInfoProto> {
        let r#type = if self.at_type() { Some(self.ty()?) } else { None };
        Ok(ValueInfoProto { r#type, name: Some(self.c.name("a type or a name")?), ..Default::default() })
    }
    /// `= data` after a value, if present.
    fn initializer(&mut self, v: &ValueInfoProto, out: &mut Vec<TensorProto>) -> Result<bool> {
        let at = self.c.mark();
        if !self.c.eat_equals() {
            return Ok(false);
        }
        let Some(ty) = &v.r#type else { return Err(self.c.error_at(at, "an initializer needs a type")) };
        let mut t = TensorProto { name: v.name.clone(), ..Default::default() };
        self.tensor_data(&mut t, ty, at)?;
        out.push(t);
        Ok(true)
    }
    fn nodes(&mut self) -> Result<Vec<NodeProto>> {
        self.c.expect('{', "before the nodes")?;
        let mut out = vec![];
        while !self.c.eat(b'}') {
            out.push(self.node()?);
        }
        Ok(out)
    }
    fn node(&mut self) -> Result<NodeProto> {
        let mut n = NodeProto::default();
        if self.c.eat(b'[') {
            n.name = Some(self.c.name_opt()?.unwrap_or_default());
            self.c.expect(']', "after the node's name")?;
        }
        n.output = self.names()?;
        self.c.expect('=', "between a node's outputs and its operator, or \"}\" after the last node")?;
        let (mut domain, mut op) = (String::new(), self.c.ident("an operator")?);
        while self.c.eat(b'.') {
            if !domain.is_empty() {
                domain.push('.');
            }
            domain.push_str(op);
            op = self.c.ident("an operator")?;
        }
        n.domain = Some(domain);
        n.op_type = Some(op.to_owned());
        if self.c.eat(b':') {
            n.overload = Some(self.c.ident("the name of an overload")?.to_owned());
        }
        n.attribute = self.attributes()?;
        self.c.expect('(', "before the inputs")?;
        n.input = self.names()?;
        self.c.expect(')', "or \",\" after an input")?;
        // Attributes may precede or follow the inputs.
        if n.attribute.is_empty() {
            n.attribute = self.attributes()?;
        }
        Ok(n)
    }
    /// Names separated by commas. An empty item before a comma is an empty name; one after the last comma is
    /// ignored.
    fn names(&mut self) -> Result<Vec<String>> {
        let mut out = vec![];
        loop {
            match self.c.name_opt()? {
                Some(n) => out.push(n),
                None if self.c.peek() == Some(b',') => out.push(String::new()),
                None => return Ok(out),
            }
            if !self.c.eat(b',') {
                return Ok(out);
            }
        }
    }
    fn attributes(&mut self) -> Result<Vec<AttributeProto>> {
        let mut out = vec![];
        if self.c.eat(b'<') {
            if self.c.peek() == Some(b'>') {
                return Err(self.c.expected("an attribute"));
            }
            self.list('>', "after an attribute", |p| {
                let name = p.c.ident("an attribute's name")?.to_owned();
                out.push(p.attribute(name)?);
                Ok(())
            })?;
        }
        Ok(out)
    }
    fn function(&mut self) -> Result<FunctionProto> {
        const KEYS: &str = "opset_import, doc_string, domain or overload";
        let mut f = FunctionProto::default();
        if self.c.eat(b'<') {
            self.list('>', "after a header field", |p| {
                let (at, key) = p.key(KEYS)?;
                match key.as_str() {
                    "opset_import" => p.opsets(&mut f.opset_import)?,
                    "doc_string" => f.doc_string = Some(p.c.string()?),
                    "domain" => f.domain = Some(p.c.string()?),
                    "overload" => f.overload = Some(p.c.string()?),
                    _ => return Err(p.c.found(at, &format!("\"{key}\""), KEYS)),
                }
                Ok(())
            })?;
        }
        f.name = Some(self.c.name("the name of a function, or the end of the text")?);
        if self.c.eat(b'<') {
            self.list('>', "after an attribute", |p| {
                let name = p.c.name("an attribute's name")?;
                if matches!(p.c.peek(), Some(b':' | b'=')) {
                    f.attribute_proto.push(p.attribute(name)?);
                } else {
                    f.attribute.push(name);
                }
                Ok(())
            })?;
        }
        f.input = self.formals(&mut f.value_info, "an input")?;
        self.c.arrow()?;
        f.output = self.formals(&mut f.value_info, "an output")?;
        if self.c.eat(b'<') {
            self.list('>', "after a value", |p| {
                f.value_info.push(p.value_info()?);
                Ok(())
            })?;
        }
        f.node = self.nodes()?;
        Ok(f)
    }
    /// Inputs or outputs of a function. A typed one is also entered as a value_info.
    fn formals(&mut self, infos: &mut Vec<ValueInfoProto>, what: &str) -> Result<Vec<String>> {
        self.c.expect('(', &format!("before {what}"))?;
        let mut out = vec![];
        self.list(')', &format!("after {what}"), |p| {
            let v = p.value_info()?;
            out.extend(v.name.clone());
            if v.r#type.is_some() {
                infos.push(v);
            }
            Ok(())
        })?;
        Ok(out)
    }
}
