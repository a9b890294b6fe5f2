//! The rings between a handle and the thread.

use super::message::{HandleMessage, Report};
use polyrail_core::spsc::{Consumer, Producer, Ring};
use std::sync::Arc;

/// Sends, and as many receives, that one handle may have unreported.
pub const HANDLE_DEPTH: usize = 256;

/// Both together.
pub(super) const SLOTS: usize = 2 * HANDLE_DEPTH;

/// Messages that a handle can have on their way.
pub(super) const MESSAGES: usize = 256;

pub(super) type MessageRing = Arc<Ring<HandleMessage, MESSAGES>>;
pub(super) type ReportRing = Arc<Ring<Report, SLOTS>>;
pub(super) type MessageProducer = Producer<HandleMessage, MESSAGES, MessageRing>;
pub(super) type ReportConsumer = Consumer<Report, SLOTS, ReportRing>;
