//! What stands for the hardware: memory, queues, and the execution of requests.

use core::cell::Cell;
use core::mem::take;
use heapless::{Deque, Vec};
use polyrail_core::hardware::{CommitError, Refusal};
use polyrail_core::verbs::{
    Completion, DeviceId, Opcode, RecvRequest, SendFlags, SendRequest, WcFlags, WcOpcode, WcStatus,
};

/// Requests that a send queue holds, and receives that a receive queue holds.
pub(crate) const DEPTH: usize = 16;
const DEVICES: usize = 4;
const QUEUE_PAIRS: usize = 8;
const REGIONS: usize = 4;
/// Every queue pair may be on one device, and have both its queues complete.
pub(super) const CQ_ENTRIES: usize = 2 * DEPTH * QUEUE_PAIRS;

/// What drivers answer to a request that their device does not know.
const EOPNOTSUPP: i32 = 95;

/// Memory that devices may copy from and to. That it consists of cells keeps the copying safe.
pub(crate) type Region<'m> = &'m [Cell<u8>];

/// How a request ends.
type Outcome = Result<(), WcStatus>;

/// All devices, with everything that is on them.
#[derive(Default)]
pub(super) struct Devices<'m> {
    /// Registered memory; the key of a region is its place, counted from 1.
    regions: Vec<Region<'m>, REGIONS>,
    queue_pairs: Vec<QpState, QUEUE_PAIRS>,
    /// The completion queue of each device.
    queues: [CqState; DEVICES],
}

struct QpState {
    device: DeviceId,
    /// The place of the queue pair at the other end.
    peer: usize,
    receives: Deque<RecvRequest, DEPTH>,
    /// Send slots that are taken.
    slots: usize,
    /// Those of them whose requests are done without a completion: the next completion frees them.
    silent: usize,
    /// A request failed: what comes after it is flushed.
    has_failed: bool,
}

#[derive(Default)]
struct CqState {
    entries: Deque<Entry, CQ_ENTRIES>,
    overrun: bool,
}

struct Entry {
    completion: Completion,
    /// The place of its queue pair, and the send slots of it that polling frees.
    at: usize,
    frees: usize,
}

/// Set-up.
impl<'m> Devices<'m> {
    /// Makes a region known, and returns its key. `None` if there is no room.
    pub(super) fn register(&mut self, region: Region<'m>) -> Option<u32> {
        self.regions.push(region).ok()?;
        u32::try_from(self.regions.len()).ok()
    }

    /// Makes two queue pairs, each the other's peer, and returns their places. `None` if there is
    /// no room, or no such device.
    pub(super) fn connect(&mut self, devices: [DeviceId; 2]) -> Option<[usize; 2]> {
        let first = self.queue_pairs.len();
        let places = [first, first + 1];
        let exist = devices.iter().all(|device| (device.0 as usize) < DEVICES);
        if !exist || first + 2 > QUEUE_PAIRS {
            return None;
        }
        for (device, peer) in devices.into_iter().zip([first + 1, first]) {
            let receives = Deque::new();
            let qp = QpState { device, peer, receives, slots: 0, silent: 0, has_failed: false };
            self.queue_pairs.push(qp).ok()?;
        }
        Some(places)
    }
}

/// Sends.
impl<'m> Devices<'m> {
    /// Takes sends as far as there are slots, and as the devices know how to execute them.
    pub(super) fn post_sends(
        &mut self,
        at: usize,
        batch: &[SendRequest],
    ) -> Result<(), CommitError> {
        for (accepted, request) in (0..).zip(batch) {
            if self.queue_pairs[at].slots == DEPTH {
                return Err(CommitError { accepted, refusal: Refusal::QueueFull });
            }
            if !is_supported(request) {
                return Err(CommitError { accepted, refusal: Refusal::Driver(EOPNOTSUPP) });
            }
            self.send(at, request);
        }
        Ok(())
    }

    fn send(&mut self, at: usize, request: &SendRequest) {
        let qp = &mut self.queue_pairs[at];
        qp.slots += 1;
        qp.silent += 1;
        let outcome =
            if qp.has_failed { Err(WcStatus::WR_FLUSH_ERR) } else { self.execute(at, request) };
        self.complete_send(at, request, outcome);
        if outcome.is_err() {
            self.fail(at);
        }
    }

    fn execute(&mut self, at: usize, request: &SendRequest) -> Outcome {
        let peer = self.queue_pairs[at].peer;
        if self.queue_pairs[peer].has_failed {
            // It does not answer any more.
            return Err(WcStatus::RETRY_EXC_ERR);
        }
        self.copy(request)?;
        match request.opcode {
            Opcode::RdmaWriteWithImm => self.deliver_imm(peer, request),
            _ => Ok(()),
        }
    }

    /// Copies between the request's buffers. Empty ones need no key.
    fn copy(&self, request: &SendRequest) -> Outcome {
        let length = request.sge.length() as usize;
        if length == 0 {
            return Ok(());
        }
        let local = self.bytes(request.sge.lkey(), request.sge.addr(), length);
        let local = local.ok_or(WcStatus::LOC_PROT_ERR)?;
        let remote = self.bytes(request.rkey, request.remote_addr, length);
        let remote = remote.ok_or(WcStatus::REM_ACCESS_ERR)?;
        match request.opcode {
            Opcode::RdmaRead => copy_bytes(remote, local),
            _ => copy_bytes(local, remote),
        }
        Ok(())
    }

    /// Registered memory. A device trusts no address that comes with a request: it may be the
    /// peer's.
    fn bytes(&self, key: u32, addr: u64, length: usize) -> Option<Region<'m>> {
        let region = self.regions.get((key as usize).checked_sub(1)?)?;
        let offset = addr.checked_sub(region.as_ptr().addr() as u64)?;
        let offset = usize::try_from(offset).ok()?;
        region.get(offset..offset.checked_add(length)?)
    }

    fn complete_send(&mut self, at: usize, request: &SendRequest, outcome: Outcome) {
        let opcode = request.opcode.completion();
        let completion = match outcome {
            Ok(()) if !request.flags.contains(SendFlags::SIGNALED) => return,
            Ok(()) => Completion::success(qp_num(at), request.wr_id, opcode),
            Err(status) => Completion::failure(qp_num(at), request.wr_id, status, 0),
        };
        let frees = take(&mut self.queue_pairs[at].silent);
        self.complete(at, completion, frees);
    }

    /// Moves a queue pair to the error state, in which its receives are flushed.
    pub(super) fn fail(&mut self, at: usize) {
        self.queue_pairs[at].has_failed = true;
        while let Some(receive) = self.queue_pairs[at].receives.pop_front() {
            self.flush_receive(at, &receive);
        }
    }
}

/// Receives.
impl Devices<'_> {
    /// Takes receives as far as there is room.
    pub(super) fn post_receives(
        &mut self,
        at: usize,
        batch: &[RecvRequest],
    ) -> Result<(), CommitError> {
        for (accepted, receive) in (0..).zip(batch) {
            if self.queue_pairs[at].has_failed {
                self.flush_receive(at, receive);
            } else if self.queue_pairs[at].receives.push_back(*receive).is_err() {
                return Err(CommitError { accepted, refusal: Refusal::QueueFull });
            }
        }
        Ok(())
    }

    /// An immediate takes the next receive of the queue pair that it arrives at.
    fn deliver_imm(&mut self, at: usize, request: &SendRequest) -> Outcome {
        let receive = self.queue_pairs[at].receives.pop_front();
        let receive = receive.ok_or(WcStatus::RNR_RETRY_EXC_ERR)?;
        let opcode = WcOpcode::RECV_RDMA_WITH_IMM;
        let completion = Completion {
            byte_len: request.sge.length(),
            imm: request.imm,
            wc_flags: WcFlags::WITH_IMM,
            ..Completion::success(qp_num(at), receive.wr_id, opcode)
        };
        self.complete(at, completion, 0);
        Ok(())
    }

    fn flush_receive(&mut self, at: usize, receive: &RecvRequest) {
        let status = WcStatus::WR_FLUSH_ERR;
        self.complete(at, Completion::failure(qp_num(at), receive.wr_id, status, 0), 0);
    }
}

/// Completions.
impl Devices<'_> {
    fn complete(&mut self, at: usize, completion: Completion, frees: usize) {
        let device = self.queue_pairs[at].device;
        let queue = &mut self.queues[device.0 as usize];
        // The engine attaches only what there is room for, and so never meets an overrun.
        queue.overrun |= queue.entries.push_back(Entry { completion, at, frees }).is_err();
    }

    /// Whether the completion queue of this device works.
    pub(super) fn can_poll(&self, device: DeviceId) -> bool {
        self.queues.get(device.0 as usize).is_some_and(|queue| !queue.overrun)
    }

    /// Takes the oldest completion of this device.
    pub(super) fn poll(&mut self, device: DeviceId) -> Option<Completion> {
        let entry = self.queues.get_mut(device.0 as usize)?.entries.pop_front()?;
        self.queue_pairs[entry.at].slots -= entry.frees;
        Some(entry.completion)
    }
}

/// Queue pairs are numbered by their places. None has the number 0.
pub(super) fn qp_num(at: usize) -> u32 {
    at as u32 + 1
}

fn is_supported(request: &SendRequest) -> bool {
    let is_known =
        matches!(request.opcode, Opcode::RdmaWrite | Opcode::RdmaWriteWithImm | Opcode::RdmaRead);
    is_known && !request.flags.contains(SendFlags::INLINE)
}

fn copy_bytes(from: Region<'_>, to: Region<'_>) {
    for (from, to) in from.iter().zip(to) {
        to.set(from.get());
    }
}
