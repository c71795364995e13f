//! Schedules of nests, as data. The pass `schedule` chooses one for each nest, applies it, and stores it with
//! the kernel; `--emit schedule` prints them.

use crate::nest::{KernelData, LoopKind, Module, Stmt, visit};
use crate::sym::Dim;

/// The schedule of a nest.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// The form of the nest; empty for inner loops.
    pub form: &'static str,
    /// The algorithm that emits the nest.
    pub strategy: &'static str,
    /// The vector axis; `None` for scalar code.
    pub vectors: Option<Vectors>,
    /// The elements computed per step in registers: name and number.
    pub tile: Vec<(&'static str, i64)>,
    /// Cache blocks: name and maximum number of elements.
    pub blocks: Vec<(&'static str, Dim)>,
    /// The source of operands that are not read in place.
    pub packing: Vec<(&'static str, Packing)>,
    /// Unrolled loops, and their factors.
    pub unroll: Vec<(&'static str, i64)>,
    /// Reduction steps that are omitted.
    pub skips: Vec<&'static str>,
    /// Prefetched data.
    pub prefetch: Vec<&'static str>,
    /// Data staged in scratch of a task.
    pub staging: Vec<&'static str>,
    /// Loops around the tile, outermost first, if the schedule chooses their order.
    pub order: Vec<&'static str>,
    /// Iterations of the parallel loops.
    pub tasks: Dim,
    /// Schedules of inner loops that have their own.
    pub inner: Vec<Schedule>,
}

/// The vectors of a nest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Vectors {
    /// Elements of one.
    pub lanes: i64,
    /// The loop of the vector axis, by its role.
    pub along: &'static str,
    /// Its extent.
    pub extent: Dim,
}

/// The source of an operand of a contraction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Packing {
    /// Where it lies.
    InPlace,
    /// In panels packed at compile time.
    Constant {
        /// Columns of a panel.
        columns: i64,
        /// Bytes of all panels.
        bytes: u64,
    },
    /// In panels packed by a kernel before this one.
    Kernel {
        /// Columns of a panel.
        columns: i64,
    },
    /// In panels packed by a task, one at a time, in its scratch.
    Task {
        /// Columns of a panel.
        columns: i64,
    },
}

impl Schedule {
    /// A schedule that only has a name.
    pub fn new(strategy: &'static str) -> Schedule {
        Schedule {
            form: "",
            strategy,
            vectors: None,
            tile: vec![],
            blocks: vec![],
            packing: vec![],
            unroll: vec![],
            skips: vec![],
            prefetch: vec![],
            staging: vec![],
            order: vec![],
            tasks: Dim::constant(1),
            inner: vec![],
        }
    }
    /// The same with vectors.
    pub fn vectors(self, lanes: i64, along: &'static str, extent: Dim) -> Schedule {
        Schedule { vectors: Some(Vectors { lanes, along, extent }), ..self }
    }
}

/// Iterations of the outermost parallel loops of a body.
pub fn tasks(mut body: &[Stmt]) -> Dim {
    let mut n = Dim::constant(1);
    while let [Stmt::For { kind: LoopKind::Par, lo, hi, body: inner, .. }] = body {
        n = n * (*hi - *lo);
        body = inner;
    }
    n
}

/// The schedules of all kernels, one block for each kernel in the order of the driver's calls.
pub fn print(m: &Module) -> String {
    let mut out = format!("schedule v1 {}\n", m.name);
    let mut seen = vec![];
    for k in visit::calls(&m.driver) {
        if !seen.contains(&k) {
            seen.push(k);
            kernel(m, &m.kernels[k], &mut out);
        }
    }
    out
}

fn kernel(m: &Module, k: &KernelData, out: &mut String) {
    let origin = k.origin.short().replace(char::is_control, " ");
    // Statements outlined as tiles.
    let mut apart = 0;
    visit::walk(&k.body, &mut |s| apart += usize::from(matches!(s, Stmt::Tile { .. })));
    let tiles = if apart > 0 { format!(" tiles {apart}") } else { String::new() };
    *out += format!("kernel {} work {}{tiles} ; {origin}", k.name, k.work.display(&m.syms)).trim_end();
    *out += "\n";
    k.schedules.iter().for_each(|s| schedule(m, s, 1, out));
}

fn schedule(m: &Module, s: &Schedule, depth: usize, out: &mut String) {
    let mut line = |indent: usize, text: String| *out += &format!("{}{text}\n", "  ".repeat(indent));
    let form = if s.form.is_empty() { String::new() } else { format!("{}: ", s.form) };
    line(depth, format!("{form}{}", s.strategy));
    let mut row = |name: &str, values: Vec<String>| {
        if !values.is_empty() {
            line(depth + 1, format!("{name:<9} {}", values.join(", ")));
        }
    };
    let counted = |list: &[(&str, i64)]| list.iter().map(|(what, n)| format!("{what} {n}")).collect();
    let texts = |list: &[&str]| list.iter().map(|t| (*t).to_owned()).collect();
    if let Some(v) = s.vectors {
        row(
            "vectors",
            vec![format!("{} lanes along {}, {} of them", v.lanes, v.along, v.extent.display(&m.syms))],
        );
    }
    row("tile", counted(&s.tile));
    row("blocks", s.blocks.iter().map(|(what, n)| format!("{what} {}", n.display(&m.syms))).collect());
    row("packing", s.packing.iter().map(|(operand, p)| format!("{operand} {}", packing(*p))).collect());
    row("unroll", counted(&s.unroll));
    row("skips", texts(&s.skips));
    row("prefetch", texts(&s.prefetch));
    row("staging", texts(&s.staging));
    if !s.order.is_empty() {
        row("order", vec![s.order.join(" > ")]);
    }
    if s.tasks != Dim::constant(1) {
        row("tasks", vec![s.tasks.display(&m.syms).to_string()]);
    }
    s.inner.iter().for_each(|s| schedule(m, s, depth + 1, out));
}

fn packing(p: Packing) -> String {
    match p {
        Packing::InPlace => "in place".to_owned(),
        Packing::Constant { columns, bytes } => {
            format!("in constant panels of {columns} columns, {bytes} bytes")
        }
        Packing::Task { columns } => format!("in panels of {columns} columns, one at a time in scratch"),
        Packing::Kernel { columns } => format!("in panels of {columns} columns that a kernel makes"),
    }
}
