//! The library itself: its version, and words.

use crate::arguments::{Answer, bytes};
use crate::call::call;
use crate::code::Code;
use crate::error::last;
use crate::types::{EventKind, RailState, State};
use polyrail::printable;
use polyrail::verbs::WcStatus;
use polyrail_process::PerProcess;
use std::ffi::{CStr, CString, c_char, c_void};

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

/// Returns what the status of a completion (a polyrail_status, or another number of a driver)
/// means, in a few words. Never NULL, and never freed.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_status_str(status: u32) -> *const c_char {
    status_words(status).as_ptr()
}

/// Returns what the kind of an event (a polyrail_event_kind) means, in a few words.
/// Never NULL, and never freed.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_event_kind_str(kind: u32) -> *const c_char {
    event_kind_words(kind).as_ptr()
}

/// Returns what the state of a connection (a polyrail_state) means, in a few words.
/// Never NULL, and never freed.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_state_str(state: u32) -> *const c_char {
    state_words(state).as_ptr()
}

/// Returns what the state of a rail (a polyrail_rail_state) means, in a few words.
/// Never NULL, and never freed.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_rail_state_str(state: u32) -> *const c_char {
    rail_state_words(state).as_ptr()
}

/// Stores text from elsewhere, such as the name that a peer gave or the bytes of an event, so that
/// it is safe to print: control characters and those that hide or reorder others become escapes
/// like `\n` and `\u{202e}`, and bytes that are not UTF-8 become U+FFFD. The stored text ends with
/// a 0 byte, which `length` does not count. It has at most 6 times as many bytes as `text`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_printable(
    text: *const c_void,
    text_length: usize,
    printable: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let text = unsafe { bytes(text, text_length, "text") }?;
        // SAFETY: guaranteed by the caller.
        let answer = unsafe { Answer::new(printable.cast(), capacity, length) }?;
        let printable = printable::escaped(&String::from_utf8_lossy(text));
        answer.give_with(printable.as_bytes(), &[0])
    })
}

fn status_words(status: u32) -> &'static CStr {
    const CANCELLED: u32 = WcStatus::CANCELLED.0;
    static ALL: PerProcess<Vec<CString>> = PerProcess::new();
    let all = ALL.get_or_make(|| {
        let words = (0..).map_while(|status| WcStatus(status).description());
        words.map(|words| CString::new(words).unwrap_or_default()).collect()
    });
    match status {
        CANCELLED => c"taken back by the caller",
        _ => all.get(status as usize).map_or(c"unknown status", |words| words),
    }
}

/// Returns the words of a number, or `unknown` if `all` does not have it.
fn known<N: PartialEq>(
    all: &[(N, &'static CStr)],
    number: N,
    unknown: &'static CStr,
) -> &'static CStr {
    let known = all.iter().find(|(known, _)| *known == number);
    known.map_or(unknown, |(_, words)| words)
}

fn event_kind_words(kind: u32) -> &'static CStr {
    const ALL: [(u32, &CStr); 9] = [
        (EventKind::Connected as u32, c"connected"),
        (EventKind::Message as u32, c"message"),
        (EventKind::LinkResumed as u32, c"link resumed"),
        (EventKind::LinkLost as u32, c"link lost"),
        (EventKind::NotConnected as u32, c"not connected"),
        (EventKind::RailFailed as u32, c"rail failed"),
        (EventKind::RailFenced as u32, c"rail fenced"),
        (EventKind::RailReturned as u32, c"rail returned"),
        (EventKind::Failed as u32, c"connection failed"),
    ];
    known(&ALL, kind, c"unknown event")
}

fn state_words(state: u32) -> &'static CStr {
    const ALL: [(u32, &CStr); 5] = [
        (State::New as u32, c"not connected"),
        (State::Meeting as u32, c"connecting"),
        (State::Ready as u32, c"connected"),
        (State::Degraded as u32, c"connected, with failed rails"),
        (State::Failed as u32, c"failed"),
    ];
    known(&ALL, state, c"unknown state")
}

fn rail_state_words(state: u32) -> &'static CStr {
    const ALL: [(u32, &CStr); 5] = [
        (RailState::InService as u32, c"in service"),
        (RailState::Draining as u32, c"draining"),
        (RailState::Fenced as u32, c"fenced"),
        (RailState::Down as u32, c"down"),
        (RailState::Joining as u32, c"joining"),
    ];
    known(&ALL, state, c"unknown state of a rail")
}

fn words(code: i32) -> &'static CStr {
    const ALL: [(i32, &CStr); 29] = [
        (Code::Ok as i32, c"done"),
        (Code::NotNow as i32, c"not now: poll, and call again"),
        (Code::Null as i32, c"a required pointer is NULL"),
        (Code::Handle as i32, c"a handle was closed, or never existed"),
        (Code::Kind as i32, c"a handle is of another kind"),
        (Code::Busy as i32, c"another thread is in a call with the object"),
        (Code::Poisoned as i32, c"an earlier call with the object panicked: close it"),
        (Code::Panic as i32, c"an internal error of the library"),
        (Code::Argument as i32, c"an invalid argument or option"),
        (Code::Size as i32, c"unknown size of a structure"),
        (Code::Range as i32, c"offset and length do not lie within the memory"),
        (Code::TooShort as i32, c"the memory for the result is too short"),
        (Code::TooMany as i32, c"too many, or too long"),
        (Code::Peer as i32, c"unknown peer"),
        (Code::Request as i32, c"unknown request"),
        (Code::State as i32, c"invalid in the present state"),
        (Code::Failed as i32, c"the connection failed"),
        (Code::Access as i32, c"the memory does not permit the access"),
        (Code::Keys as i32, c"the memory is not registered with a device that the request uses"),
        (Code::Unsupported as i32, c"not supported by the build, backend or device"),
        (Code::NoDevice as i32, c"unknown or unusable device"),
        (Code::Device as i32, c"a device or its driver refused"),
        (Code::System as i32, c"the system has no memory, file descriptor or thread left"),
        (Code::StillAccessed as i32, c"a device may still access the memory"),
        (Code::Mismatch as i32, c"the options of the two ends do not match"),
        (Code::Protocol as i32, c"malformed bytes from a peer"),
        (Code::Link as i32, c"a link could not be made, or broke"),
        (Code::Forked as i32, c"the object belongs to the process that this one is a fork of"),
        (Code::TakenBack as i32, c"this side or the peer took the message back"),
    ];
    known(&ALL, code, c"an unknown code")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Status;
    use std::ops::RangeInclusive;

    #[test]
    fn the_number_is_the_crates() {
        let part = |text: &str| text.parse::<u32>().unwrap();
        let major = part(env!("CARGO_PKG_VERSION_MAJOR"));
        let minor = part(env!("CARGO_PKG_VERSION_MINOR"));
        let patch = part(env!("CARGO_PKG_VERSION_PATCH"));
        assert_eq!(POLYRAIL_VERSION, major << 16 | minor << 8 | patch);
    }

    #[test]
    fn every_status_of_the_header_has_words() {
        let unknown = status_words(u32::MAX);
        for status in 0..=Status::General as u32 {
            let words = status_words(status);
            assert_ne!(words, unknown, "{status}");
            assert_eq!(words.to_str().ok(), WcStatus(status).description());
        }
        assert_eq!(status_words(Status::General as u32 + 1), unknown);
        let cancelled = WcStatus(Status::Cancelled as u32);
        assert_eq!(cancelled, WcStatus::CANCELLED);
        assert_eq!(status_words(cancelled.0).to_str().ok(), cancelled.description());
    }

    #[test]
    fn every_event_and_state_has_words_of_its_own() {
        let all = |words: fn(u32) -> &'static CStr, numbers: RangeInclusive<u32>| {
            let unknown = words(u32::MAX);
            assert_eq!(words(numbers.end() + 1), unknown);
            let all: Vec<_> = numbers.map(words).collect();
            for (at, words) in all.iter().enumerate() {
                assert!(*words != unknown && !all[..at].contains(words), "{at}: {words:?}");
            }
        };
        all(event_kind_words, EventKind::Connected as u32..=EventKind::Failed as u32);
        assert_eq!(event_kind_words(0), event_kind_words(u32::MAX));
        all(state_words, State::New as u32..=State::Failed as u32);
        all(rail_state_words, RailState::InService as u32..=RailState::Joining as u32);
    }

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        let printable = |text: &[u8]| {
            let mut room = [0x55_u8; 64];
            let mut length = 0;
            // SAFETY: both pointers are valid for the lengths beside them.
            let code = unsafe {
                polyrail_printable(
                    text.as_ptr().cast(),
                    text.len(),
                    room.as_mut_ptr().cast(),
                    room.len(),
                    &raw mut length,
                )
            };
            assert_eq!((code, room[length]), (Code::Ok, 0));
            String::from_utf8(room[..length].to_vec()).unwrap()
        };
        assert_eq!(printable(b""), "");
        assert_eq!(printable("pläin".as_bytes()), "pläin");
        assert_eq!(printable(b"a\n\x1b[2J\0b"), "a\\n\\u{1b}[2J\\u{0}b");
        assert_eq!(printable(b"\xff\xfe"), "\u{fffd}\u{fffd}");
        // The longest escape of the fewest bytes.
        for text in ["\u{1f}", "\u{ad}", "\u{202e}", "\u{e007f}"] {
            assert!(printable(text.as_bytes()).len() <= 6 * text.len());
        }
    }

    #[test]
    fn every_code_has_words_of_its_own() {
        let all: Vec<_> = (Code::TakenBack as i32..=1).map(words).collect();
        for (at, words) in all.iter().enumerate() {
            assert_ne!(*words, c"an unknown code", "{at}");
            assert!(!all[..at].contains(words), "{words:?}");
        }
        assert_eq!(
            (words(2), words(Code::TakenBack as i32 - 1)),
            (c"an unknown code", c"an unknown code")
        );
    }
}
