//! Compiles the model: an object that cargo links, and a Rust module in `OUT_DIR`.

fn main() {
    onnxc::build::Model::new("../model.onnx")
        .name("llm")
        .alias("present.*", "past.*")
        .dim("past_capacity", 256)
        .dim_at_most("tokens", 256)
        .compile_or_exit();
}
