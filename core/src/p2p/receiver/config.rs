//! What a receiver is told when it is made.

/// What can be chosen about a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverConfig {
    /// Its number on its virtual completion queue, where each target has its own.
    pub virtual_qp_num: u32,
    /// How many rails there are, 1 to 8; the same at both ends.
    pub rails: u8,
    /// Other rails take over from one that fails; the same at both ends. See
    /// [Rails that fail](crate::p2p::Sender#rails-that-fail).
    pub reroutes: bool,
    /// With fewer rails in service the connection fails at once, if it re-routes. With 0, messages wait for a
    /// rail for as long as its owner likes.
    pub min_rails: u8,
}

impl Default for ReceiverConfig {
    fn default() -> Self {
        Self { virtual_qp_num: 0, rails: 1, reroutes: false, min_rails: 1 }
    }
}
