//! Many queue pairs on one completion queue.

use super::{Rail, poll, post_one, write};
use crate::rig::Rig;
use crate::workload::{Message, OUTSTANDING, Reported, SMALL, keys, messages};
use polyrail_core::hardware::{CompletionQueue, QueuePair};
use polyrail_core::verbs::{DeviceKeys, SendFlags};

/// Queue pairs; each burst uses others.
#[derive(Debug)]
pub struct Many<Q, C> {
    rails: Vec<Rail<Q>>,
    cq: C,
    messages: Vec<Message>,
    keys: Vec<DeviceKeys>,
    targets: Vec<u16>,
    next: usize,
}

impl<Q: QueuePair, C: CompletionQueue> Many<Q, C> {
    /// All rails of `rig`; bursts go to `targets`, `OUTSTANDING` at a time.
    pub fn new(rig: Rig<Q, C>, targets: Vec<u16>) -> Self {
        let keys = keys();
        let rails = rig.rails.into_iter().map(|qp| Rail::new(qp, &keys)).collect();
        Self { rails, cq: rig.cq, messages: messages(SMALL), keys, targets, next: 0 }
    }

    /// Post to report, each request on the next of the targets.
    #[inline(never)]
    pub fn scattered(&mut self) -> Reported {
        let targets = &self.targets[self.next..self.next + OUTSTANDING];
        for (message, target) in self.messages.iter().zip(targets) {
            let rail = &mut self.rails[*target as usize];
            let keys = self.keys[rail.keys_at];
            let whole = (message, 0, message.local.length());
            post_one(&mut rail.qp, &write(whole, message.wr_id, keys, SendFlags::SIGNALED));
        }
        self.next = (self.next + OUTSTANDING) % self.targets.len();
        let mut reported = Reported::default();
        while reported.count() < self.messages.len() {
            poll(&mut self.cq, |completion| reported.note(completion.wr_id, completion.status));
        }
        reported
    }
}
