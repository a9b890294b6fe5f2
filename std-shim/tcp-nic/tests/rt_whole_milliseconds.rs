//! Kernels and containers without `epoll_pwait2`: a program of its own, because it filters system
//! calls.

mod support;

use polyrail_core::verbs::WcStatus;
use support::{exchange, pair, thread, wait};

/// Lets `epoll_pwait2` fail as on Linux before 5.11, in this thread and those that it starts.
/// Returns false if the system has no filters.
fn forbid_epoll_pwait2() -> bool {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let is_it = libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf: 1,
        k: libc::SYS_epoll_pwait2 as u32,
    };
    let mut program = [
        // The number is the first field of `struct seccomp_data`.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        is_it,
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the system copies the filter, whose length is stated.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter) == 0
    }
}

#[test]
fn the_io_thread_waits_and_serves_without_epoll_pwait2() {
    if !forbid_epoll_pwait2() {
        eprintln!("skipped: no filters of system calls");
        return;
    }
    let (mut near, mut far) = pair("127.5.2.1", "127.5.3.1");
    wait("the connection", || near.qp.is_connected() && far.qp.is_connected());
    // Nobody polls, so that the thread has to move the data.
    near.buffer.write(0, b"without polls");
    near.post(near.write_to(&far.buffer, 0, 13)).unwrap();
    wait("the bytes", || far.buffer.read(0, 13) == b"without polls");
    assert_eq!(near.completion().status, WcStatus::SUCCESS);
    exchange(&mut near, &mut far, 1);
    assert!(!thread::spins());
}
