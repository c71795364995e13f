//! The emit table: what can be written, under which extension, from which stage.

use crate::codegen::{
    self,
    assemble::{Code, Source, Unit},
};
use crate::diag::{Error, Failure, Origin, Result, codes};
use crate::graph::Def;
use crate::nest::print::Lines;
use crate::nest::{KernelData, Module};
use crate::options::DebugText;
use crate::pipeline::Compiled;
use crate::target::Level;
use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Writes one kind of output.
type Writer = fn(&Compiled, &mut dyn Write) -> Result<()>;

/// One kind of output.
pub struct Kind {
    /// As `--emit` takes it.
    pub name: &'static str,
    /// File extension.
    pub extension: &'static str,
    /// What it is.
    pub help: &'static str,
    write: Writer,
}

impl Kind {
    /// It is no text.
    pub fn binary(&self) -> bool {
        matches!(self.name, "obj" | "shared")
    }
}

/// Everything that `--emit` takes.
pub const KINDS: &[Kind] = &[
    Kind {
        name: "obj",
        extension: "o",
        help: "object file",
        write: |c, w| codegen::object::write(&unit(c), w),
    },
    Kind {
        name: "shared",
        extension: "so",
        help: "shared library for dlopen (ELF targets)",
        write: |c, w| codegen::shared::write(&unit(c), w),
    },
    Kind {
        name: "header",
        extension: "h",
        help: "C header",
        write: |c, w| text(w, &codegen::header::header(&c.interface)),
    },
    Kind {
        name: "hpp",
        extension: "hpp",
        help: "C++ header over the C header",
        write: |c, w| text(w, &codegen::hpp::hpp(&c.interface)),
    },
    Kind {
        name: "rust",
        extension: "rs",
        help: "Rust module to include!",
        write: |c, w| text(w, &codegen::rust::rust_module(&c.interface)),
    },
    Kind {
        name: "graph",
        extension: "graph.txt",
        help: "graph IR before lowering",
        write: |c, w| text(w, &crate::graph::print::print(&c.model)),
    },
    Kind {
        name: "dot",
        extension: "dot",
        help: "graph IR for Graphviz",
        write: |c, w| text(w, &crate::graph::dot::dot(&c.model)),
    },
    Kind {
        name: "nest",
        extension: "nest.txt",
        help: "loop nests after all passes",
        write: |c, w| text(w, &by_level(c, &crate::nest::print::print)),
    },
    Kind {
        name: "schedule",
        extension: "schedule.txt",
        help: "schedules of all kernels: vectors, tiles, blocks, packing, tasks",
        write: |c, w| text(w, &by_level(c, &crate::nest::schedule::print)),
    },
    Kind {
        name: "tiles",
        extension: "tiles.txt",
        help: "functions of vectors, before instructions are selected",
        write: |c, w| text(w, &tiles(c)?),
    },
    Kind { name: "clif", extension: "clif", help: "Cranelift IR", write: |c, w| text(w, &clif(c)?) },
    Kind {
        name: "asm",
        extension: "s",
        help: "assembler text of the object",
        write: |c, w| codegen::asm::write(&Unit { listing: true, ..unit(c) }, w),
    },
    Kind {
        name: "sizes",
        extension: "sizes.txt",
        help: "what the bytes of the object are: weights and code by CPU level, tables",
        write: |c, w| text(w, &codegen::sizes::print(&unit(c), &constants(c))?),
    },
    Kind {
        name: "plan",
        extension: "plan.txt",
        help: "memory plan: where every buffer lies, and when it is alive",
        write: |c, w| text(w, &by_level(c, &|m| plan(m, c.weights.size))),
    },
];

fn unit(c: &Compiled) -> Unit<'_> {
    let unit = Unit::new(&c.modules, &c.interface, &c.weights, &c.target, true);
    Unit { clock: c.clock.clone(), debug: debug_source(c), ..unit }
}

/// Bytes of the constants of a model, by name.
fn constants(c: &Compiled) -> HashMap<&str, u64> {
    let mut out = HashMap::new();
    for d in c.model.graph.values.values() {
        if let Def::Const(c) = &d.def {
            // Nameless ones count together.
            *out.entry(d.name.as_str()).or_default() += c.byte_len();
        }
    }
    out
}

/// Bytes of stack that a call of a model uses at most.
pub fn stack(c: &Compiled) -> Result<u64> {
    unit(c).stack()
}

/// The text that debug information is about, with the lines of everything that code is made from.
fn debug_source(c: &Compiled) -> Option<codegen::debug::Source> {
    let (text, output) = c.debug.as_ref()?;
    let path = path_of(find(text.kind()).ok()?, output);
    let lines = match text {
        DebugText::Nodes => {
            let graph = crate::graph::print::lines(&c.model);
            let key = |o: &Origin| Origin { element: String::new(), opset: 0, ..o.clone() };
            let mut rows = HashMap::new();
            for (origin, line) in &graph.nodes {
                // Kernels of a node that became several have the line of the first.
                rows.entry(key(origin)).or_insert(*line);
            }
            let line = |k: &KernelData| rows.get(&key(&k.origin)).copied().unwrap_or(graph.graph);
            let kernels = |m: &Module| m.kernels.iter().map(|(k, data)| (k, line(data))).collect();
            let of = |m| Lines { kernels: kernels(m), driver: graph.graph, ..Lines::default() };
            c.modules.iter().map(of).collect()
        }
        DebugText::Nest => {
            let mut row = 0;
            let of = |m| {
                // The head of a level.
                row += u32::from(c.modules.len() > 1);
                let lines;
                (lines, row) = crate::nest::print::lines(m, row);
                lines
            };
            c.modules.iter().map(of).collect()
        }
    };
    let absolute = std::path::absolute(&path).unwrap_or_else(|_| path.clone());
    let text = |p: Option<&std::ffi::OsStr>| p.unwrap_or_default().to_string_lossy().into_owned();
    Some(codegen::debug::Source {
        folder: text(absolute.parent().map(Path::as_os_str)),
        file: text(absolute.file_name()),
        lines,
    })
}

fn text(w: &mut dyn Write, s: &str) -> Result<()> {
    w.write_all(s.as_bytes()).map_err(|e| Failure::Io("output".into(), e.to_string()))
}

/// Each tile once, under the name of the first function that calls it.
fn tiles(c: &Compiled) -> Result<String> {
    let (sources, mut seen, mut out) = (unit(c).sources()?.0, HashSet::new(), String::new());
    for s in &sources {
        for f in s.tiles.iter().filter(|f| seen.insert(*f)) {
            out += &format!("; {}\n{}", s.name, codegen::tile::text::print(f));
        }
    }
    Ok(out)
}

fn clif(c: &Compiled) -> Result<String> {
    let print = |s: Source| {
        let Code::Clif(f) = s.code else { return None };
        let notes: String = s.notes.iter().map(|n| format!("; {n}\n")).collect();
        Some(format!("; {}\n{notes}{}\n", s.name, f.display()))
    };
    Ok(unit(c).sources()?.0.into_iter().filter_map(print).collect())
}

/// The text of every module; where there are several, each under a line that names its CPU level.
pub fn levels<'a>(
    modules: impl IntoIterator<Item = (&'a Level, &'a Module)>,
    print: &dyn Fn(&Module) -> String,
) -> String {
    let parts: Vec<_> = modules.into_iter().collect();
    match parts.as_slice() {
        [(_, m)] => print(m),
        parts => parts.iter().map(|(l, m)| format!("; level {}\n{}", l.name, print(m))).collect(),
    }
}

fn by_level(c: &Compiled, print: &dyn Fn(&Module) -> String) -> String {
    levels(c.target.levels.iter().zip(&c.modules), print)
}

/// Buffers by address with the kernels between which they live.
fn plan(m: &Module, weights: u64) -> String {
    use crate::nest::{Place, visit};
    let mut rows = vec![];
    let calls = visit::calls(&m.driver);
    for (b, d) in m.bufs.iter() {
        let Place::Arena(s) = &d.place else { continue };
        let uses: Vec<usize> = calls
            .iter()
            .enumerate()
            .filter(|(_, k)| {
                visit::loads(&m.kernels[**k].body)
                    .into_iter()
                    .chain(visit::stores(&m.kernels[**k].body))
                    .any(|x| m.storage(x) == b)
            })
            .map(|(i, _)| i)
            .collect();
        let (Some(first), Some(last)) = (uses.first(), uses.last()) else { continue };
        let slot = &m.slots[*s];
        rows.push(format!(
            "{} .. +{}\tkernels {first}..={last}\t{}",
            slot.offset.display(&m.syms),
            slot.size.display(&m.syms),
            d.name
        ));
    }
    let mut out = format!(
        "plan v1 {}\nworkspace {} bytes, weights {} bytes\n",
        m.name,
        m.workspace.display(&m.syms),
        weights
    );
    for (i, k) in calls.iter().enumerate() {
        out += &format!("kernel {i} {} ({})\n", m.kernels[*k].name, m.kernels[*k].origin.short());
    }
    rows.iter().for_each(|r| out += &format!("{r}\n"));
    out
}

/// The kind of that name.
pub fn find(name: &str) -> Result<&'static Kind> {
    match KINDS.iter().find(|k| k.name == name) {
        Some(k) => Ok(k),
        None => Error::new(codes::OPTION, format!("--emit: there is no \"{name}\""))
            .found_expected(
                name,
                format!("one of {}", KINDS.iter().map(|k| k.name).collect::<Vec<_>>().join(", ")),
            )
            .fail(),
    }
}

/// Adds the text that debug information is about, where there is debug information to be.
pub fn with_text(kinds: &mut Vec<&'static Kind>, debug: Option<DebugText>) -> Result<()> {
    let Some(text) = debug else { return Ok(()) };
    if !kinds.iter().any(|k| k.binary() || k.name == "asm") {
        return Error::new(codes::OPTION, "-g adds debug information to an object, and none is written")
            .help("leave out -g, or add obj, shared or asm to --emit")
            .fail();
    }
    if !kinds.iter().any(|k| k.name == text.kind()) {
        kinds.push(find(text.kind())?);
    }
    Ok(())
}

/// Files written by one compilation.
#[derive(Clone, Debug, Default)]
pub struct Written {
    /// Paths in the order they were asked for.
    pub files: Vec<PathBuf>,
}

/// Path of one kind of output beside the object; a device or pipe takes all of them.
pub fn path_of(kind: &Kind, output: &Path) -> PathBuf {
    let beside = kind.name != "obj" && !is_special(output);
    if beside { output.with_extension(kind.extension) } else { output.to_owned() }
}

/// True for a device or pipe, which is written in place: a file that is renamed would replace it.
pub fn is_special(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| !m.is_file() && !m.is_dir())
}

/// Where the bytes of an output go: a symbolic link stays, and what it names is written.
pub fn target_of(path: &Path) -> PathBuf {
    let target = if path.is_symlink() { path.canonicalize().ok() } else { None };
    target.unwrap_or_else(|| path.to_owned())
}

/// The name that a file has while it is written, in the same folder.
pub fn unfinished(path: &Path) -> PathBuf {
    let name = path.file_name().map_or("out".into(), |f| f.to_string_lossy());
    path.with_file_name(format!(".{name}.{}.tmp", std::process::id()))
}

/// True for a special file that is not a device, and so has a reader.
fn is_pipe(path: &Path) -> bool {
    #[cfg(unix)]
    let device = {
        use std::os::unix::fs::FileTypeExt;
        std::fs::metadata(path).is_ok_and(|m| m.file_type().is_char_device())
    };
    #[cfg(not(unix))]
    let device = false;
    is_special(path) && !device
}

/// Paths of everything that is written, in order: the kinds, then the weights where they are a file.
pub fn paths(kinds: &[&'static Kind], output: &Path, weights: Option<&Path>) -> Vec<PathBuf> {
    kinds.iter().map(|k| path_of(k, output)).chain(weights.map(Path::to_owned)).collect()
}

/// Writes all kinds that were asked for. Nothing appears under its name before everything was written, and
/// the model itself is never overwritten.
pub fn write_all(
    c: &Compiled,
    kinds: &[&'static Kind],
    output: &Path,
    weights: Option<&Path>,
    inputs: &[PathBuf],
) -> Result<Written> {
    if is_pipe(output) && kinds.len() > 1 {
        return Error::new(codes::OPTION, format!("\"{}\" is a pipe", output.display()))
            .found_expected(
                format!("{} outputs", kinds.len()),
                "one, since its reader could not tell them apart",
            )
            .help("choose it with --emit, e.g. --emit obj")
            .fail();
    }
    let mut staged: Vec<Staged> = vec![];
    let result = (|| -> Result<()> {
        for k in kinds {
            let path = path_of(k, output);
            let mut write = || stage(&path, inputs, &mut staged, &mut |w| (k.write)(c, w));
            // These writers time their own steps.
            if k.binary() { write()? } else { c.clock.step(&format!("write {}", k.name), write)? }
        }
        if let Some(path) = weights {
            let io = |e: std::io::Error| Failure::Io(path.display().to_string(), e.to_string());
            let mut write = |w: &mut dyn Write| {
                codegen::weights_file::write(&c.weights, &c.interface.weights.plan, &c.made, w).map_err(io)
            };
            c.clock.step("write weights", || stage(path, inputs, &mut staged, &mut write))?;
        }
        Ok(())
    })();
    if let Err(e) = result {
        staged.iter().for_each(Staged::discard);
        return Err(e);
    }
    let mut written = Written::default();
    for s in staged {
        written.files.push(s.publish()?);
    }
    Ok(written)
}

/// An output that does not have its name yet.
enum Staged {
    /// A file beside it, or beside what it is a symbolic link to.
    File { tmp: PathBuf, path: PathBuf },
    /// The bytes for a device or pipe.
    Bytes { bytes: Vec<u8>, path: PathBuf },
}

impl Staged {
    fn discard(&self) {
        if let Staged::File { tmp, .. } = self {
            drop(std::fs::remove_file(tmp));
        }
    }
    /// Gives it its name, which is returned.
    fn publish(self) -> Result<PathBuf> {
        let (result, path) = match self {
            Staged::File { tmp, path } => (std::fs::rename(&tmp, target_of(&path)), path),
            Staged::Bytes { bytes, path } => {
                let open = std::fs::OpenOptions::new().write(true).open(&path);
                (open.and_then(|mut f| f.write_all(&bytes)), path)
            }
        };
        result.map_err(|e| Failure::Io(path.display().to_string(), e.to_string()))?;
        Ok(path)
    }
}

fn stage(
    path: &Path,
    inputs: &[PathBuf],
    staged: &mut Vec<Staged>,
    write: &mut dyn FnMut(&mut dyn Write) -> Result<()>,
) -> Result<()> {
    let same =
        |a: &Path, b: &Path| a.canonicalize().ok().zip(b.canonicalize().ok()).is_some_and(|(a, b)| a == b);
    if inputs.iter().any(|i| same(i, path)) {
        return Error::new(codes::OPTION, format!("the output \"{}\" is the model itself", path.display()))
            .help("choose another name with -o")
            .fail();
    }
    if is_special(path) {
        let mut bytes = vec![];
        write(&mut bytes)?;
        staged.push(Staged::Bytes { bytes, path: path.to_owned() });
        return Ok(());
    }
    let io = |e: std::io::Error| Failure::Io(path.display().to_string(), e.to_string());
    let tmp = unfinished(&target_of(path));
    let file = std::fs::File::create(&tmp).map_err(io)?;
    staged.push(Staged::File { tmp, path: path.to_owned() });
    let mut w = std::io::BufWriter::with_capacity(1 << 20, file);
    write(&mut w)?;
    w.flush().map_err(io)
}

/// One text kind as a string.
pub fn to_text(c: &Compiled, kind: &Kind) -> Result<String> {
    let mut out = vec![];
    (kind.write)(c, &mut out)?;
    Ok(String::from_utf8_lossy(&out).into_owned())
}

/// Writes one text kind to standard output.
pub fn to_stdout(c: &Compiled, kind: &Kind) -> Result<()> {
    let mut out = std::io::stdout().lock();
    (kind.write)(c, &mut out)
}

/// A Makefile rule that names everything the output depends on.
pub fn depfile(target: &Path, inputs: &[PathBuf]) -> String {
    let escape =
        |p: &Path| p.display().to_string().replace('$', "$$").replace(' ', "\\ ").replace('#', "\\#");
    format!("{}:{}\n", escape(target), inputs.iter().map(|p| format!(" {}", escape(p))).collect::<String>())
}
