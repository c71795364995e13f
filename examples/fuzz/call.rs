//! A graph compiled into memory and called with every buffer against inaccessible memory.

#![allow(unsafe_code)]

use crate::memory::Memory;
use crate::modules;
use onnxc::codegen::interface::{Interface, Tensor};
use onnxc::diag::Failure;
use onnxc::jit::Loaded;
use onnxc::nest::interp::{self, Outcome, Stop};
use onnxc::nest::{Module, Status};
use onnxc::onnx::Source;
use onnxc::options::{OptLevel, Options};
use onnxc::pipeline::{self, Stopped};
use onnxc::sym::text::DimOption;
use onnxc::sym::{Dim, Sym};
use onnxc::target::Target;
use onnxc::tensor::ElemType;

/// More than this is not computed.
const LARGEST: u64 = 1 << 28;

pub type Sizes = [(String, i64)];

/// How a call ends that does nothing wrong.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    Done(Outcome),
    Status(i32),
    /// Larger than what is tried.
    Large,
}

/// The status of a call, the sizes afterwards, the outputs.
pub type Returned = (i32, Vec<Vec<i64>>, Vec<Vec<u8>>);

/// What stands between a model and its end.
pub enum Built<T> {
    Good(T),
    /// The compiler refuses it.
    Refused(String),
}

pub fn source(name: &str, text: &[u8]) -> Source {
    Source { name: name.to_owned(), bytes: text.to_vec().into(), folder: None }
}

fn refused<T>(r: onnxc::diag::Result<T>) -> Result<Built<T>, String> {
    match r {
        Ok(t) => Ok(Built::Good(t)),
        Err(Failure::Bug(b)) => Err(format!("internal error in {}: {}", b.stage, b.message)),
        Err(e) => Ok(Built::Refused(e.to_string())),
    }
}

/// The module that operators build, with these sizes fixed.
pub fn fixed(text: &str, sizes: &Sizes) -> Result<Built<Module>, String> {
    let dims = sizes.iter().map(|(n, v)| (n.clone(), DimOption::Bind(*v))).collect();
    let options = Options { dims, stop_after: Some("lower".into()), verify: true, ..Options::default() };
    let stopped = match refused(pipeline::run(&source("graph.onnxtxt", text.as_bytes()), &options))? {
        Built::Good(s) => s,
        Built::Refused(e) => return Ok(Built::Refused(e)),
    };
    match stopped {
        Stopped::Nest(m) => Ok(Built::Good(*m)),
        _ => Err("there is no pass lower".into()),
    }
}

/// What the interpreter says about a module without symbols.
pub fn interpreted(m: &Module, inputs: &[Vec<u8>]) -> Result<End, String> {
    let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    match interp::run(m, &[], &inputs) {
        Ok(o) => Ok(End::Done(o)),
        Err(Stop::Status(s)) => Ok(End::Status(s as i32)),
        Err(Stop::Message(m)) => Err(format!("interpreter: {m}")),
    }
}

/// A model in memory.
pub struct Ready {
    pub interface: Interface,
    loaded: Loaded,
}

impl Ready {
    /// Compiles for one CPU level of this machine (`None`: all that it has).
    pub fn new(text: &str, sizes: &Sizes, opt: OptLevel, cpu: Option<&str>) -> Result<Built<Ready>, String> {
        let dims = sizes.iter().map(|(n, v)| (n.clone(), DimOption::Bind(*v))).collect();
        let cpu = cpu.unwrap_or("native");
        let options = Options { dims, opt, cpu: Some(cpu.to_owned()), verify: true, ..Options::default() };
        let compiled = match refused(pipeline::compile(&source("graph.onnxtxt", text.as_bytes()), &options))?
        {
            Built::Good(c) => c,
            Built::Refused(e) => return Ok(Built::Refused(e)),
        };
        let Some(module) = compiled.modules.first() else { return Err("a model without code".into()) };
        let target = Target { levels: compiled.target.levels[..1].to_vec(), ..compiled.target.clone() };
        let loaded = Loaded::for_target(module, &compiled.interface, &target)
            .map_err(|e| format!("code generation: {e}"))?;
        Ok(Built::Good(Ready { loaded, interface: compiled.interface }))
    }
    /// Values of the dim params in order.
    pub fn params(&self, sizes: &Sizes) -> Vec<i64> {
        self.interface
            .dim_params
            .iter()
            .map(|p| sizes.iter().find(|s| s.0 == p.name).map_or(1, |s| s.1))
            .collect()
    }
    fn eval(&self, params: &[i64], d: Dim) -> Option<i64> {
        let value = |s: Sym| {
            self.interface.dim_params.iter().position(|p| p.sym == s).and_then(|k| params.get(k).copied())
        };
        d.eval(&|s| value(s))
    }
    fn shape(&self, params: &[i64], t: &Tensor) -> Option<Vec<i64>> {
        t.dims.iter().map(|d| self.eval(params, *d)).collect()
    }
    /// Inputs of these sizes; none where they are too large.
    pub fn inputs(&self, params: &[i64], seed: u64) -> Option<Vec<Vec<u8>>> {
        let one = |(k, t): (usize, &Tensor)| {
            let n = count(&self.shape(params, t)?)?;
            Some(match t.ty {
                // Positions, sizes: small ones, some of them wrong.
                ElemType::I64 => modules::data(seed + k as u64, ElemType::U8, n as usize)
                    .iter()
                    .flat_map(|b| (i64::from(b % 8) - 2).to_le_bytes())
                    .collect(),
                ty => modules::data(seed + k as u64, ty, n as usize),
            })
        };
        self.interface.inputs.iter().enumerate().map(one).collect()
    }
    /// One call as a careful caller makes it: with the workspace that is asked for, and with the room that
    /// the first call, without any, says is needed.
    pub fn call(&self, params: &[i64], inputs: &[Vec<u8>], end: bool) -> Result<End, String> {
        let workspace = match self.loaded.workspace(params) {
            Ok(n) if n > 1 << 60 => return Err(format!("a workspace of {n} bytes is asked for")),
            Ok(n) if n > LARGEST => return Ok(End::Large),
            Ok(n) => n as usize,
            Err(s) => {
                // Whoever goes on gets the same answer, and nothing is touched.
                let room: Vec<Vec<i64>> =
                    self.interface.outputs.iter().map(|t| vec![0; t.dims.len()]).collect();
                return match self.once(params, inputs, &room, 0, end)?.0 {
                    0 => Err(format!("the call succeeds where workspace_for returns {s}")),
                    _ => Ok(End::Status(s.status)),
                };
            }
        };
        let mut room = vec![];
        for t in &self.interface.outputs {
            room.push(match self.shape(params, t).filter(|_| !t.from_data(&self.interface.syms)) {
                None => vec![0; t.dims.len()],
                Some(d) if d.iter().any(|n| *n < 0) => vec![0; d.len()],
                Some(d) if count(&d).is_none() => return Ok(End::Large),
                Some(d) => d,
            });
        }
        // Each call may tell the sizes of one output more.
        for _ in 0..room.len() + 4 {
            let (status, dims, outputs) = self.once(params, inputs, &room, workspace, end)?;
            if status == 0 {
                return Ok(End::Done(Outcome { outputs, dims }));
            }
            let more = dims.iter().flatten().zip(room.iter().flatten()).any(|(need, have)| need > have);
            if status != Status::Capacity as i32 || !more {
                return Ok(End::Status(status));
            }
            if dims.iter().any(|d| count(d).is_none()) {
                return Ok(End::Large);
            }
            room = dims;
        }
        Err("the sizes that a call asks for grow with each call".into())
    }
    /// One call with outputs of these sizes: the status, the sizes afterwards, the outputs.
    pub fn once(
        &self,
        params: &[i64],
        inputs: &[Vec<u8>],
        room: &[Vec<i64>],
        workspace: usize,
        end: bool,
    ) -> Result<Returned, String> {
        let i = &self.interface;
        let fill = if end { 0xa5 } else { 0x5a };
        let memory = |data: &[u8], align: u32| {
            let mut m = Memory::new(data.len(), align.max(1) as usize, end, fill);
            m.write(data);
            m.seal();
            m
        };
        let words = |list: &[i64]| list.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<u8>>();
        let ins: Vec<Memory> =
            i.inputs.iter().zip(inputs).map(|(t, d)| memory(d, t.ty.bytes().unwrap_or(1))).collect();
        let dims = memory(&words(params), 8);
        let mut outs = vec![];
        for (t, r) in i.outputs.iter().zip(room) {
            let bytes = count(r).and_then(|n| t.ty.bytes_for(n)).ok_or("an output that is too large")?;
            outs.push(Memory::new(bytes as usize, t.ty.bytes().unwrap_or(1) as usize, end, fill));
        }
        let mut lists = vec![];
        for (t, r) in i.outputs.iter().zip(room) {
            let known = t.dims.iter().all(|d| d.as_const().is_some());
            lists.push((!known).then(|| {
                let mut m = Memory::new(8 * r.len(), 8, end, fill);
                m.write(&words(r));
                m
            }));
        }
        let ws = Memory::new(workspace, 64, end, fill);
        let pins: Vec<*const u8> = ins.iter().map(|m| m.address().cast_const()).collect();
        let pouts: Vec<*mut u8> = outs.iter().map(Memory::address).collect();
        let plists: Vec<*mut i64> =
            lists.iter().map(|m| m.as_ref().map_or(std::ptr::null_mut(), |m| m.address().cast())).collect();
        // SAFETY: whether the code stays inside its buffers is what is tested: what lies beside them is
        // inaccessible, or looked at below. Nothing else of this process lies near.
        let status =
            unsafe { self.loaded.call_at(&pins, &pouts, dims.address().cast(), &plists, ws.address()) }
                .err()
                .unwrap_or(0);
        if !(0..=9).contains(&status) {
            return Err(format!("the call returns {status}"));
        }
        for (what, m) in outs
            .iter()
            .map(|m| ("an output", m))
            .chain(lists.iter().flatten().map(|m| ("out_dims", m)))
            .chain([("the workspace", &ws)])
        {
            if m.disturbed() {
                return Err(format!(
                    "a write beside {what} of {} bytes, with status {status}",
                    m.bytes().len()
                ));
            }
        }
        let mut after = vec![];
        let mut data = vec![];
        for (((t, r), list), out) in i.outputs.iter().zip(room).zip(&lists).zip(&outs) {
            let now: Vec<i64> = match list {
                Some(m) => m
                    .bytes()
                    .chunks_exact(8)
                    .map(|c| i64::from_ne_bytes(c.try_into().unwrap_or_default()))
                    .collect(),
                None => r.clone(),
            };
            if now.iter().any(|n| *n < 0) && r.iter().all(|n| *n >= 0) {
                return Err(format!("output {} has the sizes {now:?}, with status {status}", t.name));
            }
            if status == 0 {
                let bytes =
                    count(&now).and_then(|n| t.ty.bytes_for(n)).filter(|n| *n as usize <= out.bytes().len());
                let Some(bytes) = bytes else {
                    return Err(format!(
                        "output {} has the sizes {now:?}, where there was room for {r:?}",
                        t.name
                    ));
                };
                data.push(out.bytes()[..bytes as usize].to_vec());
            }
            after.push(now);
        }
        Ok((status, after, data))
    }
    /// Bytes of workspace, or a status.
    pub fn workspace(&self, params: &[i64]) -> Result<u64, i32> {
        self.loaded.workspace(params).map_err(|s| s.status)
    }
}

/// Number of elements, if that is one that is tried.
pub fn count(dims: &[i64]) -> Option<u64> {
    let n = dims.iter().try_fold(1u64, |n, d| n.checked_mul(u64::try_from(*d).unwrap_or(0)));
    n.filter(|n| *n < LARGEST)
}
