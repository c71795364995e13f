//! The house rules as tests: acyclic imports, tables that match the files on disk, docs/operators.md that
//! matches the tables.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(dir: &Path, out: &mut Vec<PathBuf>) {
    for e in std::fs::read_dir(dir).expect("a folder of the repository").flatten() {
        let p = e.path();
        if p.is_dir() {
            rust_files(&p, out);
        } else if p.extension().is_some_and(|x| x == "rs") {
            out.push(p);
        }
    }
}

/// The modules of the crate that each module may import.
const MAY_USE: &[(&str, &[&str])] = &[
    ("diag", &["diag"]),
    ("target", &["diag", "target"]),
    ("sym", &["diag", "maps", "sym"]),
    ("tensor", &["diag", "sym", "tensor"]),
    ("nest", &["diag", "maps", "sym", "tensor", "nest"]),
    ("ops", &["diag", "sym", "tensor", "nest", "ops"]),
    ("graph", &["diag", "sym", "tensor", "ops", "graph"]),
    ("onnx", &["diag", "sym", "tensor", "ops", "graph", "onnx"]),
    ("codegen", &["diag", "maps", "sym", "tensor", "nest", "target", "codegen"]),
];

#[test]
fn imports_point_one_way() {
    let src = root().join("compiler");
    let mut files = vec![];
    rust_files(&src, &mut files);
    let mut wrong = vec![];
    for f in files {
        let module = f
            .strip_prefix(&src)
            .expect("inside")
            .components()
            .next()
            .map(|c| c.as_os_str().to_string_lossy().trim_end_matches(".rs").to_owned())
            .unwrap_or_default();
        let Some((_, allowed)) = MAY_USE.iter().find(|(m, _)| *m == module) else { continue };
        let text = std::fs::read_to_string(&f).expect("readable");
        for (n, line) in text.lines().enumerate().filter(|(_, l)| !l.trim_start().starts_with("//")) {
            for part in line.split("crate::").skip(1) {
                let used: String = part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                if used != "Result" && !used.is_empty() && !allowed.contains(&used.as_str()) {
                    wrong.push(format!("{}:{}: uses crate::{used}", f.display(), n + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_module_says_what_it_is() {
    let mut files = vec![];
    rust_files(&root().join("compiler"), &mut files);
    rust_files(&root().join("runtime-support/src"), &mut files);
    let written =
        |f: &&PathBuf| !f.ends_with("ops/table.rs") && !f.components().any(|c| c.as_os_str() == "generated");
    let bare: Vec<_> = files
        .iter()
        .filter(written)
        .filter(|f| !std::fs::read_to_string(f).expect("readable").starts_with("//!"))
        .collect();
    assert!(bare.is_empty(), "without //! at the top: {bare:?}");
}

/// Passes without a case under tests/cases/nest.
const WITHOUT_CASE: &[&str] = &[];

/// Each row of the pass table has a file of the same name, and vice versa.
#[test]
fn nest_passes_match_the_files() {
    use onnxc::passes::table::NEST_PASSES;
    let dir = root().join("compiler/passes/nest");
    let mut groups: Vec<&str> = NEST_PASSES.iter().map(|p| p.group.folder()).collect();
    groups.sort_unstable();
    groups.dedup();
    let mut on_disk: Vec<String> = vec![];
    for g in &groups {
        // A group may be a single pass, with its parts in the folder.
        if NEST_PASSES.iter().any(|p| p.name == *g) {
            on_disk.push(format!("{g}/{g}"));
            continue;
        }
        let files = std::fs::read_dir(dir.join(g))
            .expect("a group")
            .flatten()
            .filter_map(|e| e.file_name().into_string().ok());
        on_disk.extend(
            files.filter_map(|n| n.strip_suffix(".rs").filter(|n| *n != "mod").map(|n| format!("{g}/{n}"))),
        );
    }
    on_disk.sort();
    let mut in_table: Vec<String> =
        NEST_PASSES.iter().map(|p| format!("{}/{}", p.group.folder(), p.name)).collect();
    in_table.sort();
    assert_eq!(on_disk, in_table);
    let folders =
        std::fs::read_dir(&dir).expect("passes/nest").flatten().filter(|e| e.path().join("mod.rs").exists());
    let others: Vec<String> = folders
        .filter_map(|e| e.file_name().into_string().ok())
        .filter(|n| !groups.contains(&n.as_str()))
        .collect();
    assert_eq!(others, ["analysis"], "a folder without a pass");
    for p in NEST_PASSES {
        let group = dir.join(p.group.folder());
        let file = if p.name == p.group.folder() {
            group.join("mod.rs")
        } else {
            group.join(format!("{}.rs", p.name))
        };
        let text = std::fs::read_to_string(&file).expect("the file of a pass");
        assert!(
            text.starts_with(&format!("//! {}:", p.name)),
            "{} does not begin with the pass's name",
            file.display()
        );
        assert!(text.contains("\npub fn run("), "{} has no `pub fn run`", file.display());
        let cases = root().join("tests/cases/nest").join(p.name);
        let has_case = std::fs::read_dir(&cases).is_ok_and(|d| d.count() > 1);
        assert!(
            has_case != WITHOUT_CASE.contains(&p.name),
            "{} has no case with a module before and after it",
            p.name
        );
        assert!(p.holds.ends_with('.') && p.why.ends_with('.'), "{} says too little", p.name);
    }
}

/// Code must query `target::Caps` for capabilities instead of comparing vector lengths.
#[test]
fn schedules_ask_for_capabilities() {
    let mut files = vec![];
    rust_files(&root().join("compiler/passes"), &mut files);
    let mut wrong = vec![];
    for f in files {
        let text = std::fs::read_to_string(&f).expect("readable");
        let told = |l: &&str| {
            ["lanes >= ", "lanes > 4", "bits < 256", "bits >= 256", "Width::"].iter().any(|w| l.contains(w))
        };
        wrong.extend(text.lines().filter(told).map(|l| format!("{}: {}", f.display(), l.trim())));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn operator_table_matches_the_files() {
    let mut on_disk: Vec<String> = std::fs::read_dir(root().join("compiler/ops"))
        .expect("ops")
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok())
        .filter_map(|n| n.strip_suffix(".rs").map(str::to_owned))
        .collect();
    on_disk.retain(|n| !matches!(n.as_str(), "mod" | "table"));
    on_disk.sort();
    let mut in_table: Vec<String> = onnxc::ops::FAMILIES.iter().map(|(f, _)| f.to_string()).collect();
    in_table.sort();
    in_table.dedup();
    assert_eq!(on_disk, in_table);
}

#[test]
fn every_operator_of_the_table_has_a_schema_and_stands_once() {
    let mut seen = BTreeMap::new();
    for (family, ops) in onnxc::ops::FAMILIES {
        for op in *ops {
            let (domain, name) = op.split_once(':').unwrap_or(("", op));
            assert!(!onnxc::ops::support::schema::versions(domain, name).is_empty(), "{op} has no schema");
            assert!(seen.insert(*op, *family).is_none(), "{op} stands twice");
        }
    }
}

#[test]
fn diagnostic_codes_are_unique() {
    let mut seen = std::collections::BTreeSet::new();
    for (code, name, ..) in onnxc::diag::codes::TABLE {
        assert!(seen.insert(code.0), "{name} repeats its number");
    }
}

/// Operators that tests/versions/run.py does not know: it is ONNX Runtime's own.
const LEFT_OUT: &[&str] = &["SimplifiedLayerNormalization"];

/// Operators of com.microsoft that compute with complex numbers, as those of ONNX that they become.
const PARTS: &[&str] = &["com.microsoft:Unique"];

/// Element types under one name in the table; what is left stands by itself.
const TYPE_GROUPS: &[(&str, &[&str])] = &[
    ("floats", &["float16", "bfloat16", "float", "double"]),
    ("ints", &["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]),
    ("float8s", &["float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"]),
    ("float6s", &["float6e2m3", "float6e3m2"]),
    ("4-bit", &["int4", "uint4", "float4e2m1"]),
    ("2-bit", &["int2", "uint2"]),
    ("complex", &["complex64", "complex128"]),
];

fn grouped(types: &[&str]) -> String {
    let mut left = types.to_vec();
    let mut out = vec![];
    for (name, members) in TYPE_GROUPS {
        if members.iter().all(|m| left.contains(m)) {
            left.retain(|t| !members.contains(t));
            out.push(*name);
        }
    }
    out.extend(left);
    out.join(", ")
}

/// Verdicts of tests/versions/run.py: (operator, version, type variable, type) -> verdict.
fn verdicts() -> BTreeMap<(String, i64, String, String), String> {
    let text = std::fs::read_to_string(root().join("tests/versions/expected.txt")).expect("the verdicts");
    let mut out = BTreeMap::new();
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let (head, types) = line.rsplit_once(':').expect("types behind a colon");
        let mut words = head.split_whitespace();
        let (op, version, var) = (
            words.next().expect("operator"),
            words.next().and_then(|v| v.parse().ok()).expect("version"),
            words.next().expect("type variable"),
        );
        let verdict: Vec<&str> = words.collect();
        for t in types.split_whitespace() {
            out.insert((op.to_owned(), version, var.to_owned(), t.to_owned()), verdict.join(" "));
        }
    }
    out
}

/// The type of a tensor's elements, or of those of all tensors in a sequence or optional; maps as they are.
fn element(t: &str) -> String {
    let inner = ["optional(", "seq(", "tensor("]
        .iter()
        .fold(t, |t, c| t.strip_prefix(c).and_then(|t| t.strip_suffix(')')).unwrap_or(t));
    if inner.starts_with("map(") { t.replace(',', ", ") } else { inner.to_owned() }
}

/// Types of the newest version of an operator, by type variable: those of its schema but those that a verdict
/// says are refused. Where there are no verdicts (other domains than ONNX's), strings and complex numbers are
/// for operators that are known to take them.
fn accepted(
    op: &str,
    schema: &onnxc::ops::Schema,
    verdicts: &BTreeMap<(String, i64, String, String), String>,
) -> String {
    let tested = verdicts.keys().any(|k| k.0 == op);
    let passes = |v: &String| v.starts_with("pass") || v.starts_with("compiles");
    let mut out: Vec<(String, String)> = vec![];
    for (var, types) in &schema.types {
        let tensors = types.iter().any(|t| onnxc::tensor::ElemType::from_onnx_name(t).is_some());
        // Members of sequences have verdicts under the variable that names their type.
        let verdict = |var: &str, t: &str| {
            let same = |k: &(String, i64, String, String)| k.0 == op && k.1 == schema.since && k.3 == t;
            let of =
                |own: bool| verdicts.iter().find(|(k, _)| same(k) && (k.2 == var || !own)).map(|(_, v)| v);
            of(true).or_else(|| if tensors { None } else { of(false) })
        };
        let takes = |t: &&String| match t.rsplit_once(", ") {
            Some((_, values)) => verdict(var, values.trim_end_matches(')')).is_none_or(passes),
            None => match verdict(var, t) {
                Some(v) => passes(v),
                None if tested => false,
                None => match onnxc::tensor::ElemType::from_onnx_name(t) {
                    Some(t @ onnxc::tensor::ElemType::Str) => onnxc::ops::elements(op).take(t),
                    Some(t) if t.is_complex() => onnxc::ops::elements(op).take(t) || PARTS.contains(&op),
                    t => t.is_some(),
                },
            },
        };
        // Of a tensor or what is made of such tensors, the tensor's type tells all.
        let elements: std::collections::BTreeSet<String> =
            types.iter().filter(|t| !tensors || !t.contains('(')).map(|t| element(t)).collect();
        let list: Vec<&str> = elements.iter().filter(takes).map(String::as_str).collect();
        if list.is_empty() {
            continue;
        }
        let list = grouped(&list);
        match out.iter_mut().find(|(_, l)| *l == list) {
            Some((vars, _)) => *vars += &format!(", {var}"),
            None => out.push(((*var).to_owned(), list)),
        }
    }
    match out.as_slice() {
        [(_, list)] => list.clone(),
        out => out.iter().map(|(vars, list)| format!("{vars}: {list}")).collect::<Vec<_>>().join("; "),
    }
}

/// Every version of every operator of ONNX that is in the table has verdicts, for each type that its schema
/// allows.
#[test]
fn every_version_has_a_verdict() {
    let verdicts = verdicts();
    let mut missing = vec![];
    for op in onnxc::ops::FAMILIES
        .iter()
        .flat_map(|(_, o)| o.iter().copied())
        .filter(|o| !o.starts_with("com.microsoft:"))
    {
        let (domain, name) = op.split_once(':').unwrap_or(("", op));
        for s in
            onnxc::ops::support::schema::versions(domain, name).iter().filter(|_| !LEFT_OUT.contains(&name))
        {
            // The second type of BitCast is as wide as the first: it is not swept by itself.
            for (var, types) in s.types.iter().filter(|(var, _)| name != "BitCast" || *var == "T1") {
                let tensors = types.iter().filter(|t| onnxc::tensor::ElemType::from_onnx_name(t).is_some());
                missing.extend(
                    tensors
                        .filter(|t| {
                            !verdicts.contains_key(&(
                                op.to_owned(),
                                s.since,
                                (*var).to_owned(),
                                (**t).to_owned(),
                            ))
                        })
                        .map(|t| format!("{op} {} {var}={t}", s.since)),
                );
            }
        }
    }
    assert!(missing.is_empty(), "no verdict in tests/versions/expected.txt:\n{}", missing.join("\n"));
}

/// The table of docs/operators.md, made from the operator table, the schemas, and the verdicts.
fn operator_table() -> String {
    let verdicts = verdicts();
    let mut ops: Vec<&str> = onnxc::ops::FAMILIES
        .iter()
        .flat_map(|(_, o)| o.iter().copied())
        .chain(onnxc::ops::AT_IMPORT.iter().copied())
        .collect();
    ops.sort_unstable();
    let mut out = String::from("| operator | since versions | types |\n|---|---|---|\n");
    for op in &ops {
        let (domain, name) = op.split_once(':').unwrap_or(("", op));
        let versions = onnxc::ops::support::schema::versions(domain, name);
        let v: Vec<String> = versions.iter().map(|s| s.since.to_string()).collect();
        out += &format!(
            "| {op} | {} | {} |\n",
            v.join(", "),
            versions.last().map_or(String::new(), |s| accepted(op, s, &verdicts))
        );
    }
    out + &format!("\n{} operators.\n", ops.len())
}

/// With `ONNXC_UPDATE=1` it writes the section instead.
#[test]
fn docs_list_the_supported_operators() {
    let path = root().join("docs/operators.md");
    let text = std::fs::read_to_string(&path).expect("docs/operators.md");
    let (begin, end) = ("<!-- operators: generated, see tests/house.rs -->\n", "<!-- end of operators -->");
    let (head, rest) = text.split_once(begin).expect("begin marker");
    let (have, tail) = rest.split_once(end).expect("end marker");
    let want = operator_table();
    if std::env::var_os("ONNXC_UPDATE").is_some() {
        std::fs::write(&path, format!("{head}{begin}{want}{end}{tail}")).expect("writable");
        return;
    }
    assert!(have == want, "docs/operators.md is out of date: run `ONNXC_UPDATE=1 cargo test --test house`");
}

/// R-VARIADIC-01 of tests/spec.
#[test]
fn only_the_last_operand_is_variadic() {
    for (_, operators) in onnxc::ops::FAMILIES {
        for o in *operators {
            let (domain, name) = o.rsplit_once(':').unwrap_or(("", o));
            for s in onnxc::ops::support::schema::versions(domain, name) {
                for list in [&s.inputs.list, &s.outputs.list] {
                    assert!(list.iter().rev().skip(1).all(|f| !f.variadic), "{o}-{}", s.since);
                }
            }
        }
    }
}

/// Flags that tests give in another way: short ones, spellings of their own, and what clap adds.
const TESTED_OTHERWISE: &[&str] = &["help", "version", "output", "depfile"];

#[test]
fn every_flag_is_used_by_a_test() {
    use clap::CommandFactory;
    let mut files = vec![];
    rust_files(&root().join("tests"), &mut files);
    for e in std::fs::read_dir(root().join("tests"))
        .expect("tests")
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.extension().is_some_and(|x| x == "py"))
    {
        files.push(e);
    }
    let text: String = files.iter().map(|f| std::fs::read_to_string(f).expect("readable")).collect();
    let program = onnxc::cli::Cli::command();
    let mut unused = vec![];
    for c in std::iter::once(&program).chain(program.get_subcommands()) {
        for flag in c.get_arguments().filter_map(|a| a.get_long()).filter(|f| !TESTED_OTHERWISE.contains(f)) {
            if !text.contains(&format!("--{flag}")) {
                unused.push(format!("{} --{flag}", c.get_name()));
            }
        }
    }
    assert!(unused.is_empty(), "no test uses {}", unused.join(", "));
}
