//! Each rule with a function that breaks it.

use super::super::builder::{Builder, Count};
use super::super::ir::{Bin, Bits, Class, Form, Func, Mem, Node, Op, Un, Value, Width};
use super::super::isa;

/// y[i] = x[i] + x[i] in a loop of four.
fn good() -> Func {
    let mut b = Builder::new(Width::Avx2, false, false);
    let (x, y) = (b.param(), b.param());
    let start = b.f32(0.0);
    let l = b.open_loop(Count::Fixed(16), false, &[start]);
    let at = |base: Value| Mem { index: Some((l.i, 4)), ..Mem::at(base, 0) };
    let v = b.load(Form::B32, at(x), None);
    let sum = b.bin(Bin::Add, l.inside[0], v);
    b.store(Form::B32, at(y), sum, None);
    b.close_loop(l, 8, &[sum]);
    b.finish(None)
}

fn found(f: &Func) -> String {
    super::verify(f, isa::machine(f.width)).err().unwrap_or_else(|| "no fault".into())
}

fn first(f: &Func, is: impl Fn(&Op) -> bool) -> (usize, usize) {
    let at =
        |(i, b): (usize, &super::super::ir::Block)| b.nodes.iter().position(|n| is(&n.op)).map(|j| (i, j));
    f.blocks.iter().enumerate().find_map(at).expect("the operation")
}

#[test]
fn faults_are_found() {
    assert_eq!(found(&good()), "no fault");
    type Change = fn(&mut Func);
    let changes: &[(Change, &str)] = &[
        (|f| f.params.push(f.params[0]), "has two definitions"),
        (|f| f.params.push(Value(9999)), "is no value of the function"),
        (
            |f| {
                let (b, i) = first(f, |o| matches!(o, Op::Load(_)));
                let n = f.blocks[b].nodes.remove(i);
                let at = f.blocks[b].nodes.len() - 1;
                f.blocks[b].nodes.insert(at, n);
            },
            "is used before its definition",
        ),
        (
            |f| {
                let (b, i) = first(f, |o| matches!(o, Op::Bin(..)));
                let p = f.params[0];
                f.blocks[b].nodes[i].args[0] = p;
            },
            "found Some(Int), expected Vector",
        ),
        (
            |f| {
                let (b, i) = first(f, |o| matches!(o, Op::Bin(..)));
                f.blocks[b].nodes[i].args.clear();
            },
            "found 0 operands, expected 2",
        ),
        (
            |f| {
                let (b, i) = first(f, |o| matches!(o, Op::Load(_)));
                f.blocks[b].nodes[i].mem = None;
            },
            "a memory operand is missing",
        ),
        (
            |f| {
                let (b, i) = first(f, |o| matches!(o, Op::Store(_)));
                let d = Value(f.classes.len() as u32);
                f.classes.push(Class::Vector);
                f.blocks[b].nodes[i].def = Some(d);
            },
            "expected None",
        ),
        (
            |f| {
                let (b, i) = first(f, |o| matches!(o, Op::Bin(..)));
                f.blocks[b].nodes[i].op = Op::Bin(Bin::Scale, Bits::B32);
            },
            "an operation that the machine does not have",
        ),
        (
            |f| {
                let (b, i) = first(f, |o| matches!(o, Op::Bin(..)));
                f.blocks[b].nodes[i].op = Op::Un(Un::TruncLong, Bits::B64);
                f.blocks[b].nodes[i].args.truncate(1);
            },
            "an operation that the machine does not have",
        ),
        (
            |f| {
                let jump = Node { op: Op::Jump, ..f.blocks[0].nodes[0].clone() };
                f.blocks[0].nodes.insert(1, Node { args: vec![], mem: None, def: None, ..jump })
            },
            "a block does not end where it leaves",
        ),
        (|f| f.blocks[0].succs.clear(), "it goes to another number of blocks than its last instruction says"),
        (
            |f| {
                let s = f.blocks[0].succs[0];
                f.blocks[s].preds.retain(|p| *p != 0);
            },
            "a successor does not list it as a predecessor",
        ),
        (
            |f| {
                let last = f.blocks.len() - 1;
                f.blocks[0].preds.push(last);
            },
            "a predecessor does not go to it",
        ),
        (
            |f| {
                let b = f.blocks.iter().position(|b| b.succs.len() == 2).expect("a branch");
                let p = f.params[0];
                f.blocks[b].jump_args = vec![p];
            },
            "it hands over values and has several successors",
        ),
        (
            |f| {
                let b = f
                    .blocks
                    .iter()
                    .position(|b| !b.jump_args.is_empty())
                    .expect("a loop that carries something");
                f.blocks[b].jump_args.clear();
            },
            "it does not hand over what its successor takes",
        ),
    ];
    for (change, fault) in changes {
        let mut f = good();
        change(&mut f);
        let text = found(&f);
        assert!(text.contains(fault), "expected \"{fault}\", found {text}");
    }
}
