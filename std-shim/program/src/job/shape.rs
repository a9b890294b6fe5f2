//! How requests are sent, in any job.

use polyrail::virtual_qp::Scheme;
use serde::{Serialize, Serializer};

/// How requests are sent from one side to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Shape {
    /// How receivers are notified; `None` if it makes no difference.
    #[serde(serialize_with = "as_name")]
    pub scheme: Option<Scheme>,
    /// Rails of the virtual queue pair.
    pub rails: usize,
    /// Devices of each side that rails use.
    pub devices: usize,
    /// Size of the longest fragment in bytes.
    pub max_msg_size: u32,
    /// Size of one request in bytes.
    pub message_size: u64,
    /// Requests in flight at a time.
    pub window: u64,
}

impl Shape {
    /// Returns the name of the scheme, or `-` if it makes no difference.
    pub const fn scheme_name(&self) -> &'static str {
        name(self.scheme)
    }
}

const fn name(scheme: Option<Scheme>) -> &'static str {
    match scheme {
        Some(Scheme::Spray) => "spray",
        Some(Scheme::Dqplb) => "dqplb",
        None => "-",
    }
}

fn as_name<S: Serializer>(scheme: &Option<Scheme>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(name(*scheme))
}
