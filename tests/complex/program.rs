//! Complex numbers are arrays of two.
#![deny(warnings)]

mod spectrum {
    include!("spectrum.rs");
}

use spectrum::{Dims, Error, Workspace, infer};

fn main() -> Result<(), Error> {
    let dims = Dims { n: 3 };
    let mut workspace = Workspace::new();
    let (mut reversed, mut all) = ([[0.0; 2]; 3], [[0.0; 2]; 4]);
    infer(&dims, &[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], &[[0.5, -1.0], [7.0, 8.0]], &mut reversed, &mut all, &mut workspace)?;
    reversed.iter().for_each(|[re, im]| print!("{re}{im:+}i "));
    all.iter().for_each(|[re, im]| print!("{re}{im:+}i "));
    println!();
    Ok(())
}
