//! The receiving end: executes arriving requests on their queue pair.

use crate::ending;
use crate::receives::Responder;
use crate::send_queue::PSN_MASK;
use crate::shared::QpShared;
use polyrail_core::verbs::{
    AccessFlags, Completion, Opcode, RecvRequest, SendFlags, SendRequest, WcFlags, WcOpcode,
    WcStatus,
};
use polyrail_nic_parts::address::{Gid, Mtu};
use polyrail_nic_parts::dma::Span;
use polyrail_nic_parts::error::vendor;
use polyrail_nic_parts::event::AsyncEvent;
use polyrail_nic_parts::lists::Listed;
use polyrail_nic_parts::local::Local;
use polyrail_nic_parts::memory::{DomainId, KeyFault, MemoryTable, Range};
use polyrail_nic_parts::state::QpState;
use polyrail_nic_parts::sync::lock;
use std::sync::MutexGuard;

/// A request as it arrives at its responder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival<'a> {
    pub(crate) request: &'a Listed<SendRequest>,
    pub(crate) from_gid: Gid,
    pub(crate) from_qp_num: u32,
    pub(crate) psn: u32,
    pub(crate) packets: u32,
    pub(crate) mtu: Mtu,
    /// The sender's bytes: the data to write or send, or the target of fetched data.
    pub(crate) local: Local<'a>,
    /// The data of a WRITE_WITH_IMM is in place already.
    pub(crate) data_done: bool,
    /// The request was admitted before: a deferred READ or atomic whose data comes now.
    pub(crate) admitted: bool,
}

impl Arrival<'_> {
    fn length(&self) -> u32 {
        self.request.length
    }

    fn remote(&self, length: u32) -> Range {
        Range { key: self.request.rkey, addr: self.request.remote_addr, length }
    }
}

impl Responder {
    fn pass(&mut self, arrival: &Arrival<'_>) {
        if !arrival.admitted {
            self.expected_psn = self.expected_psn.wrapping_add(arrival.packets) & PSN_MASK;
        }
    }
}

/// The answer to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Carried out.
    Ack,
    /// Refused, with the sender's status and `vendor_err`.
    Nak(WcStatus, u32),
    /// No receive is posted; the sender retries after the time of this code.
    NotReady(u8),
    /// No answer, for this reason.
    Silence(u32),
    /// No answer, and no timeout at the sender.
    Never,
}

/// Length that is copied in less time than unlocking and locking the responder takes.
pub(crate) const SHORT_BYTES: u32 = 4096;

type Guard<'a> = MutexGuard<'a, Responder>;

/// Returns whether requests of this kind take a receive.
pub(crate) const fn takes_receive(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::RdmaWriteWithImm | Opcode::Send | Opcode::SendWithImm)
}

/// Executes a request on its responder. A receive that it completes stays there until it is added
/// to its queue ([`QpShared::hand_over`]).
pub(crate) fn deliver(peer: &QpShared, arrival: &Arrival<'_>, memory: &MemoryTable) -> Answer {
    let carry_out = match arrival.request.opcode {
        Opcode::RdmaWrite => write,
        Opcode::RdmaWriteWithImm => write_with_imm,
        Opcode::RdmaRead => read,
        Opcode::CompareSwap | Opcode::FetchAdd => atomic,
        Opcode::Send | Opcode::SendWithImm | Opcode::LocalInv | Opcode::SendWithInv => send,
    };
    let answer = carry_out(peer, arrival, memory).unwrap_or_else(|answer| answer);
    match answer {
        Answer::Ack | Answer::NotReady(_) if was_the_last(peer, arrival) => {
            Answer::Silence(vendor::PEER_STATE)
        }
        answer => answer,
    }
}

/// Returns whether the message was received in ERR, where senders get no answers.
fn was_the_last(peer: &QpShared, arrival: &Arrival<'_>) -> bool {
    peer.srq.is_some() && !arrival.admitted && peer.state.get() == QpState::Err
}

/// Admits a READ or atomic whose data will be fetched later.
pub(crate) fn admit_only(peer: &QpShared, arrival: &Arrival<'_>) -> Answer {
    match admit(peer, arrival) {
        Ok(mut recv) => {
            recv.pass(arrival);
            Answer::Ack
        }
        Err(answer) => answer,
    }
}

/// Moves only the first `bytes` of a WRITE or READ: the link fails before the rest.
pub(crate) fn deliver_part(
    peer: &QpShared,
    arrival: &Arrival<'_>,
    bytes: u32,
    memory: &MemoryTable,
) {
    let Ok(recv) = admit(peer, arrival) else { return };
    let local = arrival.local.prefix(bytes as usize);
    let range = arrival.remote(arrival.length());
    let open = |access| {
        if recv.access.contains(access) {
            memory.remote(peer.domain, range, access).ok()
        } else {
            None
        }
    };
    match arrival.request.opcode {
        Opcode::RdmaWrite | Opcode::RdmaWriteWithImm if !arrival.data_done => {
            if let Some(remote) = open(AccessFlags::REMOTE_WRITE) {
                Local::One(remote).copy_from(local);
            }
        }
        Opcode::RdmaRead => {
            if let Some(remote) = open(AccessFlags::REMOTE_READ) {
                local.copy_from(remote.into());
            }
        }
        _ => {}
    }
}

/// Checks whether the queue pair accepts the request. If not, the request is dropped without an
/// answer.
fn admit<'p>(peer: &'p QpShared, arrival: &Arrival<'_>) -> Result<Guard<'p>, Answer> {
    let mut recv = lock(&peer.recv);
    if arrival.admitted {
        return Ok(recv);
    }
    if !peer.state.get().receives() && !ending::takes_one_more(peer, &mut recv) {
        return Err(Answer::Silence(vendor::PEER_STATE));
    }
    if recv.gid != arrival.from_gid || recv.dest_qp_num != arrival.from_qp_num {
        return Err(Answer::Silence(vendor::PEER_DESTINATION));
    }
    if recv.expected_psn != arrival.psn {
        return Err(Answer::Silence(vendor::PEER_PSN));
    }
    if recv.mtu != arrival.mtu && arrival.packets > 1 {
        return Err(refuse(peer, recv, WcStatus::REM_INV_REQ_ERR, vendor::MTU_MISMATCH));
    }
    Ok(recv)
}

fn write(peer: &QpShared, arrival: &Arrival<'_>, memory: &MemoryTable) -> Result<Answer, Answer> {
    let recv = admit(peer, arrival)?;
    let (mut recv, remote) = open_remote(peer, recv, arrival, AccessFlags::REMOTE_WRITE, memory)?;
    recv.pass(arrival);
    // The responder is unlocked during the copy, so that its owner can change its state meanwhile.
    drop(recv);
    Local::One(remote).copy_from(arrival.local);
    Ok(Answer::Ack)
}

fn write_with_imm(
    peer: &QpShared,
    arrival: &Arrival<'_>,
    memory: &MemoryTable,
) -> Result<Answer, Answer> {
    let mut recv = admit(peer, arrival)?;
    if !arrival.data_done && arrival.length() > 0 {
        let (admitted, remote) = open_for_write_with_imm(peer, recv, arrival, memory)?;
        let target = Local::One(remote);
        if arrival.length() <= SHORT_BYTES {
            target.copy_from(arrival.local);
            recv = admitted;
        } else {
            drop(admitted);
            target.copy_from(arrival.local);
            recv = admit(peer, arrival)?;
        }
    }
    let taken = take(peer, &mut recv)?;
    recv.pass(arrival);
    let done = Completion {
        byte_len: arrival.length(),
        ..Completion::success(peer.number, taken.request.wr_id, WcOpcode::RECV_RDMA_WITH_IMM)
    };
    report(peer, &mut recv, &taken, with_imm(done, arrival), arrival);
    Ok(Answer::Ack)
}

/// Opens the target of a WRITE_WITH_IMM. A bad key consumes a receive, as with the kernel's driver;
/// the receive shows why.
fn open_for_write_with_imm<'p, 'm>(
    peer: &QpShared,
    mut recv: Guard<'p>,
    arrival: &Arrival<'_>,
    memory: &'m MemoryTable,
) -> Result<(Guard<'p>, Span<'m>), Answer> {
    let access = AccessFlags::REMOTE_WRITE;
    if recv.access.contains(access)
        && let Err(fault) = memory.remote(peer.domain, arrival.remote(arrival.length()), access)
        && let Some(taken) = take_posted(peer, &mut recv)
    {
        fail_receive(peer, &mut recv, &taken, WcStatus::REM_ACCESS_ERR, fault.vendor());
    }
    open_remote(peer, recv, arrival, access, memory)
}

fn read(peer: &QpShared, arrival: &Arrival<'_>, memory: &MemoryTable) -> Result<Answer, Answer> {
    let recv = admit(peer, arrival)?;
    let recv = check_read_resources(peer, recv)?;
    let (mut recv, remote) = open_remote(peer, recv, arrival, AccessFlags::REMOTE_READ, memory)?;
    recv.pass(arrival);
    drop(recv);
    arrival.local.copy_from(remote.into());
    Ok(Answer::Ack)
}

fn atomic(peer: &QpShared, arrival: &Arrival<'_>, memory: &MemoryTable) -> Result<Answer, Answer> {
    let recv = admit(peer, arrival)?;
    let recv = check_read_resources(peer, recv)?;
    let access = AccessFlags::REMOTE_ATOMIC;
    if !recv.access.contains(access) {
        return Err(refuse(peer, recv, WcStatus::REM_INV_REQ_ERR, vendor::QP_ACCESS));
    }
    let remote = match memory.remote(peer.domain, arrival.remote(8), access) {
        Ok(remote) => remote,
        Err(fault) => return Err(refuse_key(peer, recv, fault)),
    };
    let request = arrival.request;
    let old = match request.opcode {
        Opcode::FetchAdd => remote.fetch_add(request.compare_add),
        _ => remote.compare_swap(request.compare_add, request.swap),
    };
    let Some(old) = old else {
        return Err(refuse(peer, recv, WcStatus::REM_INV_REQ_ERR, vendor::ATOMIC_MISALIGNED));
    };
    let mut recv = recv;
    recv.pass(arrival);
    arrival.local.write(&old.to_ne_bytes());
    Ok(Answer::Ack)
}

fn check_read_resources<'p>(peer: &QpShared, recv: Guard<'p>) -> Result<Guard<'p>, Answer> {
    if recv.max_dest_rd_atomic == 0 {
        let status = WcStatus::REM_INV_REQ_ERR;
        return Err(refuse(peer, recv, status, vendor::NO_READ_RESOURCES));
    }
    Ok(recv)
}

fn send(peer: &QpShared, arrival: &Arrival<'_>, memory: &MemoryTable) -> Result<Answer, Answer> {
    // The lock is held during the copy, so that a flush cannot overtake this receive.
    let mut recv = admit(peer, arrival)?;
    let taken = take(peer, &mut recv)?;
    let length = arrival.length();
    if length > taken.request.length {
        let why = vendor::RECEIVE_TOO_SHORT;
        fail_receive(peer, &mut recv, &taken, WcStatus::LOC_LEN_ERR, why);
        return Err(refuse(peer, recv, WcStatus::REM_INV_REQ_ERR, why));
    }
    if length > 0 {
        match open_receive(&recv, &taken, length, memory) {
            Ok(target) => target.copy_from(arrival.local),
            Err(fault) => {
                fail_receive(peer, &mut recv, &taken, WcStatus::LOC_PROT_ERR, fault.vendor());
                return Err(refuse(peer, recv, WcStatus::REM_OP_ERR, vendor::RECEIVE_MEMORY));
            }
        }
    }
    recv.pass(arrival);
    let done = Completion {
        byte_len: length,
        ..Completion::success(peer.number, taken.request.wr_id, WcOpcode::RECV)
    };
    let has_imm = arrival.request.opcode == Opcode::SendWithImm;
    let done = if has_imm { with_imm(done, arrival) } else { done };
    report(peer, &mut recv, &taken, done, arrival);
    Ok(Answer::Ack)
}

/// Opens the buffers of a receive for `length` bytes. All buffers of a list are checked, as in
/// hardware.
fn open_receive<'m>(
    recv: &'m Responder,
    taken: &Taken,
    length: u32,
    memory: &'m MemoryTable,
) -> Result<Local<'m>, KeyFault> {
    let access = AccessFlags::LOCAL_WRITE;
    if taken.request.buffers > 0 {
        return Local::open(memory, taken.domain, recv.list_of_taken(), access);
    }
    let sge = taken.request.sge;
    let range = Range { key: sge.lkey(), addr: sge.addr(), length };
    memory.local(taken.domain, range, access).map(Local::One)
}

/// Opens the remote range of a WRITE or READ. An empty range needs no key (InfiniBand
/// specification, C9-88).
fn open_remote<'p, 'm>(
    peer: &QpShared,
    recv: Guard<'p>,
    arrival: &Arrival<'_>,
    access: AccessFlags,
    memory: &'m MemoryTable,
) -> Result<(Guard<'p>, Span<'m>), Answer> {
    if !recv.access.contains(access) {
        return Err(refuse(peer, recv, WcStatus::REM_INV_REQ_ERR, vendor::QP_ACCESS));
    }
    if arrival.length() == 0 {
        return Ok((recv, Span::EMPTY));
    }
    match memory.remote(peer.domain, arrival.remote(arrival.length()), access) {
        Ok(remote) => Ok((recv, remote)),
        Err(fault) => Err(refuse_key(peer, recv, fault)),
    }
}

fn refuse_key(peer: &QpShared, recv: Guard<'_>, fault: KeyFault) -> Answer {
    refuse(peer, recv, WcStatus::REM_ACCESS_ERR, fault.vendor())
}

/// Refuses a request for good. The responder also fails, and its receives are flushed. Its poller
/// flushes its send queue (see the lock order in [`crate::shared`]).
fn refuse(peer: &QpShared, mut recv: Guard<'_>, status: WcStatus, vendor: u32) -> Answer {
    if peer.state.fail() {
        peer.device.push_event(AsyncEvent::QpAccessError { qp_num: peer.number });
        ending::flush(peer, &mut recv);
        peer.list_work();
    }
    Answer::Nak(status, vendor)
}

/// A receive that a request consumed.
struct Taken {
    request: Listed<RecvRequest>,
    /// The domain in which its buffer must be registered.
    domain: DomainId,
    releases: u64,
}

fn take(peer: &QpShared, recv: &mut Responder) -> Result<Taken, Answer> {
    let forced = peer.device.faults.takes_forced_rnr();
    let taken = if forced { None } else { take_posted(peer, recv) };
    taken.ok_or(Answer::NotReady(recv.min_rnr_timer))
}

fn take_posted(peer: &QpShared, recv: &mut Responder) -> Option<Taken> {
    if let Some(srq) = &peer.srq {
        let request = srq.pop()?;
        return Some(Taken { request, domain: srq.domain, releases: 0 });
    }
    let (request, releases) = recv.pop(&peer.posts)?;
    Some(Taken { request, domain: peer.domain, releases })
}

fn with_imm(completion: Completion, arrival: &Arrival<'_>) -> Completion {
    Completion { imm: arrival.request.imm, wc_flags: WcFlags::WITH_IMM, ..completion }
}

fn report(
    peer: &QpShared,
    recv: &mut Responder,
    taken: &Taken,
    completion: Completion,
    arrival: &Arrival<'_>,
) {
    let solicited = arrival.request.flags.contains(SendFlags::SOLICITED);
    peer.push_receive(recv, taken.releases, completion, solicited);
    ending::took_one(peer, recv);
}

fn fail_receive(
    peer: &QpShared,
    recv: &mut Responder,
    taken: &Taken,
    status: WcStatus,
    vendor: u32,
) {
    let failed = Completion::failure(peer.number, taken.request.wr_id, status, vendor);
    peer.push_receive(recv, taken.releases, failed, true);
    ending::took_one(peer, recv);
}
