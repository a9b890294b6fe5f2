//! The oracle of one end as a receiver: the receives that it posted, and what may fill them.

use super::places::{Ground, Places, read};
use super::sender::{Request, Sender};
use polyrail_core::internals::{Tag, TagKind};
use polyrail_core::verbs::{Opcode, WcOpcode, WcStatus};
use polyrail_core::virtual_cq::VirtualWc;
use std::collections::VecDeque;

/// Set in the `wr_id` of every receive.
pub(super) const RECEIVE: u64 = 1 << 63;
/// Set instead in that of a receive of a shared queue that serves a single rail.
pub(super) const SHARED: u64 = 1 << 59;
/// The upper half of a stray's immediate; no request of the simulation has it.
pub(super) const STRAY_IMM: u32 = 0xBAD0_0000;

fn is_stray(imm: Option<u32>) -> bool {
    imm.is_some_and(|imm| imm & 0xFFFF_0000 == STRAY_IMM)
}

/// The names of receives with buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Names {
    /// The virtual queue pair's own ones.
    #[default]
    Own,
    /// Those of a shared queue, through a single rail.
    Shared,
    /// Those of a shared queue beside several rails: small numbers, and numbers that differ from
    /// the engine's own in the mark only.
    Any,
}

/// Everything that one end posted to receive with.
#[derive(Debug, Default)]
pub(super) struct Receiver {
    pub(super) places: Places,
    notifications: VecDeque<u64>,
    /// With their places, and their lengths in bytes.
    data: VecDeque<(u64, usize, u32)>,
    next_id: u64,
    /// The names of receives with buffers.
    names: Names,
    /// Strays on their way here at most.
    pub(super) strays: u32,
    /// A stray took the number of a fragment of DQPLB: it can no longer be known what is complete.
    pub(super) misled: bool,
}

impl Receiver {
    pub(super) fn new(names: Names) -> Self {
        Self { names, ..Self::default() }
    }

    pub(super) fn next_id(&self) -> u64 {
        RECEIVE | self.next_id
    }

    /// The name of the next receive with a buffer.
    pub(super) fn next_data_id(&self) -> u64 {
        const KINDS: [TagKind; 3] = [TagKind::Send, TagKind::NotifyRecv, TagKind::DataRecv];
        let number = self.next_id;
        match (self.names, number % 4) {
            (Names::Own, _) => self.next_id(),
            (Names::Shared, _) => SHARED | number,
            (Names::Any, 0) => number % 64,
            (Names::Any, kind) => {
                let tag = Tag::new(KINDS[kind as usize - 1], 0, 0).plus(number % 32);
                let tag = if number.is_multiple_of(3) { tag } else { tag.last() };
                tag.wr_id() & !Tag::MARK
            }
        }
    }

    /// The name of the next receive with a buffer to be filled.
    pub(super) fn next_data(&self) -> Option<u64> {
        self.data.front().map(|(id, ..)| *id)
    }

    pub(super) fn accept_notification(&mut self) {
        self.notifications.push_back(self.next_id());
        self.next_id += 1;
    }

    pub(super) fn accept_data(&mut self, place: usize, length: u32) {
        self.places.take(place);
        self.data.push_back((self.next_data_id(), place, length));
        self.next_id += 1;
    }

    pub(super) fn posted_notifications(&self) -> usize {
        self.notifications.len()
    }

    pub(super) fn posted_data(&self) -> usize {
        self.data.len()
    }

    /// A receive was reported. `own` are this end's places for what arrives, `peers` those of what
    /// the peer sends. Whether a notification brings an immediate depends on the scheme.
    pub(super) fn reported(
        &mut self,
        wc: &VirtualWc,
        own: &Ground<'_>,
        peer: &mut Sender,
        peers: &Ground<'_>,
        brings_imm: bool,
    ) {
        if let Some((id, place, room)) = self.data.front().copied()
            && id == wc.wr_id
        {
            self.data.pop_front();
            if wc.status.is_success() {
                self.filled(wc, place, own, peer, peers);
                assert!(wc.opcode != WcOpcode::RECV || wc.byte_len <= room, "it fits");
            } else if wc.status == WcStatus::LOC_LEN_ERR {
                let request = peer.was_too_long();
                assert!(request.length > room, "{request:?} is not too long");
            }
            return self.places.release(place, own);
        }
        let first = self.notifications.pop_front();
        assert_eq!(Some(wc.wr_id), first, "receives are reported in order, each once");
        assert_eq!(wc.opcode, WcOpcode::RECV_RDMA_WITH_IMM);
        if wc.status.is_success() {
            self.notified(wc, peer, peers, brings_imm);
        }
    }

    fn filled(
        &mut self,
        wc: &VirtualWc,
        place: usize,
        own: &Ground<'_>,
        peer: &mut Sender,
        peers: &Ground<'_>,
    ) {
        if wc.opcode == WcOpcode::RECV_RDMA_WITH_IMM && is_stray(wc.imm) {
            return self.stray();
        }
        let request = peer.arrived();
        assert_eq!((wc.imm, wc.byte_len), (imm(&request), request.length), "{request:?}");
        if request.opcode == Opcode::RdmaWriteWithImm {
            assert_eq!(wc.opcode, WcOpcode::RECV_RDMA_WITH_IMM);
            return peer.check_earlier(&request, peers);
        }
        assert_eq!(wc.opcode, WcOpcode::RECV);
        let bytes = read(own.near, own.near_offset(place), request.length as usize);
        assert!(bytes == request.gathered(), "the bytes of {request:?} are in the receive");
    }

    fn notified(
        &mut self,
        wc: &VirtualWc,
        peer: &mut Sender,
        peers: &Ground<'_>,
        brings_imm: bool,
    ) {
        if is_stray(wc.imm) {
            return self.stray();
        }
        let request = match peer.notifying.pop_front() {
            Some(request) => request,
            None => return assert!(self.misled, "there was a notify"),
        };
        if self.misled {
            return;
        }
        let expected = if brings_imm { imm(&request) } else { None };
        assert_eq!((wc.imm, wc.byte_len), (expected, 0), "{request:?}");
        peer.check_notified(&request, peers);
    }

    fn stray(&mut self) {
        self.strays = self.strays.checked_sub(1).expect("there was a stray");
    }
}

fn imm(request: &Request) -> Option<u32> {
    request.has_imm().then(|| request.imm())
}
