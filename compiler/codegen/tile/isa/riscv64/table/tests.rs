//! Every row of the table against what LLVM's assembler makes of it, as recorded in `forms.txt`: one line a
//! form, its word and its text.

use super::*;
use crate::codegen::tile::isa::forms::{Encoded, check_assembler, check_recorded};

const FORMS: &str = include_str!("forms.txt");

/// Vectors v2, v4, v6; integers x1, x2, x3; f3.
fn vectors(word: u32) -> u32 {
    word | 4 << 20 | 6 << 15 | 2 << 7
}
fn vector_and(word: u32, other: u32) -> u32 {
    word | 4 << 20 | other << 15 | 2 << 7
}
fn one(word: u32) -> u32 {
    word | 4 << 20 | 2 << 7
}

const BINARY: [(&str, Bin); 19] = [
    ("vfadd", Bin::Add),
    ("vfsub", Bin::Sub),
    ("vfmul", Bin::Mul),
    ("vfdiv", Bin::Div),
    ("vmflt", Bin::Min),
    ("vand", Bin::And),
    ("vor", Bin::Or),
    ("vxor", Bin::Xor),
    ("vadd", Bin::IAdd),
    ("vsub", Bin::ISub),
    ("vmul", Bin::IMul),
    ("vminu", Bin::UMin),
    ("vmin", Bin::IMin),
    ("vmaxu", Bin::UMax),
    ("vmax", Bin::IMax),
    ("vsll", Bin::Shl),
    ("vsrl", Bin::Shr),
    ("vsra", Bin::Sar),
    ("vmflt", Bin::Max),
];

/// Every form as it is encoded here.
fn encoded() -> Encoded {
    let mut all: Vec<(String, u32)> = vec![];
    for (name, op) in BINARY {
        let word = bin(op).expect("an instruction");
        all.push((format!("{name}.vv v2, v4, v6"), vectors(word)));
        if let Some(word) = bin_scalar(op, false) {
            all.push((format!("{name}.vf v2, v4, ft3"), vector_and(word, 3)));
        }
        if let Some(word) = bin_int(op) {
            all.push((format!("{name}.vx v2, v4, gp"), vector_and(word, 3)));
        }
    }
    for (name, op) in [("vfrsub", Bin::Sub), ("vfrdiv", Bin::Div)] {
        let word = bin_scalar(op, true).expect("an instruction");
        all.push((format!("{name}.vf v2, v4, ft3"), vector_and(word, 3)));
    }
    for (name, op, bits) in [
        ("vfsqrt.v", Un::Sqrt, Bits::B32),
        ("vfcvt.x.f.v", Un::ToInt, Bits::B32),
        ("vfcvt.rtz.x.f.v", Un::TruncInt, Bits::B32),
        ("vfncvt.x.f.w", Un::ToInt, Bits::B64),
        ("vfncvt.rtz.x.f.w", Un::TruncInt, Bits::B64),
        ("vfcvt.rtz.x.f.v", Un::TruncLong, Bits::B64),
        ("vfcvt.rtz.xu.f.v", Un::TruncUnsigned, Bits::B64),
        ("vfcvt.f.x.v", Un::ToFloat, Bits::B32),
        ("vfncvt.f.x.w", Un::ToFloat, Bits::B64),
        ("vfncvt.f.xu.w", Un::UnsignedToFloat, Bits::B64),
        ("vfcvt.f.x.v", Un::ToDouble, Bits::B64),
        ("vfwcvt.f.x.v", Un::ToDouble, Bits::B32),
        ("vfcvt.f.xu.v", Un::UnsignedToDouble, Bits::B64),
        ("vfwcvt.f.xu.v", Un::UnsignedToDouble, Bits::B32),
        ("vfwcvt.f.f.v", Un::Double, Bits::B32),
        ("vfncvt.f.f.w", Un::Single, Bits::B64),
        ("vsext.vf2", Un::Extend, Bits::B32),
        ("vzext.vf2", Un::ExtendUnsigned, Bits::B32),
    ] {
        all.push((format!("{name} v2, v4"), one(un(op, bits).expect("an instruction").0)));
    }
    for (name, op) in [("vsll", Un::Shl(13)), ("vsrl", Un::Shr(13)), ("vsra", Un::Sar(13))] {
        let word = un(op, Bits::B32).expect("an instruction").0;
        all.push((format!("{name}.vi v2, v4, 13"), vector_and(word, 13)));
        all.push((format!("{name}.vx v2, v4, gp"), vector_and(shift_by_register(word), 3)));
    }
    for (name, p) in [("eq", Pred::Eq), ("ne", Pred::Ne), ("lt", Pred::Lt), ("le", Pred::Le)] {
        all.push((format!("vmf{name}.vv v2, v4, v6"), vectors(cmp(p))));
        all.push((format!("vms{name}.vv v2, v4, v6"), vectors(icmp(p))));
    }
    for (sum, neg) in [("vfmacc", false), ("vfnmsac", true)] {
        all.push((format!("{sum}.vv v2, v6, v4"), vectors(fma231(neg))));
        all.push((format!("{sum}.vf v2, ft3, v4"), vector_and(fma_scalar(neg), 3)));
    }
    all.push(("vfmadd.vv v2, v6, v4".into(), vectors(fma213(false))));
    all.push(("vfnmsub.vv v2, v6, v4".into(), vectors(fma213(true))));
    for (name, parts, signed) in
        [("vzext.vf4", 4, false), ("vsext.vf4", 4, true), ("vzext.vf2", 2, false), ("vsext.vf2", 2, true)]
    {
        all.push((format!("{name} v2, v4"), one(extend(parts, signed))));
    }
    for (bytes, size) in [(1, 8), (2, 16), (4, 32), (8, 64)] {
        let w = Width::bytes(bytes);
        for (name, store) in [("l", false), ("s", true)] {
            all.push((
                format!("v{name}e{size}.v v2, (sp)"),
                vector_access(w, false, store) | 2 << 15 | 2 << 7,
            ));
            let strided = vector_access(w, true, store) | 3 << 20 | 2 << 15 | 2 << 7;
            all.push((format!("v{name}se{size}.v v2, (sp), gp"), strided));
            all.push((format!("v{name}se{size}.v v2, (sp), gp, v0.t"), masked(strided)));
        }
        let indexed = indexed_load(w) | 3 << 20 | 2 << 15 | 2 << 7;
        all.push((format!("vluxei{size}.v v2, (sp), v3"), indexed));
        all.push((format!("vluxei{size}.v v2, (sp), v3, v0.t"), masked(indexed)));
        for (long, groups) in [(false, ["mf2", "m1", "m2", "m4"]), (true, ["mf4", "mf2", "m1", "m2"])] {
            let group = groups[w as usize];
            let kind = vector_type(w, long);
            all.push((format!("vsetvli zero, zero, e{size}, {group}, ta, mu"), set_type(kind)));
            all.push((
                format!("vsetivli zero, 8, e{size}, {group}, ta, mu"),
                VSETIVLI | kind << 20 | 8 << 15,
            ));
        }
    }
    for (name, form, store) in [
        ("lb", Form::I8, false),
        ("lbu", Form::U8, false),
        ("lh", Form::I16, false),
        ("lhu", Form::U16, false),
        ("lw", Form::B32, false),
        ("ld", Form::B64, false),
        ("sb", Form::U8, true),
        ("sh", Form::I16, true),
        ("sw", Form::B32, true),
        ("sd", Form::B64, true),
    ] {
        let word = int_access(form, store) | 2 << 15;
        let word = if store { word | 1 << 20 | 7 << 7 } else { word | 7 << 20 | 1 << 7 };
        all.push((format!("{name} ra, 7(sp)"), word));
    }
    let words: [(&str, u32); 55] = [
        ("flw ft1, 7(sp)", load_float(Bits::B32) | 7 << 20 | 2 << 15 | 1 << 7),
        ("fld ft1, 7(sp)", load_float(Bits::B64) | 7 << 20 | 2 << 15 | 1 << 7),
        ("fmv.w.x ft1, sp", to_float_register(Bits::B32) | 2 << 15 | 1 << 7),
        ("fmv.d.x ft1, sp", to_float_register(Bits::B64) | 2 << 15 | 1 << 7),
        ("fcvt.s.l ft1, sp", FLOAT_OF_LONG | 2 << 15 | 1 << 7),
        ("vlm.v v2, (sp)", mask_access(false) | 2 << 15 | 2 << 7),
        ("vsm.v v2, (sp)", mask_access(true) | 2 << 15 | 2 << 7),
        ("vrsub.vi v2, v4, 0", one(REVERSE_SUB)),
        ("vfsgnj.vv v2, v4, v6", vectors(SIGN)),
        ("vfsgnjx.vv v2, v4, v6", vectors(SIGN_XOR)),
        ("vmflt.vf v2, v4, ft3", vector_and(LESS_THAN_SCALAR, 3)),
        ("vnsrl.wi v2, v4, 0", one(NARROW)),
        ("vrgather.vv v2, v4, v6", vectors(GATHER)),
        ("vid.v v2", LANE_NUMBERS | 2 << 7),
        ("vxor.vi v2, v4, 5", vector_and(XOR_NUMBER, 5)),
        ("vmerge.vvm v2, v4, v6, v0", vectors(MERGE)),
        ("vmv.v.x v2, gp", SPLAT | 3 << 15 | 2 << 7),
        ("vfmv.v.f v2, ft3", SPLAT_SCALAR | 3 << 15 | 2 << 7),
        ("vmv.v.i v2, -3", SPLAT_NUMBER | 29 << 15 | 2 << 7),
        ("vmv.s.x v2, gp", SET_FIRST | 3 << 15 | 2 << 7),
        ("vmv.x.s ra, v4", FIRST | 4 << 20 | 1 << 7),
        ("vcpop.m ra, v4", COUNT | 4 << 20 | 1 << 7),
        ("vmand.mm v2, v4, v6", vectors(MASK_AND)),
        ("vmor.mm v2, v4, v6", vectors(MASK_OR)),
        ("vmxor.mm v2, v4, v6", vectors(MASK_XOR)),
        ("vmv1r.v v2, v4", one(MOVE_ONE)),
        ("vmv2r.v v2, v4", one(MOVE_TWO)),
        ("vfcvt.x.f.v v2, v4, v0.t", one(masked(TO_INT))),
        ("vfcvt.f.x.v v2, v4, v0.t", one(masked(FROM_INT))),
        ("vsetvli zero, gp, e32, m2, ta, mu", VSETVLI | vector_type(Width::W32, false) << 20 | 3 << 15),
        ("fsrmi ra, 2", SET_MODE | DOWNWARDS << 15 | 1 << 7),
        ("fsrmi ra, 3", SET_MODE | UPWARDS << 15 | 1 << 7),
        ("fsrm gp", RESTORE_MODE | 3 << 15),
        ("lui ra, 7", LUI | 7 << 12 | 1 << 7),
        ("auipc ra, 7", AUIPC | 7 << 12 | 1 << 7),
        ("addi ra, sp, 7", ADDI | 7 << 20 | 2 << 15 | 1 << 7),
        ("addiw ra, sp, 7", ADDIW | 7 << 20 | 2 << 15 | 1 << 7),
        ("andi ra, sp, 7", ANDI | 7 << 20 | 2 << 15 | 1 << 7),
        ("slli ra, sp, 7", SLLI | 7 << 20 | 2 << 15 | 1 << 7),
        ("srai ra, sp, 7", SRAI | 7 << 20 | 2 << 15 | 1 << 7),
        ("add ra, sp, gp", ADD | 3 << 20 | 2 << 15 | 1 << 7),
        ("and ra, sp, gp", AND_INT | 3 << 20 | 2 << 15 | 1 << 7),
        ("or ra, sp, gp", OR_INT | 3 << 20 | 2 << 15 | 1 << 7),
        ("mul ra, sp, gp", MUL | 3 << 20 | 2 << 15 | 1 << 7),
        ("div ra, sp, gp", DIV | 3 << 20 | 2 << 15 | 1 << 7),
        ("ld ra, 0(sp)", LD | 2 << 15 | 1 << 7),
        ("sd ra, 0(sp)", SD | 1 << 20 | 2 << 15),
        ("j 0", JAL),
        ("ret", JALR | 1 << 15),
        ("beq sp, gp, 0", BEQ | 3 << 20 | 2 << 15),
        ("bne sp, gp, 0", BNE | 3 << 20 | 2 << 15),
        ("blt sp, gp, 0", BLT | 3 << 20 | 2 << 15),
        ("bge sp, gp, 0", BGE | 3 << 20 | 2 << 15),
        ("csrr ra, vlenb", read_control(0xc22) | 1 << 7),
        ("prefetch.r 64(sp)", PREFETCH | 64 << 20 | 2 << 15),
    ];
    all.extend(words.map(|(text, word)| (text.to_owned(), word)));
    all.push(("ecall".into(), ECALL));
    all
}

#[test]
fn rows_are_what_an_assembler_makes_of_them() {
    check_recorded(&encoded(), FORMS);
}

/// With `ONNXC_UPDATE=1`, writes `forms.txt` anew.
#[test]
fn the_assembler_still_makes_them() {
    let target = ["-triple=riscv64", "-mattr=+m,+f,+d,+v,+zicsr,+zicbop"];
    if !check_assembler(&encoded(), FORMS, &target, "riscv64") {
        eprintln!("skipped: this llvm-mc does not know all forms");
    }
}
