//! Values that are more than 64 bits: the interpreter's registers hold their numbers.

use std::collections::HashMap;
use std::hash::Hash;

/// All values so far, by number; equal ones have one number.
pub(super) struct Numbers<T> {
    list: Vec<T>,
    numbers: HashMap<T, u64>,
}

impl<T> Default for Numbers<T> {
    fn default() -> Self {
        Numbers { list: vec![], numbers: HashMap::new() }
    }
}

impl<T: Copy + Eq + Hash> Numbers<T> {
    /// The number of a value.
    pub fn number(&mut self, value: T) -> u64 {
        *self.numbers.entry(value).or_insert_with(|| {
            self.list.push(value);
            self.list.len() as u64 - 1
        })
    }
    /// The value of a number, if there is one.
    pub fn get(&self, number: u64) -> Option<T> {
        self.list.get(usize::try_from(number).ok()?).copied()
    }
}
