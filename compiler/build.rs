//! What a user's build script calls.
//!
//! ```no_run
//! // in the main function of build.rs
//! onnxc::build::Model::new("model/mnist.onnx").name("mnist").dim("N", 1).compile_or_exit();
//! ```
//!
//! ```ignore
//! // in src/main.rs
//! mod mnist { include!(concat!(env!("OUT_DIR"), "/mnist.rs")); }
//! ```
//!
//! The object becomes a static library in the output folder; under cargo it is linked by itself, the target
//! and its features are taken from cargo, and every file that was read is watched. Outside cargo, set
//! [`Model::out_dir`].

use crate::cache::{Cache, Key, Made, Stamp};
use crate::diag::{Error, Failure, Result, codes};
use crate::emit;
pub use crate::options::DebugText;
use crate::options::{Optimize, Options, Weights};
use crate::pipeline;
use crate::sym::Range;
use crate::sym::text::DimOption;
use std::path::{Path, PathBuf};

/// A model to compile in a build script.
#[derive(Clone, Debug)]
pub struct Model {
    path: PathBuf,
    out_dir: Option<PathBuf>,
    cache: Option<PathBuf>,
    options: Options,
    /// What is wrong with an option.
    wrong: Option<String>,
}

/// Files that a compilation wrote.
#[derive(Clone, Debug)]
pub struct Output {
    /// Prefix of all identifiers.
    pub name: String,
    /// Object file.
    pub object: PathBuf,
    /// Static library that holds it.
    pub library: PathBuf,
    /// C header.
    pub header: PathBuf,
    /// Rust module, to be included.
    pub rust: PathBuf,
    /// Weights file, where weights are not embedded.
    pub weights: Option<PathBuf>,
}

impl Model {
    /// The model file; relative paths start at the package's folder under cargo.
    pub fn new(path: impl AsRef<Path>) -> Model {
        Model {
            path: path.as_ref().to_owned(),
            out_dir: None,
            cache: None,
            options: Options::default(),
            wrong: None,
        }
    }
    /// Prefix of all identifiers and of the files; default: the file's stem.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.options.name = Some(name.into());
        self
    }
    /// Fixes a symbolic dimension.
    pub fn dim(mut self, name: impl Into<String>, size: i64) -> Self {
        self.options.dims.push((name.into(), DimOption::Bind(size)));
        self
    }
    /// Reads texts of dimensions such as `2*N` as expressions over other dimensions; they are opaque names
    /// otherwise.
    pub fn dim_expressions(mut self) -> Self {
        self.options.dim_expressions = true;
        self
    }
    /// Ignores the types that the model declares for its outputs; they are errors otherwise if they
    /// contradict the operators.
    pub fn ignore_output_types(mut self) -> Self {
        self.options.ignore_output_types = true;
        self
    }
    /// Fails at warnings as at errors.
    pub fn strict(mut self) -> Self {
        self.options.strict = true;
        self
    }
    /// Bounds a symbolic dimension, so that the workspace has a fixed size.
    pub fn dim_at_most(mut self, name: impl Into<String>, size: i64) -> Self {
        self.options.dims.push((name.into(), DimOption::Within(Range { lo: None, hi: Some(size) })));
        self
    }
    /// Target triple; default: cargo's `TARGET`, else this machine.
    pub fn target(mut self, triple: impl Into<String>) -> Self {
        self.options.target = Some(triple.into());
        self
    }
    /// CPU levels (see `onnxc --help`); default: the one that cargo's target features ask for, and those
    /// above.
    pub fn cpu(mut self, levels: impl Into<String>) -> Self {
        self.options.cpu = Some(levels.into());
        self
    }
    /// Puts the weights into `<name>.weights` in the output folder instead of the object.
    pub fn weights_file(mut self) -> Self {
        self.options.weights = Weights::File(None);
        self
    }
    /// Shares a weights file that another model wrote: the new file serves both objects. It holds what that
    /// one holds, where it was, and the constants of this model that it lacks.
    pub fn weights_from(mut self, file: impl AsRef<Path>) -> Self {
        self.options.weights_from = Some(file.as_ref().to_owned());
        self
    }
    /// Hides the object's symbols: what it is linked into does not export them.
    pub fn hidden(mut self) -> Self {
        self.options.hidden = true;
        self
    }
    /// Reports every node to `on_node` of `infer_exec`.
    pub fn trace(mut self) -> Self {
        self.options.trace = true;
        self
    }
    /// Makes inner tensors outputs: a name with `*` and `?` for any text, or `all`.
    pub fn tap(mut self, pattern: impl Into<String>) -> Self {
        self.options.taps.push(pattern.into());
        self
    }
    /// State in place: an output may be the memory of an input (`present.*`, `past.*`), and a step stores
    /// only what it appends. The dimension that grows becomes a capacity, `<size>_capacity`, which
    /// [`Model::dim`] may fix.
    pub fn alias(mut self, output: impl Into<String>, input: impl Into<String>) -> Self {
        self.options.aliases.push((output.into(), input.into()));
        self
    }
    /// What code is made for.
    pub fn optimize(mut self, goal: Optimize) -> Self {
        self.options.optimize = goal;
        self
    }
    /// Computes an operator (`com.example:Scale`) with a function of your own: the generated module declares
    /// what it is called with. The model declares the shapes of its results; those that it does not declare
    /// are like an input that the symbol may name: `my_scale,like=0`.
    pub fn custom(mut self, operator: &str, symbol: &str) -> Self {
        match crate::options::custom(&format!("{operator}={symbol}")) {
            Ok(d) => self.options.customs.push(d),
            Err(e) => self.wrong = Some(e),
        }
        self
    }
    /// What may be done to floats.
    pub fn math(mut self, math: crate::options::Math) -> Self {
        self.options.math = math;
        self
    }
    /// Bytes of workspace for values whose size follows from data and has no bound, unless a caller gives
    /// another size.
    pub fn heap(mut self, bytes: i64) -> Self {
        self.options.heap = Some(bytes);
        self
    }
    /// Gives an ONNX name an identifier of your own.
    pub fn rename(mut self, onnx_name: impl Into<String>, ident: impl Into<String>) -> Self {
        self.options.renames.insert(onnx_name.into(), ident.into());
        self
    }
    /// Adds debug information: debuggers and profilers show the lines of a text of the model, which is
    /// written beside the object.
    pub fn debug(mut self, text: DebugText) -> Self {
        self.options.debug = Some(text);
        self
    }
    /// Where to write; default: cargo's `OUT_DIR`.
    pub fn out_dir(mut self, dir: impl AsRef<Path>) -> Self {
        self.out_dir = Some(dir.as_ref().to_owned());
        self
    }
    /// Keeps what was compiled in this folder too, for builds in other folders and profiles; default: the
    /// folder that the variable `ONNXC_CACHE` names, if any.
    pub fn cache(mut self, dir: impl AsRef<Path>) -> Self {
        self.cache = Some(dir.as_ref().to_owned());
        self
    }
    /// Compiles, or prints the findings and ends the build script with exit code 1.
    pub fn compile_or_exit(self) -> Output {
        match self.compile() {
            Ok(o) => o,
            Err(e) => {
                eprintln!("{e}");
                std::process::exit(1);
            }
        }
    }
    /// Compiles, unless the outputs are there and were made from the same model with the same options. Under
    /// cargo it also prints the `cargo:` lines that link and watch.
    pub fn compile(mut self) -> Result<Output> {
        if let Some(e) = self.wrong {
            return Error::new(codes::OPTION, format!("custom: {e}")).fail();
        }
        let env = |k: &str| std::env::var(k).ok();
        let cargo = env("OUT_DIR").filter(|_| env("CARGO_MANIFEST_DIR").is_some());
        let Some(dir) = self.out_dir.clone().or(cargo.clone().map(PathBuf::from)) else {
            return Err(Failure::Io("OUT_DIR".into(), "not set: call out_dir() outside of cargo".into()));
        };
        if self.options.target.is_none() && cargo.is_some() {
            self.options.target = env("TARGET");
            let level = || {
                let level = cargo_level(
                    &env("CARGO_CFG_TARGET_ARCH").unwrap_or_default(),
                    &env("CARGO_CFG_TARGET_FEATURE").unwrap_or_default(),
                )?;
                // One level is smaller than it and those above.
                let one = self.options.optimize == Optimize::Size;
                Some(if one { level.trim_end_matches('+').to_owned() } else { level })
            };
            self.options.cpu = self.options.cpu.clone().or_else(level);
        }
        let source = crate::onnx::open(&self.path)?;
        let name = crate::codegen::names::model_name(self.options.name.as_deref(), None, &source.name)?;
        let object = dir.join(format!("{name}.o"));
        let mut kinds = ["obj", "header", "rust"].map(emit::find).into_iter().collect::<Result<Vec<_>>>()?;
        emit::with_text(&mut kinds, self.options.debug)?;
        if self.options.debug.is_some() {
            self.options.output = Some(object.clone());
        }
        let weights = self.options.weights_path(&object);
        let triple =
            crate::target::Target::new(self.options.target.as_deref(), self.options.cpu.as_deref())?.triple;
        let library = archive_path(&dir, &name, &triple);
        let mut paths = emit::paths(&kinds, &object, weights.as_deref());
        paths.push(library.clone());
        let key = Key::new(&source, &self.options, &["obj", "header", "rust", "library"])?;
        let stamp = Stamp(dir.join(format!("{name}.onnxc.json")));
        let shared = Cache::new(self.cache.as_deref()).map(|c| (c, key.clone().of_contents(&source)));
        let there = match stamp.get(&source, &key, &paths) {
            Some(hit) => Some(hit),
            None => match &shared {
                Some((c, key)) => c.get(&source, key, &paths)?,
                None => None,
            },
        };
        let watched = |external: &[PathBuf]| -> Vec<PathBuf> {
            let folder = source.folder.clone().unwrap_or_default();
            std::iter::once(self.path.clone()).chain(external.iter().map(|f| folder.join(f))).collect()
        };
        let (inputs, titles) = match there {
            Some(hit) => (
                watched(&hit.external),
                hit.warnings.into_iter().map(|[title, ..]| title).collect::<Vec<_>>(),
            ),
            None => {
                let c = pipeline::compile(&source, &self.options)?;
                let mut external: Vec<PathBuf> = c.model.external_files.iter().map(PathBuf::from).collect();
                emit::write_all(&c, &kinds, &object, weights.as_deref(), &watched(&external))?;
                external.extend(self.options.weights_read());
                let inputs = watched(&external);
                archive(&object, &library, &name, &triple)?;
                let made = Made { name: &name, external: &external, warnings: &c.warnings, files: &paths };
                stamp.put(&source, &key, &made);
                if let Some((cache, key)) = &shared {
                    cache.put(&source, key, &made);
                }
                (inputs, c.warnings.iter().map(|w| w.title.clone()).collect())
            }
        };
        if cargo.is_some() {
            inputs.iter().for_each(|p| println!("cargo:rerun-if-changed={}", p.display()));
            println!("cargo:rerun-if-env-changed=ONNXC_CACHE");
            println!("cargo:rustc-link-search=native={}", dir.display());
            println!("cargo:rustc-link-lib=static={name}_onnxc");
            titles.iter().for_each(|w| println!("cargo:warning={w}"));
        }
        Ok(Output {
            name,
            header: object.with_extension("h"),
            rust: object.with_extension("rs"),
            object,
            library,
            weights,
        })
    }
}

/// From the level that the crate's own code is compiled for upwards: the object runs wherever the crate does.
fn cargo_level(arch: &str, features: &str) -> Option<String> {
    let has = |f: &str| features.split(',').any(|x| x == f);
    let levels = match arch {
        "x86_64" if ["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"].into_iter().all(has) => {
            "x86-64-v4+"
        }
        "x86_64" if has("avx2") && has("fma") && has("bmi2") => "x86-64-v3+",
        "x86_64" if has("sse4.2") => "x86-64-v2+",
        // Rust's default. Machines without AVX2 are rare: they share the code of the oldest ones.
        "x86_64" => "x86-64,x86-64-v3+",
        _ => return None,
    };
    Some(levels.into())
}

fn is_msvc(triple: &target_lexicon::Triple) -> bool {
    triple.environment == target_lexicon::Environment::Msvc
}

fn archive_path(dir: &Path, name: &str, triple: &target_lexicon::Triple) -> PathBuf {
    dir.join(if is_msvc(triple) { format!("{name}_onnxc.lib") } else { format!("lib{name}_onnxc.a") })
}

fn archive(object: &Path, path: &Path, name: &str, triple: &target_lexicon::Triple) -> Result<()> {
    use ar_archive_writer::{ArchiveKind, DEFAULT_OBJECT_READER, NewArchiveMember, write_archive_to_stream};
    let kind = match triple.binary_format {
        target_lexicon::BinaryFormat::Macho => ArchiveKind::Darwin,
        target_lexicon::BinaryFormat::Coff if is_msvc(triple) => ArchiveKind::Coff,
        _ => ArchiveKind::Gnu,
    };
    let io = |e: std::io::Error| Failure::Io(path.display().to_string(), e.to_string());
    let data = crate::onnx::external::map_file(object)?;
    let member = NewArchiveMember::new(data, &DEFAULT_OBJECT_READER, format!("{name}.o"));
    let file = std::fs::File::create(path).map_err(io)?;
    let mut w = std::io::BufWriter::new(file);
    write_archive_to_stream(&mut w, &[member], kind, false, None).map_err(io)?;
    std::io::Write::flush(&mut w).map_err(io)
}
