//! One queue pair, one request a batch.

use super::{Rail, poll, post_one, write};
use crate::polled::Polled;
use crate::rig::Rig;
use crate::workload::{BLANK_REQUEST, Message, Reported, SMALL, keys, messages};
use polyrail_core::hardware::{CompletionQueue, QueuePair};
use polyrail_core::verbs::{DeviceKeys, Opcode, SendFlags, SendRequest};
use std::mem::MaybeUninit;

/// A queue pair that small requests are posted to as they are.
#[derive(Debug)]
pub struct Single<Q, C> {
    rail: Rail<Q>,
    cq: C,
    messages: Vec<Message>,
    keys: Vec<DeviceKeys>,
    /// Completions of a burst, for [`inspect`](Self::inspect).
    polled: Polled,
}

impl<Q: QueuePair, C: CompletionQueue> Single<Q, C> {
    /// On the first rail of `rig`.
    ///
    /// # Panics
    ///
    /// If the rig has no rail.
    pub fn new(rig: Rig<Q, C>) -> Self {
        let qp = rig.rails.into_iter().next().expect("a rig has a rail");
        let keys = keys();
        let rail = Rail::new(qp, &keys);
        Self { rail, cq: rig.cq, messages: messages(SMALL), keys, polled: Polled::new() }
    }

    /// Posts the burst as WRITEs.
    #[inline(never)]
    pub fn post_writes(&mut self) {
        for message in &self.messages {
            let keys = self.keys[self.rail.keys_at];
            let whole = (message, 0, message.local.length());
            post_one(&mut self.rail.qp, &write(whole, message.wr_id, keys, SendFlags::SIGNALED));
        }
    }

    /// Posts the burst as SENDs.
    #[inline(never)]
    pub fn post_sends(&mut self) {
        for message in &self.messages {
            let keys = self.keys[self.rail.keys_at];
            post_one(&mut self.rail.qp, &send(message, keys));
        }
    }

    /// Polls until the burst is reported.
    #[inline(never)]
    pub fn poll(&mut self) -> Reported {
        let mut reported = Reported::default();
        while reported.count() < self.messages.len() {
            poll(&mut self.cq, |completion| reported.note(completion.wr_id, completion.status));
        }
        reported
    }

    /// Polls with room for one completion at a time.
    ///
    /// # Panics
    ///
    /// If the device fails.
    #[inline(never)]
    pub fn poll_one(&mut self) -> Reported {
        let mut reported = Reported::default();
        while reported.count() < self.messages.len() {
            let mut record = [MaybeUninit::uninit()];
            let polled = self.cq.poll(&mut record).expect("the null device does not fail");
            if let [completion] = polled {
                reported.note(completion.wr_id, completion.status);
            }
        }
        reported
    }

    /// Posts the burst as WRITEs and polls its completions, to be inspected.
    pub fn complete(&mut self) {
        self.post_writes();
        self.polled.refill(&mut self.cq);
    }

    /// Inspects the completions that were polled.
    #[inline(never)]
    pub fn inspect(&mut self) -> Reported {
        let mut reported = Reported::default();
        for completion in self.polled.take() {
            reported.note(completion.wr_id, completion.status);
        }
        reported
    }
}

#[inline]
fn send(message: &Message, keys: DeviceKeys) -> SendRequest {
    SendRequest {
        wr_id: message.wr_id,
        opcode: Opcode::Send,
        flags: SendFlags::SIGNALED,
        sge: message.local.sge(keys.lkey),
        ..BLANK_REQUEST
    }
}
