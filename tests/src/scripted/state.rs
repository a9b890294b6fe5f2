//! The state of the scripted NIC.

use super::Nic;
use crate::nic::{CqInfo, Devices, EINVAL, Lists, QpInfo};
use polyrail_core::hardware::{CommitError, QpLimits, Refusal};
use polyrail_core::verbs::{
    Completion, DeviceId, Imm, Opcode, RecvRequest, SendFlags, SendRequest, Sge, WcFlags, WcOpcode,
    WcStatus,
};
use polyrail_core::virtual_qp::RailCounters;
use std::collections::{HashMap, VecDeque};

/// The devices of a [`Nic`].
#[derive(Debug, Default)]
pub struct State {
    pub(super) cqs: Vec<CqState>,
    pub(super) qps: Vec<QpState>,
    /// Failed completions so far: picks the rubbish.
    failures: u32,
    /// What happened since the test last asked, if the test keeps a log.
    pub(super) log: Option<Vec<Note>>,
    /// Commits that were not taken whole.
    pub(super) refusals: u64,
    /// Requests that were refused because their queue pair cannot carry them.
    pub(super) invalid: u64,
}

/// What happened on the NIC, in the order of all its queue pairs.
#[derive(Clone, Debug)]
pub enum Note {
    /// A doorbell was rung.
    Doorbell {
        /// The queue pair.
        qp_num: u32,
        /// The requests that it brought.
        requests: Vec<SendRequest>,
        /// Send slots that were taken before it, of every queue pair in the order of their making.
        slots: Vec<u32>,
    },
    /// A completion was polled.
    Polled {
        /// Its queue pair.
        qp_num: u32,
        /// The success of a WRITE_WITH_IMM, or of a WRITE or READ that moved bytes.
        freed: bool,
    },
}

#[derive(Debug)]
pub(super) struct CqState {
    pub(super) device: DeviceId,
    pub(super) capacity: u32,
    pub(super) entries: VecDeque<Entry>,
    pub(super) broken: Option<i32>,
}

/// A completion, and the send slots of which queue pair it frees when it is polled.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) at: usize,
    pub(super) completion: Completion,
    pub(super) frees: Option<Freed>,
}

/// What a completion of a send frees.
#[derive(Clone, Copy, Debug)]
pub(super) struct Freed {
    slots: u32,
    /// A WRITE_WITH_IMM, or a WRITE or READ that moved bytes, succeeded.
    moved: bool,
}

/// A driver's answers to one kind of post: scripted answers first, then the permanent one.
#[derive(Debug, Default)]
pub(super) struct Mood {
    /// The next answer, even if everything is taken.
    pub(super) complaint: Option<CommitError>,
    pub(super) next: VecDeque<CommitError>,
    pub(super) lasting: Option<Refusal>,
}

impl Mood {
    /// How many of `count` are taken, given `room`, and the error, if there is one.
    fn answer(&mut self, count: u32, room: u32) -> (u32, Option<Refusal>) {
        if let Some(complaint) = self.complaint.take() {
            return (complaint.accepted.min(count).min(room), Some(complaint.refusal));
        }
        let (most, refusal) = match (self.next.pop_front(), self.lasting) {
            (Some(error), _) => (error.accepted, Some(error.refusal)),
            (None, Some(refusal)) => (0, Some(refusal)),
            (None, None) => (u32::MAX, None),
        };
        if most.min(room) >= count {
            return (count, None);
        }
        if most <= room { (most, refusal) } else { (room, Some(Refusal::QueueFull)) }
    }
}

#[derive(Debug)]
pub(super) struct QpState {
    pub(super) device: DeviceId,
    pub(super) qp_num: u32,
    pub(super) cq: usize,
    pub(super) limits: QpLimits,
    /// Posted and not executed.
    pub(super) sends: VecDeque<SendRequest>,
    /// Requests that its driver reports as taken, true or not, at the next answer.
    pub(super) claims: Option<u32>,
    /// Send slots taken: posted, and not freed by a polled completion.
    pub(super) slots: u32,
    /// Executed without completion since the last completion.
    silent: u32,
    /// Every doorbell since the test last asked.
    pub(super) doorbells: Vec<Vec<SendRequest>>,
    pub(super) recvs: VecDeque<RecvRequest>,
    /// Receives in each commit since the test last asked.
    pub(super) recv_batches: Vec<usize>,
    pub(super) send_mood: Mood,
    pub(super) recv_mood: Mood,
    /// In the error state: whatever is posted is flushed.
    pub(super) errored: bool,
    /// What the driver answers when the queue pair is moved to the error state.
    pub(super) error_refusal: Option<Refusal>,
    /// Counters of what the device did for it.
    pub(super) counters: RailCounters,
    /// The last commit was taken in part, for lack of room.
    pub(super) owes: bool,
    /// The lists that requests, and receives, of these names had last.
    pub(super) send_lists: HashMap<u64, Vec<Sge>>,
    pub(super) recv_lists: HashMap<u64, Vec<Sge>>,
}

impl QpState {
    pub(super) fn new(device: DeviceId, qp_num: u32, cq: usize, limits: QpLimits) -> Self {
        Self {
            device,
            qp_num,
            cq,
            limits,
            sends: VecDeque::new(),
            claims: None,
            slots: 0,
            silent: 0,
            doorbells: Vec::new(),
            recvs: VecDeque::new(),
            recv_batches: Vec::new(),
            send_mood: Mood::default(),
            recv_mood: Mood::default(),
            errored: false,
            error_refusal: None,
            counters: RailCounters::default(),
            owes: false,
            send_lists: HashMap::new(),
            recv_lists: HashMap::new(),
        }
    }

    /// Whether it can carry a request; otherwise its driver refuses it.
    fn carries(&self, request: &SendRequest) -> bool {
        let is_inline = request.flags.contains(SendFlags::INLINE);
        let longest = if is_inline { self.limits.max_inline_data } else { u32::MAX };
        request.sge.length() <= longest.min(self.limits.max_msg_size)
    }

    /// Takes a batch of sends, or the front of it. Returns how many it took. Logged requests are
    /// not kept here.
    fn take_sends(&mut self, batch: &[SendRequest], logged: bool) -> (usize, Option<Refusal>) {
        let room = self.limits.max_send_wr - self.slots;
        self.claims = self.send_mood.complaint.map(|complaint| complaint.accepted);
        let (accepted, refusal) = self.send_mood.answer(batch.len() as u32, room);
        let taken = &batch[..accepted as usize];
        let carried = taken.iter().take_while(|request| self.carries(request)).count();
        let taken = &taken[..carried];
        self.slots += carried as u32;
        self.sends.extend(taken.iter().copied());
        if !taken.is_empty() {
            if !logged {
                self.doorbells.push(taken.to_vec());
            }
            self.counters.doorbells += 1;
            self.counters.send_requests += carried as u64;
            let bytes = taken.iter().map(|request| u64::from(request.sge.length()));
            self.counters.bytes += bytes.sum::<u64>();
        }
        let in_part = carried < batch.len() && (carried > 0 || self.owes);
        self.owes = in_part && refusal == Some(Refusal::QueueFull);
        let cannot = carried < accepted as usize;
        (carried, if cannot { Some(Refusal::Driver(EINVAL)) } else { refusal })
    }

    /// Takes a batch of receives, or the front of it.
    fn take_recvs(&mut self, batch: &[RecvRequest]) -> Result<(), CommitError> {
        let room = self.limits.max_recv_wr - self.recvs.len() as u32;
        let (accepted, refusal) = self.recv_mood.answer(batch.len() as u32, room);
        self.recvs.extend(batch.iter().take(accepted as usize));
        if accepted > 0 {
            self.recv_batches.push(accepted as usize);
        }
        refusal.map_or(Ok(()), |refusal| Err(CommitError { accepted, refusal }))
    }
}

/// Keeps the lists of requests that are offered. Lists that earlier requests of the same `wr_id`
/// had are dropped: requests that were not taken give theirs back.
fn note_lists(
    kept: &mut HashMap<u64, Vec<Sge>>,
    names: impl Iterator<Item = u64>,
    lists: &mut Lists,
) {
    names.for_each(|name| drop(kept.remove(&name)));
    kept.extend(lists.drain(..));
}

impl CqState {
    pub(super) fn new(device: DeviceId, capacity: u32) -> Self {
        Self { device, capacity, entries: VecDeque::new(), broken: None }
    }
}

impl State {
    /// Takes a batch of sends of a queue pair, or the front of it.
    fn take_sends(&mut self, at: usize, batch: &[SendRequest]) -> Result<(), CommitError> {
        let slots = match self.log {
            Some(_) => self.qps.iter().map(|qp| qp.slots).collect(),
            None => Vec::new(),
        };
        let qp = &mut self.qps[at];
        let qp_num = qp.qp_num;
        let (taken, refusal) = qp.take_sends(batch, self.log.is_some());
        if let Some(log) = &mut self.log
            && taken > 0
        {
            log.push(Note::Doorbell { qp_num, requests: batch[..taken].to_vec(), slots });
        }
        let Some(refusal) = refusal else { return Ok(()) };
        let accepted = std::mem::take(&mut self.qps[at].claims).unwrap_or(taken as u32);
        self.refusals += 1;
        self.invalid += u64::from(batch.get(taken).is_some_and(|next| !self.qps[at].carries(next)));
        Err(CommitError { accepted, refusal })
    }

    /// Records a completion that was polled.
    fn polled(&mut self, entry: &Entry) {
        let qp = &mut self.qps[entry.at];
        qp.slots -= entry.frees.map_or(0, |freed| freed.slots);
        qp.counters.completions += 1;
        qp.counters.errors += u64::from(!entry.completion.status.is_success());
        if let Some(log) = &mut self.log {
            let freed = entry.frees.is_some_and(|freed| freed.moved);
            log.push(Note::Polled { qp_num: qp.qp_num, freed });
        }
    }

    /// Executes the next send of a queue pair with this outcome.
    pub(super) fn execute(&mut self, at: usize, status: WcStatus) {
        let qp = &mut self.qps[at];
        let request = qp.sends.pop_front().expect("a request to execute");
        qp.silent += 1;
        if status.is_success() && !request.flags.contains(SendFlags::SIGNALED) {
            return;
        }
        let is_fragment = match request.opcode {
            Opcode::RdmaWrite | Opcode::RdmaRead => request.sge.length() > 0,
            opcode => opcode == Opcode::RdmaWriteWithImm,
        };
        let moved = status.is_success() && is_fragment;
        let frees = Some(Freed { slots: core::mem::take(&mut qp.silent), moved });
        let qp_num = qp.qp_num;
        let opcode = request.opcode.completion();
        let completion = if status.is_success() {
            Completion::success(qp_num, request.wr_id, opcode)
        } else {
            self.rubbish(qp_num, request.wr_id, status)
        };
        self.complete(at, completion, frees);
    }

    /// Moves a queue pair to the error state: both queues are flushed.
    pub(super) fn flush(&mut self, at: usize) {
        self.qps[at].errored = true;
        while !self.qps[at].sends.is_empty() {
            self.execute(at, WcStatus::WR_FLUSH_ERR);
        }
        while let Some(recv) = self.qps[at].recvs.pop_front() {
            let qp_num = self.qps[at].qp_num;
            let completion = self.rubbish(qp_num, recv.wr_id, WcStatus::WR_FLUSH_ERR);
            self.complete(at, completion, None);
        }
    }

    /// Puts a completion of this queue pair on its completion queue.
    pub(super) fn complete(&mut self, at: usize, completion: Completion, frees: Option<Freed>) {
        let cq = &mut self.cqs[self.qps[at].cq];
        assert!(cq.entries.len() < cq.capacity as usize, "completion queue overrun");
        cq.entries.push_back(Entry { at, completion, frees });
    }

    /// A failed completion with rubbish in every field that verbs leaves undefined.
    pub(super) fn rubbish(&mut self, qp_num: u32, wr_id: u64, status: WcStatus) -> Completion {
        const OPCODES: [u32; 6] = [0, 128, 1, 129, 0xDEAD_BEEF, 4];
        self.failures += 1;
        let noise = self.failures.wrapping_mul(0x9E37_79B9);
        Completion {
            opcode: WcOpcode(OPCODES[self.failures as usize % OPCODES.len()]),
            byte_len: noise,
            imm: Imm::from_number(noise & 0x8000_00FF),
            src_qp: !noise,
            wc_flags: WcFlags::from_bits_retain(noise | WcFlags::WITH_IMM.bits()),
            pkey_index: 0xAAAA,
            slid: 0x5555,
            sl: 0xFF,
            dlid_path_bits: 0xFF,
            ..Completion::failure(qp_num, wr_id, status, 0x8100_0000 | self.failures)
        }
    }
}

// SAFETY: they touch no memory. (What tests inject breaks the promises on purpose.)
unsafe impl Devices for State {
    fn qp(&self, at: usize) -> QpInfo {
        let QpState { qp_num, device, cq, limits, .. } = self.qps[at];
        QpInfo { qp_num, device, cq: Nic::cq_id(cq), limits }
    }

    fn cq(&self, at: usize) -> CqInfo {
        let CqState { device, capacity, .. } = self.cqs[at];
        CqInfo { id: Nic::cq_id(at), device, capacity }
    }

    fn post_sends(
        &mut self,
        at: usize,
        batch: &[SendRequest],
        lists: &mut Lists,
    ) -> Result<(), CommitError> {
        let names = batch.iter().map(|request| request.wr_id);
        note_lists(&mut self.qps[at].send_lists, names, lists);
        let posted = self.take_sends(at, batch);
        if self.qps[at].errored {
            self.flush(at);
        }
        posted
    }

    fn post_recvs(
        &mut self,
        at: usize,
        batch: &[RecvRequest],
        lists: &mut Lists,
    ) -> Result<(), CommitError> {
        let names = batch.iter().map(|receive| receive.wr_id);
        note_lists(&mut self.qps[at].recv_lists, names, lists);
        let posted = self.qps[at].take_recvs(batch);
        if self.qps[at].errored {
            self.flush(at);
        }
        posted
    }

    fn enter_error(&mut self, at: usize) -> Result<(), Refusal> {
        if let Some(refusal) = self.qps[at].error_refusal {
            return Err(refusal);
        }
        self.flush(at);
        Ok(())
    }

    fn find(&mut self, cq: usize, most: usize) -> Result<usize, i32> {
        let CqState { entries, broken, .. } = &self.cqs[cq];
        broken.map_or(Ok(most.min(entries.len())), Err)
    }

    fn take(&mut self, cq: usize) -> Option<Completion> {
        let entry = self.cqs[cq].entries.pop_front()?;
        self.polled(&entry);
        Some(entry.completion)
    }
}
