//! What happens to a connection is told to `tracing`.

use super::member::P2pMember;
use super::message::End;
use crate::backend::Domain;
use crate::endpoint::{NamedRailError, NamedRailEvent};
use crate::trace;
use polyrail_core::p2p::{CallError, Failure};
use polyrail_core::virtual_qp::{RailError, RailEvent};
use std::error::Error;
use std::time::{Duration, Instant};

impl<D: Domain> P2pMember<D> {
    /// Tells once why an end failed, when a call says that it did.
    // By reference: what a call returns is not copied on its way.
    #[inline]
    pub(super) fn tell_if_failed<T>(&mut self, end: End, called: &Result<T, CallError>) {
        if let Err(CallError::Failed(_)) = called {
            self.tell_failure(end);
        }
    }

    /// Tells once why an end failed, if it did.
    #[cold]
    pub(super) fn tell_failure(&mut self, end: End) {
        let failure = match end {
            End::Sender => self.sender.as_ref().and_then(|sender| sender.failure()),
            End::Receiver => self.receiver.as_ref().and_then(|receiver| receiver.failure()),
        };
        let told = &mut self.tracing.is_end_told[usize::from(end == End::Receiver)];
        match failure {
            Some(failure) if !std::mem::replace(told, true) => {
                let of = self.tracing.end(end);
                match failure {
                    Failure::Rail(error) => trace::end_failed(of, &self.named(error)),
                    failure => trace::end_failed(of, failure),
                }
            }
            _ => {}
        }
    }

    fn named(&self, error: &RailError) -> NamedRailError {
        let device = self.device_name(error.device).unwrap_or_default().to_owned();
        NamedRailError { error: *error, device }
    }

    pub(super) fn tell_event(&self, end: End, place: usize, event: RailEvent) {
        let device = self.device_name(event.device).unwrap_or_default().to_owned();
        let (at, out_for) = (Instant::now(), Duration::ZERO);
        let named = NamedRailEvent { event, device, noticed: None, at, out_for };
        trace::queue_pair_event(self.tracing.end(end), place, &event, &named.device, &named);
    }

    pub(super) fn tell_attempt(&self, end: End, place: usize, error: &dyn Error) {
        trace::no_queue_pair_for(self.tracing.end(end), place, error);
    }
}
