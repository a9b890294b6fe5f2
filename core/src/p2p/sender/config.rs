//! What a sender is told when it is made.

use crate::p2p::entry::EntryForm;
use crate::p2p::split::SplitPolicy;

/// What can be chosen about a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderConfig {
    /// Its number on its virtual completion queue, where each target has its own.
    pub virtual_qp_num: u32,
    /// How many rails there are, 1 to 8; the same at both ends.
    pub rails: u8,
    /// How long messages are spread over rails.
    pub split: SplitPolicy,
    /// Buffers up to this many bytes go over one rail, in turn. 64 KiB by default.
    pub split_threshold: u32,
    /// Messages of one buffer of this many bytes or more tell of their payload with a request of its own,
    /// instead of with the payload: networks route requests with an immediate less freely. `None`, the
    /// default, is for messages only that one request cannot carry.
    pub separate_signal: Option<u32>,
    /// How the receiver is to write entries. [`EntryForm::Plain`] saves the hash, on devices that promise
    /// to write in order.
    pub entry_form: EntryForm,
    /// Other rails take over from one that fails; the same at both ends. See
    /// [Rails that fail](crate::p2p::Sender#rails-that-fail).
    pub reroutes: bool,
    /// With fewer rails in service the connection fails at once, if it re-routes. With 0, messages wait for a
    /// rail for as long as its owner likes.
    pub min_rails: u8,
}

impl Default for SenderConfig {
    fn default() -> Self {
        Self {
            virtual_qp_num: 0,
            rails: 1,
            split: SplitPolicy::default(),
            split_threshold: 64 << 10,
            separate_signal: None,
            entry_form: EntryForm::default(),
            reroutes: false,
            min_rails: 1,
        }
    }
}
