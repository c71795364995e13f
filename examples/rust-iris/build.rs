//! Compiles the network: an object that cargo links, and a Rust module in `OUT_DIR`.

fn main() {
    // The model takes any number of flowers; here it is one, and all sizes are constants.
    onnxc::build::Model::new("iris.onnx").dim("N", 1).compile_or_exit();
}
