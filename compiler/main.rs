//! tmp
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let r = (|| -> onnxc::diag::Result<()> {
        let s = onnxc::onnx::open(std::path::Path::new(&a[1]))?;
        let o = onnxc::options::Options { time: true, ..Default::default() };
        let c = onnxc::pipeline::compile(&s, &o)?;
        if std::env::var("NEST").is_ok() { println!("{}", onnxc::nest::print::print(&c.module)); }
        let u = onnxc::codegen::assemble::Unit::new(&c.module, &c.interface, c.weights.clone(), &c.target, true);
        if std::env::var("CLIF").is_ok() { for x in u.sources()? { println!("{}\n{}", x.name, x.func.display()); } }
        let mut f = std::fs::File::create(&a[3]).unwrap();
        onnxc::codegen::object::write(&u, &mut f)?;
        Ok(())
    })();
    if let Err(e) = r {
        eprintln!("{e}");
        std::process::exit(1);
    }
}
