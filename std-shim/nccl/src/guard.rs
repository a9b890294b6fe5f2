//! What the caller is told: a code, and words through its logger. Nothing unwinds into C.

use crate::abi::Status;
use crate::log;
use std::fmt::Display;
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

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    pub(crate) words: String,
}

impl Refusal {
    pub(crate) fn new(code: Code, words: impl Display) -> Self {
        Self { code, words: words.to_string() }
    }

    /// An argument that cannot be.
    pub(crate) fn argument(words: impl Display) -> Self {
        Self::new(Code::Argument, words)
    }
}

const SUCCESS: Status = 0;

/// Runs what a function of a table does: its code is returned, and why it failed is logged.
pub(crate) fn guard(function: &'static str, call: impl FnOnce() -> Result<(), Refusal>) -> Status {
    let answered = catch_unwind(AssertUnwindSafe(call));
    let Err(Refusal { code, words }) = answered.unwrap_or_else(|_| {
        Err(Refusal::new(
            Code::Internal,
            "the plugin panicked: what it was working on is of no use any more",
        ))
    }) else {
        return SUCCESS;
    };
    // Logging must not unwind into C either.
    _ = catch_unwind(|| log::warn(&format!("{function}: {words}")));
    code as Status
}
