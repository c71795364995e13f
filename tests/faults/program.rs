//! Calls a model so that its checks fail, and prints what the errors say.
mod pick {
    include!("pick.rs");
}
use pick::{Block, Dims, Status, Workspace};

fn call(dims: (usize, usize, usize, usize), x: &[f32], last: i64, second: i64, blocks: usize) -> Option<u64> {
    let mut memory = vec![Block::new(); blocks];
    let (y, mut z, mut total) = ([0.0; 8], [0.0; 64], [0]);
    let dims = Dims { n: dims.0, k: dims.1, m: dims.2, p: dims.3 };
    match pick::infer(&dims, x, &y[..dims.m.min(8)], &[0, second], &[last], &mut z, &mut total, &mut Workspace::new(&mut memory)) {
        Ok(()) => println!("ok {}", total[0]),
        Err(e) => {
            println!("{} {e}", e.status());
            return e.workspace_size();
        }
    }
    None
}

fn main() {
    let x = [0.0; 6];
    call((40, 3, 3, 2), &x, 10, 1, 4096);
    call((2, 3, 4, 2), &x, 10, 1, 4096);
    call((2, 3, 3, 2), &x[1..], 10, 1, 4096);
    call((2, 3, 3, 2), &x, 10, 7, 4096);
    call((2, 3, 3, 2), &x, 10, 1, 0);
    let e = pick::workspace_size(&Dims { n: 2, k: 3, m: 4, p: 2 }).unwrap_err();
    assert_eq!((e.status(), e.values()[..2].to_vec(), e.check().is_some()), (Status::Dim, vec![3, 4], true));
    let (mut blocks, mut rounds) = (16, 0);
    while let Some(bytes) = call((2, 3, 3, 2), &x, 1000, 1, blocks) {
        assert!(bytes as usize > 64 * blocks && rounds < 9);
        (blocks, rounds) = (Block::count(bytes as usize), rounds + 1);
    }
}
