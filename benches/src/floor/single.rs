//! One queue pair, one request a batch.

use super::{Rail, poll, post_one, write};
use crate::rig::Rig;
use crate::workload::{Message, Reported, SMALL, keys, messages};
use polyrail_core::hardware::{CompletionQueue, QueuePair};
use polyrail_core::verbs::{DeviceKeys, SendFlags};

/// A queue pair that small requests are posted to as they are.
#[derive(Debug)]
pub struct Single<Q, C> {
    rail: Rail<Q>,
    cq: C,
    messages: Vec<Message>,
    keys: Vec<DeviceKeys>,
}

impl<Q: QueuePair, C: CompletionQueue> Single<Q, C> {
    /// On the first rail of `rig`.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn new(rig: Rig<Q, C>) -> Self {
        let qp = rig.rails.into_iter().next().expect("a rig has a rail");
        let keys = keys();
        let rail = Rail::new(qp, &keys);
        Self { rail, cq: rig.cq, messages: messages(SMALL), keys }
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

    /// Polls until the burst is reported.
    #[inline(never)]
    pub fn poll(&mut self) -> Reported {
        let mut reported = Reported::default();
        while reported.count < self.messages.len() {
            poll(&mut self.cq, |completion| reported.note(completion.wr_id, completion.status));
        }
        reported
    }
}
