//! `--time-passes`: what each step took, on stderr as it ends.

use super::Result;
use std::time::Instant;

/// Prints times, or does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock(Option<Instant>);

impl Clock {
    /// A clock that starts now; one that is off costs nothing and prints nothing.
    pub fn new(on: bool) -> Clock {
        Clock(on.then(Instant::now))
    }
    /// Runs a step and prints what it took.
    pub fn step<T>(&self, name: &str, f: impl FnOnce() -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let r = f();
        if self.0.is_some() {
            row(start, name);
        }
        r
    }
    /// Prints what passed since the clock started.
    pub fn total(&self) {
        if let Some(start) = self.0 {
            row(start, "total");
        }
    }
}

fn row(start: Instant, name: &str) {
    eprintln!("{:>9.3} ms  {name}", start.elapsed().as_secs_f64() * 1e3);
}
