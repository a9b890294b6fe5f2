//! The library itself: its version, and words.

use crate::code::Code;
use crate::error::last;
use std::ffi::{CStr, c_char};

/// The version of this header: major << 16 | minor << 8 | patch.
pub const POLYRAIL_VERSION: u32 = 1 << 8;

/// Returns the library's version. Versions with the same major number (before 1.0.0, with the same
/// minor number) understand each other's structures.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_version() -> u32 {
    POLYRAIL_VERSION
}

/// Returns what a code means, in a few words. Never NULL, and never freed.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_strerror(code: i32) -> *const c_char {
    words(code).as_ptr()
}

/// Returns the message of the last call of this thread that returned an error: the reason, the
/// place and the values. Empty if there was none; never NULL. Valid until another call of this
/// thread returns an error.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_last_error() -> *const c_char {
    last()
}

fn words(code: i32) -> &'static CStr {
    const ALL: [(Code, &CStr); 28] = [
        (Code::Ok, c"done"),
        (Code::NotNow, c"not now: poll, and call again"),
        (Code::Null, c"a required pointer is NULL"),
        (Code::Handle, c"a handle was closed, or never existed"),
        (Code::Kind, c"a handle is of another kind"),
        (Code::Busy, c"another thread is in a call with the object"),
        (Code::Poisoned, c"an earlier call with the object panicked: close it"),
        (Code::Panic, c"an internal error of the library"),
        (Code::Argument, c"an invalid argument or option"),
        (Code::Size, c"unknown size of a structure"),
        (Code::Range, c"offset and length do not lie within the memory"),
        (Code::TooShort, c"the memory for the result is too short"),
        (Code::TooMany, c"too many, or too long"),
        (Code::Peer, c"unknown peer"),
        (Code::Request, c"unknown request"),
        (Code::State, c"invalid in the present state"),
        (Code::Failed, c"the connection failed"),
        (Code::Access, c"the memory does not permit the access"),
        (Code::Keys, c"the memory is not registered with a device that the request uses"),
        (Code::Unsupported, c"not supported by the build, backend or device"),
        (Code::NoDevice, c"unknown or unusable device"),
        (Code::Device, c"a device or its driver refused"),
        (Code::System, c"the system has no memory, file descriptor or thread left"),
        (Code::StillAccessed, c"a device may still access the memory"),
        (Code::Mismatch, c"the options of the two ends do not match"),
        (Code::Protocol, c"malformed bytes from a peer"),
        (Code::Link, c"a link could not be made, or broke"),
        (Code::Forked, c"the object belongs to the process that this one is a fork of"),
    ];
    let known = ALL.iter().find(|(known, _)| *known as i32 == code);
    known.map_or(c"an unknown code", |(_, words)| words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_the_crates() {
        let part = |text: &str| text.parse::<u32>().unwrap();
        let major = part(env!("CARGO_PKG_VERSION_MAJOR"));
        let minor = part(env!("CARGO_PKG_VERSION_MINOR"));
        let patch = part(env!("CARGO_PKG_VERSION_PATCH"));
        assert_eq!(POLYRAIL_VERSION, major << 16 | minor << 8 | patch);
    }

    #[test]
    fn every_code_has_words_of_its_own() {
        let all: Vec<_> = (Code::Forked as i32..=1).map(words).collect();
        for (at, words) in all.iter().enumerate() {
            assert_ne!(*words, c"an unknown code", "{at}");
            assert!(!all[..at].contains(words), "{words:?}");
        }
        assert_eq!(
            (words(2), words(Code::Forked as i32 - 1)),
            (c"an unknown code", c"an unknown code")
        );
    }
}
