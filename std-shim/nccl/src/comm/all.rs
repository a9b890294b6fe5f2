//! All connections of this process.

use super::connection::Connection;
use crate::slots::Slots;

/// All connections of this process.
pub(crate) static CONNECTIONS: Slots<Connection> = Slots::new();
