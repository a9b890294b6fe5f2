//! Posting of requests and receives.

use super::set::RequestsOn;
use crate::arguments::{given, list, out};
use crate::call::call;
use crate::code::Code;
use crate::error::{Failure, Refusal, refuse};
use crate::keys::{Far, Keys, Local};
use crate::numbers::Numbers;
use crate::pairs::Pairs;
use crate::peers::common::Common;
use crate::peers::object::on_requests;
use crate::table::{exclusive, words};
use crate::types::{
    Opcode, POLYRAIL_ACCESS_LOCAL_WRITE, POLYRAIL_MAX_PARTS, POLYRAIL_REQUEST_FENCE,
    POLYRAIL_REQUEST_INLINE, POLYRAIL_REQUEST_REPORT_IN_ORDER, POLYRAIL_REQUEST_REPORT_WHEN_DONE,
    POLYRAIL_REQUEST_SOLICITED, Part, Peers, Region, Request,
};
use arrayvec::ArrayVec;
use polyrail::backend::Domain;
use polyrail::endpoint::EndpointQp;
use polyrail::verbs::{self, LocalBuffer, LocalPart, RecvWr, ReportOrder, SendFlags, SendWr};
use polyrail::virtual_qp::{PostError, PostRecvError, PostSendError};

/// Maximum requests that one call passes to the engine.
const BATCH: usize = 16;

const FLAGS: u32 = POLYRAIL_REQUEST_FENCE
    | POLYRAIL_REQUEST_SOLICITED
    | POLYRAIL_REQUEST_INLINE
    | POLYRAIL_REQUEST_REPORT_WHEN_DONE
    | POLYRAIL_REQUEST_REPORT_IN_ORDER;

/// Length of an atomic in bytes.
const ATOMIC: u32 = 8;

const WRITE: u32 = Opcode::Write as u32;
const WRITE_WITH_IMM: u32 = Opcode::WriteWithImm as u32;
const SEND: u32 = Opcode::Send as u32;
const SEND_WITH_IMM: u32 = Opcode::SendWithImm as u32;
const READ: u32 = Opcode::Read as u32;
const COMPARE_SWAP: u32 = Opcode::CompareSwap as u32;
const FETCH_ADD: u32 = Opcode::FetchAdd as u32;

/// The opcode and flags of a request.
#[derive(Clone, Copy)]
struct Kind {
    opcode: verbs::Opcode,
    flags: SendFlags,
    report_order: Option<ReportOrder>,
}

impl Kind {
    #[inline]
    fn of(request: &Request) -> Result<Self, Refusal> {
        let opcode = opcode(request.opcode)?;
        let (flags, report_order) = flags(request)?;
        Ok(Self { opcode, flags, report_order })
    }

    const fn is_inline(self) -> bool {
        self.flags.contains(SendFlags::INLINE)
    }

    /// Returns a request of this kind for this memory.
    #[inline]
    fn wr<'k>(
        self,
        request: &Request,
        (local, remote_addr): (LocalBuffer, u64),
        keys: &'k [verbs::DeviceKeys],
    ) -> SendWr<'k> {
        let Self { opcode, flags, report_order } = self;
        let Request { id, imm, compare_add, swap, .. } = *request;
        SendWr {
            wr_id: id,
            opcode,
            flags,
            imm,
            local,
            remote_addr,
            compare_add,
            swap,
            keys,
            report_order,
        }
    }
}

#[inline]
fn opcode(number: u32) -> Result<verbs::Opcode, Refusal> {
    match number {
        WRITE => Ok(verbs::Opcode::RdmaWrite),
        WRITE_WITH_IMM => Ok(verbs::Opcode::RdmaWriteWithImm),
        SEND => Ok(verbs::Opcode::Send),
        SEND_WITH_IMM => Ok(verbs::Opcode::SendWithImm),
        READ => Ok(verbs::Opcode::RdmaRead),
        COMPARE_SWAP => Ok(verbs::Opcode::CompareSwap),
        FETCH_ADD => Ok(verbs::Opcode::FetchAdd),
        _ => refuse(Code::Argument, format_args!("there is no opcode {number}")),
    }
}

#[inline]
fn flags(request: &Request) -> Result<(SendFlags, Option<ReportOrder>), Refusal> {
    if request.flags & !FLAGS != 0 {
        let unknown = request.flags & !FLAGS;
        return refuse(Code::Argument, format_args!("unknown flags {unknown:#x} of a request"));
    }
    let has = |flag| request.flags & flag != 0;
    let report_order =
        match (has(POLYRAIL_REQUEST_REPORT_WHEN_DONE), has(POLYRAIL_REQUEST_REPORT_IN_ORDER)) {
            (false, false) => None,
            (true, false) => Some(ReportOrder::WhenDone),
            (false, true) => Some(ReportOrder::InOrder),
            (true, true) => return refuse(Code::Argument, "reported in order and when done, both"),
        };
    // The other flags have the bits of verbs.
    let flags = SendFlags::from_bits_truncate(request.flags as u8);
    Ok((flags | SendFlags::SIGNALED, report_order))
}

/// Returns a part of local memory, after checking that the request may use it.
#[inline]
fn part_of(
    memory: &Local,
    (offset, length): (u64, u32),
    is_written: bool,
    is_inline: bool,
) -> Result<LocalBuffer, Refusal> {
    let addr = memory.at(offset, length)?;
    if is_written && memory.access & POLYRAIL_ACCESS_LOCAL_WRITE == 0 {
        return refuse(
            Code::Access,
            "the region was registered without POLYRAIL_ACCESS_LOCAL_WRITE",
        );
    }
    if is_inline && memory.is_dma_buf {
        return refuse(Code::Unsupported, "memory of a dma-buf cannot be inline");
    }
    // SAFETY: the caller keeps the memory registered and leaves it alone until the request is
    // reported.
    Ok(unsafe { LocalBuffer::new(addr, length) })
}

/// One value per part.
type OfParts<T> = ArrayVec<T, POLYRAIL_MAX_PARTS>;

/// Checks all parts, and returns their memory and their total length.
fn locals(
    parts: &[Part],
    is_written: bool,
    is_inline: bool,
) -> Result<(OfParts<(Local, LocalBuffer)>, u32), Refusal> {
    if !(1..=POLYRAIL_MAX_PARTS).contains(&parts.len()) {
        let words = format!("{} parts, where 1 to {POLYRAIL_MAX_PARTS} are possible", parts.len());
        return refuse(Code::TooMany, words);
    }
    let mut length = 0u32;
    let mut locals = OfParts::new();
    for part in parts {
        if part.reserved != 0 {
            let words = format!("reserved of a part is {}, and has to be 0", part.reserved);
            return refuse(Code::Argument, words);
        }
        let memory = Local::from_words(&words(part.region)?);
        let local = part_of(&memory, (part.offset, part.length), is_written, is_inline)?;
        locals.push((memory, local));
        length = match length.checked_add(part.length) {
            Some(sum) => sum,
            None => return refuse(Code::Range, "the parts have 4 GiB or more together"),
        };
    }
    Ok((locals, length))
}

fn keys_of(locals: &[(Local, LocalBuffer)]) -> OfParts<Keys> {
    locals.iter().map(|(local, _)| local.keys().collect()).collect()
}

fn with_keys<'k>(locals: &[(Local, LocalBuffer)], keys: &'k [Keys]) -> OfParts<LocalPart<'k>> {
    let parts = locals.iter().zip(keys);
    parts.map(|(&(_, local), keys)| LocalPart { local, keys }).collect()
}

/// Translates a request to a peer with these pairs of devices; its keys are stored in `keys`, which
/// must be empty.
#[inline]
fn translate<'k>(
    request: &Request,
    pairs: &Pairs,
    keys: &'k mut Keys,
) -> Result<SendWr<'k>, Refusal> {
    let kind = Kind::of(request)?;
    let opcode = kind.opcode;
    let Request { region, offset, length, remote, remote_offset, .. } = *request;
    if opcode == verbs::Opcode::RdmaWriteWithImm && region.is_null() && length == 0 {
        return Ok(kind.wr(request, (LocalBuffer::EMPTY, 0), keys));
    }
    let is_atomic = matches!(opcode, verbs::Opcode::CompareSwap | verbs::Opcode::FetchAdd);
    if is_atomic && length != ATOMIC {
        return refuse(
            Code::Argument,
            format_args!("an atomic of {length} bytes: they are {ATOMIC}"),
        );
    }
    let memory = Local::from_words(&words(region)?);
    let local = part_of(&memory, (offset, length), opcode.is_fetching(), kind.is_inline())?;
    let remote_addr = match opcode {
        verbs::Opcode::Send | verbs::Opcode::SendWithImm => {
            keys.extend(memory.keys());
            0
        }
        _ => {
            let far = Far::from_words(&words(remote)?);
            memory.add_keys(&far, pairs, keys);
            let addr = far.at(remote_offset, length)?;
            if is_atomic && addr % u64::from(ATOMIC) != 0 {
                return refuse(
                    Code::Argument,
                    format_args!("an atomic at {addr:#x}, which is no multiple of {ATOMIC}"),
                );
            }
            addr
        }
    };
    Ok(kind.wr(request, (local, remote_addr), keys))
}

/// Returns the code of a refused request. Cold, to keep it out of the path of accepted requests.
#[cold]
fn post_refusal<Q>(qp: &EndpointQp<Q>, error: PostError, code: Code) -> Refusal
where
    Q: polyrail::hardware::QueuePair,
{
    Failure::of(code, &qp.post_error(error)).into()
}

fn send_refusal<Q>(qp: &EndpointQp<Q>, error: PostSendError) -> Refusal
where
    Q: polyrail::hardware::QueuePair,
{
    let code = match error {
        PostSendError::Full(_) | PostSendError::QueueFull(_) => return Refusal::NotNow,
        PostSendError::InErrorState => Code::Failed,
        PostSendError::Driver { .. } | PostSendError::RailDown => Code::Device,
        PostSendError::MissingKeys { .. } => Code::Keys,
        PostSendError::RemoteRange { .. } => Code::Range,
        PostSendError::TooManyBuffers { .. } | PostSendError::ListTooLong { .. } => Code::TooMany,
        PostSendError::UnsupportedOpcode(_)
        | PostSendError::SendWithDqplb(_)
        | PostSendError::List(_)
        | PostSendError::InlineRerouted => Code::Unsupported,
        _ => Code::Argument,
    };
    post_refusal(qp, error.into(), code)
}

fn recv_refusal<Q>(qp: &EndpointQp<Q>, error: PostRecvError) -> Refusal
where
    Q: polyrail::hardware::QueuePair,
{
    let code = match error {
        PostRecvError::Full(_) | PostRecvError::QueueFull(_) => return Refusal::NotNow,
        PostRecvError::InErrorState => Code::Failed,
        PostRecvError::Driver { .. } => Code::Device,
        PostRecvError::MissingKeys { .. } => Code::Keys,
        PostRecvError::TooManyBuffers { .. } => Code::TooMany,
        _ => Code::Unsupported,
    };
    post_refusal(qp, error.into(), code)
}

impl<D: Domain> RequestsOn<D> {
    /// Returns a peer, and the pairs of devices that its rails join. Refuses before both ends are
    /// connected.
    #[inline]
    fn connected(
        &mut self,
        common: &Common,
        peer: u64,
    ) -> Result<(&mut EndpointQp<D::Qp>, &Pairs), Refusal> {
        let place = common.numbers.place(peer)?;
        if !common.states[place].is_connected {
            return refuse(Code::State, format_args!("peer {peer:#x} is not connected yet"));
        }
        let Self { set, pairs, .. } = self;
        Numbers::found(set.get_mut(place).zip(pairs.get(place)), peer)
    }

    #[inline]
    fn post(&mut self, common: &Common, peer: u64, request: &Request) -> Result<(), Refusal> {
        let (qp, pairs) = self.connected(common, peer)?;
        let mut keys = Keys::new();
        let wr = translate(request, pairs, &mut keys)?;
        qp.post_send(&wr).map_err(|error| send_refusal(qp, error))
    }

    fn post_many(
        &mut self,
        common: &Common,
        peer: u64,
        requests: &[Request],
        posted: &mut usize,
    ) -> Result<(), Refusal> {
        let (qp, pairs) = self.connected(common, peer)?;
        for batch in requests.chunks(BATCH) {
            let mut keys = [const { Keys::new_const() }; BATCH];
            let mut wrs = ArrayVec::<SendWr<'_>, BATCH>::new();
            let mut refused = None;
            for (request, keys) in batch.iter().zip(&mut keys) {
                match translate(request, pairs, keys) {
                    Ok(wr) => wrs.push(wr),
                    Err(refusal) => {
                        refused = Some(refusal);
                        break;
                    }
                }
            }
            if let Err(error) = qp.post_many(&wrs) {
                *posted += error.posted;
                return Err(send_refusal(qp, error.error));
            }
            *posted += wrs.len();
            if let Some(refusal) = refused {
                return Err(refusal);
            }
        }
        Ok(())
    }

    fn post_parts(
        &mut self,
        common: &Common,
        peer: u64,
        request: &Request,
        parts: &[Part],
    ) -> Result<(), Refusal> {
        let (qp, pairs) = self.connected(common, peer)?;
        let kind = Kind::of(request)?;
        let (locals, length) = locals(parts, kind.opcode.is_fetching(), kind.is_inline())?;
        let (remote_addr, first_keys): (u64, Keys) = match kind.opcode {
            verbs::Opcode::Send | verbs::Opcode::SendWithImm => (0, locals[0].0.keys().collect()),
            _ => {
                let far = Far::from_words(&words(request.remote)?);
                let mut keys = Keys::new();
                locals[0].0.add_keys(&far, pairs, &mut keys);
                (far.at(request.remote_offset, length)?, keys)
            }
        };
        let keys = keys_of(&locals);
        let parts = with_keys(&locals, &keys);
        let wr = kind.wr(request, (LocalBuffer::EMPTY, remote_addr), &first_keys);
        qp.post_list(&wr, &parts).map_err(|error| send_refusal(qp, error))
    }

    fn receive(
        &mut self,
        common: &Common,
        peer: u64,
        id: u64,
        place: (*mut Region, u64, u32),
    ) -> Result<(), Refusal> {
        let qp = self.member(common, peer)?;
        let (region, offset, length) = place;
        let posted = if region.is_null() && length == 0 {
            qp.post_recv(&RecvWr::notification(id))
        } else {
            const WRITTEN: bool = true;
            const INLINE: bool = false;
            let memory = Local::from_words(&words(region)?);
            let local = part_of(&memory, (offset, length), WRITTEN, INLINE)?;
            let keys: Keys = memory.keys().collect();
            qp.post_recv(&RecvWr::data(id, local, &keys))
        };
        posted.map_err(|error| recv_refusal(qp, error))
    }

    fn receive_parts(
        &mut self,
        common: &Common,
        peer: u64,
        id: u64,
        parts: &[Part],
    ) -> Result<(), Refusal> {
        const WRITTEN: bool = true;
        const INLINE: bool = false;
        let qp = self.member(common, peer)?;
        let (locals, _) = locals(parts, WRITTEN, INLINE)?;
        let keys = keys_of(&locals);
        let posted = qp.post_recv_list(id, &with_keys(&locals, &keys));
        posted.map_err(|error| recv_refusal(qp, error))
    }
}

/// Posts a request. POLYRAIL_CODE_NOT_NOW: poll, and post it again. After POLYRAIL_CODE_OK the
/// request is reported, whether it succeeds or fails, as long as the peer is polled and not
/// removed. Peers for requests only: POLYRAIL_CODE_KIND for messages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_post(
    peers: *mut Peers,
    peer: u64,
    request: *const Request,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let request = unsafe { given(request, "request") }?;
        on_requests!(&mut *exclusive(peers)?, (common, requests) => requests.post(common, peer, request))
    })
}

/// Posts requests with one call and the fewest doorbells, and stores the number of posted requests
/// in `posted`. The first refused request and all behind it are not posted, and the code of the
/// refusal is returned. Peers for requests only: POLYRAIL_CODE_KIND for messages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_post_many(
    peers: *mut Peers,
    peer: u64,
    requests: *const Request,
    count: usize,
    posted: *mut usize,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let posted = unsafe { out(posted, "posted") }?.write(0);
        // SAFETY: guaranteed by the caller.
        let requests = unsafe { list(requests, count, "requests") }?;
        on_requests!(&mut *exclusive(peers)?, (common, set) => set.post_many(common, peer, requests, posted))
    })
}

/// Posts a request whose local bytes are the parts, one after the other, at most
/// POLYRAIL_MAX_PARTS. The `region`, `offset` and `length` of the request itself are ignored. Peers
/// for requests only: POLYRAIL_CODE_KIND for messages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_post_parts(
    peers: *mut Peers,
    peer: u64,
    request: *const Request,
    parts: *const Part,
    count: usize,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let request = unsafe { given(request, "request") }?;
        // SAFETY: guaranteed by the caller.
        let parts = unsafe { list(parts, count, "parts") }?;
        on_requests!(&mut *exclusive(peers)?, (common, requests) => requests.post_parts(common, peer, request, parts))
    })
}

/// Posts a receive. With a NULL region and `length` 0 it is for a WRITE_WITH_IMM, otherwise for a
/// SEND of at most `length` bytes. POLYRAIL_CODE_NOT_NOW: poll, and post it again. Peers for
/// requests only: POLYRAIL_CODE_KIND for messages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_receive(
    peers: *mut Peers,
    peer: u64,
    id: u64,
    region: *mut Region,
    offset: u64,
    length: u32,
) -> Code {
    call(|| {
        let place = (region, offset, length);
        on_requests!(&mut *exclusive(peers)?, (common, requests) => requests.receive(common, peer, id, place))
    })
}

/// Posts a receive for a SEND whose bytes fill the parts, one after the other. The number of parts
/// is at most POLYRAIL_MAX_PARTS, and at most what the device supports. POLYRAIL_CODE_NOT_NOW:
/// poll, and post it again. Peers for requests only: POLYRAIL_CODE_KIND for messages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_receive_parts(
    peers: *mut Peers,
    peer: u64,
    id: u64,
    parts: *const Part,
    count: usize,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let parts = unsafe { list(parts, count, "parts") }?;
        on_requests!(&mut *exclusive(peers)?, (common, requests) => requests.receive_parts(common, peer, id, parts))
    })
}

#[cfg(test)]
mod tests;
