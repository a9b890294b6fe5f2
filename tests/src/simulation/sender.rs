//! The oracle of one end as a sender: what it posted, in which order, and what may be reported.

use super::places::{Ground, PLACES, Places, STRIDE, pattern, read};
use polyrail_core::verbs::{Opcode, SendFlags, WcOpcode};
use polyrail_core::virtual_cq::VirtualWc;
use polyrail_core::virtual_qp::PassThroughOrder;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A flaw of a request that makes it fail by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// Keys without a memory region: the sender's own, or the peer's.
    LocalKey,
    RemoteKey,
    /// It begins beyond the peer's memory region.
    Beyond,
    /// It begins within the peer's memory region, and ends beyond.
    Crossing,
}

/// An accepted request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) id: u64,
    pub(super) opcode: Opcode,
    pub(super) flags: SendFlags,
    /// It is reported when it is done, whatever was posted before it.
    pub(super) when_done: bool,
    pub(super) length: u32,
    /// Its local bytes are a list of buffers: those from here on come first, then those before; 0:
    /// it has no list.
    pub(super) turned: u32,
    /// Where it writes, or fetches from.
    pub(super) place: usize,
    /// The local place: another request's, if it forwards what that one reads.
    pub(super) local: usize,
    /// The seed of the bytes that it moves.
    pub(super) salt: u64,
    /// A request with a flaw must not succeed.
    pub(super) flaw: Option<Flaw>,
}

impl Request {
    /// Whether several rails carry it in fragments.
    pub(super) fn is_fragmented(&self) -> bool {
        use Opcode::{RdmaRead, RdmaWrite, RdmaWriteWithImm};
        matches!(self.opcode, RdmaRead | RdmaWrite | RdmaWriteWithImm)
    }

    pub(super) fn is_write(&self) -> bool {
        matches!(self.opcode, Opcode::RdmaWrite | Opcode::RdmaWriteWithImm)
    }

    pub(super) fn has_imm(&self) -> bool {
        matches!(self.opcode, Opcode::RdmaWriteWithImm | Opcode::SendWithImm)
    }

    /// The user's immediate, which differs between requests.
    pub(super) fn imm(&self) -> u32 {
        self.id as u32
    }

    fn is_unsignaled(&self) -> bool {
        !self.flags.contains(SendFlags::SIGNALED)
    }

    pub(super) fn pattern(&self) -> Vec<u8> {
        pattern(self.salt, self.length as usize)
    }

    /// The number that an atomic finds.
    fn found(&self) -> u64 {
        self.salt.wrapping_mul(0x0101_0101_0101) | 1
    }

    /// What an atomic adds or compares with, and swaps in. Every second comparison fails.
    pub(super) fn operands(&self) -> (u64, u64) {
        match self.opcode {
            Opcode::CompareSwap => (self.found() ^ (self.id & 1), !self.found()),
            _ => (self.salt | 5, 0),
        }
    }

    fn left_by_atomic(&self) -> u64 {
        let (operand, swap) = self.operands();
        match self.opcode {
            Opcode::CompareSwap if operand == self.found() => swap,
            Opcode::CompareSwap => self.found(),
            _ => self.found().wrapping_add(operand),
        }
    }

    /// Lays out both places before the post.
    pub(super) fn prepare(&self, ground: &Ground<'_>) {
        let near = ground.near_offset(self.place);
        let far = ground.far_offset(self.place);
        ground.far.fill(far, STRIDE, 0).expect("within the buffer");
        if self.local == self.place {
            ground.near.fill(near, STRIDE, 0).expect("within the buffer");
        }
        match self.opcode {
            Opcode::RdmaRead => ground.far.write_at(far, &self.pattern()),
            Opcode::FetchAdd | Opcode::CompareSwap => {
                ground.far.write_at(far, &self.found().to_ne_bytes())
            }
            _ if self.local == self.place => ground.near.write_at(near, &self.pattern()),
            _ => Ok(()),
        }
        .expect("within the buffer");
    }

    /// The buffers of its list, as offsets and lengths within its place. Some have one byte or
    /// none, some end where a fragment of `fragment` bytes does.
    pub(super) fn parts(&self, fragment: u32) -> Vec<(usize, u32)> {
        let Self { turned, length, id, .. } = *self;
        let halves = [(turned, length - turned), (0, turned)];
        let split = |(at, length): (u32, u32)| {
            let borders = match id % 6 {
                0 => vec![length / 3],
                1 => vec![0],
                2 => vec![1],
                3 => vec![length.saturating_sub(1)],
                4 => vec![fragment, fragment + 1],
                _ => vec![1, 2, 2, 3, fragment / 2],
            };
            let mut parts = Vec::new();
            let mut from = 0;
            for border in borders.into_iter().chain([length]) {
                let to = border.clamp(from, length);
                parts.push(((at + from) as usize, to - from));
                from = to;
            }
            parts
        };
        halves.into_iter().flat_map(split).collect()
    }

    /// What the far end gets of a WRITE or SEND: the buffers of a list one behind the other.
    pub(super) fn gathered(&self) -> Vec<u8> {
        let mut gathered = self.pattern();
        gathered.rotate_left(self.turned as usize);
        gathered
    }

    /// Checks that the request had its effect, and no other.
    pub(super) fn check_done(&self, ground: &Ground<'_>) {
        let near = ground.near_offset(self.place);
        let far = ground.far_offset(self.place);
        let (memory, at, mut expected) = match self.opcode {
            Opcode::RdmaWrite | Opcode::RdmaWriteWithImm => (ground.far, far, self.gathered()),
            Opcode::RdmaRead => {
                let mut scattered = self.pattern();
                scattered.rotate_right(self.turned as usize);
                (ground.near, near, scattered)
            }
            Opcode::FetchAdd | Opcode::CompareSwap => {
                let left = read(ground.far, far, 8);
                assert_eq!(left, self.left_by_atomic().to_ne_bytes(), "{self:?} ran once");
                (ground.near, near, self.found().to_ne_bytes().to_vec())
            }
            _ => return,
        };
        expected.resize(STRIDE, 0);
        assert!(read(memory, at, STRIDE) == expected, "the bytes of {self:?} are in place");
    }
}

/// Everything that one end posted and that is not yet accounted for.
#[derive(Debug, Default)]
pub(super) struct Sender {
    /// SENDs and atomics stay in their place among fragmented requests.
    keeps_order: bool,
    pub(super) places: Places,
    /// The latest request of each place.
    latest: [Option<Request>; PLACES],
    /// Fragmented requests, or all of a single rail: reports come in this order.
    ordered: VecDeque<Request>,
    /// Requests that pass through to rail 0: reported when they are done.
    bypassing: BTreeMap<u64, Request>,
    /// Notifications for the peer, in this order, and what fills its receives with buffers.
    pub(super) notifying: VecDeque<Request>,
    pub(super) sending: VecDeque<Request>,
    /// Notifies and pass-through requests that no NIC has carried out.
    notifies_to_run: VecDeque<Request>,
    bypassing_to_run: VecDeque<Request>,
    /// A pass-through request whose data comes later, by its tag.
    deferred: Option<(u64, Request)>,
    /// One whose data had to come at once, or not at all, since a later request failed on its queue
    /// pair.
    concluded: Option<Request>,
    /// What fills receives with buffers and succeeded before the receive was reported.
    sent: BTreeSet<u64>,
    next_id: u64,
}

impl Sender {
    pub(super) fn new(pass_through: PassThroughOrder) -> Self {
        Self { keeps_order: pass_through == PassThroughOrder::Ordered, ..Self::default() }
    }

    pub(super) fn next_id(&self) -> u64 {
        self.next_id
    }

    /// The newest READ under way: its bytes can be forwarded behind a fence.
    pub(super) fn newest_read(&self) -> Option<Request> {
        let is_plain_read =
            |request: &&Request| request.opcode == Opcode::RdmaRead && request.turned == 0;
        self.ordered.iter().rev().find(is_plain_read).copied()
    }

    /// A free place, to be written into.
    pub(super) fn clear_place(&mut self, ground: &Ground<'_>) -> Option<usize> {
        let place = self.places.free()?;
        self.places.thaw(place, ground);
        self.latest[place] = None;
        Some(place)
    }

    /// This many free places at most, to be written into.
    pub(super) fn clear_places(&mut self, most: usize, ground: &Ground<'_>) -> Vec<usize> {
        let places: Vec<_> = self.places.all_free().take(most).collect();
        for place in &places {
            self.places.thaw(*place, ground);
            self.latest[*place] = None;
        }
        places
    }

    /// Requests that were accepted and not accounted for.
    pub(super) fn unaccounted(&self) -> usize {
        self.ordered.len() + self.bypassing.len()
    }

    /// Whether a report is due.
    pub(super) fn has_signaled(&self) -> bool {
        self.ordered.iter().chain(self.bypassing.values()).any(|request| !request.is_unsignaled())
    }

    pub(super) fn accept(&mut self, request: Request, multi: bool) {
        self.next_id += 1;
        self.places.take(request.place);
        if request.local != request.place {
            self.places.pin(request.local);
        }
        self.latest[request.place] = Some(request);
        let passes = multi && !request.is_fragmented();
        if passes {
            self.bypassing.insert(request.id, request);
            self.bypassing_to_run.push_back(request);
        } else {
            self.ordered.push_back(request);
        }
        match request.opcode {
            Opcode::RdmaWriteWithImm if multi => {
                self.notifying.push_back(request);
                self.notifies_to_run.push_back(request);
            }
            Opcode::RdmaWriteWithImm | Opcode::Send | Opcode::SendWithImm => {
                self.sending.push_back(request);
            }
            _ => {}
        }
    }

    /// A request was reported.
    pub(super) fn reported(&mut self, wc: &VirtualWc, ground: &Ground<'_>, multi: bool) {
        let request = match self.bypassing.remove(&wc.wr_id) {
            Some(request) => {
                self.settle_bypassing(request.id, ground);
                request
            }
            None => match self.take_when_done(wc.wr_id) {
                Some(request) => request,
                None => self.pop_ordered(wc.wr_id, ground),
            },
        };
        let ok = wc.status.is_success();
        if multi {
            let expected = (request.opcode.completion(), request.length);
            assert_eq!((wc.opcode, wc.byte_len), expected, "{request:?}");
        } else {
            let expected = if ok { request.opcode.completion() } else { WcOpcode::UNKNOWN };
            assert_eq!(wc.opcode, expected, "{request:?}");
        }
        assert!(!ok || !request.is_unsignaled(), "{request:?} is unsignaled");
        if ok {
            self.succeed(&request, ground);
        } else {
            self.release(&request, ground);
        }
    }

    /// Takes the request of this name, if it waits for no other.
    fn take_when_done(&mut self, id: u64) -> Option<Request> {
        let is_this = |request: &Request| request.id == id && request.when_done;
        let at = self.ordered.iter().position(is_this)?;
        self.ordered.remove(at)
    }

    /// Takes the next request in order, which must be this one; unsignaled ones before it have
    /// succeeded. The reports of those that wait for no other may wait for budget.
    fn pop_ordered(&mut self, id: u64, ground: &Ground<'_>) -> Request {
        loop {
            let is_next = |request: &Request| request.id == id || !request.when_done;
            let next = self.ordered.iter().position(is_next);
            let first = next.and_then(|at| self.ordered.remove(at));
            let first = first.unwrap_or_else(|| panic!("{id} is unknown"));
            if first.id == id {
                return first;
            }
            assert!(first.is_unsignaled(), "{id} is reported before {first:?}");
            self.succeed(&first, ground);
        }
    }

    /// A pass-through request is reported, a success or not: those before it are, and the
    /// unsignaled ones that are not have succeeded, since rail 0 keeps the order.
    fn settle_bypassing(&mut self, before: u64, ground: &Ground<'_>) {
        let later = self.bypassing.split_off(&before);
        let earlier = std::mem::replace(&mut self.bypassing, later);
        for request in earlier.into_values() {
            assert!(request.is_unsignaled(), "{before} is reported before {request:?}");
            self.succeed(&request, ground);
        }
    }

    /// With nothing in flight any more, unsignaled requests without a report have succeeded.
    pub(super) fn settle_unsignaled(&mut self, ground: &Ground<'_>) {
        let unsignaled =
            |requests: Vec<Request>| requests.into_iter().partition(Request::is_unsignaled);
        let (ordered, rest): (Vec<_>, Vec<_>) = unsignaled(self.ordered.drain(..).collect());
        self.ordered.extend(rest);
        let bypassing = std::mem::take(&mut self.bypassing);
        let (passed, rest): (Vec<_>, Vec<_>) = unsignaled(bypassing.into_values().collect());
        self.bypassing.extend(rest.into_iter().map(|request| (request.id, request)));
        ordered.iter().chain(&passed).for_each(|request| self.succeed(request, ground));
    }

    fn succeed(&mut self, request: &Request, ground: &Ground<'_>) {
        assert!(request.flaw.is_none(), "{request:?} cannot have succeeded");
        request.check_done(ground);
        if self.sending.iter().any(|sending| sending.id == request.id) {
            self.sent.insert(request.id);
        }
        self.release(request, ground);
    }

    fn release(&mut self, request: &Request, ground: &Ground<'_>) {
        if request.local != request.place {
            self.places.unpin(request.local);
        }
        self.places.release(request.place, ground);
    }

    /// What filled the peer's next receive with a buffer.
    pub(super) fn arrived(&mut self) -> Request {
        let request = self.sending.pop_front().expect("there was a SEND");
        self.sent.remove(&request.id);
        request
    }

    /// The peer's next receive was too short for what came: that request must not have succeeded,
    /// and will not.
    pub(super) fn was_too_long(&mut self) -> Request {
        let request = self.sending.pop_front().expect("there was a SEND");
        assert!(!self.sent.contains(&request.id), "{request:?} cannot have succeeded");
        let waiting = self.ordered.iter_mut().chain(self.bypassing.values_mut());
        let this = waiting.into_iter().find(|waiting| waiting.id == request.id);
        if let Some(this) = this {
            this.flaw = Some(Flaw::Beyond);
        }
        request
    }

    /// Every write up to this request is in place, as far as its place is still its own.
    pub(super) fn check_earlier(&self, request: &Request, ground: &Ground<'_>) {
        let writes = self.latest.iter().flatten().filter(|earlier| earlier.is_write());
        let earlier = writes.filter(|earlier| earlier.id <= request.id);
        earlier.for_each(|earlier| earlier.check_done(ground));
    }

    /// Checks that the peer may be notified of this request: what was posted before it is in place,
    /// including SENDs and atomics if they keep their place.
    pub(super) fn check_notified(&self, request: &Request, ground: &Ground<'_>) {
        self.check_earlier(request, ground);
        if self.keeps_order {
            let deferred = self.deferred.as_ref().map(|(_, request)| request);
            let next = deferred.or(self.bypassing_to_run.front());
            let overtaken = next.filter(|earlier| earlier.id < request.id);
            assert!(overtaken.is_none(), "{request:?} is notified before {overtaken:?}");
            let is_there = |earlier: &&Request| {
                let latest = &self.latest[earlier.place];
                earlier.id < request.id && latest.is_some_and(|latest| latest.id == earlier.id)
            };
            self.concluded.iter().filter(is_there).for_each(|earlier| earlier.check_done(ground));
        }
    }

    /// A NIC carried out the next notify: everything that it announces is in place.
    pub(super) fn notify_ran(&mut self, ground: &Ground<'_>) {
        let request = self.notifies_to_run.pop_front().expect("a notify of a request");
        self.check_notified(&request, ground);
    }

    /// A request failed on rail 0: what was deferred there is done, or failed, too.
    pub(super) fn rail_0_failed(&mut self) {
        self.concluded = self.deferred.take().map(|(_, request)| request).or(self.concluded);
    }

    /// A NIC carried out the next pass-through request, or had its peer do so.
    pub(super) fn bypassing_ran(&mut self, tag: u64, is_deferred: bool, ground: &Ground<'_>) {
        let request = match self.deferred.take_if(|(waits, _)| *waits == tag) {
            Some((_, request)) => request,
            None => self.bypassing_to_run.pop_front().expect("a pass-through request"),
        };
        if is_deferred {
            self.deferred = Some((tag, request));
        } else if self.keeps_order {
            // A SEND or an atomic stays behind the writes posted before it.
            self.check_earlier(&request, ground);
        }
    }
}
