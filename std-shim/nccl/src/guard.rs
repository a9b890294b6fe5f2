//! Errors for the caller: a code, and a line in its log. Panics do not unwind into C.

use crate::abi::Status;
use crate::log;
use polyrail_process::Process;
use std::fmt::Display;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

/// Codes of NCCL's public header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Code {
    /// An error of the system or the hardware.
    System = 2,
    /// The caller or this plugin broke the interface's rules.
    Internal = 3,
    /// An argument that cannot be.
    Argument = 4,
    /// An error of the user: an invalid setting, or sizes that do not match.
    Usage = 5,
    /// The peer or the network failed.
    Remote = 6,
}

/// Why a call failed. Boxed, so that the result of a successful call fits in registers.
#[derive(Debug)]
pub(crate) struct Refusal(Box<Reason>);

#[derive(Debug)]
pub(crate) struct Reason {
    pub(crate) code: Code,
    pub(crate) words: String,
}

impl Refusal {
    #[cold]
    pub(crate) fn new(code: Code, words: impl Display) -> Self {
        Self(Box::new(Reason { code, words: words.to_string() }))
    }

    /// An argument that cannot be.
    #[cold]
    pub(crate) fn argument(words: impl Display) -> Self {
        Self::new(Code::Argument, words)
    }
}

impl Deref for Refusal {
    type Target = Reason;

    fn deref(&self) -> &Reason {
        &self.0
    }
}

const SUCCESS: Status = 0;

/// The process that uses the plugin; 0 before its first call.
static OWNER: AtomicU64 = AtomicU64::new(0);

/// Refuses forks of the process that uses the plugin. They have neither its thread nor its devices,
/// and share its sockets and its epoll instance.
fn check_process() -> Result<(), Refusal> {
    let owner = match OWNER.load(Ordering::Relaxed) {
        0 => {
            let current = Process::current();
            // Another thread of this process may have been faster.
            _ = OWNER.compare_exchange(0, current.to_bits(), Ordering::Relaxed, Ordering::Relaxed);
            current
        }
        owner => Process::from_bits(owner),
    };
    owner.check().map_err(|forked| Refusal::new(Code::Usage, forked))
}

/// Runs the body of a function of the table. Returns its code, and logs the reason if it failed.
pub(crate) fn guard(function: &'static str, call: impl FnOnce() -> Result<(), Refusal>) -> Status {
    let call = || check_process().and_then(|()| call());
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(refusal)) => refuse(function, &refusal),
        Err(_) => refuse(function, &panicked()),
    }
}

#[cold]
fn panicked() -> Refusal {
    Refusal::new(
        Code::Internal,
        "the plugin panicked: the object of the call can no longer be used",
    )
}

#[cold]
fn refuse(function: &str, refusal: &Refusal) -> Status {
    // Logging must not unwind into C either.
    _ = catch_unwind(|| log::warn(&format!("{function}: {}", refusal.words)));
    refusal.code as Status
}
