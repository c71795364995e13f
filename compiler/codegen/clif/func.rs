//! One kernel as one function: the state of its emission, its frame, scopes and exits.

use super::convert::scalar_type;
use super::expr::Val;
use crate::codegen::frame::{Frame, Word, buffers, symbols};
use crate::codegen::tile;
use crate::codegen::weights::Layout;
use crate::codegen::{Map, Set};
use crate::diag::{Failure, Result};
use crate::nest::bounds::Bounds;
use crate::nest::foreign::DECODE_IMAGE;
use crate::nest::print::Lines;
use crate::nest::{Buf, Kernel, LoopKind, Module, Reg, Scalar, Status, Stmt};
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{self, I32, I64};
use cranelift_codegen::ir::{
    AbiParam, Block, ExtFuncData, ExternalName, FuncRef, Function, InstBuilder, MemFlagsData, Signature,
    SourceLoc, StackSlot, StackSlotData, StackSlotKind, UserExternalName, UserFuncName, Value,
};
use cranelift_codegen::isa::TargetIsa;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext, Variable};
use target_lexicon::{Architecture, BinaryFormat};

/// External functions that a function calls, of libm or others; their number is the index in the user name
/// space 1.
#[derive(Clone, Debug, Default)]
pub struct Libm {
    /// Names in order of first use.
    pub names: Vec<&'static str>,
}

/// A kernel as Cranelift IR.
pub struct KernelCode {
    /// The function.
    pub func: Function,
    /// The external functions it calls.
    pub libm: Libm,
    /// True if the code keeps accumulators in registers in a prescribed order (compile without optimisation).
    pub tile: bool,
    /// Wide tiles that it calls; their number is the index in the user name space [`TILE_NAMESPACE`].
    pub tiles: Vec<tile::Func>,
    /// Its vector loops that are not tiles.
    pub no_tiles: Vec<NoTile>,
}

/// A vector loop that does not fit a tile and is computed in Cranelift's 128-bit vectors.
pub struct NoTile {
    /// Its variable.
    pub var: Sym,
    /// The reason.
    pub reason: tile::Misfit,
}

/// Name space of libm functions in `UserExternalName`.
pub const LIBM_NAMESPACE: u32 = 1;

/// Name space of tiles in `UserExternalName`.
pub const TILE_NAMESPACE: u32 = 3;

/// The contents of a register.
pub(super) enum Slot {
    Value(Val),
    Acc { vars: Vec<Variable>, ty: ElemType, lanes: u32, shape: Vec<u32> },
}

#[derive(Default)]
pub(super) struct Scope {
    pub dims: Map<Dim, Value>,
    pub ptrs: Map<(Buf, Dim), Value>,
    pub loads: Map<(Buf, Dim, bool), Value>,
    pub splats: Map<Value, Value>,
    pub syms: Vec<Sym>,
}

/// The enclosing vector loop.
#[derive(Clone, Copy)]
pub(super) struct Lanes {
    pub sym: Sym,
    /// The variable at lane 0 of the current part: the symbol, or a number if the loop is a single vector.
    pub base: Dim,
    /// Index of the current group of four lanes in a longer vector.
    pub part: u32,
    /// Set while an expression is emitted lane by lane.
    pub lane: Option<u32>,
}

pub(super) struct Emit<'a, 'b> {
    pub m: &'a Module,
    pub frame_plan: &'a Frame,
    pub weights: &'a Layout,
    pub isa: &'a dyn TargetIsa,
    pub b: FunctionBuilder<'b>,
    pub frame: Value,
    pub scopes: Vec<Scope>,
    pub regs: Map<Reg, Slot>,
    /// Values of loop variables.
    pub vars: Map<Sym, Value>,
    /// Indices that are in range only after their check.
    pub bound: Set<Sym>,
    /// Unrolled variables with their current values.
    pub unrolled: Map<Sym, Dim>,
    pub lanes: Option<Lanes>,
    pub words: Map<Word, Value>,
    /// Literals of the frame, by their marks.
    pub literals: Map<Scalar, Value>,
    /// Factors of dot products of words, made of a value in a block: of its even or odd parts, as a scalar
    /// or a vector.
    pub factors: Map<(Block, (Value, bool, bool)), Value>,
    pub fails: Map<Status, Block>,
    /// The error exit of `call`.
    pub sink: Option<super::fault::Sink>,
    /// Stack memory for addresses computed in loops ([`super::series`]).
    pub series_slots: Vec<StackSlot>,
    pub libm: Libm,
    pub libm_refs: Map<&'static str, FuncRef>,
    pub tile: bool,
    /// Vectors of the tile backend.
    pub vectors: Option<tile::Vectors>,
    pub tiles: Vec<tile::Func>,
    /// Statements that are not tiles, by address, with the reason.
    pub misfits: Map<(usize, usize), tile::Misfit>,
    /// The reason why the enclosing statements are not a tile.
    pub misfit: Option<tile::Misfit>,
    /// Vector loops that are left to Cranelift, in order.
    pub no_tiles: Vec<NoTile>,
    /// Value ranges, used to omit index checks. `None` if the weights come from a file, because they may
    /// change.
    pub bounds: Option<Bounds>,
    /// True if all checks of sizes precede this code. In entry functions, sizes are also computed within
    /// checks.
    pub checked: bool,
    /// Source lines of statements, for debug information.
    pub lines: Option<&'a Lines>,
}

/// `(frame, begin, end) -> status`.
pub fn signature(isa: &dyn TargetIsa) -> Signature {
    let mut s = Signature::new(isa.default_call_conv());
    s.params = vec![AbiParam::new(I64); 3];
    s.returns = vec![AbiParam::new(I32)];
    s
}

/// Functions of libm that code may call.
const MATH: &[&str] = &[
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "erf", "exp", "expm1", "fmod",
    "log", "log1p", "pow", "sin", "sinh", "tan", "tanh",
];

/// True for a function of libm.
pub fn is_math(name: &str) -> bool {
    MATH.contains(&name)
}

/// Signature of an external function.
pub fn imported_signature(isa: &dyn TargetIsa, name: &str) -> Signature {
    let mut s = Signature::new(isa.default_call_conv());
    if name == DECODE_IMAGE {
        s.params = [I64, I64, I32, I64, I64].map(AbiParam::new).to_vec();
        s.returns = vec![AbiParam::new(I32)];
    } else if !is_math(name) {
        // A custom operator.
        s.params = vec![AbiParam::new(I64)];
        s.returns = vec![AbiParam::new(I32)];
    } else {
        let n = if matches!(name, "pow" | "fmod" | "atan2") { 2 } else { 1 };
        s.params = vec![AbiParam::new(types::F64); n];
        s.returns = vec![AbiParam::new(types::F64)];
    }
    s
}

/// The context that the kernels of a module share.
pub struct Setting<'a> {
    /// The module.
    pub m: &'a Module,
    /// Its frame.
    pub frame: &'a Frame,
    /// Offsets of its constants.
    pub weights: &'a Layout,
    /// True if constants are part of the object, false if they are in a file that may be replaced.
    pub embedded: bool,
    /// The code generator.
    pub isa: &'a dyn TargetIsa,
    /// The tile backend, if the level has vectors for it.
    pub vectors: Option<tile::Vectors>,
    /// Source lines of statements, for debug information.
    pub lines: Option<&'a Lines>,
    /// Numbers in place of the literals that the frame holds.
    pub marks: &'a [Scalar],
}

/// Emits one kernel with a body: its own, or one with marks.
pub fn kernel(s: &Setting<'_>, k: Kernel, body: &[Stmt]) -> Result<KernelCode> {
    let (m, isa) = (s.m, s.isa);
    let mut func = Function::with_name_signature(UserFuncName::user(0, k.as_u32()), signature(isa));
    let mut fcx = FunctionBuilderContext::new();
    let b = FunctionBuilder::new(&mut func, &mut fcx);
    let (mut e, p) = Emit::start(m, s.frame, s.weights, isa, b);
    e.begin(s.lines, |l| l.kernels.get(&k).copied());
    e.vectors = s.vectors;
    e.checked = true;
    e.bounds = s.embedded.then(|| {
        let mut b = Bounds::default();
        b.learn(m, body);
        b
    });
    e.load_words(body)?;
    e.load_literals(s.marks)?;
    match body {
        [Stmt::For { kind: LoopKind::Par, var, body, .. }] => {
            // The scratch memory of a task (rule 12) is the part of its first iteration.
            let body = match body.as_slice() {
                [Stmt::For { kind: LoopKind::Private, var: part, body, .. }] => {
                    e.vars.insert(*part, p[1]);
                    body
                }
                _ => body,
            };
            e.counted(*var, p[1], p[2], 1, body)?
        }
        body => e.block(body)?,
    }
    let ok = e.b.ins().iconst(I32, 0);
    e.b.ins().return_(&[ok]);
    e.fail_blocks();
    let (libm, tile, tiles) = (e.libm.clone(), e.tile, std::mem::take(&mut e.tiles));
    let no_tiles = std::mem::take(&mut e.no_tiles);
    e.b.seal_all_blocks();
    e.b.finalize(isa.frontend_config());
    Ok(KernelCode { func, libm, tile, tiles, no_tiles })
}

/// A kernel that uses shared code: fills the frame `own` of that code, with the kernel's literals, and calls
/// `code`, a local function.
pub fn stub(s: &Setting<'_>, k: Kernel, own: &Frame, literals: &[Scalar], code: u32) -> Result<Function> {
    let (m, isa) = (s.m, s.isa);
    let mut func = Function::with_name_signature(UserFuncName::user(0, k.as_u32()), signature(isa));
    let mut fcx = FunctionBuilderContext::new();
    let b = FunctionBuilder::new(&mut func, &mut fcx);
    let (mut e, p) = Emit::start(m, s.frame, s.weights, isa, b);
    e.begin(s.lines, |l| l.kernels.get(&k).copied());
    let slot = e.b.create_sized_stack_slot(StackSlotData::new(StackSlotKind::ExplicitSlot, own.size(), 3));
    for (n, word) in own.words.iter().enumerate() {
        let v = match word {
            Word::Literal(i) => e.b.ins().iconst(I64, literals[*i].bits as i64),
            word => e.passed_word(s, k, *word)?,
        };
        e.b.ins().stack_store(I64, v, slot, 8 * n as i32);
    }
    let frame = e.b.ins().stack_addr(I64, slot, 0);
    let sig = e.b.import_signature(signature(isa));
    let name = UserExternalName { namespace: super::entry::LOCAL_NAMESPACE, index: code };
    let name = ExternalName::user(e.b.func.declare_imported_user_function(name));
    let code = e.b.import_function(ExtFuncData { name, signature: sig, colocated: true, patchable: false });
    let call = e.b.ins().call(code, &[frame, p[1], p[2]]);
    let status = e.b.inst_results(call)[0];
    e.b.ins().return_(&[status]);
    e.b.seal_all_blocks();
    e.b.finalize(isa.frontend_config());
    Ok(func)
}

impl<'a, 'b> Emit<'a, 'b> {
    /// Opens a function and returns its parameters, the first of which is the frame.
    pub fn start(
        m: &'a Module,
        frame_plan: &'a Frame,
        weights: &'a Layout,
        isa: &'a dyn TargetIsa,
        mut b: FunctionBuilder<'b>,
    ) -> (Self, Vec<Value>) {
        let entry = b.create_block();
        b.append_block_params_for_function_params(entry);
        b.switch_to_block(entry);
        let params = b.block_params(entry).to_vec();
        let frame = params[0];
        let e = Emit {
            m,
            frame_plan,
            weights,
            isa,
            b,
            frame,
            scopes: vec![Scope::default()],
            regs: Map::default(),
            vars: Map::default(),
            bound: Set::default(),
            unrolled: Map::default(),
            lanes: None,
            words: Map::default(),
            literals: Map::default(),
            factors: Map::default(),
            fails: Map::default(),
            sink: None,
            series_slots: vec![],
            libm: Libm::default(),
            libm_refs: Map::default(),
            tile: false,
            vectors: None,
            tiles: vec![],
            misfits: Map::default(),
            misfit: None,
            no_tiles: vec![],
            bounds: None,
            checked: false,
            lines: None,
        };
        (e, params)
    }
    /// Debug information: sets the line at which the function begins.
    pub fn begin(&mut self, lines: Option<&'a Lines>, at: impl Fn(&Lines) -> Option<u32>) {
        self.lines = lines;
        if let Some(line) = lines.and_then(at) {
            self.b.set_srcloc(SourceLoc::new(line));
        }
    }
}

impl Emit<'_, '_> {
    pub fn bug<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(Failure::bug("codegen", message))
    }
    /// Memory flags: accesses never trap.
    pub fn flags(&self) -> MemFlagsData {
        MemFlagsData::new().with_notrap()
    }
    /// The value of a word of the frame of shared code, by the frame of the module.
    fn passed_word(&mut self, s: &Setting<'_>, k: Kernel, word: Word) -> Result<Value> {
        let place = match word {
            Word::Start(b) => crate::codegen::frame::base_of(s.m, s.frame, s.weights, b),
            word => Some((word, 0)),
        };
        let Some((offset, at)) = place.and_then(|(w, at)| s.frame.offset(w).zip(Some(at))) else {
            return self.bug(format!("{word:?} of {} is not in the frame", s.m.kernels[k].name));
        };
        let flags = self.flags();
        let v = self.b.ins().load(I64, flags, self.frame, offset);
        Ok(if at == 0 { v } else { self.b.ins().iadd_imm_s(v, at) })
    }
    /// Loads all words of the frame that the kernel needs.
    fn load_words(&mut self, body: &[Stmt]) -> Result<()> {
        let mut need = vec![];
        for b in buffers(body) {
            match crate::codegen::frame::base_of(self.m, self.frame_plan, self.weights, b) {
                Some((w, _)) => need.push(w),
                None => return self.bug(format!("buffer {} has no place", self.m.bufs[b].name)),
            }
        }
        need.extend(symbols(self.m, body).into_iter().map(Word::Sym));
        for w in need {
            if self.words.contains_key(&w) {
                continue;
            }
            let Some(offset) = self.frame_plan.offset(w) else {
                return self.bug(format!("{w:?} is not in the frame"));
            };
            let flags = self.flags().with_readonly().with_can_move();
            let v = self.b.ins().load(I64, flags, self.frame, offset);
            self.words.insert(w, v);
            if let Word::Sym(s) = w {
                self.vars.insert(s, v);
            }
        }
        Ok(())
    }
    /// Loads the literals of the frame.
    fn load_literals(&mut self, marks: &[Scalar]) -> Result<()> {
        for (i, mark) in marks.iter().enumerate() {
            let Some(offset) = self.frame_plan.offset(Word::Literal(i)) else {
                return self.bug(format!("literal {i} is not in the frame"));
            };
            let flags = self.flags().with_readonly().with_can_move();
            let v = self.b.ins().load(scalar_type(mark.ty), flags, self.frame, offset);
            self.literals.insert(*mark, v);
        }
        Ok(())
    }
    /// The block that returns a status.
    pub fn fail(&mut self, s: Status) -> Block {
        if let Some(b) = self.fails.get(&s) {
            return *b;
        }
        let b = self.b.create_block();
        self.fails.insert(s, b);
        b
    }
    /// Returns a status unless `ok` (an i8 truth value).
    pub fn require_status(&mut self, ok: Value, s: Status) {
        let fail = self.fail(s);
        let go = self.b.create_block();
        // The exit is the first successor, as in loops.
        let bad = self.b.ins().icmp_imm_s(IntCC::Equal, ok, 0);
        self.b.ins().brif(bad, fail, &[], go, &[]);
        self.b.switch_to_block(go);
        self.b.seal_block(go);
    }
    pub fn push(&mut self) {
        self.scopes.push(Scope::default());
    }
    pub fn pop(&mut self) {
        if let Some(s) = self.scopes.pop() {
            for v in s.syms {
                self.vars.remove(&v);
            }
        }
    }
    /// Emits the blocks that return a status.
    pub fn fail_blocks(&mut self) {
        let mut fails: Vec<(Status, Block)> = self.fails.drain().collect();
        fails.sort_by_key(|f| f.0 as u8);
        for (status, block) in fails {
            self.b.switch_to_block(block);
            self.b.set_cold_block(block);
            let s = self.b.ins().iconst(I32, i64::from(status as u8));
            self.b.ins().return_(&[s]);
        }
    }
    /// Calls an external function: of libm, or one that a [`crate::nest::Foreign`] calls.
    pub fn call_imported(&mut self, name: &'static str, args: &[Value]) -> Value {
        let r = match self.libm_refs.get(name) {
            Some(r) => *r,
            None => {
                let signature = self.b.import_signature(imported_signature(self.isa, name));
                let index = self.libm.names.len() as u32;
                self.libm.names.push(name);
                let name_ref = self
                    .b
                    .func
                    .declare_imported_user_function(UserExternalName { namespace: LIBM_NAMESPACE, index });
                // COFF has no GOT. If the function is out of reach, linkers make a stub.
                let t = self.isa.triple();
                let direct = t.binary_format == BinaryFormat::Coff
                    && matches!(t.architecture, Architecture::Aarch64(_));
                let r = self.b.import_function(ExtFuncData {
                    name: ExternalName::user(name_ref),
                    signature,
                    colocated: direct,
                    patchable: false,
                });
                self.libm_refs.insert(name, r);
                r
            }
        };
        let call = self.b.ins().call(r, args);
        self.b.inst_results(call)[0]
    }
}
