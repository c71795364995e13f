//! What this machine can do: the peak of its multiply-add units and the bandwidth of its memories, measured.
//! Benchmarks report times relative to these two numbers.
//!
//! Both probes need instructions that safe Rust does not promise to emit: a loop that the compiler may
//! vectorise or not measures the compiler.

#![allow(
    unsafe_code,
    reason = "calls functions compiled for CPU features, after checking that the CPU has them"
)]

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Width of the vectors that a probe uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Vectors {
    /// What every CPU of the architecture has; multiply and add apart unless the architecture has fused ones.
    Baseline,
    /// 256 bits, fused (x86-64 with AVX2 and FMA).
    Bits256,
    /// 512 bits, fused (x86-64 with AVX-512).
    Bits512,
}

impl Vectors {
    /// The widest that this CPU has.
    pub fn widest() -> Vectors {
        #[cfg(target_arch = "x86_64")]
        {
            if std::arch::is_x86_feature_detected!("avx512f") {
                return Vectors::Bits512;
            }
            if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
                return Vectors::Bits256;
            }
        }
        Vectors::Baseline
    }
    /// Bits of a vector.
    pub fn bits(self) -> u32 {
        match self {
            Vectors::Baseline => 128,
            Vectors::Bits256 => 256,
            Vectors::Bits512 => 512,
        }
    }
}

/// Independent chains of multiply-adds: more than latency times units of any CPU at hand (4 cycles, 2 units),
/// fewer than registers.
const CHAINS: usize = 12;
/// Rounds between looks at the clock.
const ROUNDS: usize = 20_000;
/// Repetitions, of which the fastest counts.
const REPEAT: usize = 12;

/// A probe's functions: `fma` runs `rounds` of [`CHAINS`] multiply-adds and returns their number of f32
/// operations, `read` adds up a slice in whole vectors.
#[derive(Clone, Copy)]
struct Kernels {
    fma: fn(usize) -> f64,
    read: fn(&[u64]) -> u64,
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::CHAINS;
    use std::arch::x86_64::*;
    use std::hint::black_box;

    macro_rules! kernels {
        ($fma:ident, $read:ident, $feature:literal, $lanes:literal, $set:ident, $step:expr, $zero:ident, $load:ident, $add:ident, $int:ty) => {
            #[target_feature(enable = $feature)]
            pub fn $fma(rounds: usize) -> f64 {
                let (m, c) = ($set(black_box(0.999_9)), $set(black_box(1e-4)));
                let mut acc = [$set(black_box(1.0)); CHAINS];
                for _ in 0..rounds {
                    for a in &mut acc {
                        *a = $step(*a, m, c);
                    }
                }
                black_box(acc);
                (rounds * CHAINS * $lanes * 2) as f64
            }
            #[target_feature(enable = $feature)]
            pub fn $read(data: &[u64]) -> u64 {
                const WORDS: usize = $lanes / 2;
                // Written out: an array of sums stays in memory where the compiler does not unroll.
                let (mut a, mut b, mut c, mut d) = ($zero(), $zero(), $zero(), $zero());
                for block in data.chunks_exact(4 * WORDS) {
                    let p = block.as_ptr();
                    // SAFETY: four vectors are a block; the loads need no alignment.
                    unsafe {
                        a = $add(a, $load(p.cast::<$int>()));
                        b = $add(b, $load(p.add(WORDS).cast::<$int>()));
                        c = $add(c, $load(p.add(2 * WORDS).cast::<$int>()));
                        d = $add(d, $load(p.add(3 * WORDS).cast::<$int>()));
                    }
                }
                black_box($add($add(a, b), $add(c, d)));
                data.len() as u64
            }
        };
    }
    kernels!(
        fma128,
        read128,
        "sse2",
        4,
        _mm_set1_ps,
        |a, m, c| _mm_add_ps(_mm_mul_ps(a, m), c),
        _mm_setzero_si128,
        _mm_loadu_si128,
        _mm_add_epi64,
        __m128i
    );
    kernels!(
        fma256,
        read256,
        "avx2,fma",
        8,
        _mm256_set1_ps,
        |a, m, c| _mm256_fmadd_ps(a, m, c),
        _mm256_setzero_si256,
        _mm256_loadu_si256,
        _mm256_add_epi64,
        __m256i
    );
    kernels!(
        fma512,
        read512,
        "avx512f",
        16,
        _mm512_set1_ps,
        |a, m, c| _mm512_fmadd_ps(a, m, c),
        _mm512_setzero_si512,
        _mm512_loadu_si512,
        _mm512_add_epi64,
        __m512i
    );
}

#[cfg(target_arch = "x86_64")]
fn kernels(v: Vectors) -> Kernels {
    macro_rules! kernels {
        ($fma:ident, $read:ident) => {
            Kernels {
                // SAFETY: `widest` has found the features, and `v` is not beyond it.
                fma: |n| unsafe { x86::$fma(n) },
                // SAFETY: as above.
                read: |d| unsafe { x86::$read(d) },
            }
        };
    }
    match v.min(Vectors::widest()) {
        Vectors::Baseline => kernels!(fma128, read128),
        Vectors::Bits256 => kernels!(fma256, read256),
        Vectors::Bits512 => kernels!(fma512, read512),
    }
}

/// Vectors are part of the baseline there.
#[cfg(target_arch = "aarch64")]
fn kernels(_: Vectors) -> Kernels {
    use std::arch::aarch64::*;
    fn fma(rounds: usize) -> f64 {
        // SAFETY: NEON is part of the architecture's baseline.
        unsafe {
            let (m, c) = (vdupq_n_f32(black_box(0.999_9)), vdupq_n_f32(black_box(1e-4)));
            // c + a * m: the instruction adds into its first operand, so the chain goes through it.
            let mut acc = [vdupq_n_f32(black_box(1.0)); 2 * CHAINS];
            for _ in 0..rounds {
                for a in &mut acc {
                    *a = vfmaq_f32(*a, m, c);
                }
            }
            black_box(acc);
        }
        (rounds * 2 * CHAINS * 4 * 2) as f64
    }
    fn read(data: &[u64]) -> u64 {
        // SAFETY: as above; vector k of a block of eight vectors of two words.
        unsafe {
            let mut acc = [vdupq_n_u64(0); 8];
            for block in data.chunks_exact(16) {
                for (k, a) in acc.iter_mut().enumerate() {
                    *a = vaddq_u64(*a, vld1q_u64(block.as_ptr().add(2 * k)));
                }
            }
            black_box(acc);
        }
        data.len() as u64
    }
    Kernels { fma, read }
}

/// What the compiler makes of plain loops, where there are no intrinsics for the architecture.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn kernels(_: Vectors) -> Kernels {
    fn fma(rounds: usize) -> f64 {
        let (m, c) = (black_box(0.999_9f32), black_box(1e-4f32));
        let mut acc = [black_box(1.0f32); CHAINS * 4];
        for _ in 0..rounds {
            acc.iter_mut().for_each(|a| *a = *a * m + c);
        }
        black_box(acc);
        (rounds * CHAINS * 4 * 2) as f64
    }
    fn read(data: &[u64]) -> u64 {
        black_box(data.iter().fold(0u64, |s, x| s.wrapping_add(*x)));
        data.len() as u64
    }
    Kernels { fma, read }
}

/// Runs `work` on as many threads at the same time and returns the largest amount per second over
/// repetitions: the sum of all threads by the time from the first one's start to the last one's end.
fn fastest(threads: usize, work: &(dyn Fn(usize) -> f64 + Sync)) -> f64 {
    let gate = Barrier::new(threads);
    let run = &|k: usize| -> Vec<(Instant, Instant, f64)> {
        let once = |_| {
            gate.wait();
            let start = Instant::now();
            let amount = work(k);
            (start, Instant::now(), amount)
        };
        (0..REPEAT).map(once).collect()
    };
    let all: Vec<_> = std::thread::scope(|s| {
        let others: Vec<_> = (1..threads).map(|k| s.spawn(move || run(k))).collect();
        let mine = run(0);
        // A thread that failed would have failed here as well: it has no times.
        others.into_iter().filter_map(|t| t.join().ok()).chain([mine]).collect()
    });
    let rate = |r: usize| {
        let times = || all.iter().filter_map(|t| t.get(r));
        let (start, end) = (times().map(|t| t.0).min()?, times().map(|t| t.1).max()?);
        Some(times().map(|t| t.2).sum::<f64>() / end.duration_since(start).as_secs_f64().max(1e-9))
    };
    (0..REPEAT).filter_map(rate).fold(0.0, f64::max)
}

/// f32 operations per second of multiply-adds in registers on `threads` threads (a multiply-add is two).
/// Vectors wider than the CPU's are taken as its widest.
pub fn fma_peak(vectors: Vectors, threads: usize) -> f64 {
    let k = kernels(vectors);
    // Clocks rise with load: the first repetitions of each call warm up.
    let calls = Duration::from_millis(4);
    let work = move |_: usize| {
        let (start, mut amount) = (Instant::now(), 0.0);
        while start.elapsed() < calls {
            amount += (k.fma)(ROUNDS);
        }
        amount
    };
    fastest(threads.max(1), &work)
}

/// Bytes per second that `threads` threads read together from a working set of `bytes` in all, which they
/// have read before: from a cache that holds it, or from memory.
pub fn read_bandwidth(bytes: usize, threads: usize) -> f64 {
    let k = kernels(Vectors::widest());
    let threads = threads.max(1);
    let words = (bytes / threads / 8).next_multiple_of(64).max(64);
    // Written, so that every page is a page of its own and not the one of zeros.
    let data: Vec<Vec<u64>> =
        (0..threads as u64).map(|t| (0..words as u64).map(|i| i ^ t).collect()).collect();
    // About 16 MiB per repetition, so that the barrier costs nothing.
    let passes = ((16 << 20) / (words * 8)).max(1);
    let work =
        |t: usize| (0..passes).map(|_| (k.read)(black_box(data[t].as_slice())) as f64 * 8.0).sum::<f64>();
    work(0);
    fastest(threads, &work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_make_sense() {
        let one = fma_peak(Vectors::Baseline, 1);
        assert!(one > 1e8, "{one}");
        assert!(fma_peak(Vectors::widest(), 2) > 1e8);
        let b = read_bandwidth(1 << 16, 1);
        assert!(b > 1e8, "{b}");
        assert!(read_bandwidth(1 << 20, 2) > 1e8);
    }
}
