//! Strings in, strings out: the outputs borrow from the inputs and from the workspace.
#![deny(warnings)]

mod greet {
    include!("greet.rs");
}

use greet::{Block, Dims, Error, Str, Workspace, infer, workspace_size};

fn main() -> Result<(), Error> {
    let owned = String::from("wörld");
    let dims = Dims { n: 2 };
    let mut blocks = vec![Block::new(); Block::count(workspace_size(&dims)?)];
    let mut workspace = Workspace::new(&mut blocks);
    let (mut text, mut words, mut long, mut words_dims) = ([Str::EMPTY; 2], [Str::EMPTY; 8], [0; 2], [2, 4]);
    infer(&dims, &[Str::new(&owned), "you".into()], &mut text, &mut words, &mut long, &mut words_dims, &mut workspace)?;
    let n = (words_dims[0] * words_dims[1]) as usize;
    let words: String = words[..n].iter().map(|w| format!("{w};")).collect();
    println!("{}|{}|{words}|{}{}", text[0], text[1], long[0], long[1]);
    Ok(())
}
