//! Applications take messages and receives back.

use super::World;
use super::connection::{Connection, Outgoing, Receive};
use super::trouble::spend;
use polyrail_core::p2p::{CallError, CancelError};

impl<const DEPTH: usize, const SLOTS: usize> World<DEPTH, SLOTS> {
    /// An application takes one of its receives back.
    pub(super) fn cancel_receive(&mut self, at: usize, which: u32) {
        let connection = &mut self.connections[at];
        let Some(index) = connection.waiting_receive(which) else { return };
        if !spend(&mut self.left.cancels) {
            return;
        }
        let handle = connection.receives[index].handle.expect("it waits");
        let result = connection.receiver.cancel(handle);
        let receive = &connection.receives[index];
        if connection.may_be_taken_back(result, receive.is_asked, false) {
            connection.receives[index].is_asked = true;
            self.summary.cancels += 1;
        }
    }

    /// An application takes one of its sends back.
    pub(super) fn cancel_send(&mut self, at: usize, which: u32) {
        let connection = &mut self.connections[at];
        if connection.outgoing.is_empty() || !spend(&mut self.left.cancels) {
            return;
        }
        let which = which as usize % connection.outgoing.len();
        let handle = connection.outgoing[which].handle;
        let result = connection.sender.cancel(handle);
        let receive = connection.receives.get(handle.number() as usize - 1);
        let is_twice = receive.is_some_and(|receive| receive.is_unwanted)
            || connection.outgoing[which].is_cancelled;
        let is_asked = receive.is_some_and(|receive| receive.is_asked);
        if connection.may_be_taken_back(result, is_twice, is_asked) {
            connection.outgoing[which].is_cancelled = true;
            let is_posted = (handle.number() as usize) <= connection.sent;
            if let Some(receive) = connection.receives.get_mut(handle.number() as usize - 1) {
                receive.is_unwanted |= is_posted;
            }
            self.summary.cancels += 1;
        }
    }

    /// An owner waits no longer for acknowledgements of messages that are taken back.
    pub(super) fn hurry(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        if connection.sender.being_taken_back() > 0 {
            connection.sender.fence_cancelled();
        }
    }
}

impl<const DEPTH: usize, const SLOTS: usize> Connection<DEPTH, SLOTS> {
    /// Receives whose callers wait for their results.
    pub(super) fn waiting_receives(&self) -> Vec<usize> {
        let waiting = self.receives.iter().enumerate();
        waiting.filter(|(_, receive)| receive.handle.is_some()).map(|(at, _)| at).collect()
    }

    /// One of them.
    pub(super) fn waiting_receive(&self, which: u32) -> Option<usize> {
        let waiting = self.waiting_receives();
        (!waiting.is_empty()).then(|| waiting[which as usize % waiting.len()])
    }

    /// Checks why a request is not taken back, if it is not: its caller wanted that before, or the
    /// peer has asked for it.
    fn may_be_taken_back(
        &mut self,
        result: Result<(), CancelError>,
        is_twice: bool,
        is_asked: bool,
    ) -> bool {
        match result {
            Ok(()) => {
                assert!(self.line.reroutes && !is_twice);
                // Fences on purpose are as good as failures, but no reason to fail.
                self.failures += 1;
                return true;
            }
            Err(CancelError::NotRerouting) => assert!(!self.line.reroutes),
            Err(CancelError::Failed(_)) => assert!(self.has_failed()),
            Err(CancelError::AlreadyCancelled { .. }) => {
                assert!(is_twice || is_asked || !self.is_known());
            }
            Err(CancelError::TooLate { .. }) => {}
            Err(error) => assert!(!self.is_known(), "{error}"),
        }
        false
    }

    /// The sender's turn has passed this receive, which the receiver wants back, with a void message.
    pub(super) fn passed_by(&mut self, index: usize) {
        for receive in &mut self.receives[self.sent.min(index)..=index] {
            assert!(receive.is_asked, "a receive is passed by that is wanted: {receive:?}");
            receive.is_void = true;
        }
        self.sent = self.sent.max(index + 1);
    }

    /// A receive, or its message, was taken back: that is what its other end says, too.
    pub(super) fn taken_back(&mut self, index: usize) {
        let receive = &mut self.receives[index];
        assert!(!receive.is_delivered, "one end says that it was delivered: {receive:?}");
        assert!(receive.is_asked || receive.is_unwanted, "nobody wanted that: {receive:?}");
        receive.is_void = true;
    }

    /// A message was delivered: that is what its other end says, too.
    pub(super) fn delivered(&mut self, index: usize) {
        let receive = &mut self.receives[index];
        assert!(!receive.is_void, "one end says that it was taken back: {receive:?}");
        receive.is_delivered = true;
    }

    /// The caller has the result of a send that was taken back. Returns whether its message was
    /// posted, or will be, void.
    pub(super) fn send_taken_back(&mut self, outgoing: &Outgoing) -> bool {
        let index = outgoing.handle.number() as usize - 1;
        if index < self.sent {
            self.taken_back(index);
            return true;
        }
        let receive = &mut self.receives[index];
        assert!(outgoing.is_cancelled || receive.is_asked, "nobody wanted that: {receive:?}");
        receive.places[outgoing.buffer].sent = None;
        // Its own caller's wish ends one send, and the receiver's all of the message.
        !outgoing.is_cancelled
    }

    /// Whether the sender's turn may have come to other receives than the oracle knows.
    pub(super) fn may_have_passed(&self) -> bool {
        self.receives.get(self.sent).is_some_and(|front| front.is_asked)
    }
}

impl Receive {
    /// Whether its slot may be in use although its caller has the result.
    pub(super) const fn holds_slot(&self) -> bool {
        self.is_asked || self.is_void
    }
}

/// Whether a result says that a request was taken back.
pub(super) const fn is_taken_back(error: &CallError) -> bool {
    matches!(error, CallError::TakenBack { .. })
}
