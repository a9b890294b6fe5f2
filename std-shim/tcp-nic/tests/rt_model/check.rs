//! What completions and memory must be, after the requests that were posted.

use super::image::{Image, TARGET_BYTES};
use super::traffic::{Effect, RECEIVES, World, is_send, words};
use polyrail_core::verbs::{Completion, Opcode, WcFlags, WcOpcode, WcStatus};

impl World {
    /// The completions of sends and of receives.
    pub(crate) fn completions(&self, end: usize) -> (Vec<Completion>, Vec<Completion>) {
        self.ends[end].completed.iter().copied().partition(is_send)
    }

    /// Checks the completions of the requests, of which `failed` is the first that failed.
    pub(crate) fn check_sends(&self, end: usize, sends: &[Completion], failed: Option<u64>) {
        let sent = &self.ends[end].sent;
        let completes = |wr_id: &u64| {
            failed.is_some_and(|failed| *wr_id >= failed) || sent[*wr_id as usize].is_signaled
        };
        let expected: Vec<_> = (0..sent.len() as u64).filter(completes).collect();
        let found: Vec<_> = sends.iter().map(|completion| completion.wr_id).collect();
        assert_eq!(found, expected, "end {end}, failed {failed:?}");
        for completion in sends {
            let request = &sent[completion.wr_id as usize];
            match failed {
                Some(failed) if completion.wr_id > failed => {
                    assert_eq!(completion.status, WcStatus::WR_FLUSH_ERR);
                }
                Some(failed) if completion.wr_id == failed => {}
                _ => {
                    assert_eq!(completion.status, WcStatus::SUCCESS, "{completion:?}");
                    let bytes = if request.opcode.is_fetching() { request.length } else { 0 };
                    assert_eq!(completion.byte_len as usize, bytes, "{request:?}");
                }
            }
        }
    }

    /// Checks the completions of the receives, of which the first `good` succeeded.
    pub(crate) fn check_receives(&self, end: usize, receives: &[Completion], good: usize) {
        let (own, peer) = (&self.ends[end], &self.ends[1 - end]);
        let bytes = own.received.all();
        for (index, completion) in receives.iter().enumerate() {
            assert_eq!(completion.wr_id, RECEIVES + index as u64, "receives complete in order");
            if index >= good {
                assert!(!completion.status.is_success(), "after a failure");
                continue;
            }
            assert_eq!(completion.status, WcStatus::SUCCESS);
            let request = &peer.sent[own.takers[index]];
            let receive = &own.receives[index];
            assert_eq!(completion.byte_len as usize, request.length);
            match request.opcode {
                Opcode::RdmaWriteWithImm => {
                    assert_eq!(completion.opcode, WcOpcode::RECV_RDMA_WITH_IMM);
                }
                _ => assert_eq!(completion.opcode, WcOpcode::RECV),
            }
            if request.opcode != Opcode::Send {
                assert!(completion.wc_flags.contains(WcFlags::WITH_IMM));
                assert_eq!(completion.imm, request.imm);
            }
            if let Effect::Send { pieces } = &request.effect {
                let mut at = receive.at;
                for &(from, length) in pieces {
                    assert!(bytes[at..at + length] == peer.source[from..from + length]);
                    at += length;
                }
            }
        }
    }

    pub(crate) fn check_image(&self, end: usize, image: &Image) {
        assert!(self.ends[1 - end].target.all() == image.target, "the target of end {end}");
        assert_eq!(self.ends[1 - end].words.all(), words(image), "the words of end {end}");
        assert!(self.ends[end].fetched.all() == image.fetched, "what end {end} fetched");
    }

    /// Checks that the first `executed` requests of an end were executed, and that all other bytes
    /// are of later ones.
    pub(crate) fn check_image_from(&self, end: usize, executed: usize) {
        let image = Image::after(self, end, executed);
        let target = self.ends[1 - end].target.all();
        let source = &self.ends[end].source;
        let differs = |at: &usize| target[*at] != image.target[*at];
        let mut unexplained: Vec<_> = (0..TARGET_BYTES).filter(differs).collect();
        for sent in &self.ends[end].sent[executed..] {
            if let Effect::Write { at: start, pieces } = &sent.effect {
                unexplained.retain(|&at| byte(source, pieces, *start, at) != Some(target[at]));
            }
        }
        assert!(unexplained.is_empty(), "byte {} of the target of end {end}", unexplained[0]);
        let fetched = self.ends[end].fetched.all();
        for sent in &self.ends[end].sent[..executed] {
            let place = match &sent.effect {
                Effect::Read { pieces, .. } => pieces[0].0..pieces[0].0 + sent.length,
                &(Effect::Add { to, .. } | Effect::Swap { to, .. }) => to..to + 8,
                _ => continue,
            };
            assert!(fetched[place.clone()] == image.fetched[place], "{sent:?}");
        }
    }
}

/// The byte that a WRITE to `start` puts at `at`.
fn byte(source: &[u8], pieces: &[(usize, usize)], start: usize, at: usize) -> Option<u8> {
    let mut offset = at.checked_sub(start)?;
    for &(from, length) in pieces {
        if offset < length {
            return Some(source[from + offset]);
        }
        offset -= length;
    }
    None
}
