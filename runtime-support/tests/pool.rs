//! The pool: each index exactly once, whoever calls, from Rust and through the C interface.

#![allow(unsafe_code, reason = "calls through the C ABI")]

use onnxc_runtime::Pool;
use onnxc_runtime::abi::onnxc_exec;
use onnxc_runtime::pool::{onnxc_pool_create, onnxc_pool_destroy, onnxc_pool_exec};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

fn counters(n: usize) -> Vec<AtomicU32> {
    (0..n).map(|_| AtomicU32::new(0)).collect()
}

fn bump(c: &AtomicU32) {
    c.fetch_add(1, Ordering::Relaxed);
}

fn all_are(c: &[AtomicU32], v: u32) -> bool {
    c.iter().all(|x| x.load(Ordering::Relaxed) == v)
}

unsafe extern "C" fn count(ctx: *mut c_void, i: usize) {
    // SAFETY: `through_c` passes its counters.
    let c = unsafe { &*ctx.cast::<Vec<AtomicU32>>() };
    bump(&c[i]);
}

fn through_c(exec: &onnxc_exec, c: &Vec<AtomicU32>) {
    let run = exec.parallel_for.unwrap();
    // SAFETY: the exec of a living pool; `count` takes the counters.
    unsafe { run(exec.user, c.len(), count, std::ptr::from_ref(c).cast_mut().cast()) }
}

#[test]
fn each_index_once() {
    for threads in 1..=8 {
        let pool = Pool::new(threads);
        assert_eq!(pool.threads(), threads);
        for n in [0, 1, 2, 3, 7, 8, 9, 64, 1000] {
            let c = counters(n);
            for round in 1..=20 {
                through_c(pool.exec().as_raw(), &c);
                assert!(all_are(&c, round), "{threads} threads, {n} tasks");
            }
        }
    }
}

#[test]
fn nested() {
    for threads in 1..=8 {
        let pool = Pool::new(threads);
        let c = counters(6 * 5 * 4);
        pool.run(6, |i| pool.run(5, |j| pool.run(4, |k| bump(&c[(i * 5 + j) * 4 + k]))));
        assert!(all_are(&c, 1), "{threads} threads");
    }
}

#[test]
fn several_callers() {
    let pool = Pool::new(4);
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                let exec = pool.exec();
                let c = counters(50);
                for round in 1..=2000 {
                    through_c(exec.as_raw(), &c);
                    assert!(all_are(&c, round));
                }
            });
        }
    });
}

/// Jobs that come before, while and after workers fall asleep.
#[test]
fn sleepers_wake() {
    let pool = Pool::new(4);
    for round in 0..300 {
        let c = counters(16);
        pool.run(16, |i| bump(&c[i]));
        assert!(all_are(&c, 1));
        std::thread::sleep(Duration::from_micros(round % 120));
    }
}

/// All threads of a pool work on one job: each task waits for the others.
#[test]
fn really_parallel() {
    for threads in 1..=8 {
        let pool = Pool::new(threads);
        for _ in 0..20 {
            let here = AtomicUsize::new(0);
            pool.run(threads, |_| {
                here.fetch_add(1, Ordering::SeqCst);
                while here.load(Ordering::SeqCst) < threads {
                    std::thread::yield_now();
                }
            });
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

#[test]
fn results_are_visible() {
    let pool = Pool::new(8);
    let mut data = vec![0u64; 1 << 14];
    for round in 1..=200 {
        let p = data.as_mut_ptr().expose_provenance();
        pool.run(64, |i| {
            for k in 0..256 {
                // SAFETY: each index is written by one task.
                unsafe { *std::ptr::with_exposed_provenance_mut::<u64>(p).add(i * 256 + k) += 1 };
            }
        });
        assert!(data.iter().all(|x| *x == round));
    }
}

#[test]
fn panics_reach_the_caller() {
    let pool = Pool::new(3);
    let c = counters(40);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        pool.run(40, |i| {
            bump(&c[i]);
            assert_ne!(i, 13, "unlucky");
        });
    }));
    assert!(caught.is_err() && all_are(&c, 1));
    through_c(pool.exec().as_raw(), &c);
    assert!(all_are(&c, 2));
}

#[test]
fn bounds() {
    assert!(Pool::new(0).threads() >= 1);
    assert_eq!(Pool::new(1).exec().as_raw().max_tasks, 1);
    let pool = Pool::new(4);
    assert!(pool.exec().as_raw().max_tasks >= 4);
    assert_eq!(pool.exec().with_max_tasks(3).as_raw().max_tasks, 3);
    assert_eq!(pool.exec().as_raw().struct_size, size_of::<onnxc_exec>());
}

#[test]
fn short_lives() {
    for k in 0..200 {
        let pool = Pool::new(1 + k % 8);
        if k % 3 == 0 {
            pool.run(k, |_| ());
        }
    }
}

#[test]
fn from_c() {
    let pool = onnxc_pool_create(3);
    let c = counters(100);
    // SAFETY: the pool lives until `destroy`.
    let exec = unsafe { onnxc_pool_exec(pool).as_ref() }.unwrap();
    through_c(exec, &c);
    assert!(all_are(&c, 1));
    // SAFETY: created above, used no more; null is allowed in both.
    unsafe {
        onnxc_pool_destroy(pool);
        onnxc_pool_destroy(std::ptr::null_mut());
        assert!(onnxc_pool_exec(std::ptr::null()).is_null());
    }
}
