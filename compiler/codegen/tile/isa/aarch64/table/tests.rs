//! Every row of the table against words that an assembler made (`forms.txt`), and these against the
//! assembler, where it is installed.

use super::*;
use crate::codegen::tile::isa::forms::{Encoded, check_assembler, check_recorded};

/// What LLVM's assembler makes of each form: word and text.
const FORMS: &str = include_str!("forms.txt");

fn two(word: u32) -> u32 {
    word | 2 << 5 | 1
}
fn three(word: u32) -> u32 {
    two(word) | 3 << 16
}

/// Every form that the encoder emits, with registers 1, 2 and 3 for the destination and the sources.
fn encoded() -> Encoded {
    let mut all: Vec<(String, u32)> = vec![];
    for (bits, t, half) in [(Bits::B32, "4s", "4h"), (Bits::B64, "2d", "2s")] {
        let mut bin = |name: &str, op: Bin, t: &str| {
            if let Some(w) = super::bin(op, bits) {
                all.push((format!("{name} v1.{t}, v2.{t}, v3.{t}"), three(w)));
            }
        };
        for (name, op) in [
            ("fadd", Bin::Add),
            ("fsub", Bin::Sub),
            ("fmul", Bin::Mul),
            ("fdiv", Bin::Div),
            ("fmin", Bin::Least),
            ("fmax", Bin::Most),
        ] {
            bin(name, op, t);
        }
        for (name, op) in [
            ("add", Bin::IAdd),
            ("sub", Bin::ISub),
            ("mul", Bin::IMul),
            ("smin", Bin::IMin),
            ("smax", Bin::IMax),
            ("umin", Bin::UMin),
            ("umax", Bin::UMax),
        ] {
            bin(name, op, t);
        }
        for (name, op) in [
            ("ushl", Bin::Shl),
            ("ushl", Bin::Shr),
            ("sshl", Bin::Sar),
            ("fcmgt", Bin::Min),
            ("fcmgt", Bin::Max),
        ] {
            bin(name, op, t);
        }
        for (name, op) in [("and", Bin::And), ("orr", Bin::Or), ("eor", Bin::Xor), ("bic", Bin::AndNot)] {
            bin(name, op, "16b");
        }
        for (name, p) in [
            ("fcmeq", Pred::Eq),
            ("fcmgt", Pred::Lt),
            ("fcmge", Pred::Le),
            ("fcmeq", Pred::Ne),
            ("fcmeq", Pred::Unordered),
        ] {
            all.push((format!("{name} v1.{t}, v2.{t}, v3.{t}"), three(cmp(p, bits))));
        }
        for (name, p) in [("cmeq", Pred::Eq), ("cmgt", Pred::Lt), ("cmge", Pred::Le), ("cmeq", Pred::Ne)] {
            all.push((format!("{name} v1.{t}, v2.{t}, v3.{t}"), three(icmp(p, bits))));
        }
        for (name, p) in [("cmhi", Pred::Lt), ("cmhs", Pred::Le)] {
            all.push((format!("{name} v1.{t}, v2.{t}, v3.{t}"), three(ucmp(p, bits))));
        }
        all.push((format!("neg v1.{t}, v2.{t}"), two(NEG[usize::from(bits == Bits::B64)])));
        for (name, neg) in [("fmla", false), ("fmls", true)] {
            all.push((format!("{name} v1.{t}, v2.{t}, v3.{t}"), three(fma(neg, bits))));
            let (short, lanes) = if bits == Bits::B64 { ("d", 2) } else { ("s", 4) };
            for lane in 0..lanes {
                all.push((
                    format!("{name} v1.{t}, v2.{t}, v3.{short}[{lane}]"),
                    three(fma_lane(neg, bits, lane)),
                ));
                all.push((
                    format!("{name} v1.{t}, v2.{t}, v31.{short}[{lane}]"),
                    two(fma_lane(neg, bits, lane)) | 31 << 16,
                ));
            }
            for lane in 0..lanes {
                all.push((format!("dup v1.{t}, v2.{short}[{lane}]"), two(dup_lane(bits, lane))));
            }
        }
        let int = if bits == Bits::B64 { "x2" } else { "w2" };
        all.push((format!("dup v1.{t}, {int}"), two(dup(bits))));
        all.push((format!("ld1r {{ v1.{t} }}, [x2]"), two(load_dup(bits))));
        let mut un = |name: &str, op: Un, d: &str, n: &str| {
            if let Some([w, 0]) = super::un(op, bits) {
                all.push((format!("{name} v1.{d}, v2.{n}"), two(w)));
            }
        };
        for (name, op) in [
            ("fsqrt", Un::Sqrt),
            ("frintn", Un::Round),
            ("frintm", Un::Floor),
            ("frintp", Un::Ceil),
            ("frintz", Un::Trunc),
            ("abs", Un::IAbs),
        ] {
            un(name, op, t, t);
        }
        for (name, op) in [
            ("fcvtns", Un::ToInt),
            ("fcvtzs", Un::TruncInt),
            ("fcvtzs", Un::TruncLong),
            ("fcvtzu", Un::TruncUnsigned),
            ("scvtf", Un::ToFloat),
        ] {
            un(name, op, t, t);
        }
        for (name, op) in [("scvtf", Un::ToDouble), ("ucvtf", Un::UnsignedToDouble)] {
            un(name, op, t, t);
        }
        un("rev64", Un::Swap(1), "4s", "4s");
        for (name, op) in [("fcvtl", Un::Double), ("sxtl", Un::Extend), ("uxtl", Un::ExtendUnsigned)] {
            un(name, op, "2d", "2s");
        }
        for (name, op) in [("fcvtn", Un::Half), ("xtn", Un::Narrow(2))] {
            un(name, op, half, t);
        }
        for (name, op) in [("fcvtn", Un::Single), ("xtn", Un::Low)] {
            un(name, op, half, t);
        }
        let most = if bits == Bits::B64 { 63 } else { 31 };
        for n in [1, 13, most] {
            for (name, op) in [("shl", Un::Shl(n)), ("ushr", Un::Shr(n)), ("sshr", Un::Sar(n))] {
                if let Some([w, 0]) = super::un(op, bits) {
                    all.push((format!("{name} v1.{t}, v2.{t}, #{n}"), two(w)));
                }
            }
        }
    }
    for (name, bytes) in [("smmla", Bytes::Signed), ("ummla", Bytes::Unsigned), ("usmmla", Bytes::Mixed)] {
        all.push((format!("{name} v1.4s, v2.16b, v3.16b"), three(matrix_dot(Factors::Bytes(bytes)))));
    }
    all.push(("bfmmla v1.4s, v2.8h, v3.8h".to_owned(), three(matrix_dot(Factors::Halves))));
    for lane in 0..8 {
        all.push((format!("fmla v1.8h, v2.8h, v3.h[{lane}]"), three(fma_halves(lane))));
        all.push((format!("fmla v1.8h, v2.8h, v15.h[{lane}]"), two(fma_halves(lane)) | 15 << 16));
        all.push((format!("fmul v1.8h, v2.8h, v3.h[{lane}]"), three(mul_halves(lane))));
        all.push((format!("fmul v1.8h, v2.8h, v15.h[{lane}]"), two(mul_halves(lane)) | 15 << 16));
    }
    for (name, op) in [("fadd", Bin::Add), ("fsub", Bin::Sub), ("fmin", Bin::Least), ("fmax", Bin::Most)] {
        let word = bin_halves(op).expect("an instruction");
        all.push((format!("{name} v1.8h, v2.8h, v3.8h"), three(word)));
    }
    let [upper, _] = super::un(Un::Whole { upper: true }, Bits::B32).expect("an instruction");
    all.push(("fcvtl2 v1.4s, v2.8h".to_owned(), two(upper)));
    for (sign, bytes) in [("s", Bytes::Signed), ("u", Bytes::Unsigned)] {
        all.push((format!("{sign}mull v1.8h, v2.8b, v3.8b"), three(mul_bytes(bytes, false))));
        all.push((format!("{sign}mull2 v1.8h, v2.16b, v3.16b"), three(mul_bytes(bytes, true))));
        all.push((format!("{sign}mlal v1.8h, v2.8b, v3.8b"), three(add_mul_bytes(bytes, false))));
        all.push((format!("{sign}mlal2 v1.8h, v2.16b, v3.16b"), three(add_mul_bytes(bytes, true))));
        all.push((format!("{sign}adalp v1.4s, v2.8h"), two(add_pairs(bytes))));
    }
    all.push(("tbl v1.16b, { v2.16b }, v3.16b".to_owned(), three(TBL)));
    all.push(("tbx v1.16b, { v2.16b }, v3.16b".to_owned(), three(TBX)));
    for (k, upper) in [(1, false), (2, true)] {
        for (t, bits) in [("4s", Bits::B32), ("2d", Bits::B64)] {
            all.push((format!("zip{k} v1.{t}, v2.{t}, v3.{t}"), three(zip(bits, upper))));
        }
        all.push((format!("uzp{k} v1.4s, v2.4s, v3.4s"), three(unzip(upper))));
    }
    for (name, bytes, lanes) in [
        ("sdot", Bytes::Signed, &[("sdot", false), ("sdot", true)]),
        ("udot", Bytes::Unsigned, &[("udot", false), ("udot", true)]),
        ("usdot", Bytes::Mixed, &[("usdot", false), ("sudot", true)]),
    ] {
        all.push((format!("{name} v1.4s, v2.16b, v3.16b"), three(dot(bytes))));
        for (name, swapped) in lanes {
            for lane in 0..4 {
                let word = dot_lane(bytes, *swapped, lane);
                all.push((format!("{name} v1.4s, v2.16b, v3.4b[{lane}]"), three(word)));
                all.push((format!("{name} v1.4s, v2.16b, v31.4b[{lane}]"), two(word) | 31 << 16));
            }
        }
    }
    // What takes two instructions.
    for (op, bits, names) in [
        (Un::ToInt, Bits::B64, ["fcvtns v1.2d, v2.2d", "sqxtn v1.2s, v2.2d"]),
        (Un::TruncInt, Bits::B64, ["fcvtzs v1.2d, v2.2d", "sqxtn v1.2s, v2.2d"]),
        (Un::ToDouble, Bits::B32, ["sxtl v1.2d, v2.2s", "scvtf v1.2d, v2.2d"]),
        (Un::UnsignedToDouble, Bits::B32, ["uxtl v1.2d, v2.2s", "ucvtf v1.2d, v2.2d"]),
        (Un::Narrow(1), Bits::B32, ["xtn v1.4h, v2.4s", "xtn v1.8b, v2.8h"]),
    ] {
        let words = super::un(op, bits).expect("an instruction");
        all.extend(names.iter().zip(words).map(|(n, w)| ((*n).to_owned(), two(w))));
    }
    for bytes in [1u32, 2, 4, 8] {
        let (int, name) =
            (if bytes == 8 { "x1" } else { "w1" }, ["b", "h", "s", "d"][bytes.trailing_zeros() as usize]);
        for lane in 0..(16 / bytes) as u8 {
            all.push((format!("umov {int}, v2.{name}[{lane}]"), two(umov(bytes, lane))));
            if bytes < 8 {
                all.push((
                    format!("ld1 {{ v1.{name} }}[{lane}], [x2]"),
                    two(lane_access(bytes, lane, false)),
                ));
                all.push((format!("st1 {{ v1.{name} }}[{lane}], [x2]"), two(lane_access(bytes, lane, true))));
            }
        }
    }
    for (bytes, name) in [(1u32, "b1"), (2, "h1"), (4, "s1"), (8, "d1"), (16, "q1")] {
        for (op, store) in [("ldr", false), ("str", true)] {
            let [scaled, plain] = vector_access(bytes, store);
            all.push((format!("{op} {name}, [x2, #{}]", 7 * bytes), two(scaled) | 7 << 10));
            all.push((format!("{} {name}, [x2, #-3]", op.replace('r', "ur")), two(plain) | 0x1fd << 12));
        }
    }
    for (bytes, suffix, name) in [(1u32, "b", "w1"), (2, "h", "w1"), (4, "", "w1"), (8, "", "x1")] {
        for (op, store) in [("ldr", false), ("str", true)] {
            let [scaled, plain] = int_access(bytes, store);
            all.push((format!("{op}{suffix} {name}, [x2, #{}]", 7 * bytes), two(scaled) | 7 << 10));
            all.push((
                format!("{}{suffix} {name}, [x2, #-3]", op.replace('r', "ur")),
                two(plain) | 0x1fd << 12,
            ));
        }
    }
    let pair = |w: u32| two(w) | 7 << 15 | 3 << 10;
    for (text, w) in [
        ("prfm pldl1keep, [x2, #56]", PREFETCH[0] | 7 << 10 | 2 << 5),
        ("prfm pldl2keep, [x2, #56]", PREFETCH[0] | 7 << 10 | 2 << 5 | 2),
        ("prfum pldl1keep, [x2, #-3]", PREFETCH[1] | 0x1fd << 12 | 2 << 5),
        ("ldp q1, q3, [x2, #112]", pair(LOAD_PAIR)),
        ("stp q1, q3, [x2, #112]", pair(STORE_PAIR)),
        ("ldp d1, d3, [x2, #56]", pair(LOAD_PAIR_HALVES)),
        ("stp d1, d3, [x2, #56]", pair(STORE_PAIR_HALVES)),
        ("ldp x1, x3, [x2, #56]", pair(LOAD_PAIR_INT)),
        ("stp x1, x3, [x2, #56]", pair(STORE_PAIR_INT)),
        ("ldr q1, #28", LOAD_LITERAL | 7 << 5 | 1),
        ("smov x1, v2.s[0]", two(SMOV | lane_field(4, 0))),
        ("bsl v1.16b, v2.16b, v3.16b", three(BSL)),
        ("bit v1.16b, v2.16b, v3.16b", three(BIT)),
        ("bif v1.16b, v2.16b, v3.16b", three(BIF)),
        ("and v1.16b, v2.16b, v3.16b", three(AND)),
        ("eor v1.16b, v2.16b, v3.16b", three(EOR)),
        ("mov v1.16b, v2.16b", two(ORR) | 2 << 16),
        ("mvn v1.16b, v2.16b", two(NOT)),
        ("ext v1.16b, v2.16b, v3.16b, #8", three(EXT | 8 << 11)),
        ("umull v1.2d, v2.2s, v3.2s", three(super::bin(Bin::IMulLow, Bits::B64).expect("an instruction"))),
        ("sxtl v1.8h, v2.8b", two(SXTL[0])),
        ("sxtl v1.4s, v2.4h", two(SXTL[1])),
        ("uxtl v1.8h, v2.8b", two(UXTL[0])),
        ("uxtl v1.4s, v2.4h", two(UXTL[1])),
        ("fcvtl v1.4s, v2.4h", two(FCVTL)),
        ("scvtf s1, x2", two(SCVTF_SCALAR)),
        ("add x1, x2, x3", three(ADD)),
        ("add x1, x2, x3, lsl #3", three(ADD | 3 << 10)),
        ("add x1, x2, #7", two(ADD_IMM | 7 << 10)),
        ("sub sp, sp, #7, lsl #12", SUB_IMM | IMM_HIGH | 7 << 10 | 31 << 5 | 31),
        ("and x1, x2, x3", three(AND_INT)),
        ("orr x1, x2, x3", three(ORR_INT)),
        ("mov x1, x3", ORR_INT | 3 << 16 | 31 << 5 | 1),
        ("lsr x1, x2, #32", two(LSR | 32 << 16)),
        ("asr x1, x2, #32", two(ASR | 32 << 16)),
        ("mul x1, x2, x3", three(MUL)),
        ("sdiv x1, x2, x3", three(DIV)),
        ("cmp x2, x3", CMP | 3 << 16 | 2 << 5),
        ("cmp x2, #7", CMP_IMM | 7 << 10 | 2 << 5),
        ("cmn x2, #7", CMN_IMM | 7 << 10 | 2 << 5),
        ("csel x1, x2, x3, lt", three(CSEL | LT << 12)),
        ("csel x1, x2, x3, gt", three(CSEL | GT << 12)),
        ("movz x1, #7, lsl #32", MOVZ | 2 << 21 | 7 << 5 | 1),
        ("movn x1, #7, lsl #48", MOVN | 3 << 21 | 7 << 5 | 1),
        ("movk x1, #7, lsl #16", MOVK | 1 << 21 | 7 << 5 | 1),
        ("b #28", BRANCH | 7),
        ("b.lt #28", BRANCH_IF | 7 << 5 | LT),
        ("b.ge #28", BRANCH_IF | 7 << 5 | GE),
        ("b.eq #28", BRANCH_IF | 7 << 5 | EQ),
        ("b.ne #28", BRANCH_IF | 7 << 5 | NE),
        ("bl #28", CALL | 7),
        ("blr x2", CALL_REGISTER | 2 << 5),
        ("adrp x1, #0", ADRP | 1),
        ("stp x1, x3, [x2, #-16]!", two(PUSH_PAIR_INT) | 3 << 10),
        ("ldp x1, x3, [x2], #16", two(POP_PAIR_INT) | 3 << 10),
        ("ret", RET | 30 << 5),
        ("movi v1.2d, #0", ZERO | 1),
    ] {
        all.push((text.to_owned(), w));
    }
    for (text, x) in [
        ("movi v1.4s, #127", 127),
        ("movi v1.4s, #129, lsl #8", 129 << 8),
        ("movi v1.4s, #128, lsl #24", 1 << 31),
        ("movi v1.4s, #191, lsl #24", (-0.5f32).to_bits()),
        ("mvni v1.4s, #128, lsl #24", 0x7fff_ffff),
        ("mvni v1.4s, #0", u32::MAX),
        ("fmov v1.4s, #1.0", 1f32.to_bits()),
        ("fmov v1.4s, #-0.75", (-0.75f32).to_bits()),
        ("fmov v1.4s, #31.0", 31f32.to_bits()),
        ("fmov v1.4s, #0.1328125", 0.132_812_5f32.to_bits()),
    ] {
        all.push((text.to_owned(), number(x).expect("a number that an instruction holds") | 1));
    }
    all
}

#[test]
fn rows_are_what_an_assembler_makes_of_them() {
    check_recorded(&encoded(), FORMS);
}

#[test]
fn numbers_that_no_instruction_holds_are_literals() {
    for x in [0x1234_5678, 0.1f32.to_bits(), 1.0e10f32.to_bits(), 33f32.to_bits()] {
        assert_eq!(number(x), None, "{x:#x}");
    }
}

/// With `ONNXC_UPDATE=1`, writes `forms.txt` anew.
#[test]
fn the_assembler_still_makes_them() {
    let target = ["-triple=aarch64", "-mattr=+dotprod,+i8mm,+bf16,+fullfp16"];
    assert!(check_assembler(&encoded(), FORMS, &target, "aarch64"), "forms that the assembler does not know");
}
