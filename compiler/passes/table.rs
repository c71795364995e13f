//! The pass tables: every pass that changes a module is a row, in the order in which they run.
//! [`crate::pipeline`] runs, times and verifies what is here, and can stop after any row.
//!
//! A row of [`NEST_PASSES`] is the file `passes/nest/GROUP/NAME.rs` (`tests/house.rs` checks it). Adding a
//! pass takes its file, a `mod` line and a row.

use super::{graph, nest};
use crate::diag::{Findings, Result};
use crate::graph::Model;
use crate::nest::{Math, Module};
use crate::options::OptLevel::{self, O0, O1, O2};
use crate::target::{Dot, Facts, Level};

/// A pass over the graph IR.
pub struct GraphPass {
    /// Name, as `--stop-after` takes it.
    pub name: &'static str,
    /// Least optimization level it runs at.
    pub level: OptLevel,
    /// The pass.
    pub run: fn(&mut Model, &mut Findings) -> Result<()>,
}

/// A group of nest passes, and the folder that has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Which nodes share a kernel.
    Fuse,
    /// Which sums a kernel computes.
    Algorithm,
    /// Arithmetic of quantized and low-precision numbers.
    Quantize,
    /// Order and element types of buffers.
    Layout,
    /// Tiles, vectors, unrolling, tasks.
    Schedule,
    /// Where buffers lie.
    Memory,
}

impl Group {
    /// The folder under `passes/nest`.
    pub fn folder(self) -> &'static str {
        match self {
            Group::Fuse => "fuse",
            Group::Algorithm => "algorithm",
            Group::Quantize => "quantize",
            Group::Layout => "layout",
            Group::Schedule => "schedule",
            Group::Memory => "memory",
        }
    }
}

/// Which CPU levels share a module after a pass.
#[derive(Clone, Copy)]
pub enum Differs {
    /// The pass does the same for every level.
    Never,
    /// Levels for which the function gives equal numbers share one.
    By(fn(&Module, &Facts) -> u32),
    /// Every level has its own.
    Always,
}

/// CPU levels that exist for the sake of a pass: an object has them only if it, or another pass that names
/// them, has a use for them in the model, unless the user named them.
pub struct Serves {
    /// Whether a level is one of them.
    pub level: fn(&Facts) -> bool,
    /// Whether the pass has a use for such a level in a module.
    pub useful: fn(&Module, &Facts) -> bool,
}

/// A pass over the nest IR.
pub struct NestPass {
    /// Name, as `--stop-after` takes it, and of the file.
    pub name: &'static str,
    /// Folder.
    pub group: Group,
    /// Least optimization level it runs at.
    pub level: OptLevel,
    /// Whether CPU levels part here.
    pub differs: Differs,
    /// The CPU levels that exist for this pass, if any.
    pub serves: Option<Serves>,
    /// `bench` counts operations and bytes on the module as it comes to the first row that has this set and
    /// runs.
    pub counted: bool,
    /// What holds afterwards.
    pub holds: &'static str,
    /// Why it is where it does.
    pub why: &'static str,
    /// The pass.
    pub run: fn(&mut Module, &Level) -> Result<()>,
}

/// What most rows have in common.
const SHARED: NestPass = NestPass {
    name: "",
    group: Group::Fuse,
    level: O2,
    differs: Differs::Never,
    serves: None,
    counted: false,
    holds: "",
    why: "",
    run: |_, _| Ok(()),
};
/// The same for passes that each CPU level runs by itself.
const PER_LEVEL: NestPass = NestPass { differs: Differs::Always, ..SHARED };

/// Graph passes in order.
pub const GRAPH_PASSES: &[GraphPass] = &[
    GraphPass { name: "write_sequences", level: O0, run: graph::sequences::run },
    GraphPass { name: "add_taps", level: O0, run: graph::tap::run },
    GraphPass { name: "drop_dead_nodes", level: O0, run: |m, _| graph::dead::run(m) },
    GraphPass { name: "infer_shapes", level: O0, run: graph::infer::run },
    GraphPass { name: "integer_quantized", level: O1, run: |m, _| graph::quantize::run(m) },
];

/// Nest passes in order.
pub const NEST_PASSES: &[NestPass] = &[
    NestPass {
        name: "drop_dead_kernels",
        group: Group::Fuse,
        level: O0,
        holds: "Every kernel that is called writes what something reads.",
        why: "First, so that no pass works on what nobody needs.",
        run: |m, _| nest::fuse::drop_dead_kernels::run(m),
        ..SHARED
    },
    NestPass {
        name: "inline_elementwise",
        group: Group::Fuse,
        level: O1,
        holds: "No chain of elementwise kernels goes through memory.",
        why: "Before epilogues: a whole activation is one map then, and one epilogue.",
        run: |m, _| nest::fuse::inline_elementwise::run(m),
        ..SHARED
    },
    NestPass {
        name: "fold_constants",
        group: Group::Fuse,
        level: O1,
        holds: "No kernel reads constants only.",
        why: "Before whatever asks which operands are constants. Chains are one kernel by now: fewer of \
            them to run.",
        run: |m, l| nest::fuse::fold_constants::run(m, l.facts.lanes > 1),
        ..SHARED
    },
    NestPass {
        name: "exact_sums",
        group: Group::Quantize,
        differs: Differs::By(nest::quantize::integer_dot::variant),
        holds: "Integer contractions that remain are those that dot products take; the others are sums of \
            floats, and exact.",
        why: "Before fusion: which element types buffers have decides what may share a kernel.",
        run: nest::quantize::exact_sums::run,
        ..SHARED
    },
    NestPass {
        name: "fuse_epilogues",
        group: Group::Fuse,
        level: O1,
        holds: "Contractions, rows and windows store what the maps behind them compute.",
        why: "Before producers are inlined: a map goes to the kernel before it rather than to the one \
            behind.",
        run: |m, _| nest::fuse::fuse_epilogues::run(m),
        ..SHARED
    },
    NestPass {
        name: "inline_producers",
        group: Group::Fuse,
        level: O1,
        holds: "Transposes, slices, padding and broadcasts that are cheap to compute again are part of \
            their readers.",
        why: "After epilogues: what is left has no kernel before it to join.",
        run: |m, _| nest::fuse::inline_producers::run(m),
        ..SHARED
    },
    NestPass {
        name: "join_rows",
        group: Group::Fuse,
        holds: "Kernels of the same rows (mean, deviation, map) are one.",
        why: "After fusion of maps, which shows the kernels of rows that are left.",
        run: |m, _| nest::fuse::join_rows::run(m),
        ..SHARED
    },
    NestPass {
        name: "split_rows",
        group: Group::Fuse,
        holds: "Normalizations of long rows keep what a row has in common and leave its elements to the one \
            map that reads them.",
        why: "After join_rows: the opposite for rows that are too long for it.",
        run: |m, _| nest::fuse::split_rows::run(m),
        ..SHARED
    },
    NestPass {
        name: "flush_weights",
        group: Group::Quantize,
        holds: "No constant factor of a contraction is subnormal, but with `--math strict`.",
        why: "After fusion, when it is known what reads a constant; before algorithms and layouts, which \
            compute others from it.",
        run: |m, _| nest::quantize::flush_weights::run(m),
        ..SHARED
    },
    NestPass {
        name: "widen_f16_scratch",
        group: Group::Layout,
        holds: "Scratch of 16-bit floats that is read over and over holds f32.",
        why: "After fusion, when it is known what goes through memory; before algorithms, which know f32 \
            only.",
        run: |m, _| nest::layout::widen_f16_scratch::run(m),
        ..SHARED
    },
    NestPass {
        name: "fuse_conv_pool",
        group: Group::Fuse,
        holds: "A first convolution of few channels computes the pooling window behind it.",
        why: "Before layouts: it fixes that its image stays in planes.",
        run: |m, l| nest::fuse::fuse_conv_pool::run(m, l.facts.lanes),
        ..SHARED
    },
    NestPass {
        name: "separable_pooling",
        group: Group::Algorithm,
        holds: "Windows over images that the caller has in planes are computed by rows, then by columns.",
        why: "Before layouts: these images stay in planes.",
        differs: Differs::By(nest::algorithm::separable_pooling::variant),
        run: |m, l| nest::algorithm::separable_pooling::run(m, l.facts),
        ..SHARED
    },
    NestPass {
        name: "choose_layouts",
        group: Group::Layout,
        holds: "Every buffer has the order in memory that it keeps.",
        why: "After fusion, before algorithms and schedules, which ask along what an access is contiguous.",
        run: |m, _| nest::layout::choose_layouts::run(m),
        ..SHARED
    },
    NestPass {
        name: "gate_weights",
        group: Group::Fuse,
        holds: "Factors by channel of an image (squeeze-and-excite) are multiplied into the weights that \
            read it.",
        why: "After layouts: it pays where channels are innermost.",
        run: |m, _| nest::fuse::gate_weights::run(m),
        ..SHARED
    },
    NestPass {
        name: "winograd",
        group: Group::Algorithm,
        differs: Differs::By(nest::algorithm::winograd::variant),
        holds: "Convolutions that win by it are transforms and products of matrices.",
        why: "After layouts and fusion: it asks for channels innermost, and takes the epilogue along.",
        run: nest::algorithm::winograd::run,
        ..SHARED
    },
    NestPass {
        name: "fuse_depthwise",
        group: Group::Fuse,
        holds: "A depthwise convolution runs behind the convolution that makes its image, band by band.",
        why: "After winograd, which is worth more where both apply.",
        run: nest::fuse::fuse_depthwise::run,
        ..SHARED
    },
    NestPass {
        name: "fuse_channel_blocks",
        group: Group::Fuse,
        holds: "A depthwise convolution between planes is one kernel, which runs a few channels at a time.",
        why: "After fuse_depthwise, which leaves the images that no convolution makes.",
        run: |m, l| nest::fuse::fuse_channel_blocks::run(m, l.facts.lanes),
        ..SHARED
    },
    NestPass {
        name: "fill_vectors",
        group: Group::Layout,
        holds: "Convolutions of few output channels compute several neighbouring results as channels.",
        why: "After all passes that take convolutions: it is for what is left.",
        run: |m, l| nest::layout::fill_vectors::run(m, l.facts.lanes),
        ..SHARED
    },
    NestPass {
        name: "pair_chains",
        group: Group::Fuse,
        holds: "Recurrences that do not need each other are one kernel, a task for each.",
        why: "Last of fusion: nothing else may join such kernels.",
        run: |m, _| nest::fuse::pair_chains::run(m),
        ..SHARED
    },
    NestPass {
        name: "strassen",
        group: Group::Algorithm,
        holds: "Large products by constant matrices have seven products of halves instead of eight.",
        why: "The first pass that asks how wide vectors are; before weights are rearranged for dot products \
            or panels.",
        run: nest::algorithm::strassen::run,
        ..PER_LEVEL
    },
    NestPass {
        name: "integer_dot",
        group: Group::Quantize,
        serves: Some(Serves {
            level: |f| f.caps.dot.keeps_signs() || f.caps.dot == Dot::Quads && !f.caps.bf16,
            useful: nest::quantize::integer_dot::suit,
        }),
        counted: true,
        holds: "Integer contractions are dot products of groups of bytes or words, or sums of floats whose \
            range is known.",
        why: "After algorithms, which look at operands as operators have them.",
        run: nest::quantize::integer_dot::run,
        ..PER_LEVEL
    },
    NestPass {
        name: "few_bits",
        group: Group::Quantize,
        serves: Some(Serves {
            level: |f| f.caps.dot.keeps_signs() || f.caps.dot == Dot::Quads && !f.caps.bf16,
            useful: nest::quantize::few_bits::suit,
        }),
        holds: "Contractions whose weights are constants of 2, 4 or 8 bits with scales make floats of them \
            where they use them.",
        why: "Before widen_integers, which rewrites what the weights are made with; it emits tiles itself.",
        run: nest::quantize::few_bits::run,
        ..PER_LEVEL
    },
    NestPass {
        name: "widen_integers",
        group: Group::Quantize,
        holds: "Arithmetic of 8- and 16-bit integers is in 32 bits.",
        why: "After integer_dot, which looks for bytes.",
        run: |m, _| nest::quantize::widen_integers::run(m),
        ..PER_LEVEL
    },
    NestPass {
        name: "lookup_tables",
        group: Group::Quantize,
        holds: "A costly function of an integer of at most 256 values is a lookup in a constant table.",
        why: "After widen_integers, so that sums of integers do not wrap; before fold_requantize, which \
            distributes the functions' quantizations.",
        run: nest::quantize::lookup_tables::run,
        ..PER_LEVEL
    },
    NestPass {
        name: "fold_requantize",
        group: Group::Quantize,
        holds: "Between a sum and its store, constants by channel are folded, clamps joined, divisions by \
            scales products.",
        why: "After widen_integers: it knows 32-bit integers and f32.",
        run: |m, _| nest::quantize::fold_requantize::run(m),
        ..PER_LEVEL
    },
    NestPass {
        name: "bf16_dot",
        group: Group::Quantize,
        serves: Some(Serves {
            level: |f| f.caps.bf16,
            useful: |m, f| m.math == Math::Fast && nest::quantize::bf16_dot::suit(m, f),
        }),
        holds: "With --math fast, contractions are dot products of pairs of bf16 where rounding their \
            factors pays.",
        why: "Before schedules, which pack pairs as they pack elements.",
        run: nest::quantize::bf16_dot::run,
        ..PER_LEVEL
    },
    NestPass {
        name: "half_products",
        group: Group::Quantize,
        serves: Some(Serves {
            level: |f| f.caps.halves,
            useful: |m, f| m.math == Math::Fast && nest::quantize::half_products::suit(m, f),
        }),
        holds: "With --math fast, scratch that only products with f16 read is f16, where the level adds \
            these up.",
        why: "After bf16_dot, which has the choice; before schedules, which pack what elements are.",
        run: nest::quantize::half_products::run,
        ..PER_LEVEL
    },
    NestPass {
        name: "widen_factors",
        group: Group::Quantize,
        differs: Differs::By(|_, f| f.caps.by_lane.into()),
        holds: "16-bit floats that multiply rows are f32 where no lane of a vector multiplies another vector.",
        why: "After half_products, which has the choice; before schedules, which pack what elements are.",
        run: nest::quantize::widen_factors::run,
        ..PER_LEVEL
    },
    NestPass {
        name: "pad_rows",
        group: Group::Layout,
        holds: "Rows of scratch that contractions read do not lie a multiple of 4 KiB apart; nor do pixels \
            that windows read fall into a few sets of the cache.",
        why: "After dot products: they decide how long rows are.",
        run: |m, _| nest::layout::pad_rows::run(m),
        ..PER_LEVEL
    },
    NestPass {
        name: "copy_bits",
        group: Group::Layout,
        holds: "Kernels that only move floats below 32 bits, or booleans, move their bits.",
        why: "After all passes that know what these elements mean.",
        run: |m, _| nest::layout::copy_bits::run(m),
        ..PER_LEVEL
    },
    NestPass {
        name: "simplify_erf",
        group: Group::Algorithm,
        holds: "But with --math strict, erf(x / c) is erf(x * (1 / c)), and half of erf + 1 one operation.",
        why: "Late: earlier passes recognise GELU as operators have it.",
        run: |m, _| nest::algorithm::simplify_erf::run(m),
        ..PER_LEVEL
    },
    NestPass {
        name: "fuse_products",
        group: Group::Algorithm,
        holds: "In kernels that sum up rows, a product that is added to something is one operation with \
            the sum.",
        why: "Late: earlier passes recognise normalizations as operators have them.",
        run: nest::algorithm::fuse_products::run,
        ..PER_LEVEL
    },
    NestPass {
        name: "attention",
        group: Group::Algorithm,
        holds: "Two contractions with rows between them are one kernel over blocks of rows, which is \
            scheduled.",
        why: "Right before schedule: it emits tiles itself.",
        run: nest::algorithm::attention::run,
        ..PER_LEVEL
    },
    NestPass {
        name: "short_extents",
        group: Group::Algorithm,
        holds: "Kernels whose innermost extent only run time knows have versions for extents of one to four \
            that fill vectors.",
        why: "Right before schedule, which chooses for each version by its own shape.",
        run: |m, l| nest::algorithm::short_extents::run(m, &l.facts),
        ..PER_LEVEL
    },
    NestPass {
        name: "schedule",
        group: Group::Schedule,
        holds: "Stage Scheduled: tiles of contractions, vectors, unrolled loops, an estimate of work.",
        why: "What computes is decided.",
        run: nest::schedule::run,
        ..PER_LEVEL
    },
    NestPass {
        name: "join_borders",
        group: Group::Memory,
        holds: "One kernel fills the sides of a padded buffer's border, if these are short.",
        why: "Until here, passes that fuse a reader of the buffer look at each side.",
        run: |m, _| nest::memory::join_borders::run(m),
        ..PER_LEVEL
    },
    NestPass {
        name: "read_panels",
        group: Group::Memory,
        holds: "Tensors whose rows are looked up, and which are multiplied, are in the object once.",
        why: "Schedules made the panels that products read.",
        run: |m, _| nest::memory::read_panels::run(m),
        ..PER_LEVEL
    },
    NestPass {
        name: "place_memory",
        group: Group::Memory,
        level: O0,
        counted: true,
        holds: "Stage Placed: every buffer has an address.",
        why: "Last: only now is it known which buffers there are.",
        run: |m, _| nest::memory::place_memory::run(m),
        ..PER_LEVEL
    },
];
