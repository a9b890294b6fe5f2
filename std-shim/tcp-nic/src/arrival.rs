//! What arriving frames do.

use crate::clock::now;
use crate::read_half::{Partial, ReadHalf, Stop, Target};
use crate::responder::Response;
use crate::shared::{QpShared, Queues};
use crate::wire::{FIRST, Header, Kind, LAST, Malformed, SOLICITED, WORD};
use polyrail_core::verbs::{AccessFlags, Completion, Imm, Sge, WcFlags, WcOpcode, WcStatus};
use polyrail_nic_parts::completions::Entry;
use polyrail_nic_parts::dma::Span;
use polyrail_nic_parts::error::vendor;
use polyrail_nic_parts::event::AsyncEvent;
use polyrail_nic_parts::local::Local;
use polyrail_nic_parts::memory::{KeyFault, MemoryTable, Range};
use polyrail_nic_parts::state::rnr_delay;
use polyrail_nic_parts::sync::lock;

/// Passes the places of the part `skip..skip + length` of a frame's payload.
pub(crate) fn pieces(
    qp: &QpShared,
    half: &ReadHalf,
    memory: &MemoryTable,
    header: &Header,
    target: Target,
    (skip, length): (u32, u32),
    pass: &mut dyn FnMut(Span<'_>),
) -> Result<(), u32> {
    let vendor = KeyFault::vendor;
    let at = (header.offset + skip) as usize;
    match target {
        Target::Discard | Target::Operands => {}
        Target::Remote => {
            let addr = header.addr + u64::from(header.offset);
            let range = Range { key: header.rkey, addr, length: header.length };
            let span = memory.remote(qp.domain, range, AccessFlags::REMOTE_WRITE);
            pass(span.map_err(vendor)?.skip(skip as usize).prefix(length as usize));
        }
        Target::Receive => {
            let taken = &half.taken;
            let access = AccessFlags::LOCAL_WRITE;
            let local = Local::open(memory, taken.domain, &taken.list, access).map_err(vendor)?;
            local.part(at, length as usize).for_each(pass);
        }
        Target::Fetch(position) => {
            let queues = lock(&qp.queues);
            let access = AccessFlags::LOCAL_WRITE;
            let local = queues.requester.ring.open(position, qp.domain, memory, access);
            local.map_err(vendor)?.part(at, length as usize).for_each(pass);
        }
    }
    Ok(())
}

/// Decides what happens with a frame, from its header.
pub(crate) fn begin(
    qp: &QpShared,
    half: &mut ReadHalf,
    queues: &mut Queues,
    header: &Header,
    memory: &MemoryTable,
) -> Result<Target, Stop> {
    match header.kind {
        kind if kind.is_request() => begin_request(qp, half, queues, header, memory),
        Kind::ReadResponse => {
            let position = queues.requester.on_response(header)?;
            Ok(Target::Fetch(position))
        }
        Kind::AtomicResponse => {
            queues.requester.on_response(header)?;
            Ok(Target::Operands)
        }
        Kind::NotReady => {
            let delay = rnr_delay(header.rnr_timer);
            let now = now();
            queues.requester.on_not_ready(header.number, delay, now)?;
            if queues.requester.waits_until().is_some() {
                qp.device.io.look_at(qp);
            }
            Ok(Target::Discard)
        }
        Kind::Ready => {
            queues.requester.on_ready(header.number)?;
            Ok(Target::Discard)
        }
        Kind::Refusal => {
            queues.requester.on_refusal(header)?;
            qp.note_failure();
            Ok(Target::Discard)
        }
        _ => Ok(Target::Discard),
    }
}

fn begin_request(
    qp: &QpShared,
    half: &mut ReadHalf,
    queues: &mut Queues,
    header: &Header,
    memory: &MemoryTable,
) -> Result<Target, Stop> {
    if queues.responder.discards(header) {
        return Ok(Target::Discard);
    }
    if let Some(partial) = half.partial {
        return continue_request(&partial, header);
    }
    if header.number != queues.responder.executed() as u32 {
        return Err(Malformed("a request is not the next one").into());
    }
    if header.kind.carries_data() && !header.has(FIRST) {
        return Err(Malformed("a request does not begin with its first frame").into());
    }
    let begun = match header.kind {
        Kind::Write => begin_write(qp, queues, header, memory).map(Some),
        Kind::WriteWithImm => begin_write_with_imm(qp, half, queues, header, memory),
        Kind::Send | Kind::SendWithImm => begin_send(qp, half, queues, header, memory),
        _ => begin_fetch(qp, queues, header, memory).map(Some),
    };
    match begun {
        Ok(Some(target)) => {
            if header.kind.carries_data() && !header.has(LAST) {
                half.partial = Some(Partial {
                    kind: header.kind,
                    number: header.number,
                    total: header.total,
                    placed: 0,
                    addr: header.addr,
                    rkey: header.rkey,
                });
            }
            Ok(target)
        }
        Ok(None) => {
            queues.responder.miss_receive();
            Ok(Target::Discard)
        }
        Err((status, vendor)) => Err(refuse(qp, queues, status, vendor)),
    }
}

/// Checks that a frame continues the request of which some frames have come.
fn continue_request(partial: &Partial, header: &Header) -> Result<Target, Stop> {
    let continues = header.kind == partial.kind
        && header.number == partial.number
        && header.total == partial.total
        && header.offset == partial.placed
        && (header.addr, header.rkey) == (partial.addr, partial.rkey);
    if !continues {
        return Err(Malformed("a frame does not continue its request").into());
    }
    Ok(match header.kind {
        Kind::Send | Kind::SendWithImm => Target::Receive,
        _ => Target::Remote,
    })
}

/// Why a request is refused: the status of its sender, and `vendor_err`.
type Refused = (WcStatus, u32);

fn invalid(vendor: u32) -> Refused {
    (WcStatus::REM_INV_REQ_ERR, vendor)
}

fn check_length(qp: &QpShared, header: &Header) -> Result<(), Refused> {
    match header.total > qp.limits.max_msg_size {
        true => Err(invalid(vendor::MESSAGE_TOO_LONG)),
        false => Ok(()),
    }
}

/// Checks that the peer may access the whole range of its request. An empty range needs no key
/// (InfiniBand specification, C9-88).
fn check_remote(
    qp: &QpShared,
    queues: &Queues,
    header: &Header,
    (access, length): (AccessFlags, u32),
    memory: &MemoryTable,
) -> Result<(), Refused> {
    if !queues.access.contains(access) {
        return Err(invalid(vendor::QP_ACCESS));
    }
    if length == 0 {
        return Ok(());
    }
    let range = Range { key: header.rkey, addr: header.addr, length };
    let refused = |fault: KeyFault| (WcStatus::REM_ACCESS_ERR, fault.vendor());
    memory.remote(qp.domain, range, access).map(|_| ()).map_err(refused)
}

fn begin_write(
    qp: &QpShared,
    queues: &Queues,
    header: &Header,
    memory: &MemoryTable,
) -> Result<Target, Refused> {
    check_length(qp, header)?;
    check_remote(qp, queues, header, (AccessFlags::REMOTE_WRITE, header.total), memory)?;
    Ok(Target::Remote)
}

/// `None`: it meets no receive.
fn begin_write_with_imm(
    qp: &QpShared,
    half: &mut ReadHalf,
    queues: &mut Queues,
    header: &Header,
    memory: &MemoryTable,
) -> Result<Option<Target>, Refused> {
    let may_write = begin_write(qp, queues, header, memory);
    // A bad key consumes a receive, as with the kernel's driver; the receive shows why.
    let consumes = may_write.is_ok() || matches!(may_write, Err((WcStatus::REM_ACCESS_ERR, _)));
    let has_receive = consumes && take_receive(qp, half, queues);
    match may_write {
        Ok(target) if has_receive => Ok(Some(target)),
        Ok(_) => Ok(None),
        Err((status, vendor)) => {
            if has_receive {
                fail_receive(qp, half, status, vendor);
            }
            Err((status, vendor))
        }
    }
}

fn begin_send(
    qp: &QpShared,
    half: &mut ReadHalf,
    queues: &mut Queues,
    header: &Header,
    memory: &MemoryTable,
) -> Result<Option<Target>, Refused> {
    check_length(qp, header)?;
    if !take_receive(qp, half, queues) {
        return Ok(None);
    }
    if header.total > half.taken.request.length {
        let why = vendor::RECEIVE_TOO_SHORT;
        fail_receive(qp, half, WcStatus::LOC_LEN_ERR, why);
        return Err(invalid(why));
    }
    let taken = &half.taken;
    let opened = Local::open(memory, taken.domain, &taken.list, AccessFlags::LOCAL_WRITE);
    if let Some(fault) = opened.err().filter(|_| header.total > 0) {
        fail_receive(qp, half, WcStatus::LOC_PROT_ERR, fault.vendor());
        return Err((WcStatus::REM_OP_ERR, vendor::RECEIVE_MEMORY));
    }
    Ok(Some(Target::Receive))
}

/// READs and atomics.
fn begin_fetch(
    qp: &QpShared,
    queues: &Queues,
    header: &Header,
    memory: &MemoryTable,
) -> Result<Target, Refused> {
    if !queues.responder.has_room() {
        return Err(invalid(vendor::NO_READ_RESOURCES));
    }
    if header.kind == Kind::Read {
        check_length(qp, header)?;
        check_remote(qp, queues, header, (AccessFlags::REMOTE_READ, header.total), memory)?;
        return Ok(Target::Remote);
    }
    check_remote(qp, queues, header, (AccessFlags::REMOTE_ATOMIC, WORD), memory)?;
    if !header.addr.is_multiple_of(u64::from(WORD)) {
        return Err(invalid(vendor::ATOMIC_MISALIGNED));
    }
    Ok(Target::Operands)
}

/// Acts on a frame whose payload is in place.
pub(crate) fn finish(
    qp: &QpShared,
    half: &mut ReadHalf,
    queues: &mut Queues,
    header: &Header,
    target: Target,
    memory: &MemoryTable,
) -> Result<(), Stop> {
    match header.kind {
        Kind::ReadResponse => queues.requester.on_response_placed(header),
        Kind::AtomicResponse => {
            place_word(qp, half, queues, header, memory).map_err(Stop::Vanished)?;
            queues.requester.on_response_placed(header);
        }
        Kind::Read => {
            let number = queues.responder.executed();
            let (addr, rkey, total) = (header.addr, header.rkey, header.total);
            queues.responder.respond(Response::Read { number, addr, rkey, total, sent: 0 });
            queues.responder.execute();
        }
        Kind::FetchAdd | Kind::CompareSwap => {
            if let Err((status, vendor)) = execute_atomic(qp, half, queues, header, memory) {
                return Err(refuse(qp, queues, status, vendor));
            }
        }
        kind if kind.carries_data() => {
            debug_assert!(target != Target::Discard);
            if let Some(partial) = &mut half.partial {
                partial.placed += header.length;
            }
            if header.has(LAST) {
                half.partial = None;
                if kind.takes_receive() {
                    complete_receive(qp, half, header);
                }
                queues.responder.execute();
            }
        }
        _ => {}
    }
    Ok(())
}

fn place_word(
    qp: &QpShared,
    half: &ReadHalf,
    queues: &Queues,
    header: &Header,
    memory: &MemoryTable,
) -> Result<(), u32> {
    let Ok(position) = queues.requester.on_response(header) else { return Ok(()) };
    let ring = &queues.requester.ring;
    let local = ring.open(position, qp.domain, memory, AccessFlags::LOCAL_WRITE);
    local.map_err(KeyFault::vendor)?.write(&half.operands[..WORD as usize]);
    Ok(())
}

fn execute_atomic(
    qp: &QpShared,
    half: &ReadHalf,
    queues: &mut Queues,
    header: &Header,
    memory: &MemoryTable,
) -> Result<(), Refused> {
    let range = Range { key: header.rkey, addr: header.addr, length: WORD };
    let refused = |fault: KeyFault| (WcStatus::REM_ACCESS_ERR, fault.vendor());
    let word = memory.remote(qp.domain, range, AccessFlags::REMOTE_ATOMIC).map_err(refused)?;
    let [first, second] = [0, 8].map(|at| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&half.operands[at..at + 8]);
        u64::from_le_bytes(bytes)
    });
    let old = match header.kind {
        Kind::FetchAdd => word.fetch_add(first),
        _ => word.compare_swap(first, second),
    };
    let old = old.ok_or(invalid(vendor::ATOMIC_MISALIGNED))?;
    let number = queues.responder.executed();
    queues.responder.respond(Response::Atomic { number, old });
    queues.responder.execute();
    Ok(())
}

/// Takes the oldest receive. If there is none, the peer is notified of the next one.
fn take_receive(qp: &QpShared, half: &mut ReadHalf, queues: &mut Queues) -> bool {
    half.taken.list.clear();
    if let Some(srq) = &qp.srq {
        let Some(request) = srq.take(qp) else { return false };
        half.taken.list.push(request.sge);
        (half.taken.request, half.taken.domain, half.taken.releases) = (request, srq.domain, 0);
    } else {
        let Some((request, releases)) = queues.responder.posts.pop() else { return false };
        match queues.responder.posts.list_of_taken() {
            [] => half.taken.list.push(request.sge),
            list => half.taken.list.extend_from_slice(list),
        }
        (half.taken.request, half.taken.domain, half.taken.releases) =
            (request, qp.domain, releases);
    }
    half.taken.list.retain(|sge: &Sge| sge.length() > 0);
    half.has_taken = true;
    true
}

fn complete_receive(qp: &QpShared, half: &mut ReadHalf, header: &Header) {
    let opcode = match header.kind {
        Kind::WriteWithImm => WcOpcode::RECV_RDMA_WITH_IMM,
        _ => WcOpcode::RECV,
    };
    let wr_id = half.taken.request.wr_id;
    let done =
        Completion { byte_len: header.total, ..Completion::success(qp.number, wr_id, opcode) };
    let done = match header.kind {
        Kind::Send => done,
        _ => Completion { imm: Imm::from_wire(header.imm), wc_flags: WcFlags::WITH_IMM, ..done },
    };
    push_receive(qp, half, done, header.has(SOLICITED));
}

/// Completes the receive that was taken last as failed.
pub(crate) fn fail_receive(qp: &QpShared, half: &mut ReadHalf, status: WcStatus, vendor: u32) {
    let wr_id = half.taken.request.wr_id;
    push_receive(qp, half, Completion::failure(qp.number, wr_id, status, vendor), true);
}

fn push_receive(qp: &QpShared, half: &mut ReadHalf, completion: Completion, solicited: bool) {
    half.has_taken = false;
    qp.recv_cq.push(Entry {
        completion,
        releases: half.taken.releases,
        owner: qp.recv_owner,
        is_recv: true,
        solicited,
    });
}

/// Ends the request whose memory is not registered any more in the middle of a frame: a request of
/// the peer is refused, and an own request fails. Returns whether a refusal is to be sent.
pub(crate) fn refuse_vanished(qp: &QpShared, half: &mut ReadHalf, vendor: u32) -> bool {
    let target = half.target();
    let mut queues = lock(&qp.queues);
    let (status, vendor) = match target {
        Some(Target::Remote) => (WcStatus::REM_ACCESS_ERR, vendor),
        Some(Target::Receive) => {
            fail_receive(qp, half, WcStatus::LOC_PROT_ERR, vendor);
            (WcStatus::REM_OP_ERR, vendor::RECEIVE_MEMORY)
        }
        Some(Target::Fetch(position)) => {
            queues.requester.fail_at(position, WcStatus::LOC_PROT_ERR, vendor);
            return false;
        }
        Some(Target::Discard | Target::Operands) | None => return false,
    };
    refuse(qp, &mut queues, status, vendor);
    true
}

/// Refuses a request for good.
fn refuse(qp: &QpShared, queues: &mut Queues, status: WcStatus, vendor: u32) -> Stop {
    let number = queues.responder.executed();
    queues.responder.refuse(Header::refusal(number, status, vendor));
    if qp.state.fail() {
        qp.device.events.push(AsyncEvent::QpAccessError { qp_num: qp.number });
    }
    qp.note_failure();
    Stop::Refused
}
