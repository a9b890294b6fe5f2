//! Errors: a code, and words that are kept for the thread.

use crate::code::Code;
use polyrail::chain::Chain;
use std::cell::RefCell;
use std::error::Error;
use std::ffi::{CStr, CString};
use std::fmt::Display;

/// Why a call was refused.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Call again later.
    NotNow,
    /// An error.
    Failure(Failure),
}

/// An error for a C program.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) words: String,
}

impl Failure {
    /// Makes an error with this message.
    #[cold]
    pub(crate) fn new(code: Code, words: impl Display) -> Self {
        Self { code, words: words.to_string() }
    }

    /// Makes an error with the message of `error` and of its sources.
    #[cold]
    pub(crate) fn of(code: Code, error: &(dyn Error + 'static)) -> Self {
        Self { code, words: Chain(error).to_string() }
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

/// Shorthand for returning an error.
#[cold]
pub(crate) fn refuse<T>(code: Code, words: impl Display) -> Result<T, Refusal> {
    Err(Failure::new(code, words).into())
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Keeps the message for the thread.
#[cold]
pub(crate) fn keep(Failure { code, words }: Failure) -> Code {
    // A 0 within would end them early.
    let words = CString::new(words.replace('\0', "\u{fffd}")).unwrap_or_default();
    // A thread that is ending keeps nothing any more.
    _ = LAST.try_with(|last| last.replace(words));
    code
}

/// Returns the kept message.
pub(crate) fn last() -> *const std::ffi::c_char {
    const NONE: &CStr = c"";
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(NONE.as_ptr())
}
