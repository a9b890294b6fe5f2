//! Network interfaces that a test makes and changes: in a network namespace of its own.

#![allow(dead_code, reason = "every test file uses its own part")]
#![allow(unreachable_pub, reason = "a module of several test programs")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The I/O thread of a process is in the namespace of its first device, so tests with devices in
/// namespaces take turns.
static TURN: Mutex<()> = Mutex::new(());

/// Waits until no other test of this process has its turn.
pub fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A network namespace for the calling thread, and the threads and processes that it starts.
pub struct Namespace {
    shell: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    _turn: MutexGuard<'static, ()>,
}

impl Namespace {
    /// Enters a new namespace, whose loopback interface is up. `None`, with the reason: the system
    /// has no iproute2, or does not permit it.
    pub fn enter() -> Option<Self> {
        let turn = turn();
        // SAFETY: it changes only the namespace of this thread.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            eprintln!("skipped: no network namespace: {}", std::io::Error::last_os_error());
            return None;
        }
        // It is started now, because a test may take all descriptors.
        let mut shell =
            Command::new("sh").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (commands, answers) = (shell.stdin.take().unwrap(), shell.stdout.take().unwrap());
        let answers = BufReader::new(answers);
        let mut namespace = Self { shell, commands, answers, _turn: turn };
        if !namespace.succeeds("ip link set lo up") {
            eprintln!("skipped: there is no iproute2");
            return None;
        }
        Some(namespace)
    }

    /// Runs a command, and returns whether it succeeds.
    pub fn succeeds(&mut self, command: &str) -> bool {
        writeln!(self.commands, "{command} >&2; echo $?").unwrap();
        let mut status = String::new();
        self.answers.read_line(&mut status).unwrap();
        status.trim() == "0"
    }

    /// Runs a command, which must succeed.
    pub fn run(&mut self, command: &str) {
        assert!(self.succeeds(command), "{command}");
    }

    /// Makes a link that has carrier: its ends are the interfaces `NAME` and `NAME-peer`.
    pub fn link(&mut self, name: &str) {
        self.run(&format!("ip link add {name} type veth peer name {name}-peer"));
        for end in [name, &format!("{name}-peer")] {
            self.run(&format!("ip link set {end} up"));
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        _ = self.shell.kill();
        _ = self.shell.wait();
    }
}
