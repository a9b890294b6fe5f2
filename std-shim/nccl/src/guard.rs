//! What the caller is told: a code, and words through its logger. Nothing unwinds into C.

use crate::abi::Status;
use crate::log;
use std::fmt::Display;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Codes of NCCL's public header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Code {
    /// The system or the hardware refused.
    System = 2,
    /// The caller broke the interface's rules, or this plugin did.
    Internal = 3,
    /// An argument that cannot be.
    Argument = 4,
    /// The user's mistake: a setting, or sizes that do not match.
    Usage = 5,
    /// The peer or the network failed.
    Remote = 6,
}

/// Why a call failed. Boxed, so that what calls return when they do not fail stays in registers.
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

/// Runs what a function of a table does: its code is returned, and why it failed is logged.
pub(crate) fn guard(function: &'static str, call: impl FnOnce() -> Result<(), Refusal>) -> Status {
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
        "the plugin panicked: what it was working on is of no use any more",
    )
}

#[cold]
fn refuse(function: &str, refusal: &Refusal) -> Status {
    // Logging must not unwind into C either.
    _ = catch_unwind(|| log::warn(&format!("{function}: {}", refusal.words)));
    refusal.code as Status
}
