//! Kinds of objects, and how their handles are misused.

use crate::code::Code;
use crate::error::{Failure, Refusal};
use polyrail_process::Forked;

/// What kind of object a slot has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Domain = 1,
    Region,
    Remote,
    Peers,
    Listener,
    Link,
}

/// A handle's type in C, and the object behind it.
pub(crate) trait Object {
    /// Of each kind there is one type only, or a slot would be taken for something else.
    const KIND: Kind;
    /// Its name in C.
    const NAME: &str;
    /// The object.
    type Value: Send + 'static;
}

/// Why a handle cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Misuse {
    Null,
    Closed,
    OtherKind,
    Busy,
    Poisoned,
    Forked(Forked),
}

impl Misuse {
    #[cold]
    pub(super) fn refusal<O: Object>(self, pointer: *mut O) -> Refusal {
        let name = O::NAME;
        let (code, what) = match self {
            Self::Forked(forked) => {
                return Failure::new(Code::Forked, format_args!("{name} {pointer:p}: {forked}"))
                    .into();
            }
            Self::Null => (Code::Null, "is NULL"),
            Self::Closed => (Code::Handle, "was closed, or never existed"),
            Self::OtherKind => (Code::Kind, "is a handle of another kind"),
            Self::Busy => (Code::Busy, "is in use by a call in another thread"),
            Self::Poisoned => (Code::Poisoned, "was in a call that panicked: close it"),
        };
        Failure::new(code, format_args!("{name} {pointer:p} {what}")).into()
    }
}
