//! Compiled models that are kept, found again by what they were made from: the contents of the model and its
//! external data, the options, and this compiler. A rebuild that changes none of them copies files, or does
//! nothing at all.
//!
//! There are two places. A *cache* is a folder that many builds share (`--cache`, `ONNXC_CACHE`); an entry is
//! a folder named by its key, and files count by their contents. A *stamp* is a file beside the outputs of
//! one build script: it says from what they were made, and files count by size and time, as for make and
//! cargo.

use crate::codegen::weights_file::COMPILER;
use crate::diag::{Error, Failure, Result, render};
use crate::emit;
use crate::onnx::Source;
use crate::options::Options;
use rayon::prelude::*;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Contents are hashed in pieces of this many bytes, in parallel.
const PIECE: usize = 4 << 20;
/// Entries that nobody used for longest go when a cache is larger than this, unless `ONNXC_CACHE_SIZE` tells
/// another size.
const SIZE: u64 = 4 << 30;

/// What a compilation is made from, but for the files of a stamp and the external data of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key(String);

/// A compilation that was found again.
#[derive(Clone, Debug, Default)]
pub struct Hit {
    /// Prefix of all identifiers.
    pub name: String,
    /// External files, relative to the model's folder.
    pub external: Vec<PathBuf>,
    /// Its warnings: titles, texts, JSON.
    pub warnings: Vec<[String; 3]>,
}

/// What is written down of a compilation.
pub struct Made<'a> {
    /// Prefix of all identifiers.
    pub name: &'a str,
    /// External files, relative to the model's folder.
    pub external: &'a [PathBuf],
    /// Its warnings.
    pub warnings: &'a [Error],
    /// The files that it wrote.
    pub files: &'a [PathBuf],
}

impl Key {
    /// Of options and the kinds of output that are made: for stamps.
    pub fn new(source: &Source, options: &Options, kinds: &[&str]) -> Result<Key> {
        let target = options.target()?;
        // The output counts by its stem, which may be the prefix; times and checks change nothing.
        let stem = options.output.as_deref().and_then(Path::file_stem).map(PathBuf::from);
        // Debug information has the whole path.
        let absolute = || options.output.as_deref().and_then(|o| std::path::absolute(o).ok());
        let stem = options.debug.and_then(|_| absolute()).or(stem);
        let plain = Options { output: stem, clock: Default::default(), verify: false, ..options.clone() };
        let parts = [source.name.clone(), format!("{plain:?}"), format!("{target:?}"), kinds.join(",")];
        Ok(Key(join(std::iter::once(COMPILER).chain(parts.iter().map(String::as_str)))))
    }
    /// The same, and of what the model contains: for caches.
    pub fn of_contents(self, source: &Source) -> Key {
        Key(join([self.0.as_str(), &digest(&source.bytes)].into_iter()))
    }
}

/// A hash of several texts.
fn join<'a>(parts: impl Iterator<Item = &'a str>) -> String {
    let mut h = Sha256::new();
    for part in parts {
        h.update((part.len() as u64).to_le_bytes());
        h.update(part);
    }
    hex(&h.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The hash of the hashes of all pieces.
fn digest(data: &[u8]) -> String {
    let pieces: Vec<_> = data.par_chunks(PIECE).map(Sha256::digest).collect();
    let mut h = Sha256::new();
    pieces.iter().for_each(|p| h.update(p));
    hex(&h.finalize())
}

/// Length and time of a file, which tell that it is as it was.
fn state(path: &Path) -> Option<Value> {
    let meta = std::fs::metadata(path).ok()?;
    let time = meta.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(json!([meta.len(), time.as_nanos().to_string()]))
}

/// How files count.
type Measure = fn(&Path) -> Option<Value>;

/// Contents of a file.
fn contents(path: &Path) -> Option<Value> {
    Some(Value::String(digest(&crate::onnx::external::map_file(path).ok()?)))
}

impl Made<'_> {
    fn record(&self, source: &Source, key: &Key, measure: Measure) -> Option<Value> {
        let folder = source.folder.clone().unwrap_or_default();
        let file = |f: &PathBuf| Some(json!({ "path": f.to_str()?, "is": measure(&folder.join(f))? }));
        let external: Vec<Value> = self.external.iter().map(file).collect::<Option<_>>()?;
        let warning = |w: &Error| json!([w.title, render::text(w), render::json(w)]);
        let warnings: Vec<Value> = self.warnings.iter().map(warning).collect();
        Some(json!({ "key": key.0, "name": self.name, "external": external, "warnings": warnings }))
    }
}

/// What a record says, if external data are still what they were.
fn hit(record: &Value, source: &Source, key: &Key, measure: Measure) -> Option<Hit> {
    if record["key"].as_str()? != key.0 {
        return None;
    }
    let folder = source.folder.clone().unwrap_or_default();
    let mut external = vec![];
    for e in record["external"].as_array()? {
        let path = PathBuf::from(e["path"].as_str()?);
        if e["is"] != measure(&folder.join(&path))? {
            return None;
        }
        external.push(path);
    }
    let text = |v: &Value| v.as_str().map(str::to_owned);
    let warning = |w: &Value| Some([text(&w[0])?, text(&w[1])?, text(&w[2])?]);
    let warnings = record["warnings"].as_array()?.iter().map(warning).collect::<Option<_>>()?;
    Some(Hit { name: text(&record["name"])?, external, warnings })
}

/// A folder with compiled models, shared by builds that may run at the same time.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// In this folder, or in the one that `ONNXC_CACHE` names.
    pub fn new(folder: Option<&Path>) -> Option<Cache> {
        let named = || std::env::var_os("ONNXC_CACHE").filter(|f| !f.is_empty()).map(PathBuf::from);
        folder.map(Path::to_owned).or_else(named).map(|folder| Cache { folder })
    }
    fn entry(&self, key: &Key) -> PathBuf {
        self.folder.join(&key.0)
    }
    /// Writes the files of a compilation to these paths, if it is here. What is unreadable or incomplete is
    /// not here.
    pub fn get(&self, source: &Source, key: &Key, paths: &[PathBuf]) -> Result<Option<Hit>> {
        let entry = self.entry(key);
        let record = entry.join("record.json");
        let read = || serde_json::from_slice::<Value>(&std::fs::read(&record).ok()?).ok();
        let Some(found) = read().and_then(|r| hit(&r, source, key, contents)) else { return Ok(None) };
        let kept: Vec<PathBuf> = (0..paths.len()).map(|i| entry.join(i.to_string())).collect();
        if !kept.iter().all(|k| k.is_file()) {
            return Ok(None);
        }
        for (from, to) in kept.iter().zip(paths) {
            let io = |e: std::io::Error| Failure::Io(to.display().to_string(), e.to_string());
            let target = emit::target_of(to);
            let tmp = emit::unfinished(&target);
            std::fs::copy(from, &tmp).map_err(io)?;
            std::fs::rename(&tmp, target).map_err(io)?;
        }
        // Used now: what nobody uses goes first.
        let _ = std::fs::File::options()
            .append(true)
            .open(&record)
            .and_then(|f| f.set_modified(SystemTime::now()));
        Ok(Some(found))
    }
    /// Keeps the files of a compilation. A cache that cannot be written to keeps nothing, and no build fails
    /// for that.
    pub fn put(&self, source: &Source, key: &Key, made: &Made) {
        if self.try_put(source, key, made).is_none() {
            eprintln!("onnxc: nothing is kept in {}: it cannot be written to", self.folder.display());
        }
    }
    fn try_put(&self, source: &Source, key: &Key, made: &Made) -> Option<()> {
        let record = made.record(source, key, contents)?;
        std::fs::create_dir_all(&self.folder).ok()?;
        let tmp = self.folder.join(format!(".{}.{}", key.0, std::process::id()));
        let _ = std::fs::remove_dir_all(&tmp);
        std::fs::create_dir(&tmp).ok()?;
        let fill = || -> std::io::Result<()> {
            for (i, f) in made.files.iter().enumerate() {
                std::fs::copy(f, tmp.join(i.to_string()))?;
            }
            std::fs::write(tmp.join("record.json"), record.to_string())?;
            // Of two that compiled the same at once, the later entry replaces the earlier one: they are
            // equal, unless external data have changed.
            let _ = std::fs::remove_dir_all(self.entry(key));
            std::fs::rename(&tmp, self.entry(key))
        };
        let done = fill();
        let _ = std::fs::remove_dir_all(&tmp);
        self.shrink();
        // Another process may have put its own in between.
        (done.is_ok() || self.entry(key).is_dir()).then_some(())
    }
    /// Removes the entries that nobody used for longest, until the others are small enough.
    fn shrink(&self) {
        let limit = std::env::var("ONNXC_CACHE_SIZE").ok().and_then(|s| s.parse().ok()).unwrap_or(SIZE);
        let Ok(list) = std::fs::read_dir(&self.folder) else { return };
        let is_key =
            |p: &Path| file_name(p).len() == 64 && file_name(p).bytes().all(|b| b.is_ascii_hexdigit());
        let size = |p: &Path| -> u64 {
            std::fs::read_dir(p)
                .into_iter()
                .flatten()
                .flatten()
                .filter_map(|f| Some(f.metadata().ok()?.len()))
                .sum()
        };
        let used = |p: &Path| {
            std::fs::metadata(p.join("record.json")).and_then(|m| m.modified()).unwrap_or(UNIX_EPOCH)
        };
        let mut entries: Vec<(SystemTime, u64, PathBuf)> =
            list.flatten().map(|e| e.path()).filter(|p| is_key(p)).map(|p| (used(&p), size(&p), p)).collect();
        entries.sort();
        let mut total: u64 = entries.iter().map(|e| e.1).sum();
        for (_, size, path) in entries {
            if total <= limit {
                break;
            }
            if std::fs::remove_dir_all(&path).is_ok() {
                total -= size;
            }
        }
    }
}

fn file_name(p: &Path) -> String {
    p.file_name().map_or(String::new(), |f| f.to_string_lossy().into_owned())
}

/// Beside the outputs of a build script: from what they were made.
#[derive(Clone, Debug)]
pub struct Stamp(pub PathBuf);

impl Stamp {
    /// Tells whether model and outputs are as they were when the outputs were written, with the same options.
    pub fn get(&self, source: &Source, key: &Key, files: &[PathBuf]) -> Option<Hit> {
        let record: Value = serde_json::from_slice(&std::fs::read(&self.0).ok()?).ok()?;
        if record["files"] != states(source, files)? {
            return None;
        }
        hit(&record, source, key, state)
    }
    /// Says from what the outputs were made. Without a stamp the next build compiles again.
    pub fn put(&self, source: &Source, key: &Key, made: &Made) {
        if let (Some(mut record), Some(states)) =
            (made.record(source, key, state), states(source, made.files))
        {
            record["files"] = states;
            let _ = std::fs::write(&self.0, record.to_string());
        }
    }
}

/// The model's file, and the outputs.
fn states(source: &Source, files: &[PathBuf]) -> Option<Value> {
    let model = Path::new(&source.name);
    std::iter::once(model)
        .chain(files.iter().map(PathBuf::as_path))
        .map(state)
        .collect::<Option<Vec<_>>>()
        .map(Value::Array)
}
