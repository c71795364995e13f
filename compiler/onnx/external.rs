//! The model file and its external data, both memory-mapped. External data must be inside the model's folder
//! (spec ExternalData.md): a relative path without `..`, no symbolic link that leads out, a regular file.
//!
//! A symbolic link that stays inside the folder is followed, because it gives access to nothing else. To make
//! sure that the file that was checked is the file that is read, the open file is compared with the checked
//! path (`opened_inside`).

use super::proto::StringStringEntryProto;
use crate::diag::{Error, Failure, Origin, Result, codes};
use bytes::Bytes;
use sha1::{Digest, Sha1};
use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

/// Maps a whole file.
pub fn map_file(path: &Path) -> Result<Bytes> {
    let io = |e: std::io::Error| Failure::Io(path.display().to_string(), e.to_string());
    map(std::fs::File::open(path).map_err(io)?, path)
}

fn map(file: std::fs::File, path: &Path) -> Result<Bytes> {
    let io = |e: std::io::Error| Failure::Io(path.display().to_string(), e.to_string());
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
    // SAFETY: the mapping is private and read-only. If another process truncates the file during compilation,
    // a read can raise SIGBUS. The only alternative is to copy gigabytes of weights.
    #[allow(unsafe_code)]
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
    Ok(Bytes::from_owner(map))
}

/// Location of a tensor's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// File, relative to the model's folder.
    pub location: String,
    /// First byte.
    pub offset: u64,
    /// Number of bytes, if the model gives it.
    pub length: Option<u64>,
    /// SHA1 of the whole file in hex digits, if the model gives it.
    pub checksum: Option<String>,
}

/// One file, mapped.
#[derive(Debug)]
struct File {
    bytes: Bytes,
    /// SHA1 in hex digits, once it has been computed.
    sha1: Option<String>,
}

/// The external files of one model, each mapped once, and the warnings about its tensors.
#[derive(Debug, Default)]
pub struct External {
    folder: Option<PathBuf>,
    files: HashMap<String, File>,
    /// Warnings about tensors and their files.
    pub warnings: Vec<Error>,
}

/// Valid keys of external_data. Some writers leave `basepath` behind; it never changes the file's location.
const KEYS: &[&str] = &["location", "offset", "length", "checksum", "basepath"];

fn bad(origin: &Origin, found: impl Into<String>, expected: impl Into<String>) -> Error {
    Error::new(codes::EXTERNAL_DATA, "external data can not be used")
        .at(origin)
        .found_expected(found, expected)
}

impl External {
    /// External data relative to a folder.
    pub fn new(folder: Option<PathBuf>) -> Self {
        External { folder, ..Default::default() }
    }
    /// Paths of all files opened so far, relative to the folder.
    pub fn opened(&self) -> Vec<String> {
        let mut v: Vec<String> = self.files.keys().cloned().collect();
        v.sort();
        v
    }
    /// Reads the entries of a tensor's `external_data`.
    pub fn range(&mut self, entries: &[StringStringEntryProto], origin: &Origin) -> Result<Range> {
        let mut got: HashMap<&str, &str> = HashMap::new();
        for e in entries {
            let (key, value) = (e.key.as_deref().unwrap_or_default(), e.value.as_deref().unwrap_or_default());
            if !KEYS.contains(&key) {
                self.warnings.push(
                    Error::warning(codes::NO_EFFECT, "external data has a key that ONNX does not define")
                        .at(origin)
                        .found_expected(
                            format!("\"{key}\" = \"{value}\""),
                            "location, offset, length, checksum or basepath",
                        ),
                );
            } else if got.insert(key, value).is_some() {
                return bad(origin, format!("the key \"{key}\" twice"), "each key once").fail();
            }
        }
        let number = |key: &str| match got.get(key) {
            None => Ok(None),
            Some(s) => {
                let digits = !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
                let n = s.parse::<u64>().ok().filter(|n| digits && *n <= i64::MAX as u64);
                n.map(Some).ok_or_else(|| {
                    Failure::from(bad(origin, format!("{key} \"{s}\""), "decimal digits, at most 2^63 - 1"))
                })
            }
        };
        let Some(location) = got.get("location") else {
            return bad(origin, "no location", "the key \"location\" with the name of a file").fail();
        };
        let checksum = got.get("checksum").map(|s| (*s).to_owned());
        Ok(Range {
            location: (*location).to_owned(),
            offset: number("offset")?.unwrap_or(0),
            length: number("length")?,
            checksum,
        })
    }
    /// `size` bytes at the offset of a range. The caller has compared the range's length with `size`.
    pub fn slice(&mut self, range: &Range, size: u64, origin: &Origin) -> Result<Bytes> {
        let location = range.location.as_str();
        if !self.files.contains_key(location) {
            let bytes = self.open(location, origin)?;
            self.files.insert(location.to_owned(), File { bytes, sha1: None });
        }
        let Some(file) = self.files.get_mut(location) else {
            return Err(Failure::bug("external", "a file that is not there"));
        };
        if let Some(want) = &range.checksum {
            let bytes = &file.bytes;
            let have = file
                .sha1
                .get_or_insert_with(|| Sha1::digest(bytes).iter().map(|b| format!("{b:02x}")).collect());
            if !have.eq_ignore_ascii_case(want) {
                return bad(
                    origin,
                    format!("file \"{location}\" with SHA1 {have}"),
                    format!("SHA1 {want}, as the model says"),
                )
                .help("was the file changed, or downloaded in part?")
                .fail();
            }
        }
        let all = file.bytes.len() as u64;
        match range.offset.checked_add(size) {
            Some(end) if end <= all => Ok(file.bytes.slice(range.offset as usize..end as usize)),
            _ => bad(
                origin,
                format!("file \"{location}\" of {all} bytes"),
                format!("{size} bytes at offset {}", range.offset),
            )
            .fail(),
        }
    }
    fn open(&mut self, location: &str, origin: &Origin) -> Result<Bytes> {
        let Some(folder) = &self.folder else {
            return bad(
                origin,
                format!("external file \"{location}\" of a model that was not read from a file"),
                "a model file, so that external data can be found beside it",
            )
            .fail();
        };
        let path = Path::new(location);
        // On POSIX a backslash is an ordinary character.
        let strange = location.contains('\0') || cfg!(windows) && location.contains(['\\', ':']);
        let clean = !location.is_empty()
            && !strange
            && path.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
        if !clean {
            return bad(
                origin,
                format!("location \"{}\"", location.escape_debug()),
                "a relative path inside the model's folder, without \"..\"",
            )
            .fail();
        }
        let full = folder.join(path);
        let missing = |e: std::io::Error| {
            Failure::from(
                bad(origin, format!("file \"{location}\": {e}"), "a file inside the model's folder")
                    .row("path", full.display().to_string()),
            )
        };
        let root =
            folder.canonicalize().map_err(|e| Failure::Io(folder.display().to_string(), e.to_string()))?;
        let real = full.canonicalize().map_err(missing)?;
        let outside = || {
            bad(
                origin,
                format!("\"{location}\", a symbolic link that leads out of the model's folder"),
                "a file inside the model's folder",
            )
            .help("put the file itself beside the model, for example with `cp -L`")
        };
        if !real.starts_with(&root) {
            return outside().fail();
        }
        let irregular = || {
            bad(
                origin,
                format!("\"{location}\", which is not a regular file"),
                "a file inside the model's folder",
            )
        };
        if !real.is_file() {
            return irregular().fail();
        }
        let file = std::fs::File::open(&real).map_err(missing)?;
        let meta = file.metadata().map_err(missing)?;
        if !meta.is_file() {
            return irregular().fail();
        }
        if !opened_inside(&meta, &full, &root) {
            return outside().fail();
        }
        if links(&meta) > 1 {
            self.warnings.push(
                Error::warning(codes::EXTERNAL_DATA, "an external file has several hard links")
                    .at(origin)
                    .found_expected(
                        format!("file \"{location}\" with {} links", links(&meta)),
                        "one: others may change it under another name",
                    ),
            );
        }
        map(file, &real)
    }
}

#[cfg(unix)]
fn links(meta: &std::fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::nlink(meta)
}

#[cfg(not(unix))]
fn links(_: &std::fs::Metadata) -> u64 {
    1
}

/// True if the open file is the one that the path leads to now, and the path is inside the root. A file that
/// was replaced between the check and the opening is thereby rejected.
#[cfg(unix)]
fn opened_inside(file: &std::fs::Metadata, path: &Path, root: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let again = path.canonicalize().ok().filter(|p| p.starts_with(root));
    again
        .and_then(|p| p.symlink_metadata().ok())
        .is_some_and(|m| m.is_file() && (m.dev(), m.ino()) == (file.dev(), file.ino()))
}

#[cfg(not(unix))]
fn opened_inside(_: &std::fs::Metadata, path: &Path, root: &Path) -> bool {
    path.canonicalize().is_ok_and(|p| p.starts_with(root))
}
