//! DQPLB's sequence numbers (`DqplbSeqTracker`).

use hashbrown::HashMap;
use polyrail_core::verbs::Imm;

const NUMBER_MASK: u32 = 0xFF_FFFF;
const LAST_BIT: u32 = 1 << 31;

/// Numbers to send, and numbers that arrived out of turn.
#[derive(Debug, Default)]
pub(super) struct SequenceTracker {
    send_next: u32,
    receive_next: u32,
    /// Whether the number is the last of its request.
    arrived: HashMap<u32, bool>,
}

impl SequenceTracker {
    pub(super) fn send_imm(&mut self, last: bool) -> Imm {
        let number = self.send_next;
        self.send_next = (self.send_next + 1) % NUMBER_MASK;
        let word = number | if last { LAST_BIT } else { 0 };
        Imm::from_wire(word.to_le_bytes())
    }

    /// How many requests the arrival of `imm` ends.
    pub(super) fn receive_imm(&mut self, imm: Imm) -> u32 {
        let word = u32::from_le_bytes(imm.wire());
        self.arrived.insert(word & NUMBER_MASK, word & LAST_BIT != 0);
        let mut ended = 0;
        while let Some(last) = self.arrived.remove(&self.receive_next) {
            ended += u32::from(last);
            self.receive_next = (self.receive_next + 1) % NUMBER_MASK;
        }
        ended
    }
}
