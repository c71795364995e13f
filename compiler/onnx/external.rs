//! Files: the model itself and its external data, both mapped. External data stays inside the model's folder
//! (spec ExternalData.md): relative, without `..`, no symbolic link that leads out, a regular file.

use crate::diag::{Error, Failure, Origin, Result, codes};
use bytes::Bytes;
use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

/// Maps a whole file.
pub fn map_file(path: &Path) -> Result<Bytes> {
    let io = |e: std::io::Error| Failure::Io(path.display().to_string(), e.to_string());
    let file = std::fs::File::open(path).map_err(io)?;
    let meta = file.metadata().map_err(io)?;
    if meta.is_dir() {
        return Err(Failure::Io(path.display().to_string(), "is a directory".into()));
    }
    if !meta.is_file() {
        return std::fs::read(path).map(Bytes::from).map_err(io);
    }
    if meta.len() == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: the mapping is private and read-only. A file that someone truncates while it is being compiled can end
    // the process with SIGBUS; there is no way around this short of copying gigabytes of weights.
    #[allow(unsafe_code)]
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
    Ok(Bytes::from_owner(map))
}

/// The external files of one model, each mapped once.
#[derive(Debug, Default)]
pub struct External {
    folder: Option<PathBuf>,
    files: HashMap<String, Bytes>,
}

impl External {
    /// External data relative to a folder.
    pub fn new(folder: Option<PathBuf>) -> Self {
        External { folder, files: HashMap::new() }
    }
    /// Paths of all files opened so far, relative to the folder.
    pub fn opened(&self) -> Vec<String> {
        let mut v: Vec<String> = self.files.keys().cloned().collect();
        v.sort();
        v
    }
    /// `length` bytes (all that follow if `None`) at `offset` of the file `location`.
    pub fn slice(&mut self, location: &str, offset: u64, length: Option<u64>, origin: &Origin) -> Result<Bytes> {
        let bad = |found: String, expected: &str| -> Failure { Error::new(codes::EXTERNAL_DATA, "external data can not be used").at(origin).found_expected(found, expected).into() };
        if !self.files.contains_key(location) {
            let Some(folder) = &self.folder else {
                return Err(bad(format!("external file \"{location}\" of a model read from standard input"), "a model file, so that external data can be found beside it"));
            };
            let path = Path::new(location);
            let clean = !location.is_empty() && !location.contains('\\') && path.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
            if !clean {
                return Err(bad(format!("location \"{location}\""), "a relative path inside the model's folder, without \"..\""));
            }
            let full = folder.join(path);
            let real = full.canonicalize().map_err(|e| bad(format!("file \"{location}\": {e}"), "a file inside the model's folder"))?;
            let root = folder.canonicalize().map_err(|e| Failure::Io(folder.display().to_string(), e.to_string()))?;
            if !real.starts_with(&root) {
                return Err(bad(format!("\"{location}\", a link that leads out of the model's folder"), "a file inside the model's folder"));
            }
            if !real.is_file() {
                return Err(bad(format!("\"{location}\", which is not a regular file"), "a file inside the model's folder"));
            }
            self.files.insert(location.to_owned(), map_file(&real)?);
        }
        let file = &self.files[location];
        let size = file.len() as u64;
        let end = match length {
            Some(n) => offset.checked_add(n),
            None => Some(size),
        };
        match end {
            Some(end) if offset <= end && end <= size => Ok(file.slice(offset as usize..end as usize)),
            _ => Err(bad(format!("file \"{location}\" of {size} bytes"), &format!("{} bytes at offset {offset}", length.map_or("some".into(), |n| n.to_string())))),
        }
    }
}
