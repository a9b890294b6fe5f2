//! One physical queue pair, as its NIC has it.

use super::shape::peer;
use crate::nic::EIO;
use polyrail_core::hardware::{CommitError, QpLimits, Refusal};
use polyrail_core::verbs::{Opcode, RecvRequest, SendRequest, WcStatus};
use std::fmt;

/// A physical queue pair: which end's, in which rail's place, and of which generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    /// An end of a connection.
    pub end: usize,
    /// A data rail's number, or the number of data rails for the notify queue pair.
    pub rail: usize,
    /// Counts the queue pairs in the rail's place.
    pub generation: u16,
}

pub(super) struct Qp {
    pub(super) name: Name,
    pub(super) device: usize,
    pub(super) qp_num: u32,
    pub(super) limits: QpLimits,
    /// The queue pair that it is connected to.
    pub(super) peer: Option<usize>,
    pub(super) in_error: bool,
    /// Its device is gone, or it was destroyed: nothing completes any more.
    pub(super) is_gone: bool,
    /// Its number may be given away.
    pub(super) is_destroyed: bool,
    /// Everything ever posted to the send queue.
    pub(super) sent: Vec<SendRequest>,
    /// How many of these the oracle has seen.
    pub(super) seen: usize,
    /// What [`is_owed`](Self::is_owed) and [`rest`](Self::rest) were before the last step.
    pub(super) was_owed: bool,
    pub(super) was_rest: Vec<SendRequest>,
    /// Requests that had left when it went to the error state.
    pub(super) left: usize,
    /// Requests that the peer has executed.
    pub(super) executed: usize,
    /// Requests whose fate is decided: acknowledged or flushed.
    pub(super) completed: usize,
    /// How the oldest request fails that is not acknowledged, if not by a flush.
    pub(super) status: WcStatus,
    pub(super) slots: u32,
    pub(super) silent: u32,
    /// Everything ever posted to the receive queue.
    pub(super) recvs: Vec<RecvRequest>,
    /// Receives that were used or flushed.
    pub(super) used: usize,
    /// What the driver answers to the next batch of sends, if it does not take all of it.
    pub(super) mood: Option<Mood>,
    /// The same for receives.
    pub(super) recv_mood: Option<Mood>,
    /// The driver took only the front of the last batch of sends that it was offered, or none of
    /// one behind that.
    pub(super) is_owed: bool,
    /// The last request that the driver took of that batch, and behind it those that it did not
    /// take. Empty if nothing is owed.
    pub(super) rest: Vec<SendRequest>,
}

/// What a driver answers to a batch of which it does not take all, and how often it then takes
/// nothing at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mood {
    pub(super) answer: CommitError,
    pub(super) times: u32,
}

/// Only what matters for what can happen next.
impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, device, qp_num, peer, in_error, is_gone, is_destroyed, .. } = self;
        let Self { left, executed, completed, status, slots, silent, .. } = self;
        let flags = (in_error, is_gone, is_destroyed, left, executed, completed);
        write!(f, "{name:?}{device}{qp_num}{peer:?}{flags:?}{status:?}{slots}{silent}")?;
        let open = self.sent[*executed.min(completed)..].iter();
        let open: Vec<_> = open.map(|request| (request.wr_id, request.sge)).collect();
        let free: Vec<_> = self.recvs[self.used..].iter().map(|receive| receive.wr_id).collect();
        write!(f, "{open:?}{free:?}{:?}{:?}{}", self.mood, self.recv_mood, self.is_owed)
    }
}

impl Qp {
    pub(super) fn new(name: Name, device: usize, qp_num: u32, limits: QpLimits) -> Self {
        Self {
            name,
            device,
            qp_num,
            limits,
            peer: None,
            in_error: false,
            is_gone: false,
            is_destroyed: false,
            sent: Vec::new(),
            seen: 0,
            was_owed: false,
            was_rest: Vec::new(),
            left: 0,
            executed: 0,
            completed: 0,
            status: WcStatus::WR_FLUSH_ERR,
            slots: 0,
            silent: 0,
            recvs: Vec::new(),
            used: 0,
            mood: None,
            recv_mood: None,
            is_owed: false,
            rest: Vec::new(),
        }
    }

    /// The driver took this many requests of a batch of sends.
    pub(super) fn took(&mut self, taken: usize, batch: &[SendRequest]) {
        let is_whole = taken == batch.len();
        self.is_owed = !is_whole && (self.is_owed || taken > 0);
        self.rest.truncate(if is_whole || taken > 0 { 0 } else { self.rest.len() });
        if !is_whole && taken > 0 {
            self.rest.extend(&batch[taken - 1..]);
        }
    }

    /// Requests carry the keys of this device, and of the peer's that it meets.
    pub(super) fn check_keys(&self, batch: &[SendRequest], far_device: usize) {
        let own = key(self.name.end, self.device);
        let far = key(peer(self.name.end), far_device);
        let fits = |request: &SendRequest| {
            let is_send = request.opcode == Opcode::Send;
            request.sge.lkey() == own && (is_send || request.rkey == far)
        };
        let with_bytes = |request: &&SendRequest| request.sge.length() > 0;
        let wrong = batch.iter().filter(with_bytes).find(|request| !fits(request));
        assert!(wrong.is_none(), "wrong keys on {:?}: {wrong:?}", self.name);
    }
}

/// What a driver answers to a batch of this size for which it has this much room. A mood lasts
/// until it shows.
pub(super) fn answer(
    mood: &mut Option<Mood>,
    is_gone: bool,
    count: u32,
    room: u32,
) -> Result<(), CommitError> {
    if is_gone {
        return Err(CommitError { accepted: 0, refusal: Refusal::Driver(EIO) });
    }
    match *mood {
        Some(Mood { answer, times }) if answer.accepted < count.min(room) => {
            let next = CommitError { accepted: 0, ..answer };
            *mood = times.checked_sub(1).map(|times| Mood { answer: next, times });
            Err(answer)
        }
        _ if room < count => Err(CommitError { accepted: room, refusal: Refusal::QueueFull }),
        _ => Ok(()),
    }
}

/// The key of a device of an end: what the peer's requests name as the remote key.
pub(super) fn key(end: usize, device: usize) -> u32 {
    0x100 * (end as u32 + 1) + device as u32
}
