//! `onnxc weights`: writes a weights file with the values of another model, for an object that was compiled
//! earlier.
//!
//! The model is compiled up to the layout of its weights. If its plan is equal to the object's, the file
//! fits. Otherwise values were compiled into the code, and they are found by restoring old values.

use super::{source, warn, with_progress};
use crate::cli::WeightsArgs;
use crate::codegen::weights_file::{Made, WeightsFile};
use crate::diag::{Error, Failure, Origin, Result, codes};
use crate::emit;
use crate::graph::Model;
use crate::onnx::Source;
use crate::options::Options;
use crate::pipeline::{self, Compiled};
use crate::tensor::ConstData;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Most values that an error names.
const MOST_NAMED: usize = 5;
/// Most elements of a value that a message shows.
const MOST_SHOWN: usize = 8;

/// Runs the command.
pub fn weights(a: &WeightsArgs) -> Result<()> {
    let options = a.options();
    let src = source(&a.model)?;
    let fits = a.fits.display().to_string();
    // Read instead of mapped, because the output may be the same file.
    let old = std::fs::read(&a.fits).map_err(|e| Failure::Io(fits.clone(), e.to_string()))?;
    let old = WeightsFile::new(old.into(), &fits)?;
    let c = with_progress(&format!("onnxc: compiling {}", src.name), || pipeline::compile(&src, &options))?;
    warn(&c, a.common.message_format);
    let slot = c.interface.weights.slot as usize;
    if old.plans().get(slot) != Some(&c.interface.weights.plan) {
        let refused = || Refused { src: &src, options: &options, old: &old, fits: &fits }.why(&c, slot);
        return Err(with_progress(&format!("onnxc: comparing {} with {fits}", src.name), refused)?);
    }
    let inputs: Vec<_> = std::iter::once(a.model.clone())
        .chain(c.model.external_files.iter().map(|f| src.folder.clone().unwrap_or_default().join(f)))
        .collect();
    emit::write_all(&c, &[], &a.output, Some(&a.output), &inputs).map(|_| ())
}

/// A model whose plan is not that of the object.
struct Refused<'a> {
    src: &'a Source,
    options: &'a Options,
    old: &'a WeightsFile,
    fits: &'a str,
}

impl Refused<'_> {
    fn error(&self, title: impl Into<String>) -> Error {
        Error::new(codes::WEIGHTS_FIT, title).at(&Origin::file(&self.src.name))
    }
    /// The error that explains the refusal.
    fn why(&self, c: &Compiled, slot: usize) -> Result<Failure> {
        let (all, new) = (self.old.made(), &c.made);
        let Some(old) = all.get(slot) else {
            let e = self.error(format!("\"{}\" is not shared by as many models", self.fits));
            let sharing = "the file that this model was compiled with";
            return Ok(e.found_expected(models(all), sharing).into());
        };
        if old.compiler != new.compiler {
            let e = self.error("the object was compiled by another onnxc");
            let e = e.found_expected(&new.compiler, &old.compiler);
            return Ok(e.help("compile the object again with this onnxc").into());
        }
        let settings: Vec<_> = new.settings.iter().zip(&old.settings).filter(|(a, b)| a != b).collect();
        if !settings.is_empty() {
            let e = self.error("the object was compiled with other flags");
            let show = |list: &mut dyn Iterator<Item = &(String, String)>| {
                list.map(|(k, v)| format!("{k} {v}")).collect::<Vec<_>>().join(", ")
            };
            let found = show(&mut settings.iter().map(|s| s.0));
            let e = e.found_expected(found, show(&mut settings.iter().map(|s| s.1)));
            return Ok(e.help("give the flags that the object was compiled with").into());
        }
        let other = new.constants.iter().zip(&old.constants).find(|(a, b)| a.ty != b.ty);
        if let Some((a, b)) = other {
            let e = self.error("the model is another one, not the same with other values");
            let text = |c: &crate::codegen::weights_file::Constant| format!("\"{}\" {}", c.name, c.ty);
            let e = e.found_expected(text(a), text(b));
            return Ok(self.help(e, all).into());
        }
        if new.constants.len() != old.constants.len() {
            let e = self.error("the model is another one, not the same with other values");
            let count = |m: &Made| format!("{} constants", m.constants.len());
            return Ok(self.help(e.found_expected(count(new), count(old)), all).into());
        }
        let named = self.named(old, slot)?;
        if named.is_empty() {
            let e = self.error("the model is computed in another way than by the object");
            let e =
                e.note("its nodes are others, or a decision of the compiler hangs on values of its weights");
            return Ok(self.help(e, all).into());
        }
        Ok(Failure::Errors(named))
    }
    fn help(&self, e: Error, all: &[Made]) -> Error {
        let e = e.help("compile the object again with this model");
        if all.len() < 2 {
            return e;
        }
        e.note(format!(
            "\"{}\" is shared by the models {}: write a file for the first one, then add each of the others \
                with --weights-from",
            self.fits,
            models(all)
        ))
    }
    /// Errors about the values whose change alters the plan.
    fn named(&self, old: &Made, slot: usize) -> Result<Vec<Error>> {
        let mut current: Vec<(String, Arc<ConstData>)> = vec![];
        let list = |m: &mut Model| {
            m.graph.each_constant(&mut |name, c| {
                current.push((name.to_owned(), c.clone()));
                None
            });
        };
        let mut list = list;
        let read = Options { stop_after: Some("import".into()), ..self.options.clone() };
        pipeline::run_changed(self.src, &read, &mut list)?;
        let before = |i: usize| -> Option<Arc<ConstData>> {
            let (now, then) = (&current.get(i)?.1, old.constants.get(i)?.value.clone()?);
            ConstData::new(now.elem(), now.dims().to_vec(), then).map(Arc::new)
        };
        let changed: Vec<usize> =
            (0..current.len()).filter(|i| before(*i).is_some_and(|b| b != current[*i].1)).collect();
        let same = |reverted: &BTreeSet<usize>| -> Result<bool> {
            let c = pipeline::compile_changed(self.src, self.options, &mut |m| {
                let mut i = 0;
                m.graph.each_constant(&mut |_, _| {
                    i += 1;
                    reverted.contains(&(i - 1)).then(|| before(i - 1)).flatten()
                });
            })?;
            Ok(self.old.plans().get(slot) == Some(&c.interface.weights.plan))
        };
        let mut found = BTreeSet::new();
        if changed.is_empty() || !same(&changed.iter().copied().collect())? {
            return Ok(vec![]);
        }
        // Binary search: restoring `found` and the values before `end` preserves the plan.
        let mut end = changed.len();
        while found.len() < MOST_NAMED && !same(&found)? {
            let (mut few, mut enough) = (0, end);
            while few + 1 < enough {
                let half = few.midpoint(enough);
                let tried = found.iter().chain(&changed[..half]).copied().collect();
                *(if same(&tried)? { &mut enough } else { &mut few }) = half;
            }
            found.insert(changed[enough - 1]);
            end = enough - 1;
            if end == 0 {
                break;
            }
        }
        Ok(found
            .into_iter()
            .map(|i| {
                let (name, now) = &current[i];
                self.error(format!("the value of \"{name}\" is part of the object's code"))
                    .found_expected(shown(now), before(i).map_or(String::new(), |b| shown(&b)))
                    .help("compile the object again with this model, or keep that value")
            })
            .collect())
    }
}

/// The names of the models.
fn models(all: &[Made]) -> String {
    all.iter().map(|m| format!("\"{}\"", m.model)).collect::<Vec<_>>().join(", ")
}

/// A value as text.
fn shown(c: &ConstData) -> String {
    let list: Vec<String> = match (c.as_strings(), c.to_i64s(), c.to_f64s()) {
        (Some(s), ..) => s.iter().map(|s| format!("{:?}", String::from_utf8_lossy(s))).collect(),
        (_, Some(v), _) => v.iter().map(i64::to_string).collect(),
        (.., Some(v)) => v.iter().map(|v| (*v as f32).to_string()).collect(),
        _ => vec![format!("{} bytes", c.byte_len())],
    };
    match list.as_slice() {
        [one] => one.clone(),
        _ if list.len() > MOST_SHOWN => format!("[{}, ..]", list[..MOST_SHOWN].join(", ")),
        _ => format!("[{}]", list.join(", ")),
    }
}
