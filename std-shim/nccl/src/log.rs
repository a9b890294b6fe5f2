//! Logging through NCCL's logger.

use crate::abi::Logger;
use polyrail::printable;
use std::ffi::{CString, c_int, c_ulong};
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

/// Levels and subsystems of NCCL's public header.
const WARN: c_int = 2;
const INFO: c_int = 3;
const TRACE: c_int = 5;
const ALL: c_ulong = !0;
const INIT_AND_NET: c_ulong = 1 | 16;

/// How much is logged. NCCL then prints the levels that NCCL_DEBUG selects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Level {
    /// Nothing.
    None,
    /// Failures.
    Warn,
    /// Set-up, and events of rails.
    #[default]
    Info,
    /// Also each connection.
    Trace,
}

static LOGGER: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
static LEVEL: AtomicU8 = AtomicU8::new(Level::Info as u8);

/// Sets the logger.
pub(crate) fn use_logger(logger: Option<Logger>) {
    let logger = logger.map_or(std::ptr::null_mut(), |logger| logger as *mut ());
    LOGGER.store(logger, Ordering::Release);
}

pub(crate) fn set_level(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

pub(crate) fn warn(words: &str) {
    tell(Level::Warn, (WARN, ALL), words);
}

pub(crate) fn info(words: &str) {
    tell(Level::Info, (INFO, INIT_AND_NET), words);
}

pub(crate) fn trace(words: &str) {
    tell(Level::Trace, (TRACE, INIT_AND_NET), words);
}

fn tell(level: Level, (nccls, subsystems): (c_int, c_ulong), words: &str) {
    let logger = LOGGER.load(Ordering::Acquire);
    if logger.is_null() || level as u8 > LEVEL.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: `use_logger` stored a function of this type.
    let logger = unsafe { std::mem::transmute::<*mut (), Logger>(logger) };
    // Texts from peers and devices may contain any character; a line of the log must stay one.
    let words = CString::new(printable::escaped(words)).unwrap_or_default();
    // SAFETY: NCCL's logger is like printf; the format takes one text. All texts end with a zero
    // byte and outlive the call.
    unsafe {
        logger(
            nccls,
            subsystems,
            c"polyrail".as_ptr(),
            0,
            c"NET/polyrail : %s".as_ptr(),
            words.as_ptr(),
        )
    };
}
