//! Child processes: a signal, an abort or a hang of one is a finding of the item that it was at.

use crate::checks::{self, Done, Kind};
use crate::{items, memory};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Items of one child.
const BATCH: u64 = 200;
/// An item that computes longer hangs.
const HANG: Duration = Duration::from_secs(60);
/// An item that takes longer by the clock hangs, too: it waits for something. A busy machine takes its part
/// of this.
const WAIT: Duration = Duration::from_secs(600);
/// What the compiler may take for the small files here.
const MEMORY: u64 = 3 << 29;

const HANGS: &str = "it hangs";

/// What a run did.
#[derive(Debug, Default)]
pub struct Run {
    pub items: u64,
    pub findings: usize,
    pub done: Done,
}

/// One line of text.
fn line(s: &str) -> String {
    s.replace('\\', "\\\\").replace('\n', "\\n")
}

fn lines(s: &str) -> String {
    s.replace("\\n", "\n").replace("\\\\", "\\")
}

/// `KIND FIRST COUNT`: checks items and says how each ended.
pub fn child(list: &[String]) -> ExitCode {
    let [kind, first, count] = list else { return ExitCode::from(2) };
    let (Some(kind), Ok(first), Ok(count)) = (Kind::find(kind), first.parse::<u64>(), count.parse::<u64>())
    else {
        return ExitCode::from(2);
    };
    prepare(kind);
    for seed in first..first + count {
        println!("at {seed}");
        let _ = std::io::stdout().flush();
        match checks::check(kind, &items::item(kind, seed)) {
            Ok(d) => println!("ok {} {} {}", d.calls, d.results, d.refused),
            Err(what) => println!("bad {}", line(&what)),
        }
    }
    ExitCode::SUCCESS
}

fn prepare(kind: Kind) {
    std::panic::set_hook(Box::new(|_| {}));
    if kind == Kind::Bytes {
        memory::limit_memory(MEMORY);
    }
}

/// `KIND FILE`: checks one item.
pub fn try_one(list: &[String]) -> ExitCode {
    let [kind, file] = list else { return ExitCode::from(2) };
    let (Some(kind), Ok(bytes)) = (Kind::find(kind), std::fs::read(file)) else { return ExitCode::from(2) };
    prepare(kind);
    memory::limit_seconds(HANG.as_secs());
    match checks::check(kind, &bytes) {
        Ok(_) => ExitCode::SUCCESS,
        Err(what) => {
            println!("{what}");
            ExitCode::from(1)
        }
    }
}

fn start(arguments: &[&str], errors: Stdio) -> std::io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(errors)
        .spawn()
}

/// How a process ended, in words.
fn ending(child: &mut Child) -> String {
    match child.wait() {
        #[cfg(unix)]
        Ok(s) => {
            use std::os::unix::process::ExitStatusExt;
            match s.signal() {
                Some(4) => "SIGILL".into(),
                Some(6) => "abort (SIGABRT), maybe for lack of memory".into(),
                Some(8) => "SIGFPE".into(),
                Some(9 | 24) => HANGS.into(),
                Some(11) => "SIGSEGV".into(),
                Some(n) => format!("signal {n}"),
                None => format!("the process ends with {:?}", s.code()),
            }
        }
        #[cfg(not(unix))]
        Ok(s) => format!("the process ends with {:?}", s.code()),
        Err(e) => e.to_string(),
    }
}

/// What is wrong with an item, checked in a process of its own.
pub fn verdict(kind: Kind, bytes: &[u8]) -> Option<String> {
    let file = std::env::temp_dir().join(format!("onnxc-fuzz-{}", std::process::id()));
    std::fs::write(&file, bytes).ok()?;
    verdict_of(kind, &file)
}

/// The same of a file that is named after its kind.
pub fn verdict_of_file(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_string_lossy().into_owned();
    match Kind::find(name.split('-').next().unwrap_or_default()) {
        Some(kind) => verdict_of(kind, file),
        None => Some("the name of the file tells no kind".into()),
    }
}

fn verdict_of(kind: Kind, file: &Path) -> Option<String> {
    let file = file.to_string_lossy().into_owned();
    let mut child = start(&["--try", kind.name(), &file], Stdio::piped()).ok()?;
    let (out, err) = (child.stdout.take()?, child.stderr.take()?);
    let read = |mut from: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut text = vec![];
            let _ = from.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        })
    };
    let (out, err) = (read(Box::new(out)), read(Box::new(err)));
    let until = Instant::now() + WAIT;
    while matches!(child.try_wait(), Ok(None)) {
        if Instant::now() > until {
            let _ = child.kill();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let (out, err) = (out.join().unwrap_or_default(), err.join().unwrap_or_default());
    match child.wait().ok().and_then(|s| s.code()) {
        Some(0) => None,
        Some(1) => Some(out.trim_end().to_owned()),
        _ => Some(format!(
            "{}, {}",
            err.lines().rfind(|l| l.starts_with("call ")).unwrap_or("compiling"),
            ending(&mut child)
        )),
    }
}

/// Checks items from `seed` on until the time is over.
pub fn run(kind: Kind, seed: u64, until: Instant, mut found: impl FnMut(u64, &str)) -> Run {
    let mut run = Run::default();
    // Seeds of different runs do not meet.
    let mut next = seed.wrapping_mul(1 << 32);
    while Instant::now() < until {
        let Ok(mut child) =
            start(&["--child", kind.name(), &next.to_string(), &BATCH.to_string()], Stdio::null())
        else {
            break;
        };
        let Some(out) = child.stdout.take() else { break };
        let (to, from) = mpsc::channel();
        std::thread::spawn(move || {
            BufReader::new(out).lines().map_while(Result::ok).try_for_each(|l| to.send(l))
        });
        let mut at = None;
        let mut bad = vec![];
        loop {
            match from.recv_timeout(HANG) {
                Ok(l) => match l.split_once(' ') {
                    Some(("at", s)) => at = s.parse().ok(),
                    Some(("ok", counts)) => {
                        let n: Vec<u64> = counts.split(' ').filter_map(|n| n.parse().ok()).collect();
                        if let [calls, results, refused] = n[..] {
                            run.done.calls += calls;
                            run.done.results += results;
                            run.done.refused += refused;
                        }
                        run.items += 1;
                        at = None;
                    }
                    Some(("bad", what)) => {
                        run.items += 1;
                        bad.push((at.take().unwrap_or(next), lines(what)));
                    }
                    _ => {}
                },
                Err(RecvTimeoutError::Timeout) => {
                    let _ = child.kill();
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if Instant::now() > until && at.is_none() {
                let _ = child.kill();
                break;
            }
        }
        let how = ending(&mut child);
        next = match at {
            Some(s) => {
                // It died at this one. What it was at is told when the item is tried alone.
                run.items += 1;
                match verdict(kind, &items::item(kind, s)) {
                    Some(what) => bad.push((s, what)),
                    // It was slow by the clock only: the machine has other work.
                    None if how == HANGS => {}
                    None => bad.push((s, format!("{how}, not when tried alone"))),
                }
                s + 1
            }
            None => next + BATCH,
        };
        for (s, what) in bad {
            run.findings += 1;
            found(s, &what);
        }
    }
    run
}
