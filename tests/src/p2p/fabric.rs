//! The state of all NICs of both hosts, and what they do when the test lets them.

use super::memory::{Kind, Memory};
use super::shape::{MOST, Shape};
use polyrail_core::hardware::{CommitError, ENGINE_WR_ID, QpLimits, Refusal};
use polyrail_core::p2p::{EntryForm, POOL_WR_ID};
use polyrail_core::verbs::{
    Completion, DeviceId, Imm, Opcode, SendFlags, SendRequest, WcFlags, WcOpcode, WcStatus,
};
use std::collections::VecDeque;

/// What a driver says of a device that is gone.
pub(super) const EIO: i32 = 5;

/// A queue pair: which connection's, which end's, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    /// The connection, counted with those that were replaced.
    pub(super) connection: u32,
    pub(super) host: usize,
    pub(super) device: usize,
    /// Behind those of all rails: one for flushes.
    pub(super) place: usize,
    pub(super) rail: u8,
    pub(super) is_receivers: bool,
    pub(super) is_for_flushes: bool,
}

/// A request on its way.
#[derive(Clone, Debug)]
struct Sent {
    request: SendRequest,
    is_executed: bool,
    /// The words that it brings along.
    inline: Option<Vec<u64>>,
}

#[derive(Debug)]
pub(super) struct Qp {
    pub(super) name: Name,
    pub(super) qp_num: u32,
    pub(super) limits: QpLimits,
    pub(super) peer: Option<usize>,
    pub(super) in_error: bool,
    /// Its device is gone, or it was destroyed.
    pub(super) is_gone: bool,
    /// Its number may be given away.
    is_destroyed: bool,
    /// One more message may still be taken, though it is in the error state.
    takes_one_more: bool,
    pub(super) said_word: bool,
    /// How often the driver is asked in vain for its word.
    pub(super) word_after: u32,
    sent: VecDeque<Sent>,
    /// Requests that had left when it went to the error state.
    stragglers: VecDeque<Sent>,
    /// Requests whose completions were not taken.
    slots: u32,
    silent: u32,
    /// What the driver answers to the next batch, if it does not take all of it.
    pub(super) mood: Option<CommitError>,
    /// The driver refuses to move it to the error state so many times.
    pub(super) keeps_working: u32,
    /// Its peer keeps to the protocol, and so does it.
    pub(super) is_honest: bool,
}

#[derive(Debug)]
pub(super) struct Cq {
    entries: VecDeque<Entry>,
    /// Those of them that are of receives.
    pub(super) receives: u32,
    capacity: u32,
    /// Those of them, the oldest, that a poll finds.
    visible: usize,
}

#[derive(Clone, Debug)]
struct Entry {
    at: usize,
    completion: Completion,
    frees: u32,
}

#[derive(Debug, Default)]
pub(super) struct Srq {
    pub(super) receives: u32,
    pub(super) mood: Option<CommitError>,
    /// Receives were taken that nobody promised.
    pub(super) is_robbed: bool,
    /// Counts those that were there before, and went with their device.
    pub(super) generation: u32,
}

/// A word that was written, and that nobody sees yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hidden {
    block: usize,
    word: usize,
    value: u64,
    /// Words of the same 128 bytes are shown in order.
    in_order: bool,
}

/// A request that the peer's NIC executed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Executed {
    pub(super) request: SendRequest,
    /// The block that it wrote or read at the other end, and where.
    pub(super) remote: Option<(usize, u32)>,
    pub(super) local: Option<(usize, u32)>,
    /// It had left its queue pair before that failed.
    pub(super) is_straggler: bool,
    /// The first word that it wrote, if it wrote words.
    pub(super) first: u64,
}

/// What became of a step.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Done(Executed),
    /// The peer has no receive.
    NoReceive,
    /// The peer refuses that access.
    BadAccess,
}

#[derive(Debug)]
pub(super) struct Fabric {
    pub(super) memory: Memory,
    pub(super) qps: Vec<Qp>,
    /// `MOST` of each host, one for each device; shared receive queues likewise.
    pub(super) cqs: Vec<Cq>,
    pub(super) srqs: Vec<Srq>,
    /// Devices that are gone.
    pub(super) is_dead: [bool; 2 * MOST],
    pub(super) hidden: Vec<Hidden>,
    tears: bool,
    flushes_all: bool,
    receives: u32,
    /// Requests that drivers took.
    pub(super) posted: u64,
    /// Requests carried out and completed, and completions taken.
    pub(super) moved: u64,
    /// A driver did not take a batch whole.
    pub(super) has_refused: bool,
    /// Nobody wants to know how the world would have ended.
    pub(super) is_abandoned: bool,
}

pub(super) const fn device_at(host: usize, device: usize) -> usize {
    host * MOST + device
}

impl Fabric {
    pub(super) fn new(shape: &Shape) -> Self {
        let capacity = shape.capacity();
        let cq = |_| Cq { entries: VecDeque::new(), receives: 0, capacity, visible: 0 };
        Self {
            memory: Memory::default(),
            qps: Vec::new(),
            cqs: (0..2 * MOST).map(cq).collect(),
            srqs: (0..2 * MOST).map(|_| Srq::default()).collect(),
            is_dead: [false; 2 * MOST],
            hidden: Vec::new(),
            tears: shape.tears,
            flushes_all: shape.flushes_all,
            receives: shape.receives(),
            posted: 0,
            moved: 0,
            has_refused: false,
            is_abandoned: false,
        }
    }

    /// A new queue pair, with the lowest number that is free on its device.
    pub(super) fn make(&mut self, name: Name, limits: QpLimits, word_after: u32) -> usize {
        let taken = |number: &u32| {
            let same = |qp: &Qp| (qp.name.host, qp.name.device) == (name.host, name.device);
            self.qps.iter().any(|qp| same(qp) && !qp.is_destroyed && qp.qp_num == *number)
        };
        let qp_num = (1..).find(|number| !taken(number)).expect("few queue pairs");
        self.qps.push(Qp {
            name,
            qp_num,
            limits,
            peer: None,
            in_error: false,
            is_gone: false,
            is_destroyed: false,
            takes_one_more: name.is_receivers && !name.is_for_flushes,
            said_word: false,
            word_after,
            sent: VecDeque::new(),
            stragglers: VecDeque::new(),
            slots: 0,
            silent: 0,
            mood: None,
            keeps_working: 0,
            is_honest: true,
        });
        self.qps.len() - 1
    }

    pub(super) fn connect(&mut self, near: usize, far: usize) {
        self.qps[near].peer = Some(far);
        self.qps[far].peer = Some(near);
    }

    pub(super) fn device_id(&self, at: usize) -> DeviceId {
        let Name { host, device, .. } = self.qps[at].name;
        device_id(host, device)
    }

    pub(super) fn cq_of(&self, at: usize) -> usize {
        let Name { host, device, .. } = self.qps[at].name;
        device_at(host, device)
    }

    /// Whether a queue pair answers the one that it is connected to.
    fn answers(&self, at: usize) -> bool {
        let qp = &self.qps[at];
        !qp.is_gone && (!qp.in_error || (qp.takes_one_more && !qp.said_word))
    }

    fn next(&self, at: usize) -> Option<&Sent> {
        let qp = &self.qps[at];
        if qp.in_error {
            return qp.stragglers.front();
        }
        qp.sent.iter().find(|sent| !sent.is_executed)
    }

    /// The requests of a queue pair that have no answer yet.
    pub(super) fn requests(&self, at: usize) -> impl Iterator<Item = &SendRequest> {
        self.qps[at].sent.iter().map(|sent| &sent.request)
    }

    /// Whether the peer can be asked to execute the next request of a queue pair.
    pub(super) fn can_execute(&self, at: usize) -> bool {
        let answered = self.qps[at].peer.is_some_and(|peer| self.answers(peer));
        answered && self.next(at).is_some()
    }

    pub(super) fn can_acknowledge(&self, at: usize) -> bool {
        let qp = &self.qps[at];
        !qp.in_error && qp.sent.front().is_some_and(|sent| sent.is_executed)
    }

    /// Whether a queue pair waits for an answer that does not come.
    pub(super) fn is_unanswered(&self, at: usize) -> bool {
        let qp = &self.qps[at];
        let is_dead = |peer: usize| self.qps[peer].is_gone || self.qps[peer].in_error;
        !qp.in_error && !qp.is_gone && !qp.sent.is_empty() && qp.peer.is_some_and(is_dead)
    }

    /// The peer executes the next request of a queue pair, if it can.
    pub(super) fn execute(&mut self, at: usize) -> Step {
        let sent = self.next(at).expect("it can be executed").clone();
        let request = sent.request;
        let peer = self.qps[at].peer.expect("it is connected");
        let Some((local, remote)) = self.places(at, peer, &request) else {
            return Step::BadAccess;
        };
        if request.opcode == Opcode::RdmaWriteWithImm {
            let cq = self.cq_of(peer);
            if self.srqs[cq].receives == 0 {
                return Step::NoReceive;
            }
            self.deliver(peer, request.imm, request.sge.length(), WcOpcode::RECV_RDMA_WITH_IMM);
        }
        let mut first = 0;
        if let (Some(local), Some(remote)) = (local, remote) {
            let is_honest = self.qps[at].is_honest;
            first = self.copy_words(local, remote, &sent, is_honest).unwrap_or_default();
        }
        self.moved += 1;
        let qp = &mut self.qps[at];
        let is_straggler = qp.in_error;
        if is_straggler {
            qp.stragglers.pop_front();
        } else {
            let next = qp.sent.iter_mut().find(|sent| !sent.is_executed);
            next.expect("there is one").is_executed = true;
        }
        if self.qps[peer].in_error {
            self.qps[peer].takes_one_more = false;
        }
        Step::Done(Executed { request, remote, local, is_straggler, first })
    }

    /// Where a request reads and writes; `None` if it may not.
    #[allow(clippy::type_complexity, reason = "two places")]
    fn places(
        &self,
        at: usize,
        peer: usize,
        request: &SendRequest,
    ) -> Option<(Option<(usize, u32)>, Option<(usize, u32)>)> {
        let length = request.sge.length();
        if length == 0 {
            return Some((None, None));
        }
        let [near, far] = [at, peer].map(|at| &self.qps[at].name);
        let (lkey, addr) = (request.sge.lkey(), request.sge.addr());
        let local = self.memory.find((near.host, near.device), lkey, addr, length);
        let is_inline = request.flags.contains(SendFlags::INLINE);
        assert!(local.is_some() || is_inline, "an lkey that does not fit: {request:?} of {near:?}");
        let place = (far.host, far.device);
        let remote = self.memory.find(place, request.rkey, request.remote_addr, length)?;
        // Keys that a peer made up may fit by chance.
        let block = self.memory.block(remote.0);
        let is_own = block.connection == near.connection && !matches!(block.kind, Kind::Source(_));
        is_own.then_some((local, Some(remote)))
    }

    /// A receive is taken by an immediate.
    pub(super) fn deliver(&mut self, at: usize, imm: Imm, byte_len: u32, opcode: WcOpcode) {
        self.srqs[self.qps[at].name.device + self.qps[at].name.host * MOST].receives -= 1;
        let completion = Completion {
            byte_len,
            imm,
            wc_flags: WcFlags::WITH_IMM,
            ..Completion::success(self.qps[at].qp_num, POOL_WR_ID, opcode)
        };
        self.push(at, completion, 0);
    }

    /// Copies words: buffers have contents that follow from their addresses.
    fn copy_words(
        &mut self,
        local: (usize, u32),
        remote: (usize, u32),
        sent: &Sent,
        is_honest: bool,
    ) -> Option<u64> {
        let Kind::Words(target) = &self.memory.block(remote.0).kind else { return None };
        if !matches!(self.memory.block(local.0).kind, Kind::Words(_)) {
            // Where a peer says that its buffer is.
            assert!(!is_honest, "a buffer is written over words");
            return None;
        }
        let target = target.clone();
        let Sent { request, inline, .. } = sent;
        let (first, count) = (local.1 as usize / 8, request.sge.length() as usize / 8);
        let read = || match &self.memory.block(local.0).kind {
            Kind::Words(words) => words.read(first, count),
            other => unreachable!("no words: {other:?}"),
        };
        let words = inline.clone().unwrap_or_else(read);
        if !is_honest && !remote.1.is_multiple_of(8) {
            return None;
        }
        assert!(
            remote.1.is_multiple_of(8) && request.sge.length().is_multiple_of(8),
            "whole words"
        );
        let (first, written) = (remote.1 as usize / 8, words.first().copied());
        // Signals complete at the peer with what they brought.
        let is_hidden = self.tears && request.opcode == Opcode::RdmaWrite;
        for (word, value) in (first..).zip(words) {
            let same = |hidden: &Hidden| (hidden.block, hidden.word) == (remote.0, word);
            self.hidden.retain(|hidden| !same(hidden));
            // What is there already is seen at once.
            if is_hidden && target.read(word, 1) != [value] {
                let in_order = false;
                self.hidden.push(Hidden { block: remote.0, word, value, in_order });
            } else {
                target.write(word, value);
            }
        }
        written
    }

    /// Hidden words of this block are shown in the order that this form needs.
    pub(super) fn order_hidden(&mut self, form: EntryForm) {
        let in_order = form == EntryForm::Plain;
        self.hidden.iter_mut().for_each(|hidden| hidden.in_order |= in_order);
    }

    /// Whether all words of these were shown.
    pub(super) fn shows(&self, block: usize, words: std::ops::Range<usize>) -> bool {
        !self.hidden.iter().any(|hidden| hidden.block == block && words.contains(&hidden.word))
    }

    /// Shows a word; of those that are in order, the first one of its 128 bytes.
    pub(super) fn show(&mut self, which: usize) {
        let Hidden { block, word, in_order, .. } = self.hidden[which];
        let same = |hidden: &Hidden| hidden.block == block && hidden.word / 16 == word / 16;
        let first = self.hidden.iter().position(same).filter(|_| in_order);
        let Hidden { block, word, value, .. } = self.hidden.remove(first.unwrap_or(which));
        self.write_word(block, word, value);
    }

    pub(super) fn write_word(&self, block: usize, word: usize, value: u64) {
        let Kind::Words(words) = &self.memory.block(block).kind else { panic!("no words") };
        words.write(word, value);
    }

    /// The oldest request completes.
    pub(super) fn acknowledge(&mut self, at: usize) {
        let qp = &mut self.qps[at];
        let request = qp.sent.pop_front().expect("it was executed").request;
        qp.silent += 1;
        self.moved += 1;
        if request.flags.contains(SendFlags::SIGNALED) {
            let frees = std::mem::take(&mut qp.silent);
            let opcode = request.opcode.completion();
            let completion = Completion::success(qp.qp_num, request.wr_id, opcode);
            self.push(at, completion, frees);
        }
    }

    /// A queue pair goes to the error state; its oldest request fails with this status, the others are flushed.
    pub(super) fn fail(&mut self, at: usize, status: WcStatus) {
        let qp = &mut self.qps[at];
        if qp.is_gone {
            return;
        }
        if !qp.in_error {
            qp.in_error = true;
            let left = qp.sent.iter().filter(|sent| !sent.is_executed);
            qp.stragglers = left.cloned().collect();
            self.freeze_stragglers(at);
        }
        self.flush(at, status);
    }

    /// What has left was read.
    fn freeze_stragglers(&mut self, at: usize) {
        let Self { memory, qps, .. } = self;
        let Name { host, device, .. } = qps[at].name;
        for Sent { request, inline, .. } in &mut qps[at].stragglers {
            let sge = &request.sge;
            let found = memory.find((host, device), sge.lkey(), sge.addr(), sge.length());
            let Some((block, offset)) = found.filter(|_| sge.length() > 0) else { continue };
            if let (Kind::Words(words), None) = (&memory.block(block).kind, &inline) {
                *inline = Some(words.read(offset as usize / 8, sge.length() as usize / 8));
            }
        }
    }

    fn flush(&mut self, at: usize, mut status: WcStatus) {
        while let Some(sent) = self.qps[at].sent.pop_front() {
            let qp = &mut self.qps[at];
            let is_signaled = sent.request.flags.contains(SendFlags::SIGNALED);
            if !is_signaled && !self.flushes_all && status == WcStatus::WR_FLUSH_ERR {
                qp.silent += 1;
                continue;
            }
            let frees = 1 + std::mem::take(&mut qp.silent);
            let completion = noise(Completion::failure(qp.qp_num, sent.request.wr_id, status, 7));
            self.push(at, completion, frees);
            status = WcStatus::WR_FLUSH_ERR;
        }
    }

    /// Whether a queue pair that dies can take a shared receive with it.
    pub(super) fn can_take(&self, at: usize) -> bool {
        let qp = &self.qps[at];
        let has_shared = qp.name.is_receivers && !qp.name.is_for_flushes;
        let is_dying = qp.in_error && !qp.said_word && !qp.is_gone;
        has_shared && is_dying && self.srqs[self.cq_of(at)].receives > 0
    }

    /// A queue pair that dies takes a shared receive with it.
    pub(super) fn take_receive(&mut self, at: usize) {
        let cq = self.cq_of(at);
        self.srqs[cq].receives -= 1;
        self.srqs[cq].is_robbed = true;
        let completion =
            Completion::failure(self.qps[at].qp_num, POOL_WR_ID, WcStatus::WR_FLUSH_ERR, 7);
        self.push(at, noise(completion), 0);
    }

    fn push(&mut self, at: usize, completion: Completion, frees: u32) {
        let cq = self.cq_of(at);
        let Cq { entries, receives, capacity, .. } = &mut self.cqs[cq];
        assert!(entries.len() < *capacity as usize, "a completion queue overruns");
        *receives += u32::from(completion.wr_id == POOL_WR_ID);
        entries.push_back(Entry { at, completion, frees });
    }

    /// So many more completions of a queue become visible.
    pub(super) fn reveal(&mut self, cq: usize, most: usize) {
        let Cq { entries, visible, .. } = &mut self.cqs[cq];
        *visible = visible.saturating_add(most).min(entries.len());
    }

    /// Completions that a poll finds.
    pub(super) fn visible(&self, cq: usize) -> usize {
        self.cqs[cq].visible
    }

    /// Takes the oldest completion of a queue.
    pub(super) fn take(&mut self, cq: usize) -> Option<Completion> {
        let Cq { entries, receives, visible, .. } = &mut self.cqs[cq];
        *visible -= 1;
        let Entry { at, completion, frees } = entries.pop_front()?;
        *receives -= u32::from(completion.wr_id == POOL_WR_ID);
        self.qps[at].slots -= frees;
        self.moved += 1;
        Some(completion)
    }

    pub(super) fn waiting(&self, cq: usize) -> usize {
        self.cqs[cq].entries.len()
    }

    pub(super) fn post_sends(
        &mut self,
        at: usize,
        batch: &[SendRequest],
    ) -> Result<(), CommitError> {
        let inline: Vec<_> = batch.iter().map(|request| self.inline(at, request)).collect();
        let qp = &mut self.qps[at];
        if qp.is_gone {
            self.has_refused = true;
            return Err(CommitError { accepted: 0, refusal: Refusal::Driver(EIO) });
        }
        assert!(!qp.said_word, "nothing is posted after the driver's word");
        assert!(batch.iter().all(|request| request.wr_id & ENGINE_WR_ID != 0), "{batch:?}");
        let longest = batch.iter().map(|request| request.sge.length()).max();
        assert!(longest.unwrap_or(0) <= qp.limits.max_msg_size, "a message that is too long");
        let answer = answer(qp.mood.take(), batch.len());
        self.has_refused |= answer.is_err();
        let accepted = answer.map_or_else(|error| error.accepted, |()| batch.len() as u32);
        qp.slots += accepted;
        self.posted += u64::from(accepted);
        assert!(qp.slots <= qp.limits.max_send_wr, "a send queue overflows: {:?}", qp.name);
        let taken = batch.iter().zip(inline).take(accepted as usize);
        let sent =
            taken.map(|(request, inline)| Sent { request: *request, is_executed: false, inline });
        qp.sent.extend(sent);
        if qp.in_error {
            self.flush(at, WcStatus::WR_FLUSH_ERR);
        }
        answer
    }

    /// The words that a request brings along.
    fn inline(&self, at: usize, request: &SendRequest) -> Option<Vec<u64>> {
        let (sge, qp) = (&request.sge, &self.qps[at]);
        if !request.flags.contains(SendFlags::INLINE) {
            return None;
        }
        assert!(sge.length() <= qp.limits.max_inline_data, "too much to bring along");
        let place = (qp.name.host, qp.name.device);
        let found = self.memory.find(place, sge.lkey(), sge.addr(), sge.length());
        let (block, offset) = found.expect("words of this end");
        match &self.memory.block(block).kind {
            Kind::Words(words) => Some(words.read(offset as usize / 8, sge.length() as usize / 8)),
            // Its contents follow from its address.
            Kind::Source(source) => {
                assert!(source.is_readable, "a request brings bytes that nobody can read");
                None
            }
            Kind::Target(_) => panic!("a buffer to receive into is sent"),
        }
    }

    pub(super) fn post_receives(
        &mut self,
        (srq, generation): (usize, u32),
        count: usize,
    ) -> Result<(), CommitError> {
        if self.is_dead[srq] || self.srqs[srq].generation != generation {
            self.has_refused = true;
            return Err(CommitError { accepted: 0, refusal: Refusal::Driver(EIO) });
        }
        let answer = answer(self.srqs[srq].mood.take(), count);
        self.has_refused |= answer.is_err();
        let accepted = answer.map_or_else(|error| error.accepted, |()| count as u32);
        self.srqs[srq].receives += accepted;
        assert!(self.srqs[srq].receives <= self.receives, "a shared receive queue overflows");
        answer
    }

    pub(super) fn enter_error(&mut self, at: usize) -> Result<(), Refusal> {
        let qp = &mut self.qps[at];
        if qp.is_gone {
            return Err(Refusal::Driver(EIO));
        }
        if qp.keeps_working > 0 {
            qp.keeps_working -= 1;
            return Err(Refusal::Driver(EIO));
        }
        self.fail(at, WcStatus::WR_FLUSH_ERR);
        Ok(())
    }

    pub(super) fn last_wqe_reached(&mut self, at: usize) -> Result<bool, Refusal> {
        let qp = &mut self.qps[at];
        if qp.is_gone {
            return Err(Refusal::Driver(EIO));
        }
        assert!(qp.in_error && qp.sent.is_empty() && qp.slots == 0, "asked for too early");
        let is_early = qp.word_after > 0;
        qp.word_after -= u32::from(is_early);
        qp.said_word = !is_early;
        // Whatever the driver knows of has appeared.
        let cq = self.cq_of(at);
        self.reveal(cq, usize::MAX);
        Ok(self.qps[at].said_word)
    }

    /// A queue pair is destroyed: all its completions were taken, unless its device was gone.
    pub(super) fn destroy(&mut self, at: usize) {
        let cq = self.cq_of(at);
        let waits = self.cqs[cq].entries.iter().any(|entry| entry.at == at);
        let is_excused = self.qps[at].is_gone || self.is_abandoned || std::thread::panicking();
        assert!(!waits || is_excused, "a queue pair is destroyed too early");
        self.remove(at);
        self.qps[at].is_destroyed = true;
    }

    /// A queue pair is no more. What had left it may still be on its way.
    pub(super) fn remove(&mut self, at: usize) {
        let qp = &mut self.qps[at];
        if !qp.in_error {
            qp.in_error = true;
            let left = qp.sent.iter().filter(|sent| !sent.is_executed);
            qp.stragglers = left.cloned().collect();
            self.freeze_stragglers(at);
        }
        let qp = &mut self.qps[at];
        qp.is_gone = true;
        qp.sent.clear();
    }

    /// A device is gone, with everything that was on it, and with all completions that were not taken.
    pub(super) fn remove_device(&mut self, host: usize, device: usize) {
        for at in 0..self.qps.len() {
            let Name { host: other, device: place, .. } = self.qps[at].name;
            if (other, place) == (host, device) {
                self.remove(at);
            }
        }
        let at = device_at(host, device);
        self.is_dead[at] = true;
        self.cqs[at].entries.clear();
        self.cqs[at].receives = 0;
        self.cqs[at].visible = 0;
        let generation = self.srqs[at].generation + 1;
        self.srqs[at] = Srq { generation, ..Srq::default() };
    }
}

pub(super) const fn device_id(host: usize, device: usize) -> DeviceId {
    DeviceId((host * 100 + device) as u32)
}

/// What a driver says to a batch.
fn answer(mood: Option<CommitError>, count: usize) -> Result<(), CommitError> {
    match mood {
        Some(error) => Err(CommitError { accepted: error.accepted.min(count as u32 - 1), ..error }),
        None => Ok(()),
    }
}

/// A failed completion has rubbish in every field that verbs leaves undefined.
fn noise(completion: Completion) -> Completion {
    let noise = (completion.wr_id as u32 ^ completion.qp_num).wrapping_mul(0x9E37_79B9);
    Completion {
        opcode: WcOpcode(noise % 256),
        byte_len: noise,
        imm: Imm::from_number(noise & 0xFFFF),
        src_qp: !noise,
        wc_flags: WcFlags::from_bits_retain(noise | WcFlags::WITH_IMM.bits()),
        ..completion
    }
}
