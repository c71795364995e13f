//! `onnxc bench`: the time of a model, compared with the limits of the machine.
//!
//! The code is timed in memory; it is the same as in the object. The limits are measured in the same run
//! (`onnxc_runtime::probe`), never looked up. A kernel's roofline is the larger of two times: its arithmetic
//! at the peak of the multiply-add units, and its bytes at the bandwidth of the memory level that holds the
//! model's whole working set, because the bytes come from there when a model is called repeatedly.

pub mod count;
pub mod print;

use crate::arrays::Array;
use crate::diag::Result;
use crate::io_descriptors::Input;
use crate::jit::Stopped;
use crate::run::{self, Runner};
use crate::sym::Dim;
use count::Amounts;
use onnxc_runtime::pool::Pool;
use onnxc_runtime::probe::{self, Vectors};
use std::time::Instant;

/// A working set too large for any cache.
const MEMORY: usize = 256 << 20;
/// Least time of a sample, in seconds: the clock then adds less than a thousandth.
const SAMPLE: f64 = 20e-6;
/// As [`SAMPLE`], for a kernel: short, so that passes resemble a run of the model.
const KERNEL_SAMPLE: f64 = 5e-6;
/// Most samples that are kept.
const SAMPLES: usize = 1 << 20;
/// Most passes over the kernels that are kept.
const PASSES: usize = 4096;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Seconds for the whole model, and as many for its kernels.
    pub seconds: f64,
    /// Threads.
    pub threads: usize,
    /// True if kernels are timed as well.
    pub per_node: bool,
    /// Sizes of symbolic dimensions.
    pub sizes: Vec<(String, i64)>,
    /// Seed of the random inputs.
    pub seed: u64,
}

/// The limits of the machine for this number of threads.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Threads.
    pub threads: usize,
    /// Vector width in bits at which the peak was measured.
    pub vector_bits: u32,
    /// f32 operations per second in multiply-adds.
    pub flops: f64,
    /// Bytes per second read from main memory.
    pub memory: f64,
}

/// Times of repeated calls, in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// Shortest.
    pub min: f64,
    /// Median.
    pub median: f64,
    /// Calls measured.
    pub calls: usize,
}

/// A kernel's times and amounts.
#[derive(Clone, Debug)]
pub struct Node {
    /// Kernel.
    pub kernel: String,
    /// Name of the node it computes (for fused nodes: the last one).
    pub name: String,
    /// That node's operator.
    pub op: String,
    /// Times.
    pub times: Times,
    /// Amounts, if they are known before the run.
    pub amounts: Option<Amounts>,
}

/// The report of `onnxc bench`.
#[derive(Clone, Debug)]
pub struct Report {
    /// Model.
    pub model: String,
    /// CPU level of the code.
    pub cpu: String,
    /// Sizes of the dims that are symbolic in the code.
    pub dims: Vec<(String, i64)>,
    /// Times of a call.
    pub times: Times,
    /// Amounts of a call: the sum over the kernels.
    pub amounts: Option<Amounts>,
    /// The machine.
    pub machine: Machine,
    /// Bytes of weights, workspace, inputs and outputs.
    pub working_set: u64,
    /// Bytes per second read from the memory level that holds the working set.
    pub bandwidth: f64,
    /// Kernels in execution order; `None` if they were not requested or cannot be timed.
    pub nodes: Option<Vec<Node>>,
    /// The reason why requested times of kernels are missing.
    pub no_nodes: Option<&'static str>,
}

impl Machine {
    /// Measures with vectors of this many bits, or of the machine's widest if that is less.
    pub fn measure(vector_bits: u32, threads: usize) -> Machine {
        let vectors = match vector_bits {
            512.. => Vectors::Bits512,
            256.. => Vectors::Bits256,
            _ => Vectors::Baseline,
        }
        .min(Vectors::widest());
        Machine {
            threads,
            vector_bits: vectors.bits(),
            flops: probe::fma_peak(vectors, threads),
            memory: probe::read_bandwidth(MEMORY, threads),
        }
    }
}

impl Report {
    /// The least time that the machine's limits allow for these amounts, and whether arithmetic determines
    /// it.
    pub fn limit(&self, a: Amounts) -> (f64, bool) {
        let (compute, memory) = (a.lanes / self.machine.flops, a.bytes / self.bandwidth);
        (compute.max(memory), compute >= memory)
    }
}

/// Measures a model with the given inputs; missing ones are random.
pub fn run(r: &Runner, given: Vec<Array>, s: &Settings) -> Result<Report> {
    let c = r.compiled();
    let (i, m) = (&c.interface, r.module());
    let inputs = r.order_inputs(r.fill(given, &s.sizes, s.seed)?)?;
    let sizes = r.sizes(&inputs)?;
    let pool = (s.threads > 1).then(|| Pool::new(s.threads));
    let mut bound = r.bind(&inputs, pool.as_ref())?;
    let times = whole(&mut || bound.call(), s.seconds).map_err(run::status_error)?;
    let kernels = bound.kernels();
    let amounts = count::scheduled(&c.unscheduled, m, &kernels, &sizes);
    let mut no_nodes = None;
    let nodes = match (s.per_node, kernels.is_empty()) {
        (false, _) => None,
        (true, true) => {
            no_nodes = Some(
                "the driver of this model is no plain list of kernels (it loops, branches by values, or \
                    computes sizes at run time)",
            );
            None
        }
        (true, false) => {
            let times =
                each(&mut |k| bound.call_kernel(k), kernels.len(), s.seconds).map_err(run::status_error)?;
            let node = |((k, times), amounts): ((&crate::nest::Kernel, Times), &Option<Amounts>)| {
                let d = &m.kernels[*k];
                let name = if d.origin.name.is_empty() {
                    d.origin.node.map_or_else(|| d.origin.element.clone(), |n| format!("node {n}"))
                } else {
                    d.origin.name.clone()
                };
                Node { kernel: d.name.clone(), name, op: d.origin.op.clone(), times, amounts: *amounts }
            };
            Some(kernels.iter().zip(times).zip(&amounts).map(node).collect())
        }
    };
    let eval = |d: Dim| d.eval(&|x| sizes.get(&x).copied()).and_then(|v| u64::try_from(v).ok()).unwrap_or(0);
    // Results that are not tensors are in the workspace.
    let tensors = i.outputs.iter().filter(|t| t.described.is_none());
    let results: u64 = tensors.map(|t| eval(t.count()) * u64::from(t.ty.bits()) / 8).sum();
    let working_set =
        inputs.iter().map(Input::byte_len).sum::<u64>() + results + c.weights.size + eval(m.workspace);
    let machine = Machine::measure(r.level().facts.caps.bits, s.threads);
    let in_memory = working_set as usize >= MEMORY;
    Ok(Report {
        model: i.name.clone(),
        cpu: r.level().name.clone(),
        dims: i
            .dim_params
            .iter()
            .map(|p| (p.name.clone(), sizes.get(&p.sym).copied().unwrap_or(0)))
            .collect(),
        times,
        amounts: (!amounts.is_empty())
            .then(|| amounts.iter().try_fold(Amounts::default(), |s, a| a.map(|a| s + a)))
            .flatten(),
        machine,
        working_set,
        bandwidth: if in_memory {
            machine.memory
        } else {
            probe::read_bandwidth(working_set as usize, s.threads).max(machine.memory)
        },
        nodes,
        no_nodes,
    })
}

type Status = std::result::Result<(), Stopped>;

/// Summarises samples of `batch` calls each.
fn summary(samples: &mut [f64], batch: usize) -> Times {
    samples.sort_by(f64::total_cmp);
    Times {
        min: samples.first().copied().unwrap_or(0.0),
        median: samples.get(samples.len() / 2).copied().unwrap_or(0.0),
        calls: samples.len() * batch,
    }
}

/// Times calls. A fifth of the time warms up and determines how many calls make a sample; the rest is
/// sampled.
fn whole(call: &mut dyn FnMut() -> Status, seconds: f64) -> std::result::Result<Times, Stopped> {
    let mut sample = |batch: usize| -> std::result::Result<f64, Stopped> {
        let t = Instant::now();
        for _ in 0..batch {
            call()?;
        }
        Ok(t.elapsed().as_secs_f64())
    };
    let mut batch = 1;
    let start = Instant::now();
    loop {
        if sample(batch)? < SAMPLE {
            batch *= 2;
        } else if start.elapsed().as_secs_f64() >= seconds / 5.0 {
            break;
        }
    }
    let mut samples = vec![];
    let start = Instant::now();
    while samples.is_empty() || (samples.len() < SAMPLES && start.elapsed().as_secs_f64() < seconds) {
        samples.push(sample(batch)? / batch as f64);
    }
    Ok(summary(&mut samples, batch))
}

/// Times kernels in passes over all of them in execution order, so that each finds the caches as its
/// predecessor left them. Short kernels are called several times in a row because of the clock's resolution.
fn each(
    call: &mut dyn FnMut(usize) -> Status,
    n: usize,
    seconds: f64,
) -> std::result::Result<Vec<Times>, Stopped> {
    let mut batch = vec![1usize; n];
    // The first passes warm up and determine the batches.
    for _ in 0..3 {
        for (k, b) in batch.iter_mut().enumerate() {
            let t = Instant::now();
            call(k)?;
            let took = t.elapsed().as_secs_f64().max(10e-9);
            *b = ((KERNEL_SAMPLE / took).ceil() as usize).max(1);
        }
    }
    let mut samples = vec![vec![]; n];
    let start = Instant::now();
    let mut passes = 0;
    while passes < 3 || (passes < PASSES && start.elapsed().as_secs_f64() < seconds) {
        for k in 0..n {
            let t = Instant::now();
            call(k)?;
            // A kernel may overwrite its own input. Called again on its result it may fail, and is then timed
            // once per pass.
            if (1..batch[k]).any(|_| call(k).is_err()) {
                batch[k] = 1;
                break;
            }
            samples[k].push(t.elapsed().as_secs_f64() / batch[k] as f64);
        }
        passes += 1;
    }
    Ok(samples.iter_mut().zip(batch).map(|(s, b)| summary(s, b)).collect())
}
