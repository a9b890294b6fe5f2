//! Kinds of devices.

use std::fmt;

/// A kind of devices between hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// RDMA devices, through verbs.
    Verbs,
    /// Network interfaces, over TCP.
    Tcp,
}

impl Backend {
    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Verbs => "verbs",
            Self::Tcp => "tcp",
        }
    }
}

/// For messages.
impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Verbs => "RDMA",
            Self::Tcp => "TCP",
        })
    }
}
