//! Hashes the sources: they say what a cached compilation was made by (`compiler/cache.rs`).

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=compiler");
    let version = std::env::var("CARGO_PKG_VERSION")?;
    println!("cargo:rustc-env=ONNXC_SOURCES={version} {:016x}", sources(Path::new("compiler"))?);
    Ok(())
}

/// FNV-1a of all files under a folder, in the order of their names.
fn sources(dir: &Path) -> std::io::Result<u64> {
    let mut entries: Vec<_> = std::fs::read_dir(dir)?.collect::<Result<_, _>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        bytes.iter().for_each(|b| hash = (hash ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
    };
    for e in entries {
        add(e.file_name().as_encoded_bytes());
        if e.file_type()?.is_dir() {
            add(&sources(&e.path())?.to_le_bytes());
        } else {
            add(&std::fs::read(e.path())?);
        }
    }
    Ok(hash)
}
