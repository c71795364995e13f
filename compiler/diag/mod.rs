//! Diagnostics: `Error` is the model's, the user's or a missing feature's fault; `Bug` is ours.
//!
//! An [`Error`] has a code from [`codes`], the place it is about ([`Origin`]), what was found and expected as
//! labelled rows, notes and one help line. Errors are gathered in [`Findings`] so that a model's owner sees
//! all of them at once (at most [`MAX_FINDINGS`]). `render` turns findings into text or JSON; only the
//! [`Clock`] of `--time-passes` prints.

pub mod clock;
pub mod codes;
pub mod limits;
pub mod origin;
pub mod render;

pub use clock::Clock;
pub use codes::Code;
pub use origin::Origin;

/// How many findings one run reports before it stops.
pub const MAX_FINDINGS: usize = 20;

/// How severe a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Compilation goes on, and so it does under `--strict`: something of the model has no effect.
    Note,
    /// Compilation goes on.
    Warning,
    /// Compilation stops, exit code 1.
    Error,
}

/// One finding about a model, its files or the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Entry of the code table.
    pub code: Code,
    /// Error or warning.
    pub severity: Severity,
    /// One sentence: what is wrong.
    pub title: String,
    /// Where.
    pub origin: Origin,
    /// Labelled facts, e.g. ("found", "float32 [2, 3]").
    pub rows: Vec<(String, String)>,
    /// Further explanation.
    pub notes: Vec<String>,
    /// A way out.
    pub help: Option<String>,
}

impl Error {
    /// An error without a place; add one with [`Error::at`].
    pub fn new(code: Code, title: impl Into<String>) -> Self {
        Error {
            code,
            severity: Severity::Error,
            title: title.into(),
            origin: Origin::default(),
            rows: vec![],
            notes: vec![],
            help: None,
        }
    }
    /// The same, as a warning.
    pub fn warning(code: Code, title: impl Into<String>) -> Self {
        Error { severity: Severity::Warning, ..Error::new(code, title) }
    }
    /// The same, as a note.
    pub fn remark(code: Code, title: impl Into<String>) -> Self {
        Error { severity: Severity::Note, ..Error::new(code, title) }
    }
    /// Sets the place, unless a more precise one is already there.
    pub fn at(mut self, origin: &Origin) -> Self {
        if self.origin.op.is_empty() {
            self.origin = origin.clone();
        }
        self
    }
    /// Adds a labelled fact.
    pub fn row(mut self, label: impl Into<String>, text: impl Into<String>) -> Self {
        self.rows.push((label.into(), text.into()));
        self
    }
    /// Adds the pair every mismatch needs.
    pub fn found_expected(self, found: impl Into<String>, expected: impl Into<String>) -> Self {
        self.row("found", found).row("expected", expected)
    }
    /// Adds a note.
    pub fn note(mut self, text: impl Into<String>) -> Self {
        self.notes.push(text.into());
        self
    }
    /// Sets the way out.
    pub fn help(mut self, text: impl Into<String>) -> Self {
        self.help = Some(text.into());
        self
    }
    /// Stops right here with this one error.
    pub fn fail<T>(self) -> Result<T> {
        Err(self.into())
    }
}

/// `--strict`: fails if there is a warning, which is an error then. Notes stay notes.
pub fn strict(warnings: &[Error]) -> Result<()> {
    let mut findings = Findings::default();
    for w in warnings.iter().filter(|w| w.severity == Severity::Warning) {
        findings.push(
            Error { severity: Severity::Error, ..w.clone() }.note("a warning, which --strict makes an error"),
        );
    }
    findings.check()
}

/// A fault of onnxc itself: a verifier finding or an impossible state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bug {
    /// Which pass or stage noticed.
    pub stage: String,
    /// What is wrong, one fault a line, with the offending text where there is one.
    pub message: String,
}

/// Why a step of the compiler stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The model's or the user's fault.
    Errors(Vec<Error>),
    /// Reading or writing a file failed: path and reason (exit code 3).
    Io(String, String),
    /// Our fault (exit code 101).
    Bug(Bug),
}

impl Failure {
    /// A [`Bug`] noticed by `stage`.
    pub fn bug(stage: impl Into<String>, message: impl Into<String>) -> Self {
        Failure::Bug(Bug { stage: stage.into(), message: message.into() })
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Failure::Errors(vec![e])
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&render::failure_text(self))
    }
}

impl std::error::Error for Failure {}

/// Result of every step of the compiler.
pub type Result<T> = std::result::Result<T, Failure>;

/// Gathers findings so that all of them are reported at once.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    errors: Vec<Error>,
    warnings: Vec<Error>,
    dropped: usize,
}

impl Findings {
    /// Adds one finding; beyond [`MAX_FINDINGS`] only counts it.
    pub fn push(&mut self, e: Error) {
        match e.severity {
            Severity::Error if self.errors.len() >= MAX_FINDINGS => self.dropped += 1,
            Severity::Error => self.errors.push(e),
            Severity::Warning | Severity::Note => self.warnings.push(e),
        }
    }
    /// Takes the errors out of a failed step and returns its value otherwise; IO failures and bugs pass
    /// through.
    pub fn absorb<T>(&mut self, r: Result<T>) -> Result<Option<T>> {
        match r {
            Ok(v) => Ok(Some(v)),
            Err(Failure::Errors(es)) => {
                es.into_iter().for_each(|e| self.push(e));
                Ok(None)
            }
            Err(other) => Err(other),
        }
    }
    /// True once there are enough errors to stop looking.
    pub fn is_full(&self) -> bool {
        self.errors.len() >= MAX_FINDINGS
    }
    /// True if there is an error.
    pub fn has_errors(&self) -> bool {
        !self.errors.is_empty()
    }
    /// How many errors there are, those included that are not kept.
    pub fn count(&self) -> usize {
        self.errors.len() + self.dropped
    }
    /// The warnings and notes so far.
    pub fn warnings(&self) -> &[Error] {
        &self.warnings
    }
    /// The errors so far.
    pub fn errors(&self) -> &[Error] {
        &self.errors
    }
    /// How many errors were found beyond those kept.
    pub fn dropped(&self) -> usize {
        self.dropped
    }
    /// Fails if any error was gathered.
    pub fn check(&mut self) -> Result<()> {
        let errors = self.take_errors();
        if errors.is_empty() { Ok(()) } else { Err(Failure::Errors(errors)) }
    }
    /// The errors, whose last one says how many more there were.
    pub fn take_errors(&mut self) -> Vec<Error> {
        let mut errors = std::mem::take(&mut self.errors);
        if self.dropped > 0
            && let Some(last) = errors.last_mut()
        {
            last.notes.push(format!("{} more errors are not shown", self.dropped));
        }
        errors
    }
}
