//! Compiles proto/onnx.proto to Rust without protoc, and writes its fields as a table for the wire-format reader.

use std::fmt::Write;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/onnx.proto");
    let files = protox::compile(["proto/onnx.proto"], ["proto"])?;
    let mut names = vec![];
    for f in &files.file {
        for m in &f.message_type {
            collect(m, &format!(".{}", f.package()), &mut names);
        }
    }
    let mut text = String::from("/// Every message of onnx.proto.\npub const MESSAGES: &[Message] = &[\n");
    for (name, m) in &names {
        let short = name.rsplit('.').next().unwrap_or(name);
        writeln!(text, "    Message {{ name: \"{short}\", fields: &[")?;
        for f in &m.field {
            use_field(&mut text, f, &names)?;
        }
        text.push_str("    ] },\n");
    }
    text.push_str("];\n");
    std::fs::write(std::path::Path::new(&std::env::var("OUT_DIR")?).join("schema.rs"), text)?;
    // `bytes` fields alias the mapped model file.
    prost_build::Config::new().bytes(["."]).compile_fds(files)?;
    Ok(())
}

type Descriptor = prost_types::DescriptorProto;

fn collect<'a>(m: &'a Descriptor, parent: &str, out: &mut Vec<(String, &'a Descriptor)>) {
    let name = format!("{parent}.{}", m.name());
    m.nested_type.iter().for_each(|n| collect(n, &name, out));
    out.push((name, m));
}

fn use_field(text: &mut String, f: &prost_types::FieldDescriptorProto, names: &[(String, &Descriptor)]) -> std::fmt::Result {
    use prost_types::field_descriptor_proto::{Label, Type};
    let kind = match f.r#type() {
        Type::Float => "Kind::Float".to_owned(),
        Type::Double => "Kind::Double".to_owned(),
        Type::String => "Kind::Text".to_owned(),
        Type::Bytes => "Kind::Bytes".to_owned(),
        Type::Message => format!("Kind::Message({})", names.iter().position(|(n, _)| n == f.type_name()).unwrap_or(usize::MAX)),
        // onnx.proto has int32, int64, uint64 and enums, all of them plain varints.
        _ => "Kind::Varint".to_owned(),
    };
    let repeated = f.label() == Label::Repeated;
    writeln!(text, "        Field {{ number: {}, name: \"{}\", kind: {kind}, repeated: {repeated} }},", f.number(), f.name())
}
