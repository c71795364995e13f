//! Text of the tile IR, and back: `--emit tiles`, and the cases under `tests/cases/tile`.
//!
//! ```text
//! tile avx2 (v0, v1)
//! block 0
//!   args
//!   v2: int = int.0
//!   v3: vector = const.word.1065353216
//!   jump -> 1 (v2)
//! block 1 (v4: int)
//!   v5: vector = load.b32 [v0 + 4*v4 + 32]
//!   v6: vector = bin.mul.b32 v5 v3
//!   store.b32 v6 [v1 + 4*v4]
//!   ..
//! ```
//!
//! An instruction is its result with its class, the operation with what belongs to it between dots, its
//! operands, its memory operand, a constant that is read from behind the code, and behind the last one of a
//! block where it goes with which values. `tile WIDTH [long] [in_order] [apart|together] [halves]
//! [in_words] [in_quads]` says what [`Func`] does.

use super::ir::{
    Bin, Bits, Block, Bytes, Class, Factors, Form, Func, Line, Literal, Mem, Node, Number, Op, Pred, Un,
    Value, Width,
};
use crate::codegen::math::Table;
use crate::target::Adjacent;
use std::fmt::Write;

/// What is between dots.
trait Piece: Sized {
    fn put(&self, out: &mut Vec<String>);
    fn take(from: &mut dyn Iterator<Item = &str>) -> Option<Self>;
}

macro_rules! numbers {
    ($($t:ty),*) => {
        $(impl Piece for $t {
            fn put(&self, out: &mut Vec<String>) {
                out.push(self.to_string());
            }
            fn take(from: &mut dyn Iterator<Item = &str>) -> Option<Self> {
                from.next()?.parse().ok()
            }
        })*
    };
}
numbers!(u8, u16, u32, u64, i32, i64, bool);

/// Variants with their names; what they hold follows.
macro_rules! names {
    ($t:ident { $($text:literal $variant:ident $(($($a:ident),*))? $({$($f:ident),*})?)* }) => {
        impl Piece for $t {
            fn put(&self, out: &mut Vec<String>) {
                match self {
                    $($t::$variant $(($($a),*))? $({$($f),*})? => {
                        out.push($text.into());
                        $($($a.put(out);)*)?
                        $($($f.put(out);)*)?
                    })*
                }
            }
            fn take(from: &mut dyn Iterator<Item = &str>) -> Option<Self> {
                match from.next()? {
                    $($text => {
                        $($(let $a = Piece::take(from)?;)*)?
                        $($(let $f = Piece::take(from)?;)*)?
                        Some($t::$variant $(($($a),*))? $({$($f),*})?)
                    })*
                    _ => None,
                }
            }
        }
    };
}

names!(Width { "avx2" Avx2 "avx512" Avx512 "neon" Neon "rvv128" Rvv128 "rvv256" Rvv256 "rvv512" Rvv512 });
names!(Class { "int" Int "vector" Vector "mask" Mask });
names!(Bits { "b32" B32 "b64" B64 });
names!(Number { "word" Word(x) "long" Long(x) });
names!(Literal { "word" Word(x) "long" Long(x) "passed" Passed(k, bits) "integer" Integer(k) });
names!(Pred { "eq" Eq "lt" Lt "le" Le "unordered" Unordered "ne" Ne });
names!(Bytes { "mixed" Mixed "signed" Signed "narrow" Narrow "unsigned" Unsigned });
names!(Factors { "bytes" Bytes(of) "halves" Halves });
names!(Form {
    "b64" B64 "b32" B32 "f16" F16 "i8" I8 "u8" U8 "i16" I16 "u16" U16 "near_u8" NearU8
});
names!(Bin {
    "add" Add "sub" Sub "mul" Mul "div" Div "min" Min "max" Max "least" Least "most" Most "and" And "or" Or
    "xor" Xor "and_not" AndNot "iadd" IAdd "isub" ISub "imul" IMul "mul_add_pairs" MulAddPairs
    "mul_add_bytes" MulAddBytes "add_words" AddWords
    "imul_low" IMulLow "imin" IMin "imax" IMax "umin" UMin "umax" UMax "shl" Shl "shr" Shr "sar" Sar
    "scale" Scale "permute" Permute
});
names!(Un {
    "sqrt" Sqrt "round" Round "floor" Floor "ceil" Ceil "trunc" Trunc "to_int" ToInt "trunc_int" TruncInt
    "trunc_long" TruncLong "trunc_unsigned" TruncUnsigned "to_float" ToFloat
    "unsigned_to_float" UnsignedToFloat "to_double" ToDouble "unsigned_to_double" UnsignedToDouble
    "double" Double "single" Single "extend" Extend "extend_unsigned" ExtendUnsigned "low" Low "half" Half
    "brain" Brain "whole" Whole { upper } "iabs" IAbs "shl" Shl(n) "shr" Shr(n) "sar" Sar(n) "swap" Swap(k)
    "shl_words" ShlWords(n) "sar_words" SarWords(n)
    "narrow" Narrow(n) "part" Part(k)
});
names!(Op {
    "args" Args
    "stack_arg" StackArg(n)
    "int" Int(x)
    "int_literal" IntLiteral(k)
    "add_imm" AddImm(x)
    "add" Add
    "and_imm" AndImm(x)
    "mul_imm" MulImm(x)
    "mul" Mul
    "quotient" Quotient
    "shr_imm" ShrImm(n)
    "lesser" Lesser
    "greater" Greater
    "address" Address
    "first" First(bits)
    "const" Const(x)
    "literal" Literal(k, bits)
    "table" Table(x)
    "lane_numbers" LaneNumbers(x)
    "byte_numbers" ByteNumbers(x)
    "some_lanes" SomeLanes(x)
    "iota" Iota(by, bits)
    "splat" Splat(bits)
    "splat_float" SplatFloat
    "first_lanes" FirstLanes(n)
    "load" Load(form)
    "load_first" LoadFirst(form, n)
    "gather" Gather(form)
    "broadcast" Broadcast(form)
    "load_strided" LoadStrided(form)
    "load_indexed" LoadIndexed(form)
    "element" Element(form, f)
    "number" Number(x, f)
    "prefetch" Prefetch { far }
    "store" Store(form)
    "store_strided" StoreStrided(form)
    "store_first" StoreFirst(form, n)
    "store_lane" StoreLane(form, lane)
    "scatter" Scatter(form)
    "any_lane" AnyLane
    "store_scalar" StoreScalar(bits)
    "bin" Bin(op, bits)
    "bin_scalar" BinScalar { op, bits, f, reversed }
    "bin_int" BinInt(op, bits)
    "un" Un(op, bits)
    "fma" Fma { neg, bits }
    "fma231" Fma231 { neg, bits }
    "fma213" Fma213 { neg, bits }
    "fma_scalar" FmaScalar { neg, bits, f }
    "fma_lane" FmaLane { neg, bits, lane }
    "fma_halves" FmaHalves { lane }
    "mul_halves" MulHalves { lane }
    "bin_halves" BinHalves(op)
    "dot" Dot(bytes)
    "dot_lane" DotLane { bytes, swapped, lane }
    "mul_bytes" MulBytes { bytes, upper }
    "add_mul_bytes" AddMulBytes { bytes, upper }
    "add_pairs" AddPairs(bytes)
    "bytes_from" BytesFrom
    "bytes_into" BytesInto
    "dot8" Dot8 { of, swapped }
    "matrix_dot" MatrixDot { of, swapped }
    "lanes_swapped" LanesSwapped(k, bits)
    "permuted" Permuted(bits)
    "splat_scalar" SplatScalar(bits, f)
    "zip" Zip { bits, upper }
    "unzip" Unzip { odd }
    "unzip_blocks" UnzipBlocks { odd }
    "permute2" Permute2
    "permute_words2" PermuteWords2
    "dot2" Dot2
    "cmp" Cmp(pred, bits)
    "icmp" ICmp(pred, bits)
    "ucmp" UCmp(pred, bits)
    "mask_and" MaskAnd
    "mask_or" MaskOr
    "mask_xor" MaskXor
    "select" Select(bits)
    "select_into" SelectInto(bits, argument)
    "jump" Jump
    "branch_less" BranchLess(than)
    "ret" Ret
    "ret_any" RetAny
});

impl Piece for Option<i32> {
    fn put(&self, out: &mut Vec<String>) {
        out.extend(self.map(|x| x.to_string()));
    }
    fn take(from: &mut dyn Iterator<Item = &str>) -> Option<Self> {
        match from.next() {
            None => Some(None),
            Some(x) => Some(Some(x.parse().ok()?)),
        }
    }
}

impl<T: Piece + Copy + Default, const N: usize> Piece for [T; N] {
    fn put(&self, out: &mut Vec<String>) {
        self.iter().for_each(|x| x.put(out));
    }
    fn take(from: &mut dyn Iterator<Item = &str>) -> Option<Self> {
        let mut all = [T::default(); N];
        for x in &mut all {
            *x = T::take(from)?;
        }
        Some(all)
    }
}

/// Tables of a text live as long as the program: those of functions are part of it.
impl Piece for &'static Table {
    fn put(&self, out: &mut Vec<String>) {
        (**self).put(out);
    }
    fn take(from: &mut dyn Iterator<Item = &str>) -> Option<Self> {
        Some(Box::leak(Box::new(Piece::take(from)?)))
    }
}

fn dots(p: &impl Piece) -> String {
    let mut out = vec![];
    p.put(&mut out);
    out.join(".")
}

fn undotted<P: Piece>(text: &str) -> Option<P> {
    let mut parts = text.split('.');
    let p = P::take(&mut parts)?;
    parts.next().is_none().then_some(p)
}

fn list<T>(all: &[T], each: impl Fn(&T) -> String) -> String {
    if all.is_empty() {
        return String::new();
    }
    format!(" ({})", all.iter().map(each).collect::<Vec<_>>().join(", "))
}

/// The function as text.
pub fn print(f: &Func) -> String {
    let name = |v: &Value| format!("v{}", v.0);
    let typed = |v: &Value| format!("v{}: {}", v.0, f.classes.get(v.0 as usize).map_or("?".into(), dots));
    let mut s = format!("tile {}", dots(&f.width));
    s += if f.long { " long" } else { "" };
    s += if f.in_order { " in_order" } else { "" };
    s += match f.adjacent {
        Adjacent::Apart => " apart",
        Adjacent::ApartIfNear => "",
        Adjacent::Together => " together",
    };
    s += if f.halves { " halves" } else { "" };
    s += if f.in_words { " in_words" } else { "" };
    s += if f.in_quads { " in_quads" } else { "" };
    let _ = writeln!(s, "{}", list(&f.params, name));
    for (i, b) in f.blocks.iter().enumerate() {
        let _ = writeln!(s, "block {i}{}", list(&b.params, typed));
        for (j, n) in b.nodes.iter().enumerate() {
            s += "  ";
            if let Some(d) = &n.def {
                let _ = write!(s, "{} = ", typed(d));
            }
            s += &dots(&n.op);
            n.args.iter().for_each(|a| _ = write!(s, " {}", name(a)));
            if let Some(m) = &n.mem {
                let _ = write!(s, " [{}{}", if m.each { "each " } else { "" }, name(&m.base));
                if let Some((v, scale)) = &m.index {
                    let _ = write!(s, " + {scale}*{}", name(v));
                }
                if m.disp != 0 {
                    let _ = write!(s, " + {}", m.disp);
                }
                s.push(']');
            }
            if let Some(x) = &n.literal {
                let _ = write!(s, " = {}", dots(x));
            }
            if j + 1 == b.nodes.len() && !b.succs.is_empty() {
                let to: Vec<String> = b.succs.iter().map(usize::to_string).collect();
                let _ = write!(s, " -> {}{}", to.join(" "), list(&b.jump_args, name));
            }
            s.push('\n');
        }
    }
    s
}

/// The function of a text; what is wrong, with its line.
pub fn parse(text: &str) -> Result<Func, String> {
    let mut f = Func {
        width: Width::Avx2,
        long: false,
        in_order: false,
        adjacent: Adjacent::ApartIfNear,
        halves: false,
        in_words: false,
        in_quads: false,
        params: vec![],
        classes: vec![],
        blocks: vec![],
    };
    let mut lines = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty() && !l.starts_with(';'));
    let wrong = |(i, l): (usize, &str)| format!("line {}: {}", i + 1, l.trim());
    let head = lines.next().ok_or("no tile")?;
    Words::of(&mut f, head.1).head().ok_or_else(|| wrong(head))?;
    for l in lines {
        Words::of(&mut f, l.1).block_or_node().ok_or_else(|| wrong(l))?;
    }
    for i in 0..f.blocks.len() {
        for to in f.blocks[i].succs.clone() {
            f.blocks.get_mut(to).ok_or_else(|| format!("there is no block {to}"))?.preds.push(i);
        }
    }
    Ok(f)
}

/// A line that is being read.
struct Words<'a> {
    f: &'a mut Func,
    words: std::iter::Peekable<std::vec::IntoIter<&'a str>>,
}

impl<'a> Words<'a> {
    fn of(f: &'a mut Func, line: &'a str) -> Self {
        let mut words = vec![];
        for w in line.split_whitespace() {
            let start = w.trim_start_matches(['(', '[']);
            words.extend((0..w.len() - start.len()).map(|i| &w[i..=i]));
            let body = start.trim_end_matches([')', ']', ',', ':']);
            if !body.is_empty() {
                words.push(body);
            }
            words.extend((body.len()..start.len()).map(|i| &start[i..=i]));
        }
        Words { f, words: words.into_iter().peekable() }
    }
    fn eat(&mut self, w: &str) -> bool {
        self.words.next_if(|x| *x == w).is_some()
    }
    fn head(&mut self) -> Option<()> {
        self.eat("tile").then_some(())?;
        self.f.width = undotted(self.words.next()?)?;
        self.f.long = self.eat("long");
        self.f.in_order = self.eat("in_order");
        self.f.adjacent = if self.eat("apart") {
            Adjacent::Apart
        } else if self.eat("together") {
            Adjacent::Together
        } else {
            Adjacent::ApartIfNear
        };
        self.f.halves = self.eat("halves");
        self.f.in_words = self.eat("in_words");
        self.f.in_quads = self.eat("in_quads");
        self.f.params = self.list(|l| l.value(Some(Class::Int)))?;
        self.words.next().is_none().then_some(())
    }
    fn list<T>(&mut self, each: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut out = vec![];
        if self.eat("(") {
            while !self.eat(")") {
                out.push(each(self)?);
                self.eat(",");
            }
        }
        Some(out)
    }
    /// A value; of a definition, with its class.
    fn value(&mut self, class: Option<Class>) -> Option<Value> {
        let n: u32 = self.words.next()?.strip_prefix('v')?.parse().ok()?;
        // No function has nearly as many.
        if n > 1 << 20 {
            return None;
        }
        let least = n as usize + 1;
        if self.f.classes.len() < least {
            self.f.classes.resize(least, Class::Int);
        }
        if let Some(c) = class {
            self.f.classes[n as usize] = c;
        }
        Some(Value(n))
    }
    fn definition(&mut self) -> Option<Value> {
        let v = self.value(None)?;
        self.eat(":").then_some(())?;
        self.f.classes[v.0 as usize] = undotted(self.words.next()?)?;
        Some(v)
    }
    fn block_or_node(&mut self) -> Option<()> {
        if self.eat("block") {
            let number: usize = self.words.next()?.parse().ok()?;
            let params = self.list(Self::definition)?;
            self.f.blocks.push(Block { params, ..Block::default() });
            return (number + 1 == self.f.blocks.len() && self.words.next().is_none()).then_some(());
        }
        let is_value = |w: &&str| w.strip_prefix('v').is_some_and(|n| n.parse::<u32>().is_ok());
        let def = if self.words.peek().is_some_and(is_value) {
            let v = self.definition()?;
            self.eat("=").then_some(())?;
            Some(v)
        } else {
            None
        };
        let op = undotted(self.words.next()?)?;
        let mut args = vec![];
        while self.words.peek().is_some_and(is_value) {
            args.push(self.value(None)?);
        }
        let mem = if self.eat("[") { Some(self.memory()?) } else { None };
        let literal = if self.eat("=") { Some(undotted(self.words.next()?)?) } else { None };
        let (mut succs, mut jump_args) = (vec![], vec![]);
        if self.eat("->") {
            while let Some(n) = self.words.next_if(|w| *w != "(") {
                succs.push(n.parse().ok()?);
            }
            jump_args = self.list(|l| l.value(None))?;
        }
        let b = self.f.blocks.last_mut()?;
        b.nodes.push(Node { op, args, mem, literal, def, line: Line::default() });
        (b.succs, b.jump_args) = (succs, jump_args);
        self.words.next().is_none().then_some(())
    }
    fn memory(&mut self) -> Option<Mem> {
        let each = self.eat("each");
        let mut m = Mem { each, ..Mem::at(self.value(None)?, 0) };
        while self.eat("+") {
            let w = self.words.next()?;
            match w.split_once("*v") {
                Some((scale, v)) => m.index = Some((Value(v.parse().ok()?), scale.parse().ok()?)),
                None => m.disp = w.parse().ok()?,
            }
        }
        self.eat("]").then_some(m)
    }
}
