//! A generic driver over the metadata: describes and calls any model through its `<m>_model`. It checks
//! arguments against the metadata, derives the dim params from the inputs, allocates outputs, and determines
//! the sizes of data-dependent ones.

#![allow(unsafe_code, reason = "reads foreign metadata and calls generated code")]

use crate::abi::{
    self, ABI_VERSION, DIM_COMPUTED, Status, onnxc_call, onnxc_exec, onnxc_fault, onnxc_model,
    onnxc_tensor_info, onnxc_value, onnxc_workspace_for,
};
use crate::buffer::{Buffer, Workspace};
use crate::fault::{self, Error};
use crate::pool::Exec;
use crate::value::{self, Descriptor, Elements, NOTHING, Tensor, Value};
use crate::weights::{Weights, WeightsError};
use std::ffi::{CStr, c_char, c_void};
use std::path::Path;
use std::sync::Arc;

/// Outputs of unknown size are first allocated with their upper bound if it is at most this; otherwise empty.
const FIRST_TRY_BYTES: usize = 64 << 20;

/// A dimension of an input or output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dim {
    /// A number.
    Fixed(i64),
    /// Dim param `k`.
    Param(usize),
    /// Outputs only: an expression of dim params, or dependent on data.
    Computed,
}

/// The kind of an input or output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A tensor.
    Tensor,
    /// A tensor, or nothing.
    OptionalTensor,
    /// A sequence of tensors.
    Sequence,
    /// A sequence of tensors, or nothing.
    OptionalSequence,
    /// A map.
    Map {
        /// ONNX `TensorProto.DataType` of the keys.
        key: i32,
    },
    /// A sequence of maps.
    Maps {
        /// ONNX `TensorProto.DataType` of the keys.
        key: i32,
    },
}

impl Kind {
    /// From `kind` of [`onnxc_tensor_info`].
    fn of(code: i32) -> Option<Kind> {
        let key = code >> 8;
        Some(match (code & 0xff, key) {
            (0, 0) => Kind::Tensor,
            (OPTIONAL_TENSOR, 0) => Kind::OptionalTensor,
            (abi::ONNXC_SEQUENCE, 0) => Kind::Sequence,
            (OPTIONAL_SEQUENCE, 0) => Kind::OptionalSequence,
            (abi::ONNXC_MAP, 1..) => Kind::Map { key },
            (abi::ONNXC_MAPS, 1..) => Kind::Maps { key },
            _ => return None,
        })
    }
    /// True if a value is of this kind; the model checks its elements.
    fn fits(self, v: &Value) -> bool {
        match v {
            Value::None => matches!(self, Kind::OptionalTensor | Kind::OptionalSequence),
            Value::Tensor(_) => matches!(self, Kind::Tensor | Kind::OptionalTensor),
            Value::Sequence(_) => matches!(self, Kind::Sequence | Kind::OptionalSequence | Kind::Maps { .. }),
            Value::Map(_) => matches!(self, Kind::Map { .. }),
        }
    }
}

const OPTIONAL_TENSOR: i32 = abi::ONNXC_TENSOR | abi::ONNXC_OPTIONAL;
const OPTIONAL_SEQUENCE: i32 = abi::ONNXC_SEQUENCE | abi::ONNXC_OPTIONAL;

/// An input or output.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ValueInfo {
    /// The exact ONNX name.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// ONNX `TensorProto.DataType` of its elements, or of its maps' values.
    pub dtype: i32,
    /// Its dims, if it is a tensor.
    pub dims: Vec<Dim>,
    /// Upper bounds of the dims, if any.
    pub max_dims: Vec<Option<i64>>,
    /// Upper bound of the bytes.
    pub max_bytes: Option<u64>,
    /// Outputs: the input that it may share memory with, as it does in [`Model::step`].
    pub aliases_input: Option<usize>,
}

impl ValueInfo {
    /// The dims for given dim params; `None` for those that are computed.
    fn known_dims(&self, params: &[i64]) -> Vec<Option<i64>> {
        let known = |d: &Dim| match *d {
            Dim::Fixed(n) => Some(n),
            Dim::Param(k) => params.get(k).copied(),
            Dim::Computed => None,
        };
        self.dims.iter().map(known).collect()
    }
    /// The dims for the first allocation of an output.
    fn first_capacity(&self, params: &[i64]) -> Vec<i64> {
        let known = self.known_dims(params);
        let fill = |f: &dyn Fn(usize) -> Option<i64>| -> Option<Vec<i64>> {
            known.iter().enumerate().map(|(k, d)| d.or_else(|| f(k))).collect()
        };
        let most = fill(&|k| self.max_dims[k]);
        let cheap = |c: &Vec<i64>| {
            !known.contains(&None) || value::byte_len(self.dtype, c).is_ok_and(|b| b <= FIRST_TRY_BYTES)
        };
        most.filter(cheap).or_else(|| fill(&|_| Some(0))).unwrap_or_default()
    }
}

/// A model that is linked into the program, or loaded until the process ends.
#[derive(Clone, Debug)]
pub struct Model {
    raw: &'static onnxc_model,
    name: &'static str,
    inputs: Vec<ValueInfo>,
    outputs: Vec<ValueInfo>,
    dim_params: Vec<&'static str>,
    workspace_align: usize,
    workspace_for: Option<onnxc_workspace_for>,
    call: onnxc_call,
    weights: Option<Arc<Weights>>,
}

impl Model {
    /// Takes a model by its metadata. [`Status::Abi`] if the version is another or the metadata makes no
    /// sense.
    ///
    /// # Safety
    /// `raw` was generated by onnxc, or keeps the same promises: every pointer leads to constant data of the
    /// declared length (or is null), `call` and `workspace_for` keep to the ABI, and all of it stays for the
    /// rest of the program.
    pub unsafe fn from_raw(raw: &'static onnxc_model) -> Result<Model, Status> {
        if raw.abi_version != ABI_VERSION || (raw.struct_size as usize) < fault::WITHOUT_CHECKS {
            return Err(Status::Abi);
        }
        // SAFETY: the caller's promise, here and in the next four.
        let name = unsafe { text(raw.name) }?;
        // SAFETY: as above.
        let names = unsafe { list(raw.dim_params, raw.n_dim_params) }?;
        // SAFETY: as above.
        let dim_params = names.iter().map(|n| unsafe { text(*n) }).collect::<Result<Vec<_>, _>>()?;
        let tensors = |p, n| {
            // SAFETY: as above.
            let all = unsafe { list(p, n) }?;
            // SAFETY: as above.
            all.iter().map(|t| unsafe { info(t, dim_params.len()) }).collect::<Result<Vec<_>, _>>()
        };
        let (inputs, outputs) = (tensors(raw.inputs, raw.n_inputs)?, tensors(raw.outputs, raw.n_outputs)?);
        let aligned = usize::try_from(raw.workspace_align.max(1)).ok().filter(|a| a.is_power_of_two());
        if inputs.iter().any(|t| t.dims.contains(&Dim::Computed)) {
            return Err(Status::Abi);
        }
        Ok(Model {
            raw,
            name,
            inputs,
            outputs,
            dim_params,
            workspace_align: aligned.ok_or(Status::Abi)?,
            workspace_for: raw.workspace_for,
            call: raw.call.ok_or(Status::Abi)?,
            weights: None,
        })
    }
    /// Attaches the weights that [`Model::needs_weights`] requires. [`Status::Weights`] if the file is too
    /// small, [`Status::Align`] if it is not aligned.
    pub fn with_weights(mut self, weights: impl Into<Arc<Weights>>) -> Result<Model, Status> {
        let weights = weights.into();
        if (weights.len() as u64) < self.raw.weights_size {
            return Err(Status::Weights);
        }
        if !weights.is_aligned(self.raw.weights_align) {
            return Err(Status::Align);
        }
        self.weights = Some(weights);
        Ok(self)
    }
    /// Maps the model's weights file, for [`Model::with_weights`].
    pub fn open_weights(&self, path: impl AsRef<Path>) -> Result<Weights, WeightsError> {
        Weights::open(path, self.raw.weights_size, self.raw.weights_align)
    }
    /// True if the weights are in a separate file that is not attached yet.
    pub fn needs_weights(&self) -> bool {
        self.raw.weights_size != 0 && self.weights.is_none()
    }
    /// The metadata.
    pub fn raw(&self) -> &'static onnxc_model {
        self.raw
    }
    /// C prefix `<m>`.
    pub fn name(&self) -> &'static str {
        self.name
    }
    /// Inputs in order.
    pub fn inputs(&self) -> &[ValueInfo] {
        &self.inputs
    }
    /// Outputs in order.
    pub fn outputs(&self) -> &[ValueInfo] {
        &self.outputs
    }
    /// Names of the dim params in order.
    pub fn dim_params(&self) -> &[&'static str] {
        &self.dim_params
    }
    /// The dim params that follow from the inputs' shapes. [`Status::Dim`] if shapes contradict the model or
    /// each other, or a param occurs in no input; [`Status::Value`] if an input has another kind or type.
    pub fn dims_of(&self, inputs: &[Value<'_>]) -> Result<Vec<i64>, Error> {
        self.dims_with(inputs, &[])
    }
    /// The same, with `sizes` by name for params that occur in no input: the number of used positions of a
    /// state.
    pub fn dims_with(&self, inputs: &[Value<'_>], sizes: &[(&str, i64)]) -> Result<Vec<i64>, Error> {
        // The value of each param, and its origin.
        let mut dims: Vec<Option<(i64, &str, usize)>> = vec![None; self.dim_params.len()];
        if inputs.len() != self.inputs.len() {
            return Err(Error::new(
                Status::Null,
                format!("{} inputs are given, and the model has {}", inputs.len(), self.inputs.len()),
            ));
        }
        for (t, v) in self.inputs.iter().zip(inputs) {
            let name = t.name;
            if !t.kind.fits(v) {
                return Err(Error::new(
                    Status::Value,
                    format!("input \"{name}\" is a value of another kind than {:?}", t.kind),
                ));
            }
            let (Kind::Tensor, Value::Tensor(v)) = (t.kind, v) else { continue };
            if v.dtype() != t.dtype {
                return Err(Error::new(
                    Status::Value,
                    format!("input \"{name}\" has dtype {}: it must be {}", v.dtype(), t.dtype),
                ));
            }
            if v.dims().len() != t.dims.len() {
                return Err(Error::new(
                    Status::Dim,
                    format!("input \"{name}\" has rank {}: it must be {}", v.dims().len(), t.dims.len()),
                ));
            }
            for (i, (d, n)) in t.dims.iter().zip(v.dims()).enumerate() {
                match *d {
                    Dim::Fixed(e) if e != *n => {
                        return Err(Error::new(
                            Status::Dim,
                            format!("input \"{name}\" dimension {i} is {n}: it must be {e}"),
                        ));
                    }
                    Dim::Fixed(_) => {}
                    Dim::Computed => return Err(Status::Abi.into()),
                    Dim::Param(k) => {
                        let (m, first, at) = *dims[k].get_or_insert((*n, name, i));
                        if m != *n {
                            let param = self.dim_params[k];
                            return Err(Error::new(
                                Status::Dim,
                                format!(
                                    "input \"{first}\" dimension {at} is {m}, input \"{name}\" dimension {i} is {n}: they are both {param}"
                                ),
                            ));
                        }
                    }
                }
            }
        }
        for (name, n) in sizes {
            let Some(k) = self.dim_params.iter().position(|p| p == name) else {
                return Err(Error::new(Status::Dim, format!("the model has no dimension \"{name}\"")));
            };
            let (m, first, at) = *dims[k].get_or_insert((*n, "", 0));
            if m != *n {
                return Err(Error::new(
                    Status::Dim,
                    format!("input \"{first}\" dimension {at} is {m}: \"{name}\" is said to be {n}"),
                ));
            }
        }
        let value = |(k, d): (usize, Option<(i64, &str, usize)>)| {
            d.map(|d| d.0).ok_or_else(|| {
                Error::new(Status::Dim, format!("dimension \"{}\" stands in no input", self.dim_params[k]))
            })
        };
        dims.into_iter().enumerate().map(value).collect()
    }
    /// Workspace bytes for given dim params.
    pub fn workspace_for(&self, dims: &[i64]) -> Result<usize, Error> {
        self.check_dims(dims)?;
        let mut bytes = self.raw.workspace_size;
        if let Some(f) = self.workspace_for {
            // SAFETY: `from_raw`'s promise; one entry per dim param was checked.
            let code = unsafe { f(dims.as_ptr(), &mut bytes) };
            if code != 0 {
                return Err(self.refusal(code, dims));
            }
        }
        usize::try_from(bytes)
            .map_err(|_| Error::new(Status::Capacity, "the workspace would be larger than memory can be"))
    }
    /// The error for dim params without a workspace size: a call checks these first.
    fn refusal(&self, code: i32, dims: &[i64]) -> Error {
        if !fault::has_checks(self.raw) {
            return Status::check(code).err().unwrap_or(Status::Abi).into();
        }
        let inputs = vec![std::ptr::null(); self.inputs.len()];
        let outputs = vec![std::ptr::null_mut(); self.outputs.len()];
        let lists = vec![std::ptr::null_mut(); self.outputs.len()];
        let mut fault = onnxc_fault::NONE;
        let exec = onnxc_exec { fault: &raw mut fault, ..onnxc_exec::NONE };
        // SAFETY: `from_raw`'s promise; the dims fail before any of the null pointers counts.
        let again = unsafe {
            (self.call)(
                inputs.as_ptr(),
                outputs.as_ptr(),
                dims.as_ptr(),
                lists.as_ptr(),
                std::ptr::null(),
                std::ptr::null_mut(),
                &raw const exec,
            )
        };
        if again == code {
            self.error(code, fault)
        } else {
            Status::check(code).err().unwrap_or(Status::Abi).into()
        }
    }
    fn error(&self, code: i32, fault: onnxc_fault) -> Error {
        let status = Status::check(code).err().unwrap_or(Status::Abi);
        Error::of_fault(status, fault::message(self.raw, &fault), fault)
    }
    /// Runs the model once in a workspace of its own: outputs in order.
    pub fn call(&self, inputs: &[Value<'_>], exec: Option<&Exec<'_>>) -> Result<Vec<Value<'static>>, Error> {
        self.call_in(inputs, exec, &mut Workspace::default())
    }
    /// Runs the model once; the workspace grows if it is too small, and is free again afterwards.
    ///
    /// Data-dependent outputs are first allocated with their upper bound if it is moderate, else empty. If
    /// they or the workspace are too small, the model returns the required size and runs again. The model
    /// itself checks elements of sequences, optionals and maps: [`Status::Value`] for another type or other
    /// sizes.
    pub fn call_in(
        &self,
        inputs: &[Value<'_>],
        exec: Option<&Exec<'_>>,
        workspace: &mut Workspace,
    ) -> Result<Vec<Value<'static>>, Error> {
        let dims = self.dims_of(inputs)?;
        self.call_on(inputs, &dims, &mut [], exec, workspace)
    }
    /// [`Model::call_in`] for models with state in place (`--alias`). An output that may share memory with an
    /// input takes over the memory of that tensor, which becomes [`Value::None`], provided that it is an
    /// output of another call or [`Tensor::zeros`], and is not shared. Otherwise the model copies it. After
    /// an error the tensor is restored; its contents after the used part are undefined.
    ///
    /// `sizes`: dim params that occur in no input, such as the number of used positions of the state.
    pub fn step(
        &self,
        inputs: &mut [Value<'_>],
        sizes: &[(&str, i64)],
        exec: Option<&Exec<'_>>,
        workspace: &mut Workspace,
    ) -> Result<Vec<Value<'static>>, Error> {
        let dims = self.dims_with(inputs, sizes)?;
        let mut state: Vec<State> = vec![];
        for (output, t) in self.outputs.iter().enumerate() {
            let Some((input, v)) = t.aliases_input.and_then(|i| Some((i, inputs.get_mut(i)?))) else {
                continue;
            };
            let shape: Option<Vec<i64>> = t.known_dims(&dims).into_iter().collect();
            if let Value::Tensor(x) = v
                && x.dtype() == t.dtype
                && shape.as_deref() == Some(x.dims())
            {
                let (shape, dtype) = (x.dims().to_vec(), x.dtype());
                match std::mem::replace(v, Value::None) {
                    Value::Tensor(x) => match x.into_buffer() {
                        Ok(data) => state.push(State { input, output, dtype, shape, data }),
                        Err(x) => *v = Value::Tensor(x),
                    },
                    other => *v = other,
                }
            }
        }
        let result = self.call_on(inputs, &dims, &mut state, exec, workspace);
        if result.is_err() {
            for s in state {
                // SAFETY: a state of strings is not shared.
                inputs[s.input] = Value::Tensor(unsafe { Tensor::written(s.dtype, s.shape, s.data) }?);
            }
        }
        result
    }
    /// One call, repeated while capacities and the workspace are too small. `state`: memory that is both
    /// input and output; it is returned after an error.
    fn call_on(
        &self,
        inputs: &[Value<'_>],
        dims: &[i64],
        state: &mut [State],
        exec: Option<&Exec<'_>>,
        workspace: &mut Workspace,
    ) -> Result<Vec<Value<'static>>, Error> {
        let bytes = self.workspace_for(dims)?;
        if self.needs_weights() {
            return Err(Error::new(
                Status::Null,
                format!("the weights of \"{}\" are missing: Model::with_weights", self.name),
            ));
        }
        let lent =
            self.inputs.iter().zip(inputs).map(|(t, v)| In::new(t, v)).collect::<Result<Vec<_>, _>>()?;
        let inputs: Vec<*const c_void> = lent.iter().map(In::as_ptr).collect();
        workspace.reserve(bytes, self.workspace_align)?;
        let own = |k: usize| state.iter().any(|s| s.output == k);
        let mut outs = self
            .outputs
            .iter()
            .enumerate()
            .map(|(k, t)| Out::new(t, dims, !own(k)))
            .collect::<Result<Vec<_>, _>>()?;
        for s in state.iter_mut() {
            std::mem::swap(&mut s.data, &mut outs[s.output].data);
        }
        let pairs: Vec<(usize, usize)> = state.iter().map(|s| (s.input, s.output)).collect();
        if let Err(e) = self.rounds(inputs, dims, &mut outs, &pairs, exec, workspace) {
            for s in state {
                std::mem::swap(&mut s.data, &mut outs[s.output].data);
            }
            return Err(e);
        }
        // The workspace holds data that results refer to until they are copied here.
        Ok(outs.into_iter().map(Out::finish).collect::<Result<_, _>>()?)
    }
    /// `pairs`: inputs and outputs that share memory.
    fn rounds(
        &self,
        mut inputs: Vec<*const c_void>,
        dims: &[i64],
        outs: &mut [Out],
        pairs: &[(usize, usize)],
        exec: Option<&Exec<'_>>,
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        // Each round determines at least one computed dim, or doubles the workspace.
        let rounds = 64 + self.outputs.iter().flat_map(|t| &t.dims).filter(|d| **d == Dim::Computed).count();
        for _ in 0..rounds {
            let Err(e) = self.call_once(&mut inputs, dims, outs, pairs, exec, workspace) else {
                return Ok(());
            };
            if e.status() != Status::Capacity {
                return Err(e);
            }
            let mut grown = false;
            for o in outs.iter_mut() {
                grown |= o.grow()?;
            }
            let needed = e.fault().map_or(0, |f| usize::try_from(f.workspace_size).unwrap_or(usize::MAX));
            if needed > workspace.len() {
                // Later allocations will need more, too: doubling limits the number of rounds, if there is
                // memory for it.
                let double = workspace.len().saturating_mul(2);
                if double <= needed || workspace.reserve(double, self.workspace_align).is_err() {
                    workspace.reserve(needed, self.workspace_align).map_err(|s| {
                        Error::new(s, format!("there is no memory for a workspace of {needed} bytes; {e}"))
                    })?;
                }
                grown = true;
            }
            if !grown {
                return Err(e);
            }
        }
        Err(Status::Capacity.into())
    }
    fn call_once(
        &self,
        inputs: &mut [*const c_void],
        dims: &[i64],
        outs: &mut [Out],
        pairs: &[(usize, usize)],
        exec: Option<&Exec<'_>>,
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        let data: Vec<*mut c_void> = outs.iter_mut().map(Out::as_mut_ptr).collect();
        pairs.iter().for_each(|(i, o)| inputs[*i] = data[*o].cast_const());
        let out_dims: Vec<*mut i64> = outs.iter_mut().map(Out::dims_ptr).collect();
        let weights = self.weights.as_ref().map_or(std::ptr::null(), |w| w.as_ptr().cast());
        let mut fault = onnxc_fault::NONE;
        // A size of 0 would mean the default.
        let exec = onnxc_exec {
            struct_size: size_of::<onnxc_exec>(),
            workspace_size: workspace.len().max(1) as u64,
            fault: &raw mut fault,
            ..exec.map_or(onnxc_exec::NONE, |e| *e.as_raw())
        };
        // SAFETY: `from_raw`'s promise makes this a call of generated code with: inputs of the sizes that the
        // metadata and `dims` imply, aligned, or descriptors of values; outputs of the capacity in
        // `out_dims`, or room for a descriptor; an entry in `dims` per param; the weights of the declared
        // size; a workspace of the size that the model asked for; an exec that outlives the call. The outputs
        // and the workspace are exclusively borrowed and overlap nothing, but for pairs that the metadata
        // allows.
        let code = unsafe {
            (self.call)(
                inputs.as_ptr(),
                data.as_ptr(),
                dims.as_ptr(),
                out_dims.as_ptr(),
                weights,
                workspace.as_mut_ptr().cast(),
                &raw const exec,
            )
        };
        if code == 0 { Ok(()) } else { Err(self.error(code, fault)) }
    }
    fn check_dims(&self, dims: &[i64]) -> Result<(), Error> {
        if dims.len() != self.dim_params.len() {
            return Err(Error::new(
                Status::Dim,
                format!("{} dims are given, and the model has {}", dims.len(), self.dim_params.len()),
            ));
        }
        match dims.iter().zip(&self.dim_params).find(|(d, _)| **d < 0) {
            Some((d, name)) => {
                Err(Error::new(Status::Dim, format!("dimension \"{name}\" is {d}: it must not be negative")))
            }
            None => Ok(()),
        }
    }
}

/// An input while the model runs.
enum In<'a> {
    Elements(Elements),
    Described(Descriptor<'a>),
}

impl<'a> In<'a> {
    fn new(t: &ValueInfo, v: &Value<'a>) -> Result<In<'a>, Status> {
        match (t.kind, v) {
            (Kind::Tensor, Value::Tensor(v)) => Elements::of(v).map(In::Elements),
            _ => Descriptor::new(v.clone()).map(In::Described),
        }
    }
    fn as_ptr(&self) -> *const c_void {
        match self {
            In::Elements(e) => e.as_ptr(),
            In::Described(d) => std::ptr::from_ref(d.as_raw()).cast(),
        }
    }
}

/// Memory that is an input and an output.
struct State {
    input: usize,
    output: usize,
    dtype: i32,
    shape: Vec<i64>,
    data: Buffer,
}

/// An output while the model runs.
struct Out<'a> {
    info: &'a ValueInfo,
    /// The descriptor that the model fills for an output that is not a tensor.
    described: onnxc_value,
    /// Dims that are not computed.
    known: Vec<Option<i64>>,
    /// The dims that `data` is allocated for.
    capacity: Vec<i64>,
    /// Capacity on entry, actual or needed dims on return.
    dims: Vec<i64>,
    data: Buffer,
}

impl<'a> Out<'a> {
    /// With memory of its own, or with given memory.
    fn new(info: &'a ValueInfo, params: &[i64], own: bool) -> Result<Out<'a>, Status> {
        let capacity = info.first_capacity(params);
        let data = Buffer::new(if own && info.kind == Kind::Tensor {
            value::byte_len(info.dtype, &capacity)?
        } else {
            0
        })?;
        Ok(Out {
            info,
            described: NOTHING,
            known: info.known_dims(params),
            dims: capacity.clone(),
            capacity,
            data,
        })
    }
    /// The pointer that is passed to the model.
    fn as_mut_ptr(&mut self) -> *mut c_void {
        match self.info.kind {
            Kind::Tensor => self.data.as_mut_ptr().cast(),
            _ => (&raw mut self.described).cast(),
        }
    }
    /// The `out_dims` entry: null if all dims are constant.
    fn dims_ptr(&mut self) -> *mut i64 {
        let constant = self.info.dims.iter().all(|d| matches!(d, Dim::Fixed(_)));
        if constant { std::ptr::null_mut() } else { self.dims.as_mut_ptr() }
    }
    /// After [`Status::Capacity`]: allocates the required size, if it is larger; true if so.
    fn grow(&mut self) -> Result<bool, Status> {
        // Only computed dims can require more.
        let needed: Vec<i64> = self.known.iter().zip(&self.dims).map(|(k, d)| k.unwrap_or(*d)).collect();
        let more = needed.iter().zip(&self.capacity).any(|(n, c)| n > c);
        if more {
            // Free the old memory before allocating the new.
            self.data = Buffer::new(0)?;
            self.data = Buffer::new(value::byte_len(self.info.dtype, &needed)?)?;
            self.capacity = needed;
        }
        self.dims.clone_from(&self.capacity);
        Ok(more)
    }
    /// After success: the output with its actual size, copied if it refers to other memory.
    fn finish(self) -> Result<Value<'static>, Status> {
        if self.info.kind != Kind::Tensor {
            // SAFETY: the call has ended well, so it has filled the descriptor with what lies in the
            // workspace, which is there.
            let v = unsafe { value::read(&self.described) }?;
            return if self.info.kind.fits(&v) { Ok(v) } else { Err(Status::Abi) };
        }
        let as_promised =
            |((d, k), c): ((&i64, &Option<i64>), &i64)| k.map_or((0..=*c).contains(d), |k| k == *d);
        if !self.dims.iter().zip(&self.known).zip(&self.capacity).all(as_promised) {
            return Err(Status::Abi);
        }
        // SAFETY: as above: elements of strings show what inputs, weights and workspace hold; all are there.
        unsafe { Tensor::written(self.info.dtype, self.dims, self.data) }.map(Value::Tensor)
    }
}

/// # Safety
/// `p` is null or leads to `n` entries that stay for the rest of the program.
unsafe fn list<T>(p: *const T, n: u32) -> Result<&'static [T], Status> {
    if n == 0 {
        return Ok(&[]);
    }
    if p.is_null() || !p.is_aligned() {
        return Err(Status::Abi);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(p, n as usize) })
}

/// # Safety
/// `p` is null or leads to a C string that stays for the rest of the program.
unsafe fn text(p: *const c_char) -> Result<&'static str, Status> {
    if p.is_null() {
        return Err(Status::Abi);
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(p) }.to_str().map_err(|_| Status::Abi)
}

/// # Safety
/// The pointers of `t` are null or lead to what they should, for the rest of the program.
unsafe fn info(t: &'static onnxc_tensor_info, params: usize) -> Result<ValueInfo, Status> {
    let kind = Kind::of(t.kind).ok_or(Status::Abi)?;
    let rank = u32::try_from(t.rank).map_err(|_| Status::Abi)?;
    // SAFETY: the caller's promise.
    let dims = unsafe { list(t.dims, rank) }?;
    // SAFETY: as above.
    let max = if t.max_dims.is_null() { &[] } else { unsafe { list(t.max_dims, rank) }? };
    let dim = |d: &i64| match *d {
        DIM_COMPUTED => Ok(Dim::Computed),
        d if d >= 0 => Ok(Dim::Fixed(d)),
        d => usize::try_from(-1 - d).ok().filter(|k| *k < params).map(Dim::Param).ok_or(Status::Abi),
    };
    Ok(ValueInfo {
        // SAFETY: as above.
        name: unsafe { text(t.name) }?,
        kind,
        dtype: t.dtype,
        dims: dims.iter().map(dim).collect::<Result<_, _>>()?,
        max_dims: (0..dims.len()).map(|k| max.get(k).copied().filter(|d| *d >= 0)).collect(),
        max_bytes: Some(t.max_bytes).filter(|b| *b != u64::MAX),
        aliases_input: usize::try_from(t.aliases_input).ok(),
    })
}
