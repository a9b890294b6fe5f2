//! Runs a part of a test in a fork of its process, for the tests of all crates. Such a test is the
//! only one of its program: another test may hold a lock during the fork.

#![allow(unreachable_pub, reason = "a module of several test programs")]

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// How long a child may take. Only a child that hangs comes near it.
const LONG: Duration = Duration::from_secs(60);

/// Runs `work` in a child, which then ends by `exit`, as a program does. Panics if `work` panics,
/// or the child hangs.
#[track_caller]
pub fn in_fork(work: impl FnOnce()) {
    // SAFETY: the other threads of the process, if there are any, wait or spin meanwhile, and the C
    // library's allocator supports forks.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        run(work);
    }
    let begin = Instant::now();
    let mut status = 0;
    // SAFETY: it is a child of this process, and the status is a local variable.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        if begin.elapsed() > LONG {
            // SAFETY: the child was not waited for, so its number is not reused.
            unsafe {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, &raw mut status, 0);
            }
            panic!("the child hangs");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(libc::WIFEXITED(status), "the child was killed by signal {}", libc::WTERMSIG(status));
    assert_eq!(libc::WEXITSTATUS(status), 0, "the exit status of the child");
}

fn run(work: impl FnOnce()) -> ! {
    // The test's hook keeps the text until the test ends.
    std::panic::set_hook(Box::new(|panic| {
        _ = writeln!(std::io::stderr(), "in the child: {panic}")
    }));
    let status = libc::c_int::from(catch_unwind(AssertUnwindSafe(work)).is_err());
    // SAFETY: the child has no other thread.
    unsafe { libc::exit(status) }
}
