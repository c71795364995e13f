//! `--time-passes`: what each step took, on stderr as it ends.

use super::Result;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Prints times, or does nothing.
#[derive(Clone, Debug, Default)]
pub struct Clock(Option<Arc<Running>>);

#[derive(Debug)]
struct Running {
    start: Instant,
    /// Time of all steps so far.
    steps: Mutex<Duration>,
}

impl Clock {
    /// A clock that starts now; one that is off costs nothing and prints nothing.
    pub fn new(on: bool) -> Clock {
        Clock(on.then(|| Arc::new(Running { start: Instant::now(), steps: Mutex::default() })))
    }
    /// Runs a step and prints what it took. Steps do not nest.
    pub fn step<T>(&self, name: &str, f: impl FnOnce() -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let r = f();
        if let Some(c) = &self.0 {
            let took = start.elapsed();
            row(took, name);
            if let Ok(mut steps) = c.steps.lock() {
                *steps += took;
            }
        }
        r
    }
    /// Prints what passed since the clock started, and how much of it was in no step.
    pub fn total(&self) {
        if let Some(c) = &self.0 {
            let all = c.start.elapsed();
            let steps = c.steps.lock().map_or(Duration::ZERO, |s| *s);
            row(all.saturating_sub(steps), "other");
            row(all, "total");
        }
    }
}

fn row(took: Duration, name: &str) {
    eprintln!("{:>9.3} ms  {name}", took.as_secs_f64() * 1e3);
}
