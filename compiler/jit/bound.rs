//! A model bound to its buffers, to be called again and again, as a whole or kernel by kernel.

mod branches;

use super::*;

/// A model with its buffers, bound once and called often: as a whole, or kernel by kernel in the driver's
/// order.
pub struct Bound<'a> {
    code: &'a Loaded,
    dims: Vec<i64>,
    inputs: Vec<*const u8>,
    outputs: Vec<*mut u8>,
    out_dims: Vec<*mut i64>,
    room: Vec<Vec<i64>>,
    /// As they were before a call.
    rooms: Vec<Vec<i64>>,
    /// The workspace is as large as the model asked for.
    usual: bool,
    // What the pointers lead to; never touched while bound.
    _memory: Vec<Vec<Chunk>>,
    _described: Vec<Descriptor<'a>>,
    workspace: *mut u8,
    bytes: u64,
    exec: Option<Exec<'a>>,
    pool: Option<&'a Pool>,
    frame: Vec<u64>,
    steps: Vec<Step>,
}

/// A kernel as the driver calls it: all iterations of its outermost loop, in that many tasks.
struct Step {
    kernel: Kernel,
    address: usize,
    trip: i64,
    tasks: i64,
}

type KernelFn = extern "C" fn(*const u64, i64, i64) -> i32;

impl<'a> Bound<'a> {
    fn buffers(&self) -> Buffers<'_> {
        Buffers { inputs: &self.inputs, outputs: &self.outputs, dims: &self.dims, out_dims: &self.out_dims }
    }
    /// Binds inputs (copied) and fresh outputs of these sizes, which the interface and `dims` imply. `room`
    /// has the dims of outputs whose sizes follow from data, and is empty for others. `least`: bytes of
    /// workspace, if the model asks for less.
    #[allow(clippy::too_many_arguments, reason = "what a call takes, and how it runs")]
    pub fn new(
        code: &'a Loaded,
        m: &Module,
        inputs: &[&[u8]],
        outputs: &[usize],
        dims: &[i64],
        mut room: Vec<Vec<i64>>,
        pool: Option<&'a Pool>,
        least: u64,
    ) -> std::result::Result<Bound<'a>, Stopped> {
        let asked = code.workspace(dims)?;
        let (workspace, usual) = (asked.max(least), least <= asked);
        let sizes = inputs.iter().map(|b| b.len()).chain(outputs.iter().copied()).chain([workspace as usize]);
        let mut memory: Vec<Vec<Chunk>> = sizes.map(|n| vec![Chunk([0; 64]); n / 64 + 1]).collect();
        inputs.iter().zip(&mut memory).for_each(|(b, c)| bytes_mut(c)[..b.len()].copy_from_slice(b));
        for ((b, c), _) in inputs.iter().zip(&mut memory).zip(&code.texts[0]).filter(|x| *x.1) {
            let to = bytes_mut(c);
            let elements = addressed(b, to.as_ptr());
            to[..elements.len()].copy_from_slice(&elements);
        }
        for (from, to) in &code.shared {
            bytes_mut(&mut memory[inputs.len() + to])[..inputs[*from].len()].copy_from_slice(inputs[*from]);
        }
        let mut all: Vec<*mut u8> = memory.iter_mut().map(|c| c.as_mut_ptr().cast()).collect();
        for (from, to) in &code.shared {
            all[*from] = all[inputs.len() + to];
        }
        let (ins, rest) = all.split_at(inputs.len());
        let mut b = Bound {
            code,
            dims: dims.to_vec(),
            inputs: ins.iter().map(|p| p.cast_const()).collect(),
            outputs: rest[..outputs.len()].to_vec(),
            out_dims: room
                .iter_mut()
                .map(|s| if s.is_empty() { std::ptr::null_mut() } else { s.as_mut_ptr() })
                .collect(),
            rooms: room.clone(),
            room,
            usual,
            workspace: rest[outputs.len()],
            bytes: workspace,
            _memory: memory,
            _described: vec![],
            exec: pool.map(Pool::exec),
            pool,
            frame: vec![],
            steps: vec![],
        };
        let values: HashMap<Sym, i64> =
            m.syms.with_derived(&m.dim_params.iter().copied().zip(dims.iter().copied()).collect());
        let eval = |d: Dim| d.eval(&|s| values.get(&s).copied());
        let mut steps = vec![];
        if let (Some(frame), Some(())) = (b.fill_frame(m, &eval), b.plan(m, &m.driver, &eval, &mut steps)) {
            (b.frame, b.steps) = (frame, steps);
        }
        Ok(b)
    }
    /// Bytes of the workspace.
    pub fn workspace_size(&self) -> u64 {
        self.bytes
    }
    /// Keeps what descriptors among the inputs point to.
    pub fn keeping(mut self, described: Vec<Descriptor<'a>>) -> Bound<'a> {
        self._described = described;
        self
    }
    /// The frame that the driver would build; none if a word of it is only known at run time.
    fn fill_frame(&self, m: &Module, eval: &dyn Fn(Dim) -> Option<i64>) -> Option<Vec<u64>> {
        let workspace = self.workspace as u64;
        let word = |w: &Word| {
            Some(match w {
                Word::Workspace => workspace,
                Word::Weights => self.code.weights.as_ptr() as u64 + HEADER,
                Word::Input(i) => *self.inputs.get(*i as usize)? as u64,
                Word::Output(i) => *self.outputs.get(*i as usize)? as u64,
                Word::Sym(s) => eval(Dim::sym(*s))? as u64,
                Word::Slot(s) => workspace.checked_add_signed(eval(m.slots[*s].offset)?)?,
                // Words of the frames of shared code.
                Word::Start(_) | Word::Literal(_) => return None,
            })
        };
        self.code.frame.words.iter().map(word).collect()
    }
    /// Kernels in the order of the driver; empty if the driver loops, computes sizes, or branches by what
    /// inputs hold.
    pub fn kernels(&self) -> Vec<Kernel> {
        self.steps.iter().map(|s| s.kernel).collect()
    }
    /// Runs the model once.
    pub fn call(&mut self) -> std::result::Result<(), Stopped> {
        let raw = self.exec.map_or(onnxc_exec::NONE, |e| *e.as_raw());
        let exec = onnxc_exec { workspace_size: self.bytes, ..raw };
        // A caller without a pool has no need of an exec, unless its workspace is another than the model
        // asked for.
        let exec = if self.exec.is_none() && self.usual { std::ptr::null() } else { &raw const exec };
        match self.code.enter(&self.buffers(), self.workspace, exec) {
            0 => Ok(()),
            // Once more, to learn why.
            s => {
                for (list, room) in self.room.iter_mut().zip(&self.rooms) {
                    list.copy_from_slice(room);
                }
                let workspace = (self.workspace, self.bytes);
                let r = self.code.call_with(&self.buffers(), workspace, self.exec.as_ref());
                Err(r.err().unwrap_or_else(|| s.into()))
            }
        }
    }
    /// Runs one kernel of [`Bound::kernels`] as the driver would. Those before it must have run, in order.
    pub fn call_kernel(&mut self, index: usize) -> std::result::Result<(), Stopped> {
        let Some(step) = self.steps.get(index) else { return Ok(()) };
        // SAFETY: the code was generated with this signature; the frame is the one the driver builds for
        // these buffers.
        #[allow(unsafe_code)]
        let f: KernelFn = unsafe { std::mem::transmute(step.address) };
        let status = match self.pool {
            Some(pool) if step.tasks > 1 => {
                let status = AtomicI32::new(0);
                let frame = self.frame.as_slice();
                pool.run(step.tasks as usize, |i| {
                    let at = |i: usize| step.trip * i as i64 / step.tasks;
                    match f(frame.as_ptr(), at(i), at(i + 1)) {
                        0 => {}
                        s => status.store(s, Ordering::Relaxed),
                    }
                });
                status.into_inner()
            }
            _ => f(self.frame.as_ptr(), 0, step.trip),
        };
        if status == 0 { Ok(()) } else { Err(status.into()) }
    }
}
