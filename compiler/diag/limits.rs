//! The one table of limits: what a model may ask of the compiler. A model within them is compiled in time and
//! memory that grow with the size of its file; one beyond them is refused with what was found, the limit and
//! a way out. `onnxc explain limits` prints the table.

use super::{Error, codes};

/// A limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Name, as `onnxc explain limits` prints it.
    pub name: &'static str,
    /// The largest number that is accepted.
    pub value: u64,
    /// What is counted.
    pub bounds: &'static str,
    /// What the user can do.
    pub help: &'static str,
}

macro_rules! limits {
    ($($name:ident = $value:expr, $bounds:literal, $help:literal;)*) => {
        $(
            #[doc = $bounds]
            pub const $name: Limit =
                Limit { name: stringify!($name), value: $value, bounds: $bounds, help: $help };
        )*
        /// Every limit.
        pub const TABLE: &[Limit] = &[$($name),*];
    };
}

limits! {
    PARAMETERS = 1024, "inputs and outputs of the model", "join inputs of one shape to one tensor with a \
        dimension more, or split the model";
    RANK = 32, "dimensions of a tensor", "join dimensions with Reshape before the model is exported";
    GRAPH_DEPTH = 64, "graphs one inside the other", "move what inner bodies compute to the graph around \
        them";
    CALL_DEPTH = 64, "calls of model-local functions one inside the other", "inline functions before the \
        model is exported";
    CALLED_NODES = 1 << 15, "nodes from calls of model-local functions, besides two for each node that the \
        file holds; a node of n KiB counts as n + 1", "let functions call others less often, or loop over \
            the calls";
    BODY_NODES = 1 << 18, "nodes of loop bodies whose types are inferred, and nodes of branches, which \
        count as 8; a loop within a loop is inferred at least twice whenever the loop around it is",
        "nest loops less deeply; give results of branches one rank";
    PATTERN_BYTES = 4 << 20, "bytes of the automaton of a regular expression before it is made deterministic",
        "repeat less often than {1000} within each other";
    TABLE_BYTES = 16 << 20, "bytes of the tables of all regular expressions together", "avoid alternatives \
        far from the end of a match, such as (a|b)*a(a|b){20}";
    SEPARATORS = 32, "separators of a Tokenizer", "write separators of one character as one regular \
        expression, [ ,;]";
    FOLDED_STEPS = 1 << 33, "operations at compile time on constants, besides 64 for each element of these; \
        what is beyond is left to run time", "store what is computed of constants in the model";
    FOLDED_BYTES = 256 << 20, "bytes of results of such operations, besides 8 for each element of these; \
        what is beyond is left to run time", "store what is computed of constants in the model";
    DIM_TEXT = 1024, "characters of a dimension's name that are read as an expression; longer ones are names",
        "give the size a name";
}

impl Limit {
    /// True if a count is beyond the limit.
    pub fn exceeded_by(&self, found: u64) -> bool {
        found > self.value
    }
    /// The diagnostic: `title` says what is too large.
    pub fn error(&self, title: impl Into<String>, found: impl std::fmt::Display) -> Error {
        let e = Error::new(codes::LIMIT, title)
            .found_expected(found.to_string(), format!("at most {}: {}", self.value, self.bounds));
        e.note(format!("the limit is {} of `onnxc explain limits`", self.name)).help(self.help)
    }
    /// The limit as a size of something in memory.
    pub fn size(&self) -> usize {
        usize::try_from(self.value).unwrap_or(usize::MAX)
    }
}
