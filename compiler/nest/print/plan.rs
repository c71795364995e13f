//! The text of a placed module with offsets in place of the contents of constants, and without the names of
//! the model: equal texts imply equal code for any constants.

use super::Printer;
use crate::nest::{Buf, Module};

/// Offset of each constant; `None` except for the text of a plan.
pub(super) type Offsets<'a> = Option<&'a dyn Fn(Buf) -> Option<i64>>;

/// The whole module.
pub fn plan<'a>(m: &'a Module, offsets: &'a dyn Fn(Buf) -> Option<i64>) -> String {
    let mut p = Printer::new(m);
    p.offsets = Some(offsets);
    p.module();
    p.out
}
