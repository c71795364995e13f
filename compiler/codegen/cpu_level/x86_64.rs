//! x86-64: the levels of the psABI, AVX-VNNI, AVX512-VNNI and AVX512-BF16.
//!
//! `cpuid` reports the features of the processor, `xgetbv` the registers that the operating system saves; a
//! level needs both. (macOS enables ZMM only after a process has used it, so level 3 is the highest that is
//! detected there.)

use super::Asking;
use crate::codegen::unwind::Step;
use crate::diag::{Failure, Result};
use crate::target::has;
use iced_x86::IcedError;
use iced_x86::code_asm::*;

/// Requirements of a psABI level beyond those of the level below: bits of `cpuid`, and of the state
/// components that the system saves.
struct Needs {
    /// Leaf 1, ECX.
    basic: u32,
    /// Leaf 7, EBX.
    extended: u32,
    /// Leaf 8000_0001h, ECX.
    amd: u32,
    /// XCR0.
    state: u32,
}

/// Level 2: SSE3, SSSE3, CMPXCHG16B, SSE4.1, SSE4.2, POPCNT; LAHF.
const V2: Needs =
    Needs { basic: 1 | 1 << 9 | 1 << 13 | 1 << 19 | 1 << 20 | 1 << 23, extended: 0, amd: 1, state: 0 };
/// Level 3: FMA, MOVBE, OSXSAVE, AVX, F16C; BMI1, AVX2, BMI2; LZCNT; XMM and YMM.
const V3: Needs = Needs {
    basic: 1 << 12 | 1 << 22 | 1 << 27 | 1 << 28 | 1 << 29,
    extended: 1 << 3 | 1 << 5 | 1 << 8,
    amd: 1 << 5,
    state: 0x06,
};
/// Level 4: AVX-512 F, DQ, CD, BW, VL; XMM, YMM, masks and ZMM.
const V4: Needs =
    Needs { basic: 0, extended: 1 << 16 | 1 << 17 | 1 << 28 | 1 << 30 | 1 << 31, amd: 0, state: 0xe6 };

/// AVX512-VNNI: leaf 7, ECX.
const AVX512_VNNI: u32 = 1 << 11;
/// AVX-VNNI: leaf 7, subleaf 1, EAX.
const AVX_VNNI: u32 = 1 << 4;
/// AVX512-BF16: leaf 7, subleaf 1, EAX.
const AVX512_BF16: u32 = 1 << 5;

/// The function, in the calling conventions of System V and of Windows.
pub(super) fn code() -> Result<Asking> {
    let code = assemble().map_err(|e| Failure::bug("cpu_level", e.to_string()))?;
    // push rbx; ...; pop rbx; ret
    let ret = code.len() as u32 - 1;
    let steps =
        vec![(1, Step::Stack(16)), (1, Step::Save(3, 16)), (ret, Step::Stack(8)), (ret, Step::Restore(3))];
    Ok(Asking { bytes: code, steps, imports: vec![] })
}

/// Assembles instructions and labels in order, each written as its mnemonic and operands.
macro_rules! assemble {
    ($a:ident { $($mnemonic:ident $($operand:expr),*;)* }) => { $($a.$mnemonic($($operand),*)?;)* };
}

fn assemble() -> std::result::Result<Vec<u8>, IcedError> {
    let mut a = CodeAssembler::new(64)?;
    let [mut done, mut none, mut asked, mut next] = std::array::from_fn(|_| a.create_label());
    // cpuid writes eax, ebx, ecx and edx, xgetbv writes eax and edx; only rbx of these is callee-saved.
    let (answer, basic, extended, amd) = (r8d, r9d, r10d, r11d);
    // Registers whose first content is no longer needed.
    let (state, more, sub) = (basic, amd, edx);
    assemble!(a {
        push rbx;
        mov answer, has::BASE;
        mov eax, 0x8000_0001u32;
        cpuid;
        mov amd, ecx;
        mov eax, 1;
        cpuid;
        mov basic, ecx;
        need basic, V2.basic, done;
        need amd, V2.amd, done;
        or answer, has::V2 as i32;
        need basic, V3.basic, done;
        need amd, V3.amd, done;
        xor eax, eax;
        cpuid;
        cmp eax, 7;
        jb done;
        // xgetbv is valid only with OSXSAVE, which has been checked.
        xor ecx, ecx;
        xgetbv;
        mov state, eax;
        need state, V3.state, done;
        mov eax, 7;
        xor ecx, ecx;
        cpuid;
        mov extended, ebx;
        mov more, ecx;
        need extended, V3.extended, done;
        or answer, has::V3 as i32;
        // Leaf 7 reports its highest subleaf in EAX.
        cmp eax, 1;
        jb none;
        mov eax, 7;
        mov ecx, 1;
        cpuid;
        mov sub, eax;
        jmp asked;
        set_label &mut none;
        xor sub, sub;
        set_label &mut asked;
        need sub, AVX_VNNI, next;
        or answer, has::AVX_VNNI as i32;
        set_label &mut next;
        need extended, V4.extended, done;
        need state, V4.state, done;
        or answer, has::V4 as i32;
        need more, AVX512_VNNI, done;
        or answer, has::AVX512_VNNI as i32;
        need sub, AVX512_BF16, done;
        or answer, has::AVX512_BF16 as i32;
        set_label &mut done;
        mov eax, answer;
        pop rbx;
        ret;
    });
    a.assemble(0)
}

/// A check as an instruction.
trait Need {
    /// Jumps unless all `bits` are set.
    fn need(
        &mut self,
        register: AsmRegister32,
        bits: u32,
        otherwise: CodeLabel,
    ) -> std::result::Result<(), IcedError>;
}

impl Need for CodeAssembler {
    fn need(
        &mut self,
        register: AsmRegister32,
        bits: u32,
        otherwise: CodeLabel,
    ) -> std::result::Result<(), IcedError> {
        let a = self;
        assemble!(a {
            mov eax, register;
            and eax, bits;
            cmp eax, bits;
            jne otherwise;
        });
        Ok(())
    }
}
