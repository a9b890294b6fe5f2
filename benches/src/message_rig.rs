//! The hardware of the rows of messages: queue pairs of two ends, and the memory that both have.

use crate::counted::{Account, Counted};
use crate::null::{Inbox, NullCq, NullQp, NullSrq, RING_SLOTS, Wire};
use crate::workload::{CQ, DEPTH, DEVICE, OUTSTANDING};
use polyrail_core::internals::ring_words;
use polyrail_core::p2p::{ENTRY_BYTES, ImmLayout, Immediate, Mask, RECORD_BYTES};
use std::rc::Rc;
use std::sync::atomic::AtomicU64;

/// Messages that can be under way: the slots of a connection.
pub const SLOTS: usize = 64;

/// Receives that the receiver may have posted.
pub const RECEIVES: u32 = RING_SLOTS as u32;

/// Words of the records, of the ring of entries, and of the rest of an end's memory.
const RECORDS: usize = SLOTS * RECORD_BYTES / 8;
const RING: usize = ring_words(SLOTS);

/// Queue pairs of two ends, each with one completion queue. The receiver's queue pairs share their
/// receives.
#[derive(Debug)]
pub struct MessageRig<Q = NullQp, C = NullCq, S = NullSrq> {
    /// The sender's queue pairs, one for each rail.
    pub near: Vec<Q>,
    /// Where they complete.
    pub near_cq: C,
    /// The receiver's queue pairs, one for each rail.
    pub far: Vec<Q>,
    /// Where they complete.
    pub far_cq: C,
    /// Where the receives of those come from.
    pub srq: S,
    /// The receiver's memory: the records, and the entries on their way to the sender.
    pub far_words: &'static [AtomicU64],
    /// The sender's: the ring of entries. It is where the receiver has them on their way, so that
    /// entries arrive as they are written, without a device that copies them.
    pub near_words: &'static [AtomicU64],
}

/// What makes messages arrive, outside the measured part.
#[derive(Debug)]
pub struct Link {
    wire: Wire,
    inbox: Rc<Inbox>,
    rails: u8,
    length: u32,
    next: u64,
}

impl MessageRig {
    /// Makes two ends over this many rails, and the link for messages of `length` bytes, evenly
    /// spread.
    pub fn new(rails: u8, length: u32) -> (Self, Link) {
        Self::over(words(), rails, length)
    }

    /// The same over these [`words`]. Of two that have the same ones, one is used after the other.
    pub fn over(far_words: &'static [AtomicU64], rails: u8, length: u32) -> (Self, Link) {
        let sends = DEPTH as u32 * u32::from(rails);
        let near_cq = NullCq::new(CQ, DEVICE, sends.next_power_of_two());
        let far_cq = NullCq::new(CQ, DEVICE, (sends + RECEIVES).next_power_of_two());
        let queue_pairs = |cq: &NullCq| -> Vec<_> {
            (1..=u32::from(rails)).map(|qp_num| cq.queue_pair(qp_num, DEPTH as u32, 0)).collect()
        };
        let (near, far) = (queue_pairs(&near_cq), queue_pairs(&far_cq));
        let srq = NullSrq::new();
        let link = Link { wire: far_cq.wire(), inbox: srq.inbox(), rails, length, next: 0 };
        let near_words = &far_words[RECORDS..];
        (Self { near, near_cq, far, far_cq, srq, far_words, near_words }, link)
    }

    /// The same, with the work of all its devices counted.
    pub fn counted(
        self,
        account: &Account,
    ) -> MessageRig<Counted<NullQp>, Counted<NullCq>, Counted<NullSrq>> {
        let Self { near, near_cq, far, far_cq, srq, far_words, near_words } = self;
        MessageRig {
            near: near.into_iter().map(|qp| account.of(qp)).collect(),
            near_cq: account.of(near_cq),
            far: far.into_iter().map(|qp| account.of(qp)).collect(),
            far_cq: account.of(far_cq),
            srq: account.of(srq),
            far_words,
            near_words,
        }
    }
}

/// Returns words for both ends, aligned as devices require. They are never freed, because there are
/// few rows.
pub fn words() -> &'static [AtomicU64] {
    let count = RECORDS + RING + RECORDS;
    let all: Box<[_]> = (0..count + 7).map(|_| AtomicU64::new(0)).collect();
    let all: &'static [AtomicU64] = Box::leak(all);
    let skip = all.as_ptr().addr().wrapping_neg() % ENTRY_BYTES / 8;
    &all[skip..skip + count]
}

impl Link {
    /// Delivers the next burst of messages, the shares of each in the order of rails.
    ///
    /// # Panics
    ///
    /// If receives for them are missing.
    pub fn carry(&mut self) {
        let layout = ImmLayout::new(self.rails).expect("1 to 8 rails");
        for number in self.next..self.next + OUTSTANDING as u64 {
            let slot = (number % SLOTS as u64) as u8;
            let told = layout.told(self.length);
            let imm = layout.encode(Immediate { slot, mask: Mask::first(self.rails), told });
            for qp_num in 1..=u32::from(self.rails) {
                let bytes = self.length / u32::from(self.rails);
                self.wire.deliver_to(qp_num, &self.inbox, imm, bytes);
            }
        }
        self.next += OUTSTANDING as u64;
    }
}
