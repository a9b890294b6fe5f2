//! Random traffic on the scripted NIC against what must hold at any time:
//!
//! - every byte of a request is posted once, and every accepted request is reported once;
//! - fragmented requests are reported in posting order, and only when nothing of them is in flight;
//! - SUCCESS means that all of it, its notify included, succeeded;
//! - a notify follows everything before it; nothing is notified at or past a failure;
//! - a fenced request follows every READ and atomic before it;
//! - DQPLB's numbers have no holes and stay within the span;
//! - in the end nothing is left over.
//!
//! `RANDOM_SEED=n` repeats one seed, `RANDOM_SEEDS=n` runs so many.

use polyrail_core::hardware::Refusal;
use polyrail_core::sequence::SequenceImm;
use polyrail_core::verbs::{LocalBuffer, Opcode, SendFlags, SendRequest, SendWr, WcStatus};
use polyrail_core::virtual_cq::{Event, VirtualWc};
use polyrail_core::virtual_qp::{PassThroughOrder, PeerWindow, QpState, RailChoice};
use polyrail_tests::rig::{KEYS, LOCAL, REMOTE, Rig, Setup};
use polyrail_tests::scripted::QpHandle;
use std::collections::BTreeSet;

/// Address space of one request, so that an address tells whose it is.
const STRIDE: u64 = 1 << 32;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % limit
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What is known of an accepted request.
#[derive(Clone, Debug)]
struct Request {
    opcode: Opcode,
    flags: SendFlags,
    length: u64,
    /// Bytes posted, and bytes whose requests ended, well or not.
    posted: u64,
    ended: u64,
    failed: bool,
    /// SPRAY: the notify was posted, and acknowledged.
    notified: bool,
    notify_acknowledged: bool,
    reported: bool,
}

impl Request {
    fn is_fragmented(&self) -> bool {
        use Opcode::{RdmaRead, RdmaWrite, RdmaWriteWithImm};
        matches!(self.opcode, RdmaRead | RdmaWrite | RdmaWriteWithImm)
    }

    fn data_done(&self) -> bool {
        self.ended == self.length && !self.failed
    }
}

struct World {
    rig: Rig,
    random: Random,
    requests: Vec<Request>,
    /// DQPLB: numbers posted, and those not acknowledged.
    next_number: u32,
    unacknowledged: BTreeSet<u32>,
    span: Option<u32>,
    ordered: bool,
    /// Rails may fail and drivers refuse.
    failing: bool,
}

impl World {
    fn new(seed: u64, failing: bool) -> Self {
        let mut random = Random(seed);
        let rails = 2 + random.below(3) as usize;
        let spray = random.one_in(2);
        let mut setup = if spray { Setup::spray(rails) } else { Setup::dqplb(rails) };
        setup.notify_limits.max_send_wr = 1 + random.below(4) as u32;
        let ordered = random.one_in(2);
        let fastest = random.one_in(3);
        let setup = setup.fragment(128).depth(1 + random.below(6) as u32).devices(2).config(|c| {
            if !ordered {
                c.pass_through = PassThroughOrder::Unordered;
            }
            if fastest {
                c.rail_choice = RailChoice::LeastFinishTime { bandwidth_mbps: [3; 8] };
            }
        });
        let mut rig = setup.rig();
        let span = (!spray).then(|| 1 + random.below(20) as u32);
        if let Some(span) = span {
            let peer = PeerWindow { window: span + rails as u32, receives_per_rail: 1 };
            rig.qp.set_peer_window(peer).unwrap();
        }
        let unacknowledged = BTreeSet::new();
        let requests = Vec::new();
        Self { rig, random, requests, next_number: 0, unacknowledged, span, ordered, failing }
    }

    fn handles(&self) -> Vec<QpHandle> {
        self.rig.rails.iter().chain(&self.rig.notify).cloned().collect()
    }

    fn any_handle(&mut self) -> QpHandle {
        let handles = self.handles();
        handles[self.random.below(handles.len() as u64) as usize].clone()
    }

    /// Posts a random request. A refusal is forgotten, as it must be.
    fn post(&mut self) {
        use Opcode::{FetchAdd, RdmaRead, RdmaWrite, RdmaWriteWithImm, Send};
        let opcode = [RdmaWrite, RdmaWriteWithImm, RdmaWriteWithImm, RdmaRead, Send, FetchAdd]
            [self.random.below(6) as usize];
        let length = match opcode {
            FetchAdd => 8,
            _ => {
                let longest = if self.random.one_in(4) { 3000 } else { 300 };
                1 + self.random.below(longest)
            }
        };
        let mut flags = SendFlags::SIGNALED;
        let may_be_quiet = !matches!(opcode, RdmaWrite | RdmaRead);
        flags.set(SendFlags::SIGNALED, !(may_be_quiet && self.random.one_in(4)));
        flags.set(SendFlags::FENCE, self.random.one_in(6));
        let inline = opcode != RdmaRead && opcode != FetchAdd && self.random.one_in(10);
        flags.set(SendFlags::INLINE, inline && length <= 128);
        let id = self.requests.len() as u64;
        // SAFETY: the scripted NIC never touches memory.
        let local = unsafe { LocalBuffer::new(LOCAL + id * STRIDE, length as u32) };
        let wr = SendWr { opcode, ..SendWr::write(id, local, REMOTE + id * STRIDE, &KEYS) };
        let wr = SendWr { imm: id as u32, ..wr.with_flags(flags) };
        // Entered first: what the post rings out at once is looked at right after.
        self.requests.push(Request {
            opcode,
            flags,
            length,
            posted: 0,
            ended: 0,
            failed: false,
            notified: false,
            notify_acknowledged: false,
            reported: false,
        });
        let accepted = self.rig.qp.post_send(&wr).is_ok();
        self.rig.qp.invariants();
        self.look();
        if !accepted {
            let refused = self.requests.pop().unwrap();
            assert_eq!(refused.posted, 0, "nothing of a refused request is posted");
        } else if flags.contains(SendFlags::INLINE) {
            assert_eq!(self.requests[id as usize].posted, length, "inline is posted at once");
        }
    }

    /// Looks at everything that was posted since the last look.
    fn look(&mut self) {
        for handle in self.handles() {
            for request in handle.take_doorbells().concat() {
                self.posted(&request);
                if handle.is_errored() {
                    self.ended(&[request], WcStatus::WR_FLUSH_ERR);
                }
            }
        }
        if let Some(oldest) = self.unacknowledged.first() {
            assert!(self.next_number - oldest <= self.span.unwrap(), "the span is kept");
        }
    }

    fn posted(&mut self, request: &SendRequest) {
        if request.sge.length() == 0 {
            return self.notify_posted(request);
        }
        let (id, offset) = place(request);
        let before = &self.requests[..id];
        let this = &self.requests[id];
        if this.flags.contains(SendFlags::FENCE) {
            let fetches = before.iter().filter(|earlier| earlier.opcode.is_fetching());
            assert!(fetches.clone().all(|fetch| fetch.ended == fetch.length), "fence of {id}");
        }
        if self.ordered && !this.is_fragmented() {
            let earlier = before.iter().filter(|earlier| earlier.is_fragmented());
            assert!(earlier.clone().all(|earlier| earlier.ended == earlier.length), "{id}");
        }
        if self.span.is_some() && this.opcode == Opcode::RdmaWriteWithImm {
            let imm = SequenceImm::decode(request.imm).expect("a number");
            assert!(self.unacknowledged.insert(imm.number.get()), "no number twice");
            let last = offset + u64::from(request.sge.length()) == this.length;
            assert_eq!(imm.last, last);
            self.next_number = self.next_number.max(imm.number.get() + 1);
        }
        assert!(!this.reported, "nothing is posted of a reported request");
        let this = &mut self.requests[id];
        this.posted += u64::from(request.sge.length());
        assert!(this.posted <= this.length, "no byte twice");
    }

    fn notify_posted(&mut self, request: &SendRequest) {
        let id = ((request.remote_addr - REMOTE) / STRIDE) as usize;
        assert_eq!(request.imm.number(), id as u32, "the user's immediate");
        let fragmented = self.requests[..=id].iter().filter(|request| request.is_fragmented());
        assert!(fragmented.clone().all(Request::data_done), "notify of {id} is premature");
        let earlier = &self.requests[..id];
        let wanting = earlier.iter().filter(|r| r.opcode == Opcode::RdmaWriteWithImm);
        assert!(wanting.clone().all(|earlier| earlier.notified), "notifies go in order");
        assert!(!std::mem::replace(&mut self.requests[id].notified, true), "notified once");
    }

    /// The next `n` requests of a queue pair end.
    fn ended(&mut self, requests: &[SendRequest], status: WcStatus) {
        for request in requests {
            if request.sge.length() == 0 {
                let id = ((request.remote_addr - REMOTE) / STRIDE) as usize;
                self.requests[id].notify_acknowledged = status.is_success();
                continue;
            }
            let (id, _) = place(request);
            let this = &mut self.requests[id];
            this.ended += u64::from(request.sge.length());
            this.failed |= !status.is_success();
            if self.span.is_some() && this.opcode == Opcode::RdmaWriteWithImm {
                let number = SequenceImm::decode(request.imm).unwrap().number.get();
                assert!(self.unacknowledged.remove(&number));
            }
        }
    }

    fn complete(&mut self, handle: &QpHandle, most: usize) {
        let sends = handle.sends();
        let n = most.min(sends.len());
        self.ended(&sends[..n], WcStatus::SUCCESS);
        handle.complete(n);
    }

    fn fail(&mut self, handle: &QpHandle) {
        let sends = handle.sends();
        self.ended(&sends, WcStatus::WR_FLUSH_ERR);
        handle.flush();
    }

    fn poll(&mut self, budget: usize) -> usize {
        let (events, polled) = self.rig.poll_events(budget);
        assert_eq!(polled.error, None);
        self.look();
        let wcs: Vec<_> = events.into_iter().filter_map(Event::completion).collect();
        wcs.iter().for_each(|wc| self.reported(wc));
        wcs.len()
    }

    fn reported(&mut self, wc: &VirtualWc) {
        let id = wc.wr_id as usize;
        let this = &self.requests[id];
        assert!(!this.reported, "{id} is reported twice");
        assert_eq!((wc.opcode, u64::from(wc.byte_len)), (this.opcode.completion(), this.length));
        assert_eq!(this.posted, this.ended, "{id} is in flight still");
        if wc.status.is_success() {
            assert!(this.data_done(), "{id} is not done");
            let notify = this.opcode == Opcode::RdmaWriteWithImm && self.span.is_none();
            assert!(!notify || this.notify_acknowledged, "{id} is not notified");
            assert!(this.flags.contains(SendFlags::SIGNALED), "{id} is unsignaled");
        } else {
            assert_eq!(self.rig.qp.state(), QpState::Error, "{id} failed, and nothing else");
        }
        if this.is_fragmented() {
            let before = self.requests[..id].iter().filter(|earlier| earlier.is_fragmented());
            let due = before.filter(|earlier| earlier.flags.contains(SendFlags::SIGNALED));
            assert!(due.clone().all(|earlier| earlier.reported), "{id} is out of order");
        }
        self.requests[id].reported = true;
    }

    fn step(&mut self) {
        match self.random.below(12) {
            0..4 => self.post(),
            4..8 => {
                let handle = self.any_handle();
                let most = self.random.below(6) as usize;
                self.complete(&handle, most);
            }
            8 => {
                let accepted = self.random.below(3) as u32;
                let for_good = self.failing && self.random.one_in(8);
                let refusal = if for_good { Refusal::Driver(5) } else { Refusal::QueueFull };
                self.any_handle().refuse_next(accepted, refusal);
            }
            9 if self.random.one_in(4) => {
                let rail = self.random.below(self.rig.rails.len() as u64) as u8;
                let in_service = self.random.one_in(2);
                self.rig.qp.set_rail_in_service(rail, in_service);
                self.look();
            }
            _ => {
                let budget = [1, 2, 3, 7, usize::MAX][self.random.below(5) as usize];
                self.poll(budget);
            }
        }
    }

    /// Lets everything end and looks whether anything is left.
    fn finish(&mut self) {
        for rail in 0..self.rig.rails.len() as u8 {
            self.rig.qp.set_rail_in_service(rail, true);
        }
        self.look();
        let mut idle = 0;
        while idle < 8 {
            let mut busy = self.poll(usize::MAX);
            for handle in self.handles() {
                let waiting = handle.sends().len();
                if self.rig.qp.state() == QpState::Error {
                    self.fail(&handle)
                } else {
                    self.complete(&handle, waiting)
                }
                busy += waiting;
            }
            idle = if busy == 0 { idle + 1 } else { 0 };
        }
        assert_eq!(self.rig.qp.outstanding_sends(), 0);
        assert_eq!(self.rig.qp.protocol_errors(), 0);
        for (id, request) in self.requests.iter().enumerate() {
            let quiet = !request.flags.contains(SendFlags::SIGNALED);
            assert!(request.reported || (quiet && !request.failed), "{id} is missing: {request:?}");
            assert!(self.failing || request.posted == request.length);
        }
        assert_eq!(self.unacknowledged.len(), 0);
    }
}

/// Whose fragment a request is, and where it lies.
fn place(request: &SendRequest) -> (usize, u64) {
    let at = request.sge.addr() - LOCAL;
    assert!(at == request.remote_addr.wrapping_sub(REMOTE) || request.remote_addr == 0);
    ((at / STRIDE) as usize, at % STRIDE)
}

fn run(seed: u64, failing: bool) {
    let mut world = World::new(seed, failing);
    let fails_at = if failing { world.random.below(300) } else { u64::MAX };
    for at in 0..400 {
        if at == fails_at {
            let handle = world.any_handle();
            world.fail(&handle);
        }
        world.step();
    }
    world.finish();
}

fn run_all(failing: bool) {
    if let Some(seed) = std::env::var("RANDOM_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return run(seed, failing);
    }
    let seeds = std::env::var("RANDOM_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    for seed in 0..seeds.unwrap_or(300) {
        let outcome = std::panic::catch_unwind(|| run(seed, failing));
        assert!(outcome.is_ok(), "repeat with RANDOM_SEED={seed} cargo test --test random");
    }
}

#[test]
fn random_traffic_keeps_every_promise() {
    run_all(false);
}

#[test]
fn random_traffic_with_a_failing_rail_keeps_every_promise() {
    run_all(true);
}
