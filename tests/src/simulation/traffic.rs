//! Random requests of all kinds, in both directions.

use super::World;
use super::places::{Ground, STRIDE};
use super::sender::{Flaw, Request};
use super::shape::{ConnectionShape, FaultLevel};
use super::virtual_qp::AnyQp;
use crate::allocations::without_allocating;
use crate::choices::{Choices, pick};
use polyrail_core::hardware::{ReceiveQueue as _, RecvBatch as _};
use polyrail_core::verbs::{
    DeviceKeys, LocalBuffer, LocalPart, Opcode, RecvRequest, RecvWr, ReportOrder, SendFlags, SendWr,
};
use polyrail_core::virtual_qp::{PostRecvError, PostSendError, QpState};

/// Requests up to this length may be posted inline: some are too long for their rails.
const INLINE: u32 = 176;

impl World {
    /// Posts a request to one end: any, or most likely a long one that notifies.
    pub(super) fn post_send(
        &mut self,
        at: usize,
        end: usize,
        leans: bool,
        choices: &mut dyn Choices,
    ) {
        let ground = self.connections[at].ground(end, &self.hosts);
        let sender = &mut self.connections[at].ends[end].sender;
        let Some(place) = sender.clear_place(&ground) else { return };
        let request = self.choose_request(at, end, place, leans, choices);
        self.post_request(at, end, request);
    }

    /// Posts several requests to one end with one call.
    pub(super) fn post_sends(&mut self, at: usize, end: usize, choices: &mut dyn Choices) {
        let ground = self.connections[at].ground(end, &self.hosts);
        let most = 2 + choices.below(4) as usize;
        let sender = &mut self.connections[at].ends[end].sender;
        let places = sender.clear_places(most, &ground);
        let mut requests = Vec::with_capacity(places.len());
        for (later, place) in (0..).zip(places) {
            let request = self.choose_request(at, end, place, false, choices);
            let (id, salt) = (request.id + later, request.salt ^ later << 60);
            requests.push(Request { id, salt, turned: 0, ..request });
        }
        let keys: Vec<_> =
            requests.iter().map(|request| with_flaw(request.flaw, &self.keys[end])).collect();
        let ground = self.connections[at].ground(end, &self.hosts);
        requests.iter().for_each(|request| request.prepare(&ground));
        let default = self.connections[at].shape.config.report_order;
        let request = |(request, keys)| as_posted(request, &ground, keys, default);
        let wrs: Vec<_> =
            requests.iter().zip(keys.iter().map(Vec::as_slice)).map(request).collect();
        let qp = self.hosts[end].qp(self.connections[at].ends[end].index);
        let state = qp.state();
        let posted = without_allocating("post_many", || qp.post_many(&wrs));
        let count = posted.map_or_else(|error| error.posted, |()| requests.len());
        // Of a virtual queue pair that one of them failed, the next is refused.
        let state = if count > 0 { qp.state() } else { state };
        self.summary.requests += requests.len() as u64;
        requests[..count].iter().for_each(|request| self.accepted(at, end, *request));
        if let Err(error) = posted {
            self.refused(at, &requests[count], error.error, state);
        }
    }

    /// Posts a request in a place that was cleared for it. Returns whether it was accepted.
    pub(super) fn post_request(&mut self, at: usize, end: usize, request: Request) -> bool {
        let ground = self.connections[at].ground(end, &self.hosts);
        request.prepare(&ground);
        let keys = with_flaw(request.flaw, &self.keys[end]);
        let default = self.connections[at].shape.config.report_order;
        let wr = as_posted(&request, &ground, &keys, default);
        let part = |(at, length): (usize, u32)| {
            let local = ground.near.local(ground.near_offset(request.local) + at, length);
            LocalPart { local: local.expect("within the buffer"), keys: &keys }
        };
        let fragment = self.connections[at].shape.config.max_msg_size;
        let parts: Vec<_> = request.parts(fragment).into_iter().map(part).collect();
        let qp = self.hosts[end].qp(self.connections[at].ends[end].index);
        let before = qp.unreported_sends();
        let state = qp.state();
        let posted = if request.turned > 0 {
            without_allocating("post_list", || qp.post_list(&wr, &parts))
        } else {
            without_allocating("post_send", || qp.post_send(&wr))
        };
        self.summary.requests += 1;
        match posted {
            Ok(()) => self.accepted(at, end, request),
            Err(error) => {
                assert_eq!(qp.unreported_sends(), before, "a request refused is forgotten");
                self.refused(at, &request, error, state);
            }
        }
        posted.is_ok()
    }

    fn accepted(&mut self, at: usize, end: usize, request: Request) {
        let Self { hosts, connections, .. } = self;
        let connection = &mut connections[at];
        connection.ends[end].sender.accept(request, connection.shape.is_multi());
        connection.damaged |= request.flaw.is_some();
        self.summary.flawed += u64::from(request.flaw.is_some());
        if request.flags.contains(SendFlags::INLINE) {
            let limit = connection.shape.inline_limit_of(&request);
            assert!(request.length <= limit, "{request:?} is longer than {limit}");
            // The buffer belongs to its poster again.
            let ground = connection.ground(end, hosts);
            let offset = ground.near_offset(request.local);
            ground.near.fill(offset, request.length as usize, 0xEE).expect("within");
        }
    }

    /// A request was refused: there is a reason for it.
    fn refused(&mut self, at: usize, request: &Request, error: PostSendError, state: QpState) {
        self.summary.refused += 1;
        let connection = &self.connections[at];
        let limit = connection.shape.inline_limit_of(request);
        let inline = request.flags.contains(SendFlags::INLINE);
        let too_long = inline && request.length > limit;
        // A single rail leaves it to its driver.
        let fair = match error {
            PostSendError::InlineTooLong { max, .. } => too_long && max == limit,
            PostSendError::Driver { .. } => connection.damaged || too_long,
            PostSendError::TooManyBuffers { count, max } if is_one(&connection.shape, request) => {
                let parts = request.parts(connection.shape.config.max_msg_size);
                let filled = parts.iter().filter(|(_, length)| *length > 0).count();
                // A SEND that has to wait needs places of the ring.
                let places = connection.shape.size.wrs() as usize - 1;
                let limits = [connection.shape.sge_limit(), places];
                count == filled && limits.contains(&max) && filled > max
            }
            _ => is_fair(error, request, state),
        };
        assert!(fair, "{error} for {request:?}");
    }

    fn choose_request(
        &self,
        at: usize,
        end: usize,
        place: usize,
        leans: bool,
        choices: &mut dyn Choices,
    ) -> Request {
        use Opcode::{
            CompareSwap, FetchAdd, RdmaRead, RdmaWrite, RdmaWriteWithImm, Send, SendWithImm,
        };
        const KINDS: [Opcode; 10] = [
            RdmaWrite,
            RdmaWrite,
            RdmaWriteWithImm,
            RdmaWriteWithImm,
            RdmaWriteWithImm,
            RdmaRead,
            Send,
            SendWithImm,
            FetchAdd,
            CompareSwap,
        ];
        const PASSING: [Opcode; 8] =
            [RdmaWrite, RdmaWriteWithImm, Send, Send, SendWithImm, FetchAdd, FetchAdd, CompareSwap];
        let connection = &self.connections[at];
        let shape = &connection.shape;
        let chosen = pick(choices, if self.shape.passes { &PASSING[..] } else { &KINDS });
        let opcode = match if leans && choices.coin() { RdmaWriteWithImm } else { chosen } {
            RdmaWriteWithImm if !shape.notifies(1 - end) => RdmaWrite,
            Send | SendWithImm if !shape.takes_sends(1 - end) => RdmaWrite,
            opcode => opcode,
        };
        let longest = pick(choices, &[INLINE, 300, 1024, STRIDE as u32]);
        let longest = if leans { STRIDE as u32 } else { longest };
        let whole = !shape.is_multi() || matches!(opcode, Send | SendWithImm);
        let most = if whole { self.shape.message_limits[shape.first_device] } else { u32::MAX };
        let longest = longest.min(most);
        let is_atomic = matches!(opcode, FetchAdd | CompareSwap);
        let is_signal = opcode == RdmaWriteWithImm && choices.one_in(6);
        let length = match (is_atomic, is_signal) {
            (true, _) => 8,
            (_, true) => 0,
            _ => 1 + choices.below(longest),
        };
        let sender = &connection.ends[end].sender;
        let id = sender.next_id();
        let local = place;
        let salt = u64::from(shape.config.max_msg_size) << 24 ^ id << 8 ^ (at * 2 + end) as u64;
        let flags = SendFlags::SIGNALED;
        let own = choices.one_in(3).then(|| choices.coin());
        let when_done = own.unwrap_or(shape.config.report_order == ReportOrder::WhenDone);
        let when_done = when_done && shape.is_multi();
        let flaw = None;
        let mut request =
            Request { id, opcode, flags, when_done, length, turned: 0, place, local, salt, flaw };
        request.flags = choose_flags(&request, shape.is_multi(), choices);
        if self.shape.fault_level == FaultLevel::Failures && length > 0 && choices.one_in(100) {
            return with_any_flaw(request, choices);
        }
        // Forwards the bytes of a READ: only a fence keeps the two apart.
        if request.is_write()
            && length > 0
            && choices.one_in(4)
            && let Some(read) = sender.newest_read()
        {
            let flags = request.flags.difference(SendFlags::INLINE) | SendFlags::FENCE;
            let Request { place: local, length, salt, .. } = read;
            return Request { flags, local, length, salt, ..request };
        }
        let is_send = matches!(opcode, Send | SendWithImm);
        let may_be_list = (request.is_fragmented() || is_send) && request.length > 1;
        if may_be_list && choices.one_in(4) {
            return Request { turned: 1 + choices.below(request.length - 1), ..request };
        }
        request
    }

    /// Posts a receive to one end.
    pub(super) fn post_recv(&mut self, at: usize, end: usize, choices: &mut dyn Choices) {
        let shape = &self.connections[at].shape;
        let notifies = shape.is_multi() && shape.notifies(end);
        let with_buffer = !notifies || (shape.data_receives[end] && choices.one_in(3));
        if with_buffer {
            let is_short = self.shape.fault_level == FaultLevel::Failures && choices.one_in(100);
            let longest = if is_short { 1 + choices.below(STRIDE as u32) } else { STRIDE as u32 };
            let posted = self.post_data_recv_of(at, end, longest);
            self.connections[at].damaged |= posted && is_short;
        } else {
            self.post_notification(at, end);
        }
    }

    /// Returns whether it was accepted.
    pub(super) fn post_notification(&mut self, at: usize, end: usize) -> bool {
        let wr = RecvWr::notification(self.connections[at].ends[end].receiver.next_id());
        let posted = self.post_recv_wr(at, end, &wr);
        if posted {
            self.connections[at].ends[end].receiver.accept_notification();
        }
        posted
    }

    /// Posts a receive that any message fits into. Returns whether it was accepted.
    pub(super) fn post_data_recv(&mut self, at: usize, end: usize) -> bool {
        self.post_data_recv_of(at, end, STRIDE as u32)
    }

    fn post_data_recv_of(&mut self, at: usize, end: usize, length: u32) -> bool {
        let landing = self.connections[at].landing(end, &self.hosts);
        let receiver = &mut self.connections[at].ends[end].receiver;
        let Some(place) = receiver.places.free() else { return false };
        receiver.places.thaw(place, &landing);
        let offset = landing.near_offset(place);
        let buffer = landing.near.local(offset, length).expect("within the buffer");
        let id = receiver.next_data_id();
        let keys = self.keys[end].clone();
        let device = self.connections[at].ends[end].physical[0].device;
        let posted = match &mut self.connections[at].ends[end].shared {
            None if id.is_multiple_of(3) => self.post_recv_parts(at, end, id, buffer, &keys),
            None => self.post_recv_wr(at, end, &RecvWr::data(id, buffer, &keys)),
            Some(shared) => {
                let keys = keys.iter().find(|keys| keys.device == device).expect("keys of all");
                let mut batch = shared.start_recv();
                batch.add(&RecvRequest { wr_id: id, sge: buffer.sge(keys.lkey) });
                batch.commit().is_ok()
            }
        };
        if posted {
            self.connections[at].ends[end].receiver.accept_data(place, length);
        }
        posted
    }

    /// Posts a receive whose buffer is given in pieces: as many as rail 0 takes, or one more.
    fn post_recv_parts(
        &mut self,
        at: usize,
        end: usize,
        id: u64,
        buffer: LocalBuffer,
        keys: &[DeviceKeys],
    ) -> bool {
        let most = self.connections[at].shape.grants[0].sge;
        let count = (1 + (id / 3) as u32 % (most + 1)).min(buffer.length());
        // All but the last one have a byte or two.
        let border = |part: u32| (part + part / 2).min(buffer.length() - (count - part));
        let part = |at: u32| {
            let from = border(at);
            let to = if at + 1 == count { buffer.length() } else { border(at + 1) };
            LocalPart { local: buffer.slice(from, to - from).expect("within"), keys }
        };
        let parts: Vec<_> = (0..count).map(part).collect();
        if count > most {
            let qp = self.hosts[end].qp(self.connections[at].ends[end].index);
            let refused = qp.post_recv_list(id, &parts).expect_err("too many buffers");
            let (count, max) = (count as usize, most as usize);
            let is_fair = refused == PostRecvError::TooManyBuffers { count, max };
            assert!(is_fair, "{refused} for {count} buffers of {max}");
            return self.post_recv_wr(at, end, &RecvWr::data(id, buffer, keys));
        }
        self.post_recv_by(at, end, |qp| qp.post_recv_list(id, &parts))
    }

    fn post_recv_wr(&mut self, at: usize, end: usize, wr: &RecvWr<'_>) -> bool {
        self.post_recv_by(at, end, |qp| qp.post_recv(wr))
    }

    fn post_recv_by(
        &mut self,
        at: usize,
        end: usize,
        post: impl FnOnce(&mut dyn AnyQp) -> Result<(), PostRecvError>,
    ) -> bool {
        let connection = &self.connections[at];
        let qp = self.hosts[end].qp(connection.ends[end].index);
        let state = qp.state();
        let posted = without_allocating("post_recv", || post(qp));
        self.summary.receives += 1;
        let Err(error) = posted else { return true };
        let fair = match error {
            PostRecvError::Full(_) | PostRecvError::QueueFull(_) => true,
            PostRecvError::InErrorState => state == QpState::Error,
            PostRecvError::Driver { .. } => connection.damaged,
            _ => false,
        };
        assert!(fair, "{error} for a receive");
        false
    }

    /// Posts what cannot be carried out over several rails: it is refused, and nothing changes.
    pub(super) fn post_nonsense(&mut self, at: usize, end: usize, choices: &mut dyn Choices) {
        if !self.connections[at].shape.is_multi() {
            return;
        }
        let ground = self.connections[at].ground(end, &self.hosts);
        let local = ground.near.local(ground.near_at, 64).expect("within the buffer");
        let write = SendWr::write(0, local, ground.far.addr(), &self.keys[end]);
        let before = self.hosts[end].qp(self.connections[at].ends[end].index).unreported_recvs();
        if self.connections[at].ends[end].shared.is_some() {
            let qp = self.hosts[end].qp(self.connections[at].ends[end].index);
            let refused = qp.post_recv(&RecvWr::data(0, local, &self.keys[end]));
            assert!(refused.is_err(), "its receives are shared");
            assert_eq!(qp.unreported_recvs(), before, "a receive refused is forgotten");
        }
        let wr = match choices.below(4) {
            0 => SendWr { local: LocalBuffer::EMPTY, ..write },
            1 => write.with_flags(SendFlags::empty()),
            2 => SendWr { keys: &[], ..write },
            _ => SendWr { opcode: Opcode::LocalInv, ..write },
        };
        let qp = self.hosts[end].qp(self.connections[at].ends[end].index);
        let before = qp.unreported_sends();
        assert!(qp.post_send(&wr).is_err(), "{wr:?} makes no sense");
        assert_eq!(qp.unreported_sends(), before, "a request refused is forgotten");
    }
}

/// A request that fails by itself, in one of the ways that its kind can.
fn with_any_flaw(request: Request, choices: &mut dyn Choices) -> Request {
    use Flaw::{Beyond, Crossing, LocalKey, RemoteKey};
    let ways: &[Flaw] = match request.opcode {
        Opcode::Send | Opcode::SendWithImm => &[LocalKey],
        _ if !request.is_fragmented() || request.length < 2 => &[LocalKey, RemoteKey, Beyond],
        _ => &[LocalKey, RemoteKey, Beyond, Crossing],
    };
    // Inline bytes need no key.
    let flags = request.flags.difference(SendFlags::INLINE);
    Request { flags, flaw: Some(pick(choices, ways)), ..request }
}

/// Keys as a request with a flaw uses them. No region has the complement of another's key.
fn with_flaw(flaw: Option<Flaw>, keys: &[DeviceKeys]) -> Vec<DeviceKeys> {
    let spoil = |keys: &DeviceKeys| match flaw {
        Some(Flaw::LocalKey) => DeviceKeys { lkey: !keys.lkey, ..*keys },
        Some(Flaw::RemoteKey) => DeviceKeys { rkey: !keys.rkey, ..*keys },
        _ => *keys,
    };
    keys.iter().map(spoil).collect()
}

fn choose_flags(request: &Request, multi: bool, choices: &mut dyn Choices) -> SendFlags {
    let must_be_signaled = multi && matches!(request.opcode, Opcode::RdmaWrite | Opcode::RdmaRead);
    let inline = request.length <= INLINE && !request.opcode.is_fetching();
    let mut flags = SendFlags::SIGNALED;
    flags.set(SendFlags::SIGNALED, must_be_signaled || !choices.one_in(5));
    flags.set(SendFlags::FENCE, choices.one_in(6));
    flags.set(SendFlags::SOLICITED, choices.one_in(8));
    flags.set(SendFlags::INLINE, inline && choices.one_in(4));
    flags
}

fn as_posted<'k>(
    request: &Request,
    ground: &Ground<'_>,
    keys: &'k [DeviceKeys],
    default: ReportOrder,
) -> SendWr<'k> {
    let local = ground.near.local(ground.near_offset(request.local), request.length);
    let offset = match request.flaw {
        Some(Flaw::Beyond) => ground.far.len(),
        Some(Flaw::Crossing) => ground.far.len() - request.length as usize / 2,
        _ => ground.far_offset(request.place),
    };
    let remote = ground.far.addr() + offset as u64;
    // A signal names no memory.
    let keys = if request.length == 0 && request.id.is_multiple_of(2) { &[] } else { keys };
    let wr = SendWr::write(request.id, local.expect("within the buffer"), remote, keys);
    let (compare_add, swap) = request.operands();
    let opcode = request.opcode;
    let flags = request.flags;
    let imm = request.imm();
    let order = if request.when_done { ReportOrder::WhenDone } else { ReportOrder::InOrder };
    // The default is for those that it is right for.
    let report_order = (order != default || request.id.is_multiple_of(3)).then_some(order);
    SendWr { opcode, flags, imm, compare_add, swap, report_order, ..wr }
}

impl ConnectionShape {
    fn inline_limit_of(&self, request: &Request) -> u32 {
        self.inline_limit(self.is_multi() && request.is_fragmented())
    }
}

/// Whether a request with a list has to be one physical request.
fn is_one(shape: &ConnectionShape, request: &Request) -> bool {
    let is_inline = request.flags.contains(SendFlags::INLINE);
    request.turned > 0 && (!shape.is_multi() || !request.is_fragmented() || is_inline)
}

/// Whether a request may be refused with this error.
fn is_fair(error: PostSendError, request: &Request, state: QpState) -> bool {
    match error {
        PostSendError::Full(_) | PostSendError::QueueFull(_) => true,
        PostSendError::InErrorState => state == QpState::Error,
        PostSendError::InlineMustWait => request.flags.contains(SendFlags::INLINE),
        PostSendError::TooManyBuffers { .. } => request.turned > 0,
        PostSendError::RailDown => state == QpState::Degraded,
        _ => false,
    }
}
