//! A small persistent thread pool that serves as `parallel_for` of generated code.
//!
//! The pool runs one job at a time. The calling thread publishes the job, works on it, and waits for the
//! workers that joined. Idle workers spin briefly before they sleep, because the kernels of a model follow
//! each other within microseconds. A caller that finds the pool busy (with another thread's run, or with the
//! job whose task makes the call) runs its tasks itself. Nested calls therefore cannot deadlock, and the
//! number of active threads never exceeds the size of the pool plus its callers.
//!
//! Each thread has a slot and a share of every job: always the same fraction of the indices, so that a kernel
//! finds in the core's caches what the previous kernel left there. A thread that has finished its share
//! steals indices from the others.
//!
//! The gate is one word, `epoch | STOP | OPEN`, in the same cache line as the job, so that one transfer shows
//! a worker both. A worker enters by writing the epoch to its slot and reading the gate again; it leaves by
//! writing `OUTSIDE`. When no index is left, the caller closes the gate and waits until no slot shows the
//! epoch. All four accesses are SeqCst, so that at least one side sees the other's write: after the wait,
//! every index has run and no thread reads the job. Workers that wake up too late find the gate closed and
//! are not waited for. The progress of a share is in the slot, `epoch | index`. A word of an older epoch
//! means that the share is untouched, which saves resetting it.

#![allow(unsafe_code, reason = "serves C callbacks and shares a job between threads by hand, for latency")]

use crate::abi::{onnxc_exec, onnxc_task_fn};
use std::any::Any;
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long an idle worker spins before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// Reads of the gate between reads of the clock.
const SPINS_PER_LOOK: u32 = 64;
/// Tasks per thread: enough to balance threads of unequal speed, few enough to have no measurable cost.
const TASKS_PER_THREAD: usize = 4;
/// Maximum threads of a pool.
const MAX_THREADS: usize = 4096;

const OPEN: u64 = 1;
const STOP: u64 = 2;
const EPOCH: u64 = 4;
/// Value of `Place::inside` while the worker has no job. No epoch is 0.
const OUTSIDE: u64 = 0;
/// Bits of an index in `Place::next`; the other bits hold the epoch.
const INDEX_BITS: u32 = 20;
/// Maximum indices of a job. In larger jobs an index stands for several of the caller's.
const MAX_INDICES: usize = (1 << INDEX_BITS) - 1;

/// Keeps words that different threads write in separate cache lines (pairs of lines, which prefetchers fetch
/// together).
#[repr(align(128))]
struct Line<T>(T);

#[derive(Clone, Copy)]
struct Job {
    n: usize,
    f: onnxc_task_fn,
    ctx: *mut c_void,
}

/// The gate and the job that it guards.
struct Hall {
    gate: AtomicU64,
    /// Written by the holder of `busy` while the gate is closed and no worker is inside; read by workers that
    /// have entered.
    job: UnsafeCell<Job>,
}

/// The words of one thread.
struct Place {
    /// Next index of the thread's share, with the epoch it belongs to in the upper bits.
    next: AtomicU64,
    /// The epoch of the job that the worker is executing, or `OUTSIDE`.
    inside: AtomicU64,
}

struct Shared {
    hall: Line<Hall>,
    /// The caller's slot, then one for each worker.
    places: Box<[Line<Place>]>,
    /// Held by the caller whose job is running.
    busy: Line<AtomicBool>,
    /// Number of workers that sleep or are about to.
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
    /// Number of workers that were started.
    workers: usize,
}

// SAFETY: all fields except `job` are `Sync`. `job` is written only while no other thread can read it (see
// its comment and the module's). The contract of `parallel_for` allows passing its pointer to other threads.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

unsafe extern "C" fn no_task(_: *mut c_void, _: usize) {}

impl Shared {
    fn new(workers: usize) -> Shared {
        Shared {
            hall: Line(Hall {
                gate: AtomicU64::new(0),
                job: UnsafeCell::new(Job { n: 0, f: no_task, ctx: std::ptr::null_mut() }),
            }),
            places: (0..=workers)
                .map(|_| Line(Place { next: AtomicU64::new(0), inside: AtomicU64::new(OUTSIDE) }))
                .collect(),
            busy: Line(AtomicBool::new(false)),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
            workers,
        }
    }
    fn gate(&self) -> &AtomicU64 {
        &self.hall.0.gate
    }
    /// Runs all indices of `job`.
    ///
    /// # Safety
    /// `job.f` may be called with `job.ctx` and each index below `job.n` once, concurrently and from any
    /// thread.
    unsafe fn run(&self, job: Job) {
        let alone = job.n < 2 || self.workers == 0 || self.busy.0.swap(true, Ordering::Acquire);
        if alone {
            for i in 0..job.n {
                // SAFETY: guaranteed by the caller.
                unsafe { (job.f)(job.ctx, i) }
            }
            return;
        }
        // SAFETY: this thread holds `busy`, so the gate is closed and no worker reads the job.
        unsafe { *self.hall.0.job.get() = job };
        let epoch = (self.gate().load(Ordering::Relaxed) / EPOCH).wrapping_add(1).max(1);
        // SeqCst here and at both accesses of `sleepers`: either the worker that is about to sleep sees the
        // open gate, or the caller that opens it sees the sleeper.
        self.gate().store(epoch.wrapping_mul(EPOCH) | OPEN, Ordering::SeqCst);
        self.wake_for(job.n - 1);
        // SAFETY: guaranteed by the caller; each index is taken by one thread.
        unsafe { self.work(job, epoch, 0) };
        self.gate().fetch_and(!OPEN, Ordering::SeqCst);
        let mut spins = 0u32;
        for place in self.places.iter().skip(1) {
            while place.0.inside.load(Ordering::SeqCst) == epoch {
                spins = spins.saturating_add(1);
                // A worker that has entered may have been descheduled.
                if spins < 4096 { std::hint::spin_loop() } else { thread::yield_now() }
            }
        }
        self.busy.0.store(false, Ordering::Release);
    }
    /// Runs indices of the job until none is left, those of the thread's own share first.
    ///
    /// # Safety
    /// As [`Shared::run`]. The job must be the current one: the thread has entered, or holds `busy`.
    unsafe fn work(&self, job: Job, epoch: u64, own: usize) {
        let grain = job.n.div_ceil(MAX_INDICES);
        let (n, places) = (job.n.div_ceil(grain), self.places.len());
        for share in (own..places).chain(0..own) {
            while let Some(i) = self.take(n, epoch, share) {
                for i in i * grain..job.n.min((i + 1) * grain) {
                    // SAFETY: guaranteed by the caller.
                    unsafe { (job.f)(job.ctx, i) }
                }
            }
        }
    }
    /// The next index of a share.
    fn take(&self, n: usize, epoch: u64, share: usize) -> Option<usize> {
        let threads = self.places.len();
        let end = (n * (share + 1)).div_ceil(threads);
        let next = &self.places.get(share)?.0.next;
        let tag = epoch << INDEX_BITS;
        let mut word = next.load(Ordering::Relaxed);
        loop {
            let i = if word >> INDEX_BITS == tag >> INDEX_BITS {
                word as usize & MAX_INDICES
            } else {
                (n * share).div_ceil(threads)
            };
            if i >= end {
                return None;
            }
            match next.compare_exchange_weak(word, tag | (i as u64 + 1), Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Some(i),
                Err(now) => word = now,
            }
        }
    }
    /// Wakes sleepers if fewer workers are awake than `wanted` tasks need.
    fn wake_for(&self, wanted: usize) {
        let sleepers = self.sleepers.load(Ordering::SeqCst);
        let awake = self.workers.saturating_sub(sleepers);
        let wanted = wanted.saturating_sub(awake).min(sleepers);
        if wanted == 0 {
            return;
        }
        // A worker that is counted as a sleeper but holds the lock reads the gate once more before it waits.
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
        if wanted == sleepers {
            self.wake.notify_all();
        } else {
            (0..wanted).for_each(|_| self.wake.notify_one());
        }
    }
    /// Main loop of the worker with slot `own`.
    fn serve(&self, own: usize) {
        let Some(place) = self.places.get(own) else { return };
        let mut seen = 0;
        while let Some(epoch) = self.wait(&place.0, seen) {
            seen = epoch;
            // SAFETY: the slot shows the epoch, and the job remains valid while it does.
            let job = unsafe { *self.hall.0.job.get() };
            // SAFETY: the publisher of the job fulfils the contract of `run`.
            unsafe { self.work(job, epoch, own) };
            place.0.inside.store(OUTSIDE, Ordering::SeqCst);
        }
    }
    /// Waits for a job of an epoch other than `seen` and enters it. `None` when the pool shuts down.
    fn wait(&self, place: &Place, seen: u64) -> Option<u64> {
        loop {
            let start = Instant::now();
            while start.elapsed() < SPIN {
                for _ in 0..SPINS_PER_LOOK {
                    match self.enter(place, seen) {
                        Gate::Entered(epoch) => return Some(epoch),
                        Gate::Stopped => return None,
                        Gate::Closed => std::hint::spin_loop(),
                    }
                }
            }
            let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            // No loop around the wait: after a spurious wakeup the thread spins and gets here again.
            let g = self.gate().load(Ordering::SeqCst);
            if g & STOP == 0 && !is_new(g, seen) {
                drop(self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner));
            }
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }
    /// Reads the gate once, and enters if it is open.
    fn enter(&self, place: &Place, seen: u64) -> Gate {
        let g = self.gate().load(Ordering::Relaxed);
        if g & STOP != 0 {
            return Gate::Stopped;
        }
        if !is_new(g, seen) {
            return Gate::Closed;
        }
        place.inside.store(g / EPOCH, Ordering::SeqCst);
        if self.gate().load(Ordering::SeqCst) == g {
            return Gate::Entered(g / EPOCH);
        }
        place.inside.store(OUTSIDE, Ordering::SeqCst);
        Gate::Closed
    }
}

enum Gate {
    Entered(u64),
    Closed,
    Stopped,
}

fn is_new(gate: u64, seen: u64) -> bool {
    gate & OPEN != 0 && gate / EPOCH != seen
}

/// The pool. Dropping it stops its threads.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Creates a pool of `threads` threads including the caller; 0 means one per CPU. The pool is smaller if
    /// the system refuses to start threads.
    pub fn new(threads: usize) -> Pool {
        let wanted =
            if threads == 0 { thread::available_parallelism().map_or(1, usize::from) } else { threads };
        let mut workers = wanted.min(MAX_THREADS) - 1;
        loop {
            let pool = Pool::start(workers);
            if pool.threads.len() == workers {
                return pool;
            }
            // The system refused: `workers` is the number that did start.
            workers = pool.threads.len();
        }
    }
    fn start(workers: usize) -> Pool {
        let shared = Arc::new(Shared::new(workers));
        let start = |k: usize| {
            let shared = shared.clone();
            thread::Builder::new().name(format!("onnxc-{k}")).spawn(move || shared.serve(k)).ok()
        };
        let threads = (1..=workers).map_while(start).collect();
        Pool { shared, threads }
    }
    /// Number of threads that work on a job, including the caller.
    pub fn threads(&self) -> usize {
        self.shared.workers + 1
    }
    /// The `exec` argument of generated code. Any number of threads may use it concurrently.
    pub fn exec(&self) -> Exec<'_> {
        let max_tasks = if self.threads() == 1 { 1 } else { self.threads() * TASKS_PER_THREAD };
        let user = Arc::as_ptr(&self.shared).cast_mut().cast();
        let raw = onnxc_exec {
            struct_size: size_of::<onnxc_exec>(),
            user,
            parallel_for: Some(parallel_for),
            max_tasks,
            ..onnxc_exec::NONE
        };
        Exec { raw, pool: PhantomData }
    }
    /// Calls `f` once for each index below `n`. If a call panics, the others still run, and the first panic
    /// is resumed in the caller.
    pub fn run<F: Fn(usize) + Sync>(&self, n: usize, f: F) {
        struct Ctx<F> {
            f: F,
            panic: Mutex<Option<Box<dyn Any + Send>>>,
        }
        unsafe extern "C" fn task<F: Fn(usize) + Sync>(ctx: *mut c_void, i: usize) {
            // SAFETY: `ctx` is the `Ctx<F>` below, which is shared and lives until `run` returns.
            let ctx = unsafe { &*ctx.cast::<Ctx<F>>() };
            if let Err(p) = catch_unwind(AssertUnwindSafe(|| (ctx.f)(i))) {
                ctx.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(p);
            }
        }
        let ctx = Ctx { f, panic: Mutex::new(None) };
        let job = Job { n, f: task::<F>, ctx: (&raw const ctx).cast_mut().cast() };
        // SAFETY: `task::<F>` expects this context; `F: Sync`, so threads may share it.
        unsafe { self.shared.run(job) };
        if let Some(p) = ctx.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(p);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.gate().fetch_or(STOP, Ordering::SeqCst);
        drop(self.shared.lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.wake.notify_all();
        for t in self.threads.drain(..) {
            // Workers cannot panic: tasks are C functions, and `run` catches panics of closures.
            let _ = t.join();
        }
    }
}

/// An `onnxc_exec` that borrows the state of its callbacks.
#[derive(Clone, Copy, Debug)]
pub struct Exec<'a> {
    raw: onnxc_exec,
    pool: PhantomData<&'a Pool>,
}

// SAFETY: made from a pool, which is `Sync`, or under the contract of `from_raw`.
unsafe impl Send for Exec<'_> {}
// SAFETY: as above.
unsafe impl Sync for Exec<'_> {}

impl Exec<'_> {
    /// An exec with callbacks of the user.
    ///
    /// # Safety
    /// During the lifetime of the result, the callbacks may be called with `user` as the header describes,
    /// from any thread.
    pub unsafe fn from_raw(raw: onnxc_exec) -> Self {
        Exec { raw, pool: PhantomData }
    }
    /// Sets the maximum number of tasks; 0 lets the model choose.
    #[must_use]
    pub fn with_max_tasks(mut self, n: usize) -> Self {
        self.raw.max_tasks = n;
        self
    }
    /// The struct for generated code; valid while the `Exec` lives and is not moved.
    pub fn as_raw(&self) -> &onnxc_exec {
        &self.raw
    }
}

/// `parallel_for` of [`Pool::exec`].
unsafe extern "C" fn parallel_for(user: *mut c_void, n: usize, f: onnxc_task_fn, task_ctx: *mut c_void) {
    // SAFETY: `user` is the `Shared` of a pool that outlives its `Exec`.
    let shared = unsafe { &*user.cast::<Shared>() };
    // SAFETY: the contract of `parallel_for` allows calling `f` for all indices concurrently.
    unsafe { shared.run(Job { n, f, ctx: task_ctx }) }
}

/// `onnxc_pool` of the C interface: a pool with its exec.
pub struct CPool {
    /// Points into the pool's shared state, which does not move.
    exec: Exec<'static>,
    _pool: Pool,
}

/// `onnxc_pool *onnxc_pool_create(size_t threads)`: see [`Pool::new`]. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn onnxc_pool_create(threads: usize) -> *mut CPool {
    let pool = Pool::new(threads);
    let raw = *pool.exec().as_raw();
    // SAFETY: the exec is in the same box as its pool and is not handed out beyond the box's lifetime.
    let exec = unsafe { Exec::from_raw(raw) };
    Box::into_raw(Box::new(CPool { exec, _pool: pool }))
}

/// `void onnxc_pool_destroy(onnxc_pool *pool)`: stops the threads. Null is ignored.
///
/// # Safety
/// `pool` comes from [`onnxc_pool_create`], is destroyed once, and is not in use by a run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_pool_destroy(pool: *mut CPool) {
    if !pool.is_null() {
        // SAFETY: guaranteed by the caller.
        drop(unsafe { Box::from_raw(pool) });
    }
}

/// `const onnxc_exec *onnxc_pool_exec(const onnxc_pool *pool)`: the argument of `<m>_infer_exec`; valid until
/// the pool is destroyed. Null gives null, which means a serial run.
///
/// # Safety
/// `pool` is null or comes from [`onnxc_pool_create`] and is not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_pool_exec(pool: *const CPool) -> *const onnxc_exec {
    // SAFETY: guaranteed by the caller.
    unsafe { pool.as_ref() }.map_or(std::ptr::null(), |p| p.exec.as_raw())
}
