//! Signals that interrupt the system calls of all threads: nothing is lost, and nobody waits in vain.

mod support;

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use support::{Side, exchange, pair};

static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn handle(_: libc::c_int) {
    HANDLED.fetch_add(1, Relaxed);
}

/// Handles SIGUSR1 without SA_RESTART, so that system calls end with EINTR.
fn handle_signals() {
    // SAFETY: all zeros are an action without flags that blocks no other signal.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handle as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the handler only counts.
    assert_eq!(unsafe { libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()) }, 0);
}

/// Sends the signal to each thread of this process.
fn interrupt_all() {
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let id: libc::pid_t = task.unwrap().file_name().to_str().unwrap().parse().unwrap();
        // SAFETY: it touches no memory. A thread may have ended meanwhile.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), id, libc::SIGUSR1) };
    }
}

#[test]
fn signals_cost_no_byte_and_no_connection() {
    handle_signals();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                interrupt_all();
                thread::yield_now();
            }
        });
        let carried = scope.spawn(|| {
            let mut rounds = 0;
            while rounds < 20 || HANDLED.load(Relaxed) < 10_000 {
                // Opening, connecting and closing are interrupted, too.
                let (mut near, mut far): (Side, Side) = pair("127.8.9.1", "127.8.9.2");
                (0..4).for_each(|at| exchange(&mut near, &mut far, rounds + at));
                rounds = rounds.wrapping_add(4);
            }
        });
        let carried = carried.join();
        is_over.store(true, Relaxed);
        carried.unwrap();
    });
}
