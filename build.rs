//! Compiles proto/onnx.proto to Rust without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/onnx.proto");
    let files = protox::compile(["proto/onnx.proto"], ["proto"])?;
    // `bytes` fields alias the mapped model file.
    prost_build::Config::new().bytes(["."]).compile_fds(files)?;
    Ok(())
}
