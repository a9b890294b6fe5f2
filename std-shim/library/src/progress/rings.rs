//! The rings between a handle and the thread.

use super::depth::HANDLE_DEPTH;
use super::message::HandleMessage;
use super::outcome::Report;
use polyrail_core::spsc::{Consumer, Producer, Ring};
use std::sync::Arc;

/// Messages that a handle can have on their way.
pub(super) const MESSAGES: usize = 256;

pub(super) type MessageRing<R> = Arc<Ring<HandleMessage<R>, MESSAGES>>;
pub(super) type ReportRing<O> = Arc<Ring<Report<O>, HANDLE_DEPTH>>;
pub(super) type MessageProducer<R> = Producer<HandleMessage<R>, MESSAGES, MessageRing<R>>;
pub(super) type MessageConsumer<R> = Consumer<HandleMessage<R>, MESSAGES, MessageRing<R>>;
pub(super) type ReportProducer<O> = Producer<Report<O>, HANDLE_DEPTH, ReportRing<O>>;
pub(super) type ReportConsumer<O> = Consumer<Report<O>, HANDLE_DEPTH, ReportRing<O>>;
