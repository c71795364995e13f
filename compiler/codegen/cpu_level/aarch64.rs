//! aarch64: FEAT_DotProd, FEAT_FP16, FEAT_I8MM and FEAT_BF16. Only the operating system can report them: the
//! ID registers are not readable everywhere.
//!
//! * ELF: `getauxval`, which Linux and Android have. The symbol is weak. If a program has no such function,
//!   the CPU is assumed to have the base only. A bare-metal program may define it with the numbers and bits
//!   of Linux.
//! * Windows: `IsProcessorFeaturePresent`. Versions that do not know a feature report it as absent.

use super::{Asking, Import};
use crate::codegen::tile::aarch64::code::Code;
use crate::codegen::tile::aarch64::table;
use crate::codegen::unwind::Step;
use crate::diag::Result;
use crate::target::has;
use cranelift_codegen::binemit::Reloc;
use target_lexicon::{BinaryFormat, Triple};

const GETAUXVAL: Import = Import { name: "getauxval", weak: true };
/// Entries of the auxiliary vector with their bits and the corresponding features.
const AUXILIARY: [(i64, &[(i64, u32)]); 2] = [
    // AT_HWCAP: ASIMDDP; FPHP and ASIMDHP.
    (16, &[(1 << 20, has::DOTPROD), (1 << 9 | 1 << 10, has::FP16)]),
    // AT_HWCAP2: I8MM, BF16.
    (26, &[(1 << 13, has::I8MM), (1 << 14, has::BF16)]),
];

const IS_PRESENT: Import = Import { name: "IsProcessorFeaturePresent", weak: false };
/// PF_ARM_V82_DP_, PF_ARM_V82_FP16_, PF_ARM_V82_I8MM_ and PF_ARM_V86_BF16_INSTRUCTIONS_AVAILABLE.
const FEATURES: [(i64, u32); 4] = [(43, has::DOTPROD), (67, has::FP16), (66, has::I8MM), (68, has::BF16)];

/// The result, and the address of the system function: callee-saved registers.
const ANSWER: u32 = 19;
const FUNCTION: u32 = 20;

/// The function, in the calling conventions of AAPCS64 and of Windows.
pub(super) fn code(triple: &Triple) -> Result<Asking> {
    let (frame, link, stack) = (29, 30, 31);
    let mut c = Code::default();
    let mut imports = vec![];
    let pair = |word: u32, a: u32, b: u32| word | b << 10 | stack << 5 | a;
    c.push(pair(table::PUSH_PAIR_INT, frame, link));
    c.two(table::ADD_IMM, frame, stack);
    c.push(pair(table::PUSH_PAIR_INT, ANSWER, FUNCTION));
    c.int(ANSWER, i64::from(has::BASE));
    let done = c.label();
    // Adds a feature to the result if all of `bits` are set in the result of the last call.
    let note = |c: &mut Code, bits: i64, feature: u32| {
        let next = c.label();
        c.int(1, bits);
        c.three(table::AND_INT, 2, 0, 1);
        c.three(table::CMP, 0, 2, 1);
        c.jump_if(table::NE, next);
        c.int(1, i64::from(feature));
        c.three(table::ORR_INT, ANSWER, ANSWER, 1);
        c.bind(next);
    };
    if triple.binary_format == BinaryFormat::Coff {
        for (number, feature) in FEATURES {
            c.int(0, number);
            imports.push((4 * c.len(), Reloc::Arm64Call, IS_PRESENT));
            c.push(table::CALL);
            // A 32-bit number other than 0; the upper half of the register is undefined.
            let next = c.label();
            c.int(1, 0xffff_ffff);
            c.three(table::AND_INT, 2, 0, 1);
            c.two(table::CMP_IMM, 0, 2);
            c.jump_if(table::EQ, next);
            c.int(1, i64::from(feature));
            c.three(table::ORR_INT, ANSWER, ANSWER, 1);
            c.bind(next);
        }
    } else {
        imports.push((4 * c.len(), Reloc::Aarch64AdrGotPage21, GETAUXVAL));
        c.push(table::ADRP | FUNCTION);
        imports.push((4 * c.len(), Reloc::Aarch64Ld64GotLo12Nc, GETAUXVAL));
        c.two(table::int_access(8, false)[0], FUNCTION, FUNCTION);
        c.two(table::CMP_IMM, 0, FUNCTION);
        c.jump_if(table::EQ, done);
        for (entry, features) in AUXILIARY {
            c.int(0, entry);
            c.two(table::CALL_REGISTER, 0, FUNCTION);
            features.iter().for_each(|(bits, feature)| note(&mut c, *bits, *feature));
        }
    }
    c.bind(done);
    c.three(table::ORR_INT, 0, 31, ANSWER);
    c.push(pair(table::POP_PAIR_INT, ANSWER, FUNCTION));
    let restored = 4 * c.len();
    c.push(pair(table::POP_PAIR_INT, frame, link));
    let ret = 4 * c.len();
    c.push(table::RET | link << 5);
    let (x, y) = (ANSWER as u16, FUNCTION as u16);
    let steps = vec![
        (4, Step::Stack(16)),
        (4, Step::Save(29, 16)),
        (4, Step::Save(30, 8)),
        (8, Step::Frame),
        (12, Step::Save(x, 32)),
        (12, Step::Save(y, 24)),
        (restored, Step::Restore(x)),
        (restored, Step::Restore(y)),
        (ret, Step::Leave),
        (ret, Step::Unframe(0)),
        (ret, Step::Restore(29)),
        (ret, Step::Restore(30)),
        (ret + 4, Step::Resume),
    ];
    Ok(Asking { bytes: c.finish()?, steps, imports })
}
