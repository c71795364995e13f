//! riscv64: vectors and their length. Linux reports vectors by the system call `riscv_hwprobe`, which
//! requires no function of the program; its result holds for all CPUs that may run the program. Without this
//! call, the CPU is assumed to have the base only: what older kernels report is also true of draft versions
//! of vectors, whose instructions differ.

use super::Asking;
use crate::codegen::tile::riscv64::code::Code;
use crate::codegen::tile::riscv64::table;
use crate::codegen::unwind::Step;
use crate::diag::Result;
use crate::target::has;

/// The system call, its key, and the bit for ratified vectors.
const HWPROBE: i64 = 258;
const KEY: i64 = 4;
const VECTORS: i64 = 1 << 2;
/// The control register with the length of a vector register in bytes.
const VLENB: u32 = 0xc22;
/// Lengths of vector registers in bytes, and the features that they imply.
const LENGTHS: [(i64, u32); 2] = [(32, has::ZVL256), (64, has::ZVL512)];

/// Registers: stack pointer, return address, results and arguments, system call number, temporaries.
const SP: u32 = 2;
const LINK: u32 = 1;
const A0: u32 = 10;
const A7: u32 = 17;
const ANSWER: u32 = 5;
const VALUE: u32 = 6;
const OTHER: u32 = 7;
/// Bytes of a key with its value.
const PAIR: i64 = 16;

/// The function, in the calling convention of the psABI.
pub(super) fn code() -> Result<Asking> {
    let mut c = Code::default();
    let done = c.label();
    c.add(SP, SP, -PAIR);
    c.int(VALUE, KEY);
    c.store(table::SD, VALUE, SP, 0);
    c.store(table::SD, 0, SP, 8);
    // The arguments: the pair, their number, no CPU set, no flags.
    c.add(A0, SP, 0);
    for (i, x) in [1, 0, 0, 0].into_iter().enumerate() {
        c.int(A0 + 1 + i as u32, x);
    }
    c.int(A7, HWPROBE);
    c.push(table::ECALL);
    // A key that the kernel does not know gets the value 0.
    c.short(table::LD, VALUE, SP, 8);
    let leaves = 4 * c.len();
    c.add(SP, SP, PAIR);
    let left = 4 * c.len();
    c.int(ANSWER, i64::from(has::BASE));
    c.branch(table::BNE, A0, 0, done);
    c.short(table::ANDI, VALUE, VALUE, VECTORS);
    c.branch(table::BEQ, VALUE, 0, done);
    c.int(ANSWER, i64::from(has::BASE | has::RVV));
    c.push(table::read_control(VLENB) | VALUE << 7);
    for (bytes, feature) in LENGTHS {
        c.int(OTHER, bytes);
        c.branch(table::BLT, VALUE, OTHER, done);
        c.int(OTHER, i64::from(feature));
        c.three(table::OR_INT, ANSWER, ANSWER, OTHER);
    }
    c.bind(done);
    c.add(A0, ANSWER, 0);
    c.two(table::JALR, 0, LINK);
    let steps = vec![(4, Step::Stack(16)), (leaves, Step::Leave), (left, Step::Stack(0))];
    let end = (4 * c.len(), Step::Resume);
    Ok(Asking { bytes: c.finish()?, steps: steps.into_iter().chain([end]).collect(), imports: vec![] })
}
