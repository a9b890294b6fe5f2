//! Work on other threads: at most [`MOST_ASIDE`] at a time in a process.
//!
//! A thread ends as soon as no work waits.

use polyrail_process::PerProcess;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::{fmt, io, thread};

/// The number of threads on which a process [creates and connects](super::Connecting::aside) queue
/// pairs at the same time. Over RoCE each waits for about a second if the peer's address is not
/// found, and peers choose how many addresses they send.
pub const MOST_ASIDE: usize = 64;

/// Work that has an owner: if the owner drops it before it begins, it never begins.
pub(super) struct Work(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").finish_non_exhaustive()
    }
}

/// A panic cannot leave what these mutexes protect inconsistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The work of a process.
#[derive(Default)]
struct Line(Mutex<State>);

#[derive(Default)]
struct State {
    /// Threads that run.
    threads: usize,
    waiting: VecDeque<Weak<Work>>,
}

/// A fork has no thread of its parent.
static LINE: PerProcess<Line> = PerProcess::new();

impl Line {
    fn current() -> &'static Self {
        LINE.get_or_make(Self::default)
    }

    /// Runs what waits, until nothing does.
    fn run(&self) {
        while let Some(work) = self.next() {
            // The thread runs other work afterwards. The owner notices that there is no result.
            _ = catch_unwind(AssertUnwindSafe(work));
        }
    }

    /// Takes the oldest work. If there is none, the thread ends.
    fn next(&self) -> Option<Box<dyn FnOnce() + Send>> {
        loop {
            let mut state = lock(&self.0);
            let Some(work) = state.waiting.pop_front() else {
                state.threads -= 1;
                return None;
            };
            drop(state);
            if let Some(work) = work.upgrade().and_then(|work| lock(&work.0).take()) {
                return Some(work);
            }
        }
    }
}

/// Runs `work` on another thread, as soon as fewer than [`MOST_ASIDE`] run and older work has
/// begun.
///
/// # Errors
///
/// The system cannot start a thread, and none runs that could run the work later.
pub(super) fn run(work: impl FnOnce() + Send + 'static) -> io::Result<Arc<Work>> {
    let line = Line::current();
    let work = Arc::new(Work(Mutex::new(Some(Box::new(work)))));
    let mut state = lock(&line.0);
    // A peer that comes and leaves again leaves nothing behind.
    state.waiting.retain(|work| work.strong_count() > 0);
    state.waiting.push_back(Arc::downgrade(&work));
    if state.threads < MOST_ASIDE {
        let thread = thread::Builder::new().name("polyrail-connect".to_owned());
        // With the lock: work that counts on a thread must not wait for one that cannot start.
        match thread.spawn(move || line.run()) {
            Ok(_) => state.threads += 1,
            Err(error) if state.threads == 0 => {
                state.waiting.pop_back();
                return Err(error);
            }
            Err(_) => {}
        }
    }
    Ok(work)
}

#[cfg(test)]
pub(super) mod rt_tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    /// The tests share the line of the process.
    static ALONE: Mutex<()> = Mutex::new(());

    pub(in crate::backend) fn alone() -> MutexGuard<'static, ()> {
        lock(&ALONE)
    }

    const LIMIT: Duration = Duration::from_secs(60);

    fn wait_for(what: impl Fn(&State) -> bool) {
        let begun = Instant::now();
        while !what(&lock(&Line::current().0)) {
            assert!(begun.elapsed() < LIMIT);
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn work_beyond_the_limit_waits_in_line_and_what_is_dropped_never_begins() {
        let _alone = alone();
        wait_for(|state| state.threads == 0);
        let (begin, begun) = mpsc::channel();
        let ends = Arc::new(Mutex::new(()));
        let held = lock(&ends);
        let start = |number: usize| {
            let (begin, ends) = (begin.clone(), Arc::clone(&ends));
            run(move || {
                begin.send(number).unwrap();
                drop(lock(&ends));
            })
            .unwrap()
        };
        let mut works: Vec<_> = (0..MOST_ASIDE + 3).map(start).collect();
        let mut first: Vec<_> =
            (0..MOST_ASIDE).map(|_| begun.recv_timeout(LIMIT).unwrap()).collect();
        first.sort_unstable();
        assert_eq!(first, (0..MOST_ASIDE).collect::<Vec<_>>());
        assert!(begun.try_recv().is_err());
        drop(works.remove(MOST_ASIDE + 1));
        works.push(start(MOST_ASIDE + 3));
        assert_eq!(lock(&Line::current().0).waiting.len(), 3, "what was dropped is forgotten");
        drop(held);
        let mut others: Vec<_> = (0..3).map(|_| begun.recv_timeout(LIMIT).unwrap()).collect();
        others.sort_unstable();
        assert_eq!(others, [MOST_ASIDE, MOST_ASIDE + 2, MOST_ASIDE + 3]);
        wait_for(|state| state.threads == 0);
    }

    #[test]
    fn a_thread_survives_work_that_panics() {
        let _alone = alone();
        let (ran, runs) = mpsc::channel();
        let panics = run(|| panic!("a panic that the test wants")).unwrap();
        let goes_on = run(move || ran.send(()).unwrap()).unwrap();
        runs.recv_timeout(LIMIT).unwrap();
        wait_for(|state| state.threads == 0);
        drop((panics, goes_on));
    }
}
