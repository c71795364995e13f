//! compiler/onnx/generated: what proto/onnx.proto becomes in Rust. It is checked in, so that builds need no
//! generator. ONNXC_UPDATE=1 writes it anew.

use std::fmt::Write;
use std::path::{Path, PathBuf};

type Descriptor = prost_types::DescriptorProto;
type Error = Box<dyn std::error::Error>;

/// Messages and types for prost; the table of all fields for the reader of the wire format.
fn generate(out: &Path) -> Result<[String; 2], Error> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = protox::compile([root.join("proto/onnx.proto")], [root.join("proto")])?;
    let mut names = vec![];
    for f in &files.file {
        for m in &f.message_type {
            collect(m, &format!(".{}", f.package()), &mut names);
        }
    }
    let mut table = String::from("/// Every message of onnx.proto.\npub const MESSAGES: &[Message] = &[\n");
    for (name, m) in &names {
        let short = name.rsplit('.').next().unwrap_or(name);
        writeln!(table, "    Message {{ name: \"{short}\", fields: &[")?;
        for f in &m.field {
            use_field(&mut table, f, &names)?;
        }
        table.push_str("    ] },\n");
    }
    table.push_str("];\n");
    // `bytes` fields alias the mapped model file.
    prost_build::Config::new().bytes(["."]).out_dir(out).compile_fds(files)?;
    Ok([std::fs::read_to_string(out.join("onnx.rs"))?, table])
}

fn collect<'a>(m: &'a Descriptor, parent: &str, out: &mut Vec<(String, &'a Descriptor)>) {
    let name = format!("{parent}.{}", m.name());
    m.nested_type.iter().for_each(|n| collect(n, &name, out));
    out.push((name, m));
}

fn use_field(
    text: &mut String,
    f: &prost_types::FieldDescriptorProto,
    names: &[(String, &Descriptor)],
) -> std::fmt::Result {
    use prost_types::field_descriptor_proto::{Label, Type};
    let kind = match f.r#type() {
        Type::Float => "Kind::Float".to_owned(),
        Type::Double => "Kind::Double".to_owned(),
        Type::String => "Kind::Text".to_owned(),
        Type::Bytes => "Kind::Bytes".to_owned(),
        Type::Message => {
            format!(
                "Kind::Message({})",
                names.iter().position(|(n, _)| n == f.type_name()).unwrap_or(usize::MAX)
            )
        }
        // onnx.proto has int32, int64, uint64 and enums, all of them plain varints.
        _ => "Kind::Varint".to_owned(),
    };
    let repeated = f.label() == Label::Repeated;
    let (number, name) = (f.number(), f.name());
    writeln!(
        text,
        "        Field {{ number: {number}, name: \"{name}\", kind: {kind}, repeated: {repeated} }},"
    )
}

#[test]
fn the_protobuf_messages_are_those_of_the_file() {
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("generated");
    std::fs::create_dir_all(&out).expect("a folder");
    let made = generate(&out).expect("onnx.proto compiles");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("compiler/onnx/generated");
    for (name, text) in ["onnx.rs", "schema.rs"].into_iter().zip(made) {
        if std::env::var_os("ONNXC_UPDATE").is_some() {
            std::fs::write(folder.join(name), &text).expect("written");
        }
        let have = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        assert!(have == text, "{name} is not what proto/onnx.proto says: run this test with ONNXC_UPDATE=1");
    }
}
