//! What functions share that differ in numbers.

use super::merge;
use crate::codegen::tile::ir::{Func, Literal, Node, Op};
use crate::codegen::tile::{compile, isa, text, verify};

/// Rows of sums: their number, the distance of rows, steps and the increment of a pointer, and where results
/// are.
fn sums(rows: i32, distance: i32, steps: i32, increment: i32, to: i32) -> Func {
    let (row, sums) = (|r: i32| 100 + r, |r: i32| 200 + r);
    let carried = |of: &dyn Fn(i32) -> i32, class: &str| {
        (0..rows).map(|r| format!(", v{}{class}", of(r))).collect::<String>()
    };
    let mut f = String::from("tile avx512 (v0, v1, v2)\nblock 0\n  args\n  v3: vector = const.word.0\n");
    f += &format!("  v4: int = int.0\n  jump -> 1 (v4, v1{})\n", carried(&|_| 3, ""));
    f += &format!("block 1 (v5: int, v6: int{})\n", carried(&row, ": vector"));
    f += "  v7: vector = load.b32 [v6]\n";
    for r in 0..rows {
        f += &format!("  v{}: vector = broadcast.b32 [v0 + 4*v5 + {}]\n", 300 + r, r * distance);
        f += &format!("  v{}: vector = fma.false.b32 v{} v7 v{}\n", sums(r), 300 + r, row(r));
    }
    f += &format!("  v8: int = add_imm.{increment} v6\n  v9: int = add_imm.1 v5\n");
    f += &format!("  branch_less.{steps} v9 -> 2 3\nblock 2\n  jump -> 1 (v9, v8{})\n", carried(&sums, ""));
    f += "block 3\n";
    (0..rows).for_each(|r| f += &format!("  store.b32 v{} [v2 + {}]\n", sums(r), to + 64 * r));
    text::parse(&(f + "  ret\n")).unwrap()
}

/// The only result of merging functions.
fn shared(all: &[Func]) -> Func {
    let merged = merge(&all.iter().collect::<Vec<_>>());
    assert_eq!(merged.len(), 1, "they do not share code");
    assert!(merged[0].users.iter().all(|u| u.1.is_some()));
    let func = merged[0].func.clone();
    verify::verify(&func, isa::machine(func.width)).unwrap();
    compile(&func).unwrap();
    func
}

#[test]
fn sizes_are_passed() {
    let f =
        shared(&[sums(13, 4096, 512, 64, 0), sums(13, 2048, 256, 128, 128), sums(13, 1024, 128, 192, 256)]);
    let count =
        |block: usize, of: &dyn Fn(&Node) -> bool| f.blocks[block].nodes.iter().filter(|n| of(n)).count();
    assert_eq!(count(0, &|n| matches!(n.op, Op::IntLiteral(_))), 3, "the distance, and 3 and 5 times it");
    assert_eq!(count(1, &|n| n.op == Op::Address), 1, "a pointer to row 0");
    assert_eq!(count(1, &|n| n.op == Op::Add && n.literal.is_none()), 1, "a pointer to row 5");
    assert_eq!(count(1, &|n| n.mem.is_some_and(|m| m.disp != 0)), 0);
    assert_eq!(count(1, &|n| matches!(n.literal, Some(Literal::Integer(_)))), 2, "increment and trip count");
    assert_eq!(count(3, &|n| matches!(n.op, Op::IntLiteral(_))), 1, "where the results are");
}

#[test]
fn literals_precede_their_first_use() {
    let of = |far: i32| {
        let mut f = String::from("tile avx512 (v0, v1, v2)\nblock 0\n  args\n");
        f += &format!("  v3: vector = load.b32 [v0 + 64]\n  v4: vector = load.b32 [v1 + {far}]\n");
        f += &format!("  v5: vector = bin.add.b32 v3 v4\n  store.b32 v5 [v0 + {far}]\n");
        (0..90).for_each(|i| f += &format!("  store.b32 v4 [v2 + {}]\n", 64 * i));
        text::parse(&(f + "  ret\n")).unwrap()
    };
    let f = shared(&[of(4096), of(8192)]);
    assert_eq!(f.blocks[0].nodes.iter().filter(|n| matches!(n.op, Op::IntLiteral(_))).count(), 1);
}

#[test]
fn unrelated_distances_are_not_shared() {
    let mut other = sums(13, 2048, 256, 128, 128);
    let mut loads = other.blocks[1].nodes.iter_mut().filter_map(|n| n.mem.as_mut());
    loads.nth(5).unwrap().disp += 4;
    let merged = merge(&[&sums(13, 4096, 512, 64, 0), &sums(13, 1024, 128, 192, 256), &other]);
    assert_eq!(merged.len(), 3);
}

#[test]
fn innermost_loops_keep_integers_in_registers() {
    let of = |far: i32| {
        let params: Vec<String> = (0..12).map(|i| format!("v{i}")).collect();
        let mut f = format!("tile avx512 ({})\nblock 0\n  args\n", params.join(", "));
        (6..12).for_each(|i| f += &format!("  v{i}: int = stack_arg.{}\n", i - 6));
        f += "  v20: int = int.0\n  v21: vector = const.word.0\n  jump -> 1 (v20)\nblock 1 (v22: int)\n";
        for i in 0..12 {
            f += &format!("  store.b32 v21 [v{i} + 4*v22]\n  store.b32 v21 [v{i} + 4*v22 + {}]\n", far << i);
        }
        f += "  v23: int = add_imm.16 v22\n  branch_less.512 v23 -> 2 3\n";
        text::parse(&(f + "block 2\n  jump -> 1 (v23)\nblock 3\n  ret\n")).unwrap()
    };
    assert_eq!(merge(&[&of(1024), &of(2048)]).len(), 2);
}
