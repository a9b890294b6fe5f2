//! The library itself: its version, and words.

use crate::code::Code;
use crate::error::last;
use std::ffi::{CStr, c_char};

/// The version that this header is of: major << 16 | minor << 8 | patch.
pub const POLYRAIL_VERSION: u32 = 1 << 8;

/// The library's version. Those of the same major number, and before 1.0.0 of the same minor number, understand each
/// other's structures.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_version() -> u32 {
    POLYRAIL_VERSION
}

/// What a code means, in a few words; never NULL. Valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_strerror(code: i32) -> *const c_char {
    words(code).as_ptr()
}

/// The words of the last call of this thread that returned an error: what, where, with which value. Empty if there
/// was none; never NULL. Valid until another call of this thread returns an error.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_last_error() -> *const c_char {
    last()
}

fn words(code: i32) -> &'static CStr {
    const ALL: [(Code, &CStr); 27] = [
        (Code::Ok, c"done"),
        (Code::NotNow, c"not now: poll, and call again"),
        (Code::Null, c"a pointer is NULL that must not be"),
        (Code::Handle, c"a handle was closed, or never was one"),
        (Code::Kind, c"a handle is of another kind"),
        (Code::Busy, c"another thread is in a call with the object"),
        (Code::Poisoned, c"the object is of no use since a call panicked"),
        (Code::Panic, c"a fault of the library"),
        (Code::Argument, c"a value that an argument or option cannot have"),
        (Code::Size, c"a structure has a size that is not known"),
        (Code::Range, c"offset and length do not lie within the memory"),
        (Code::TooShort, c"the memory for the answer is too short"),
        (Code::TooMany, c"more than there may be"),
        (Code::Peer, c"there is no such peer"),
        (Code::Request, c"there is no such request"),
        (Code::State, c"it cannot be called now"),
        (Code::Failed, c"the connection failed"),
        (Code::Access, c"the memory does not permit the access"),
        (Code::Keys, c"the memory is not registered with a device that the request needs"),
        (Code::Unsupported, c"it cannot be done here"),
        (Code::NoDevice, c"there is no such device, or it cannot be used"),
        (Code::Device, c"a device or its driver refused"),
        (Code::System, c"the system gave no memory, file or thread"),
        (Code::StillAccessed, c"a device may still access the memory"),
        (Code::Mismatch, c"the two ends do not go together"),
        (Code::Protocol, c"bytes that are not what they should be"),
        (Code::Link, c"a link cannot be made, or broke"),
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
        let all: Vec<_> = (Code::Link as i32..=1).map(words).collect();
        for (at, words) in all.iter().enumerate() {
            assert_ne!(*words, c"an unknown code", "{at}");
            assert!(!all[..at].contains(words), "{words:?}");
        }
        assert_eq!(
            (words(2), words(Code::Link as i32 - 1)),
            (c"an unknown code", c"an unknown code")
        );
    }
}
