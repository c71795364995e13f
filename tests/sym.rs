//! The algebra of dims against plain evaluation: canonical forms, proofs, text, broadcasting, and the shapes
//! that networks produce.

use onnxc::sym::broadcast::stride_factor;
use onnxc::sym::text::{DimOption, display_with, parse, parse_dim_option};
use onnxc::sym::{Answer, Condition, Dim, Range, Sym, SymKind, SymTable};
use proptest::prelude::*;

/// An expression before any simplification.
#[derive(Clone, Debug)]
enum E {
    Const(i64),
    Sym(u32),
    Op(Op, Box<E>, Box<E>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    Add,
    Sub,
    Mul,
    Floor,
    Ceil,
    Mod,
    Min,
    Max,
}

const ALL: &[Op] = &[Op::Add, Op::Sub, Op::Mul, Op::Floor, Op::Ceil, Op::Mod, Op::Min, Op::Max];
/// Rule 6 of the canonical form depends on the order of additions.
const NO_MOD: &[Op] = &[Op::Add, Op::Sub, Op::Mul, Op::Floor, Op::Ceil, Op::Min, Op::Max];
/// Nothing that grows fast.
const NO_MUL: &[Op] = &[Op::Add, Op::Sub, Op::Floor, Op::Ceil, Op::Mod, Op::Min, Op::Max];

fn expr(ops: &'static [Op], consts: BoxedStrategy<i64>, syms: u32, depth: u32) -> BoxedStrategy<E> {
    let leaf = prop_oneof![consts.prop_map(E::Const), (0..syms).prop_map(E::Sym)];
    leaf.prop_recursive(depth, 24, 2, move |e| {
        (proptest::sample::select(ops), e.clone(), e).prop_map(|(o, a, b)| E::Op(o, a.into(), b.into()))
    })
    .boxed()
}

fn small() -> BoxedStrategy<i64> {
    prop_oneof![8 => -4i64..9, 1 => Just(64), 1 => Just(16), 1 => Just(-7)].boxed()
}

fn extreme() -> BoxedStrategy<i64> {
    prop_oneof![4 => -3i64..4, 1 => Just(i64::MIN), 1 => Just(i64::MAX), 1 => Just(i64::MIN + 1), 1 => Just(1 << 32), 1 => any::<i64>()].boxed()
}

fn dim(e: &E) -> Dim {
    match e {
        E::Const(c) => Dim::constant(*c),
        E::Sym(s) => Dim::sym(Sym(*s)),
        E::Op(o, a, b) => apply(*o, dim(a), dim(b)),
    }
}

fn apply(o: Op, a: Dim, b: Dim) -> Dim {
    match o {
        Op::Add => a + b,
        Op::Sub => a - b,
        Op::Mul => a * b,
        Op::Floor => a.floor_div(b),
        Op::Ceil => a.ceil_div(b),
        Op::Mod => a.modulo(b),
        Op::Min => a.min(b),
        Op::Max => a.max(b),
    }
}

fn floor(a: i128, b: i128) -> Option<i128> {
    let q = a.checked_div(b)?;
    Some(q - i128::from(a % b != 0 && (a < 0) != (b < 0)))
}

/// The value by definition; `None` on a division by zero or beyond 128 bits.
fn value(e: &E, at: &[i64]) -> Option<i128> {
    Some(match e {
        E::Const(c) => i128::from(*c),
        E::Sym(s) => i128::from(at[*s as usize]),
        E::Op(o, a, b) => {
            let (a, b) = (value(a, at)?, value(b, at)?);
            match o {
                Op::Add => a.checked_add(b)?,
                Op::Sub => a.checked_sub(b)?,
                Op::Mul => a.checked_mul(b)?,
                Op::Floor => floor(a, b)?,
                Op::Ceil => -floor(a.checked_neg()?, b)?,
                Op::Mod => a.checked_sub(b.checked_mul(floor(a, b)?)?)?,
                Op::Min => a.min(b),
                Op::Max => a.max(b),
            }
        }
    })
}

fn eval(d: Dim, at: &[i64]) -> Option<i64> {
    d.eval(&|s| at.get(s.0 as usize).copied())
}

fn name(s: Sym) -> String {
    format!("s{}", s.0)
}

fn from_name(n: &str) -> Option<Sym> {
    n.strip_prefix('s')?.parse().ok().map(Sym)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn dims_mean_what_was_written(e in expr(ALL, small(), 3, 5), at in prop::collection::vec(-9i64..20, 3)) {
        if let (Some(v), Some(w)) = (eval(dim(&e), &at), value(&e, &at)) {
            prop_assert_eq!(i128::from(v), w, "{:?}", dim(&e));
        }
    }
    #[test]
    fn extreme_numbers_never_wrap(e in expr(ALL, extreme(), 2, 5), at in prop::collection::vec(extreme(), 2)) {
        if let (Some(v), Some(w)) = (eval(dim(&e), &at), value(&e, &at)) {
            prop_assert_eq!(i128::from(v), w, "{:?}", dim(&e));
        }
    }
    #[test]
    fn simplification_loses_no_value(e in expr(NO_MUL, small(), 3, 4), at in prop::collection::vec(-9i64..20, 3)) {
        if let Some(w) = value(&e, &at) {
            prop_assert_eq!(eval(dim(&e), &at).map(i128::from), Some(w), "{:?}", dim(&e));
        }
    }
    #[test]
    fn order_of_operations_is_forgotten(e in prop::collection::vec(expr(NO_MOD, small(), 3, 3), 3)) {
        let [a, b, c] = [dim(&e[0]), dim(&e[1]), dim(&e[2])];
        for o in [Op::Add, Op::Mul, Op::Min, Op::Max] {
            prop_assert_eq!(apply(o, a, b), apply(o, b, a));
            prop_assert_eq!(apply(o, apply(o, a, b), c), apply(o, a, apply(o, b, c)), "{:?} of {:?}, {:?}, {:?}", o, a, b, c);
        }
        prop_assert_eq!(a * (b + c), a * b + a * c);
        prop_assert_eq!(a.min(a), a);
        if !(a + b).is_overflow() {
            prop_assert_eq!((a - b) + b, a);
            prop_assert_eq!(-(-a), a);
        }
    }
    #[test]
    fn substitution_is_evaluation(e in expr(ALL, small(), 3, 4), r in expr(ALL, small(), 3, 3), at in prop::collection::vec(-9i64..20, 3)) {
        let (d, with) = (dim(&e), dim(&r));
        let put = d.subst(&mut |s| (s == Sym(1)).then_some(with));
        if let Some(x) = eval(with, &at) {
            let changed = [at[0], x, at[2]];
            if let (Some(v), Some(w)) = (eval(put, &at), eval(d, &changed)) {
                prop_assert_eq!(v, w);
            }
        }
        let numbers = d.subst(&mut |s| Some(Dim::constant(at[s.0 as usize])));
        if let Some(v) = eval(d, &at) {
            prop_assert!(numbers.as_const().is_none_or(|n| n == v));
        }
        prop_assert_eq!(d.subst(&mut |_| None), d);
    }
    #[test]
    fn parts_make_the_whole(e in expr(ALL, small(), 3, 4)) {
        let d = dim(&e);
        let (rest, c) = d.split_const();
        prop_assert_eq!(rest + c, d);
        for s in [Sym(0), Sym(1), Sym(2)] {
            prop_assert_eq!(d.contains(s), d.syms().contains(&s));
            if let Some((a, b)) = d.linear_in(s) {
                prop_assert!(!a.contains(s) && !b.contains(s));
                if !d.is_overflow() {
                    prop_assert_eq!(a * Dim::sym(s) + b, d);
                }
            }
        }
    }
    #[test]
    fn text_reads_back(e in prop_oneof![expr(ALL, small(), 3, 5), expr(ALL, extreme(), 3, 4)]) {
        let d = dim(&e);
        let text = display_with(d, &name);
        prop_assert_eq!(parse(&text, &mut from_name), Ok(d), "{}", text);
    }
    #[test]
    fn any_text_is_read_or_refused(t in "[-+*(),' a-z0-9é]{0,40}") {
        let _ = parse(&t, &mut from_name);
        let _ = parse_dim_option(&t);
    }
    #[test]
    fn odd_names_read_back(names in prop::collection::vec("[a-z0-9' .é_-]{0,6}|overflow|min|mod", 1..4)) {
        let mut t = SymTable::new();
        let d = Dim::sum(names.iter().map(|n| t.param(n)).collect::<Vec<_>>().into_iter().map(|s| Dim::sym(s) * 3));
        let text = d.display(&t).to_string();
        prop_assert_eq!(parse(&text, &mut |n| t.lookup(n)), Ok(d), "{}", text);
    }
}

/// Two params and two loop variables, the second loop inside the first.
#[derive(Clone, Debug)]
struct World {
    lo: [i64; 2],
    hi: [Option<i64>; 2],
    loops: [(E, E); 2],
}

fn world() -> impl Strategy<Value = World> {
    let hi = |syms: u32| {
        prop_oneof![
            2 => prop_oneof![1i64..9, Just(64)].prop_map(E::Const),
            2 => (0..syms).prop_map(E::Sym),
            2 => (proptest::sample::select(&[Op::Add, Op::Ceil, Op::Floor, Op::Mul, Op::Min][..]), 0..syms, 1i64..5).prop_map(|(o, s, c)| E::Op(o, E::Sym(s).into(), E::Const(c).into())),
        ]
    };
    let lo = prop_oneof![3 => Just(E::Const(0)), 1 => (-3i64..3).prop_map(E::Const)];
    (
        prop::array::uniform2(0i64..4),
        prop::array::uniform2(prop::option::of(0i64..5)),
        (lo.clone(), hi(2)),
        (lo, hi(3)),
    )
        .prop_map(|(lo, w, a, b)| World {
            lo,
            hi: [w[0].map(|w| lo[0] + w), w[1].map(|w| lo[1] + w)],
            loops: [a, b],
        })
}

impl World {
    fn table(&self) -> SymTable {
        let mut t = SymTable::new();
        for (i, n) in ["A", "B"].iter().enumerate() {
            let s = t.param(n);
            t.set_range(s, Range { lo: Some(self.lo[i]), hi: self.hi[i] });
        }
        for (n, (lo, hi)) in ["i", "j"].iter().zip(&self.loops) {
            t.loop_var(n, dim(lo), dim(hi));
        }
        t
    }
    /// Every iteration for some values of the params.
    fn points(&self) -> Vec<[i64; 4]> {
        let mut out = vec![];
        let ends = |k: usize, at: &[i64]| {
            let v = |e: &E| value(e, at).unwrap_or(0) as i64;
            (v(&self.loops[k].0), v(&self.loops[k].1))
        };
        let thin = |(lo, hi): (i64, i64)| (lo..hi).filter(move |v| v - lo < 5 || hi - v < 4);
        for a in self.lo[0]..=self.hi[0].unwrap_or(self.lo[0] + 6) {
            for b in self.lo[1]..=self.hi[1].unwrap_or(self.lo[1] + 6) {
                for i in thin(ends(0, &[a, b, 0, 0])) {
                    for j in thin(ends(1, &[a, b, i, 0])) {
                        out.push([a, b, i, j]);
                    }
                }
            }
        }
        out
    }
}

fn check_proofs(t: &SymTable, points: &[[i64; 4]], x: &E, y: &E) -> Result<(), TestCaseError> {
    let (a, b) = (dim(x), dim(y));
    let simple = t.simplify(a);
    let (le, lt, eq, divides) = (t.le(a, b), t.lt(a, b), t.eq(a, b), t.divides(b, a));
    let (nonneg, pos, inside, range) = (t.is_nonneg(a), t.is_pos(a), t.in_range(a, b), t.range(a));
    let agrees = |answer: Answer, truth: bool| answer == Answer::Unknown || (answer == Answer::Yes) == truth;
    for p in points {
        // Where the expression itself has no value there is nothing to prove.
        let (Some(v), Some(w)) = (value(x, p), value(y, p)) else { continue };
        let what = || format!("{} = {v} and {} = {w} at {p:?}", a.display(t), b.display(t));
        prop_assert!(!nonneg || v >= 0, "nonneg: {}", what());
        prop_assert!(!pos || v > 0, "pos: {}", what());
        prop_assert!(agrees(le, v <= w), "le {le:?}: {}", what());
        prop_assert!(agrees(lt, v < w), "lt {lt:?}: {}", what());
        prop_assert!(agrees(eq, v == w), "eq {eq:?}: {}", what());
        prop_assert!(
            agrees(divides, if w == 0 { v == 0 } else { v % w == 0 }),
            "divides {divides:?}: {}",
            what()
        );
        prop_assert!(!inside || (0 <= v && v < w), "in range: {}", what());
        prop_assert!(range.contains(v as i64), "range {range:?}: {}", what());
        if let Some(s) = eval(simple, p) {
            prop_assert_eq!(i128::from(s), v, "simplify {}: {}", simple.display(t), what());
        }
    }
    Ok(())
}

/// Index arithmetic as loop nests have it.
fn index() -> BoxedStrategy<E> {
    let op = |o: Op, a: E, b: E| E::Op(o, a.into(), b.into());
    let k = prop_oneof![Just(2i64), Just(3), Just(4), Just(8), Just(64)];
    let affine = (k.clone(), 0u32..4, 0u32..4, -3i64..4).prop_map(move |(k, s, r, c)| {
        op(Op::Add, op(Op::Add, op(Op::Mul, E::Const(k), E::Sym(s)), E::Sym(r)), E::Const(c))
    });
    let split = (affine.clone(), proptest::sample::select(&[Op::Floor, Op::Mod, Op::Ceil][..]), k.clone())
        .prop_map(move |(a, o, k)| op(o, a, E::Const(k)));
    let nested = (split.clone(), proptest::sample::select(ALL), k, 0u32..4)
        .prop_map(move |(a, o, k, s)| op(Op::Sub, op(o, a, E::Const(k)), E::Sym(s)));
    prop_oneof![affine, split, nested].boxed()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn proofs_hold_for_random_expressions(w in world(), x in expr(ALL, small(), 4, 4), y in expr(ALL, small(), 4, 3)) {
        check_proofs(&w.table(), &w.points(), &x, &y)?;
    }
    #[test]
    fn proofs_hold_for_indices(w in world(), x in index(), y in prop_oneof![index(), expr(ALL, small(), 4, 1)]) {
        check_proofs(&w.table(), &w.points(), &x, &y)?;
        check_proofs(&w.table(), &w.points(), &y, &x)?;
    }
    #[test]
    fn proofs_hold_under_facts(w in world(), k in -2i64..3, bind in prop::option::of(0i64..6), x in index(), y in expr(ALL, small(), 4, 2)) {
        let mut t = w.table();
        let mut points = w.points();
        let (a, b) = (t.param("A"), t.param("B"));
        match bind {
            Some(v) => {
                t.bind(a, v);
                points.retain(|p| p[0] == v);
            }
            None => {
                t.equate(Dim::sym(a), Dim::sym(b) + k);
                points.retain(|p| p[0] == p[1] + k);
            }
        }
        check_proofs(&t, &points, &x, &y)?;
    }
    #[test]
    fn broadcast_indices_need_their_condition(n in 0u32..2, recorded in any::<bool>(), hi in 0usize..4, positive in any::<bool>()) {
        let mut t = SymTable::new();
        let (a, b) = (t.param("A"), t.param("B"));
        if positive {
            t.set_range(a, Range::at_least(1));
            t.set_range(b, Range::at_least(1));
        }
        let (da, db) = (Dim::sym(a), Dim::sym(b));
        let hi = [da.max(db), db, da, da.max(db) * da.min(db).min(1)][hi];
        if recorded {
            t.require_broadcast(da, db);
        }
        let i = Dim::sym(t.loop_var("i", Dim::constant(0), hi));
        let extent = [da, db][n as usize];
        let index = i * stride_factor(extent);
        if t.in_range(index, extent) {
            for p in (0..16).map(|v| [v % 4, v / 4]) {
                if positive && p.contains(&0) || recorded && p[0] != p[1] && !p.contains(&1) {
                    continue;
                }
                for v in 0..eval(hi, &p).unwrap_or(0) {
                    let (at, e) = (eval(index, &[p[0], p[1], v]).unwrap_or(-1), eval(extent, &p).unwrap_or(-1));
                    prop_assert!(0 <= at && at < e, "{v} of {hi:?} in {extent:?} at {p:?}");
                }
            }
        }
    }
}

#[test]
fn broadcasting_is_that_of_numpy() {
    let mut t = SymTable::new();
    let (sn, sm) = (t.param("N"), t.param("M"));
    let (n, m) = (Dim::sym(sn), Dim::sym(sm));
    let dims = [Dim::constant(0), Dim::constant(1), Dim::constant(3), n, m, n + 1, n.min(3), m * 2];
    let numpy = |shapes: &[Vec<i64>]| -> Option<Vec<i64>> {
        let rank = shapes.iter().map(Vec::len).max()?;
        (0..rank)
            .map(|k| {
                let at = shapes.iter().filter_map(|s| (k + s.len()).checked_sub(rank).map(|i| s[i]));
                at.into_iter().try_fold(1, |d, x| {
                    if d == x || x == 1 {
                        Some(d)
                    } else if d == 1 {
                        Some(x)
                    } else {
                        None
                    }
                })
            })
            .collect()
    };
    let mut lists: Vec<Vec<Vec<Dim>>> = vec![];
    for a in dims {
        for b in dims {
            lists.push(vec![vec![a], vec![]]);
            lists.push(vec![vec![a, b], vec![b]]);
            for c in dims {
                lists.push(vec![vec![a], vec![b], vec![c]]);
                lists.push(vec![vec![a, b], vec![c, n]]);
            }
        }
    }
    for shapes in lists {
        let views: Vec<&[Dim]> = shapes.iter().map(Vec::as_slice).collect();
        let mut t = t.clone();
        let got = t.broadcast(&views);
        for p in (0..25).map(|v| [v % 5, v / 5]) {
            let at = |d: Dim| eval(d, &p).expect("has a value");
            let want = numpy(&shapes.iter().map(|s| s.iter().map(|d| at(*d)).collect()).collect::<Vec<_>>());
            match &got {
                Err(_) => assert_eq!(want, None, "{shapes:?} at {p:?}"),
                Ok(b) => {
                    let at = |d: Dim| at(t.expanded(d));
                    let holds = |c: &Condition| match *c {
                        Condition::Equal(x, y) => at(x) == at(y),
                        Condition::Broadcast(x, y) => at(x) == at(y) || at(x) == 1 || at(y) == 1,
                        Condition::AtMost(x, y) => at(x) <= at(y),
                    };
                    let legal =
                        [(sn, p[0]), (sm, p[1])].iter().all(|(s, v)| t.declared_range(*s).contains(*v));
                    let pass = legal && t.conditions().iter().all(holds);
                    assert_eq!(pass, want.is_some(), "{shapes:?} at {p:?}: {b:?}");
                    if let Some(w) = want {
                        assert_eq!(b.iter().map(|d| at(*d)).collect::<Vec<_>>(), w, "{shapes:?} at {p:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn dim_options() {
    let ok = |t: &str, n: &str, o: DimOption| assert_eq!(parse_dim_option(t), Ok((n.to_owned(), o)), "{t}");
    ok("N=4", "N", DimOption::Bind(4));
    ok(" batch size = 0 ", "batch size", DimOption::Bind(0));
    ok("a=b=7", "a=b", DimOption::Bind(7));
    ok("N<=32", "N", DimOption::Within(Range { lo: None, hi: Some(32) }));
    ok("N>=1", "N", DimOption::Within(Range::at_least(1)));
    ok("1<=N", "N", DimOption::Within(Range::at_least(1)));
    ok("1 <= N <= 32", "N", DimOption::Within(Range::new(1, 32)));
    for bad in [
        "",
        "N",
        "N=",
        "=4",
        "N=-1",
        "N=x",
        "N<=x",
        "N<4",
        "5<=N<=4",
        "<=4",
        "1<=2<=N<=4",
        "1<=N>=2",
        "N=99999999999999999999",
    ] {
        assert!(parse_dim_option(bad).is_err(), "{bad}");
    }
}

#[test]
fn text_errors_say_what_is_wrong() {
    let err = |t: &str| parse(t, &mut from_name).expect_err(t);
    assert!(err("s1 +").contains("expected a number or a name"));
    assert!(err("(s1").contains("missing )"));
    assert!(err("'s1").contains("missing '"));
    assert!(err("floordiv(s1)").contains("two arguments"));
    assert!(err("x").contains("unknown symbol"));
    assert!(err("9223372036854775809999").contains("not a number"));
    assert!(err(&"(".repeat(10_000)).contains("too deeply"));
    assert_eq!(parse("-9223372036854775808", &mut from_name), Ok(Dim::constant(i64::MIN)));
    assert!(parse("9223372036854775808", &mut from_name).is_ok_and(Dim::is_overflow));
}

#[test]
fn loop_names_are_unique() {
    let mut t = SymTable::new();
    let p = t.param("i2");
    let one = Dim::constant(1);
    let vars = [
        t.fresh(SymKind::Runtime, "i"),
        t.loop_var("i", one, one),
        t.loop_var("i", one, one),
        t.loop_var("i1", one, one),
    ];
    let mut names: Vec<String> = vars.iter().chain([&p]).map(|s| t.unique_name(*s)).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 5, "{names:?}");
}

#[test]
fn edge_constants() {
    let (min, max) = (Dim::constant(i64::MIN), Dim::constant(i64::MAX));
    let n = Dim::sym(Sym(0));
    assert_eq!(min.modulo(-1), Dim::constant(0));
    assert!(min.floor_div(-1).is_overflow() && min.ceil_div(-1).is_overflow() && (-min).is_overflow());
    assert_eq!(max.ceil_div(2), Dim::constant(1 << 62));
    assert_eq!(min - min, Dim::constant(0));
    assert_eq!(Dim::constant(-1) - min, max);
    assert!((max * 2).is_overflow() && (min - 1).is_overflow() && ((max * n) * 2).is_overflow());
    assert_eq!(min.min(max), min);
    assert_eq!((n + i64::MIN).max(n + i64::MAX), n + i64::MAX);
    assert!((n.floor_div(0)).is_overflow() && n.modulo(0).is_overflow());
    let q = (min * n).floor_div(-Dim::sym(Sym(1)));
    assert!(!q.is_overflow());
    assert_eq!(Dim::constant(0).modulo(n + Sym(1)), Dim::constant(0));
}

/// Rows of a group in tiles of 13 and 12 rows, in blocks of 6 tiles: none is beyond those of its last tile.
#[test]
fn tiles_of_two_heights_stay_inside() {
    let mut t = SymTable::new();
    let constant = Dim::constant;
    let var = |t: &mut SymTable, hi: Dim| Dim::sym(t.loop_var("i", Dim::constant(0), hi));
    let (tiles, higher) = (var(&mut t, constant(10)), var(&mut t, constant(10)));
    let higher = higher.min(tiles);
    let block = var(&mut t, tiles.ceil_div(6));
    let here = t.simplify((tiles - block * 6).min(constant(6)));
    let higher_here = t.simplify((higher - block * 6).max(constant(0)).min(here));
    let first = block * 72 + higher.min(block * 6);
    let (high, low) = (var(&mut t, higher_here), var(&mut t, here - higher_here));
    let (r13, r12) = (var(&mut t, constant(13)), var(&mut t, constant(12)));
    let row = first + high * 13 + r13;
    assert!(t.in_range(row, constant(117)) && !t.in_range(row, constant(116)));
    let row = first + higher_here * 13 + low * 12 + r12;
    assert!(t.in_range(row, constant(117)) && !t.in_range(row, constant(116)));
}

#[test]
fn shapes_of_networks_fold() {
    let mut t = SymTable::new();
    let (n, c, h, w) = (t.param("N"), t.param("C"), t.param("H"), t.param("W"));
    t.set_range(h, Range::at_least(1));
    let [n, c, h, w] = [n, c, h, w].map(Dim::sym);
    let var = |t: &mut SymTable, hi: Dim| Dim::sym(t.loop_var("i", Dim::constant(0), hi));
    let conv = |x: Dim, k: i64, s: i64, p: i64| (x + (2 * p - k)).floor_div(s) + 1;

    // Same padding keeps the size; two halvings are one quartering.
    assert_eq!(conv(h, 3, 1, 1), h);
    assert_eq!(conv(conv(h, 3, 2, 1), 3, 2, 1), (h - 1).floor_div(4) + 1);
    assert_eq!(h.ceil_div(2).ceil_div(2), h.ceil_div(4));
    assert_eq!((h * 2).floor_div(2), h);
    assert!(t.is_pos(conv(h, 3, 2, 1)));
    // Every tap of an unpadded convolution lies inside.
    for (k, s) in [(1, 1), (3, 1), (3, 2), (2, 2), (7, 4)] {
        let o = var(&mut t, conv(h, k, s, 0));
        let tap = var(&mut t, Dim::constant(k));
        assert!(t.in_range(o * s + tap, h), "kernel {k}, stride {s}");
    }
    // Shape -> Gather -> Concat -> Reshape with -1.
    let known = n * 8;
    assert_eq!((n * c * h * 8).floor_div(known), c * h);
    assert_eq!(t.divides(known, n * c * 8), Answer::Yes);
    assert_eq!((c.floor_div(8) * 8 + c.modulo(8)), c);
    // Minima of multiples are multiples.
    let block = (n * 16).min(Dim::constant(72)) * 3;
    assert_eq!(t.divides(Dim::constant(24), block), Answer::Yes);
    assert_ne!(t.divides(Dim::constant(48), block), Answer::Yes);
    // Delinearised indices.
    let i = var(&mut t, n);
    let j = var(&mut t, Dim::constant(64));
    let k = var(&mut t, Dim::constant(8));
    assert_eq!(t.simplify((i * 64 + j).floor_div(64)), i);
    assert_eq!(t.simplify((i * 64 + j).modulo(64)), j);
    assert_eq!(t.simplify((i * 512 + j * 8 + k).floor_div(512)), i);
    assert_eq!(t.simplify((i * 512 + j * 8 + k).modulo(512)), j * 8 + k);
    assert_eq!(t.simplify((i * 512 + j * 8 + k).floor_div(8).modulo(64)), j);
    let col = var(&mut t, w);
    assert_eq!(t.simplify((i * w + col).floor_div(w)), i);
    assert_eq!(t.simplify((i * w + col).modulo(w)), col);
    assert!(t.in_range(i * w + col, n * w));
    assert!(t.in_range(i * 64 + j, n * 64));
    // Tiles.
    assert_eq!(t.le(w.floor_div(3) * 3, w), Answer::Yes);
    assert_eq!(t.le(w, w.ceil_div(3) * 3), Answer::Yes);
    assert_eq!(t.lt(w.ceil_div(3) * 3, w + 3), Answer::Yes);
    assert!(t.in_range(w - w.floor_div(3) * 3, Dim::constant(3)));
    assert_eq!(t.le(w.floor_div(h) * h, w), Answer::Yes);
    assert_eq!(t.le(w.floor_div(3) * 2, w), Answer::Yes);
    assert_eq!(t.eq(w - w.floor_div(3) * 3, w.modulo(3)), Answer::Yes);
    assert_eq!(t.eq(w.modulo(3) + w.floor_div(3) * 6, w + w.floor_div(3) * 3), Answer::Yes);
    let tile = var(&mut t, w.floor_div(16));
    let lane = var(&mut t, Dim::constant(16));
    assert!(t.in_range(tile * 16 + lane, w));
    let tail = var(&mut t, w.modulo(16));
    assert!(t.in_range(w.floor_div(16) * 16 + tail, w));
    // Upsampling and cropping.
    assert_eq!(t.simplify((h * 2).min(h * 2 + 1)), h * 2);
    let up = var(&mut t, h * 2);
    assert!(t.in_range(up.floor_div(2), h));
    assert!(t.in_range(h - 1 - up.floor_div(2), h));
    let both = var(&mut t, h.min(w));
    assert!(t.in_range(both, h) && t.in_range(both, w));
    assert_eq!(t.eq(h, Dim::constant(0)), Answer::No);
    assert_eq!(t.eq(h, w), Answer::Unknown);
}

#[test]
fn digits_under_a_negative_divisor() {
    let mut t = SymTable::new();
    let var = |t: &mut SymTable, hi: i64| Dim::sym(t.loop_var("i", Dim::constant(0), Dim::constant(hi)));
    let (i, j) = (var(&mut t, 5), var(&mut t, 3));
    for d in [-6, -3, -2, 2, 3, 6] {
        let x = i * 3 + j;
        for e in [x.floor_div(d), x.modulo(d), x.ceil_div(d)] {
            let simple = t.simplify(e);
            for at in (0..15).map(|v| [v / 3, v % 3]) {
                assert_eq!(eval(simple, &at), eval(e, &at), "{} at {at:?}", e.display(&t));
            }
        }
    }
}

#[test]
fn digits_of_a_shifted_quotient() {
    let mut t = SymTable::new();
    let mut var = |hi: i64| Dim::sym(t.loop_var("i", Dim::constant(0), Dim::constant(hi)));
    let (c, i) = (var(48), var(16));
    let x = c * 16 + (i + 1).floor_div(3) + 5;
    // The quotient of the same rows, as a quotient of their elements.
    let e = (c * 48 + i + 16).floor_div(147) * 49 + x.modulo(49);
    assert_eq!(e, x);
}

#[test]
fn hostile_expressions_are_bounded() {
    let mut t = SymTable::new();
    let syms: Vec<Dim> = (0..64).map(|i| Dim::sym(t.param(&format!("p{i}")))).collect();
    // Sharing that doubles the tree with each step.
    let mut d = syms[0];
    for i in 1..200 {
        d = (d.floor_div(syms[i % 64] + 3) * syms[1]).max(d - 1);
    }
    assert!(d.is_overflow());
    // Just below the limit: everything still answers.
    let mut d = syms[0];
    for s in &syms[1..9] {
        d = d.floor_div(*s + 3).max(d.modulo(*s + 2) - 1);
        let _ =
            (t.is_nonneg(d), t.simplify(d), t.eq(d, syms[3]), t.range(d), d.display(&t).to_string().len());
    }
    // 2^64 products.
    assert!(Dim::product(syms.iter().map(|s| *s + 1)).is_overflow());
    // Nesting.
    let deep = (0..100_000).fold(syms[0], |d, i| (d + syms[i % 64]).min(syms[(i + 1) % 64] * 2));
    assert!(deep.is_overflow());
    // A digit for each power of two.
    let bits: Vec<Dim> =
        (0..62).map(|_| Dim::sym(t.loop_var("b", Dim::constant(0), Dim::constant(2)))).collect();
    let x = Dim::sum(bits.iter().enumerate().map(|(k, b)| *b * (1i64 << k)));
    assert_eq!(t.simplify(x.floor_div(1i64 << 61)), bits[61]);
    assert_eq!(t.simplify(x.modulo(1i64 << 61)), x - bits[61] * (1i64 << 61));
    // Loops whose bounds are each other's.
    let (a, b) = (
        t.loop_var("a", Dim::constant(0), Dim::constant(1)),
        t.loop_var("b", Dim::constant(0), Dim::constant(1)),
    );
    t.set_loop_range(a, Dim::sym(b), Dim::sym(b) * 2 + Dim::sym(b).floor_div(3));
    t.set_loop_range(b, Dim::sym(a), Dim::sym(a) * 2 + Dim::sym(a).floor_div(3));
    let _ = (t.is_nonneg(Dim::sym(a) - b), t.range(Dim::sym(a) * b));
    // Many sizes with one hint.
    for _ in 0..20_000 {
        t.fresh(SymKind::Unnamed, "dim");
    }
    assert!(t.lookup("dim_20000").is_some());
}
