//! The rings between a handle and the thread.

use super::HANDLE_DEPTH;
use super::message::HandleMessage;
use super::outcome::Report;
use crate::sync::RingArc;
use polyrail_core::spsc::{Consumer, Producer, Ring};

/// Messages that a handle can have on their way.
pub(super) const MESSAGES: usize = if cfg!(polyrail_loom) { 2 } else { 256 };

pub(super) type MessageRing<R> = RingArc<Ring<HandleMessage<R>, MESSAGES>>;
pub(super) type ReportRing<O> = RingArc<Ring<Report<O>, HANDLE_DEPTH>>;
pub(super) type MessageProducer<R> = Producer<HandleMessage<R>, MESSAGES, MessageRing<R>>;
pub(super) type MessageConsumer<R> = Consumer<HandleMessage<R>, MESSAGES, MessageRing<R>>;
pub(super) type ReportProducer<O> = Producer<Report<O>, HANDLE_DEPTH, ReportRing<O>>;
pub(super) type ReportConsumer<O> = Consumer<Report<O>, HANDLE_DEPTH, ReportRing<O>>;
