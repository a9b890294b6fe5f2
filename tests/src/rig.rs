//! A virtual queue pair and its completion queue on the scripted NIC.

use crate::choices::{Choices, pick};
use crate::scripted::{LIMITS, Nic, QpHandle, ScriptedCq, ScriptedQp};
use crate::view::{Piece, pieces};
use polyrail_core::hardware::{CompletionQueue, QpLimits};
use polyrail_core::internals::{SequenceImm, SequenceNumber};
use polyrail_core::verbs::{
    DeviceId, DeviceKeys, Imm, LocalBuffer, Opcode, SendWr, WcOpcode, WcStatus,
};
use polyrail_core::virtual_cq::{Event, Polled, VirtualCq, VirtualWc};
use polyrail_core::virtual_qp::{
    CANCEL_VERSION, Config, ControlMessage, PassThroughOrder, RailEvent, RailFailure, RailId,
    Rejected, Scheme, VirtualQp,
};
use std::mem::MaybeUninit;

/// First byte of the local buffer of every request made by [`local`].
pub const LOCAL: u64 = 0x10_0000_0000;
/// First byte of the remote buffer that the rig's requests name.
pub const REMOTE: u64 = 0x7000_0000_0000;
/// `virtual_qp_num` of a rig's queue pair.
pub const VIRTUAL_QP_NUM: u32 = 4711;
/// `qp_num` of a rig's rail 0; the others follow.
pub const FIRST_QP_NUM: u32 = 10;
/// `qp_num` of a rig's notify queue pair.
pub const NOTIFY_QP_NUM: u32 = 20;

/// A local buffer of `length` bytes.
pub fn local(length: u32) -> LocalBuffer {
    // SAFETY: the scripted NIC never touches memory, and no test does at this address.
    unsafe { LocalBuffer::new(LOCAL, length) }
}

/// The keys of the rigs' buffers on a device.
pub const fn keys_on(device: u32) -> DeviceKeys {
    DeviceKeys { device: DeviceId(device), lkey: 0x100 + device, rkey: 0x200 + device }
}

/// Keys for every device that a rig may have.
pub const KEYS: [DeviceKeys; 4] = [keys_on(0), keys_on(1), keys_on(2), keys_on(3)];

/// A WRITE of `length` bytes.
pub fn write(wr_id: u64, length: u32) -> SendWr<'static> {
    SendWr::write(wr_id, local(length), REMOTE, &KEYS)
}

/// A WRITE_WITH_IMM of `length` bytes.
pub fn write_imm(wr_id: u64, length: u32, imm: u32) -> SendWr<'static> {
    SendWr::write_with_imm(wr_id, local(length), REMOTE, imm, &KEYS)
}

/// A READ of `length` bytes.
pub fn read(wr_id: u64, length: u32) -> SendWr<'static> {
    SendWr::read(wr_id, local(length), REMOTE, &KEYS)
}

/// A SEND of `length` bytes.
pub fn send(wr_id: u64, length: u32) -> SendWr<'static> {
    SendWr::send(wr_id, local(length), &KEYS)
}

/// A FETCH_ADD of 1.
pub fn fetch_add(wr_id: u64) -> SendWr<'static> {
    SendWr::fetch_add(wr_id, local(8), REMOTE, 1, &KEYS)
}

/// How a [`Rig`] is to be built.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Rails; rail `i` is on device `i % devices` unless `rail_devices` is given.
    pub rails: usize,
    /// Devices, with one completion queue each.
    pub devices: usize,
    /// Whether there is a notify queue pair, on device 0.
    pub notify: bool,
    /// The virtual queue pair's configuration.
    pub config: Config,
    /// The device of each rail, where they do not simply alternate.
    pub rail_devices: Vec<usize>,
    /// Limits of the rails.
    pub limits: QpLimits,
    /// Limits of each rail, where they are not all alike.
    pub rail_limits: Vec<QpLimits>,
    /// Limits of the notify queue pair.
    pub notify_limits: QpLimits,
    /// Entries of each completion queue.
    pub cq_capacity: u32,
}

impl Setup {
    /// SPRAY over `rails` rails of one device, with a notify queue pair if there are several.
    pub fn spray(rails: usize) -> Self {
        Self {
            rails,
            devices: 1,
            notify: rails > 1,
            config: Config { virtual_qp_num: VIRTUAL_QP_NUM, ..Config::default() },
            rail_devices: Vec::new(),
            limits: LIMITS,
            rail_limits: Vec::new(),
            notify_limits: LIMITS,
            cq_capacity: 1 << 16,
        }
    }

    /// DQPLB over `rails` rails of one device.
    pub fn dqplb(rails: usize) -> Self {
        let mut setup = Self { notify: false, ..Self::spray(rails) };
        setup.config.scheme = Scheme::Dqplb;
        setup
    }

    /// The device of a rail.
    pub fn device_of(&self, rail: usize) -> usize {
        self.rail_devices.get(rail).copied().unwrap_or(rail % self.devices)
    }

    /// On this many devices.
    pub fn devices(self, devices: usize) -> Self {
        Self { devices, ..self }
    }

    /// With fragments of at most this many bytes.
    pub fn fragment(mut self, bytes: u32) -> Self {
        self.config.max_msg_size = bytes;
        self
    }

    /// With at most this many requests in flight on each queue pair.
    pub fn depth(mut self, max_msgs_per_qp: u32) -> Self {
        self.config.max_msgs_per_qp = max_msgs_per_qp;
        self
    }

    /// With SENDs and atomics that may overtake requests over several rails.
    pub fn unordered(self) -> Self {
        self.config(|config| config.pass_through = PassThroughOrder::Unordered)
    }

    /// With rails that other rails take over for.
    pub fn reroute(self) -> Self {
        self.config(|config| config.rail_failure = RailFailure::Reroute)
    }

    /// With the configuration changed.
    pub fn config(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// The virtual queue pair on queue pairs of this NIC, with handles: rails, then notify.
    pub fn build_qp<const RAILS: usize, const DEPTH: usize, const WRS: usize>(
        &self,
        nic: &Nic,
        cqs: &[ScriptedCq],
        first_qp_num: u32,
    ) -> (TestQp<RAILS, DEPTH, WRS>, Vec<QpHandle>, Option<QpHandle>) {
        let rails = (0..self.rails).map(|rail| {
            let limits = self.rail_limits.get(rail).copied().unwrap_or(self.limits);
            nic.qp(first_qp_num + rail as u32, &cqs[self.device_of(rail)], limits)
        });
        let (rails, handles): (Vec<_>, Vec<_>) = rails.unzip();
        let notify_num = first_qp_num + NOTIFY_QP_NUM - FIRST_QP_NUM;
        let notify = self.notify.then(|| nic.qp(notify_num, &cqs[0], self.notify_limits));
        let (notify, notify_handle) = notify.unzip();
        let qp = VirtualQp::new(self.config, rails, notify).expect("a valid set-up");
        (qp, handles, notify_handle)
    }

    /// The whole rig.
    ///
    /// ```
    /// use polyrail_tests::rig::{self, Rig, Setup};
    ///
    /// let mut rig: Rig<8, 16, 32> = Setup::spray(2).build();
    /// rig.post([rig::write(1, 8)]);
    /// assert_eq!(rig.run_dry().len(), 1);
    /// ```
    ///
    /// Rings have sizes that are powers of two:
    ///
    /// ```compile_fail
    /// use polyrail_tests::rig::{Rig, Setup};
    ///
    /// let _: Rig<8, 24, 32> = Setup::spray(2).build();
    /// ```
    ///
    /// ```compile_fail
    /// use polyrail_tests::rig::{Rig, Setup};
    ///
    /// let _: Rig<8, 16, 33> = Setup::spray(2).build();
    /// ```
    ///
    /// and a virtual queue pair has 8 rails at most:
    ///
    /// ```compile_fail
    /// use polyrail_tests::rig::{Rig, Setup};
    ///
    /// let _: Rig<9, 16, 32> = Setup::spray(2).build();
    /// ```
    pub fn build<const RAILS: usize, const DEPTH: usize, const WRS: usize>(
        &self,
    ) -> Rig<RAILS, DEPTH, WRS> {
        let nic = Nic::new();
        let cqs: Vec<_> =
            (0..self.devices).map(|device| nic.cq(device as u32, self.cq_capacity)).collect();
        let (mut qp, rails, notify) = self.build_qp(&nic, &cqs, FIRST_QP_NUM);
        qp.set_peer_cancel_version(CANCEL_VERSION);
        let mut cq = VirtualCq::new(cqs.iter().cloned()).expect("room for all queues");
        cq.attach(0, &qp).expect("the rig attaches");
        Rig { nic, cqs, rails, notify, qp, cq }
    }

    /// With queue pairs whose limits suffice for every test.
    pub fn deep(mut self) -> Self {
        self.limits.max_send_wr = 1 << 16;
        self.limits.max_recv_wr = 1 << 16;
        self
    }

    /// The rig in the size that suits most tests.
    pub fn rig(&self) -> Rig {
        self.build()
    }
}

/// A virtual queue pair of scripted ones.
pub type TestQp<const RAILS: usize = 4, const DEPTH: usize = 16, const WRS: usize = 32> =
    VirtualQp<ScriptedQp, RAILS, DEPTH, WRS>;

/// A virtual completion queue of scripted ones. Only virtual queue pairs are polled for:
///
/// ```compile_fail
/// struct Mine;
///
/// impl polyrail_core::virtual_cq::CompletionTarget for Mine {}
/// ```
///
/// and it is made of 256 physical ones at most:
///
/// ```compile_fail
/// use polyrail_tests::scripted::ScriptedCq;
///
/// let _ = polyrail_core::virtual_cq::VirtualCq::<ScriptedCq, 257, 64>::new([]);
/// ```
pub type TestCq = VirtualCq<ScriptedCq, 4, 64>;

/// A way to poll completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// All queues, for at most this many events.
    All(usize),
    /// All queues, for one event.
    One,
    /// One queue, by its place, for at most this many events.
    Queue(usize, usize),
    /// One queue, by its place, polled by a separate runtime that feeds the completions.
    Feed(usize),
}

impl Way {
    /// Any of them, for this many queues.
    pub fn choose(choices: &mut dyn Choices, queues: usize) -> Self {
        let budget = pick(choices, &[1, 1, 2, 3, 7, usize::MAX]);
        let at = choices.below(queues as u32) as usize;
        match choices.below(8) {
            0 => Self::One,
            1 => Self::Queue(at, budget),
            2 => Self::Feed(at),
            _ => Self::All(budget),
        }
    }

    /// The maximum number of events that it may return.
    pub fn budget(self) -> usize {
        match self {
            Self::All(budget) | Self::Queue(_, budget) => budget,
            Self::One => 1,
            Self::Feed(_) => usize::MAX,
        }
    }
}

/// A virtual queue pair, attached at index 0, with all that scripts it.
#[derive(Debug)]
pub struct Rig<const RAILS: usize = 4, const DEPTH: usize = 16, const WRS: usize = 32> {
    /// All devices.
    pub nic: Nic,
    /// The completion queues, one for each device.
    pub cqs: Vec<ScriptedCq>,
    /// Handles of the rails.
    pub rails: Vec<QpHandle>,
    /// Handle of the notify queue pair.
    pub notify: Option<QpHandle>,
    /// The virtual queue pair.
    pub qp: TestQp<RAILS, DEPTH, WRS>,
    /// Its completion queue.
    pub cq: TestCq,
}

impl<const RAILS: usize, const DEPTH: usize, const WRS: usize> Rig<RAILS, DEPTH, WRS> {
    /// The notify queue pair's handle.
    ///
    /// # Panics
    ///
    /// If the rig has no notify queue pair.
    pub fn notify(&self) -> &QpHandle {
        self.notify.as_ref().expect("a notify queue pair")
    }

    /// Posts requests that must be accepted.
    pub fn post<'w>(&mut self, requests: impl IntoIterator<Item = SendWr<'w>>) {
        for request in requests {
            self.qp.post_send(&request).expect("an accepted request");
        }
        self.qp.invariants();
    }

    /// Posts requests that must be accepted, with one call. The data of several short requests then
    /// goes over the rails, and that of none with its notify.
    pub fn post_together<'w>(&mut self, requests: impl IntoIterator<Item = SendWr<'w>>) {
        let requests: Vec<_> = requests.into_iter().collect();
        self.qp.post_many(&requests).expect("accepted requests");
    }

    /// One poll without foreign completions and errors.
    pub fn poll(&mut self) -> Vec<VirtualWc> {
        let (events, polled) = self.poll_events(usize::MAX);
        assert_eq!(polled.error, None);
        events.into_iter().map(|event| event.completion().expect("nothing foreign")).collect()
    }

    /// One poll with a budget, and its result.
    pub fn poll_events(&mut self, budget: usize) -> (Vec<Event>, Polled) {
        let mut events = Vec::new();
        let polled = self.cq.poll(&mut self.qp, budget, |event| events.push(event));
        assert_eq!(polled.events, events.len());
        assert!(events.len() <= budget, "the budget is kept");
        self.qp.invariants();
        self.cq.invariants();
        (events, polled)
    }

    /// One poll in this way, and its result.
    pub fn poll_by(&mut self, way: Way) -> (Vec<Event>, Polled) {
        let mut events = Vec::new();
        let mut sink = |event| events.push(event);
        let polled = match way {
            Way::All(budget) => self.cq.poll(&mut self.qp, budget, sink),
            Way::Queue(at, budget) => self.cq.poll_cq(at, &mut self.qp, budget, sink),
            Way::One => {
                let (event, polled) = self.cq.poll_one(&mut self.qp);
                event.into_iter().for_each(&mut sink);
                polled
            }
            Way::Feed(at) => {
                let mut batch = [const { MaybeUninit::uninit() }; 20];
                let device = self.cqs[at].device();
                let completions = self.cqs[at].poll(&mut batch).expect("a working queue");
                // SAFETY: just polled from a queue of this device, in order.
                let events = unsafe { self.cq.feed(&mut self.qp, device, completions, sink) };
                Polled { events, error: None }
            }
        };
        assert_eq!((polled.events, polled.error), (events.len(), None));
        assert!(events.len() <= way.budget(), "the budget is kept");
        self.qp.invariants();
        self.cq.invariants();
        (events, polled)
    }

    /// Messages for the peer since the last call.
    pub fn control_messages(&mut self) -> Vec<ControlMessage> {
        std::iter::from_fn(|| self.qp.next_control()).collect()
    }

    /// What happened to rails since the last call.
    pub fn rail_events(&mut self) -> Vec<RailEvent> {
        std::iter::from_fn(|| self.qp.take_rail_event()).collect()
    }

    /// Puts a queue pair with this number, on the device of the first completion queue, in the
    /// place of a rail that is down.
    pub fn replace(&mut self, rail: RailId, generation: u16, qp_num: u32) -> QpHandle {
        let limits = self.rails[0].limits();
        let (queue_pair, handle) = self.nic.qp(qp_num, &self.cqs[0], limits);
        let replaced = self.qp.replace_rail(&mut self.cq, 0, rail, generation, queue_pair);
        assert!(replaced.is_ok(), "{:?}", replaced.err().map(|Rejected { error, .. }| error));
        match rail {
            RailId::Data(at) => self.rails[usize::from(at)] = handle.clone(),
            RailId::Notify => self.notify = Some(handle.clone()),
        }
        self.qp.invariants();
        self.cq.invariants();
        handle
    }

    /// Names and statuses of what one poll reports.
    pub fn poll_ids(&mut self) -> Vec<(u64, WcStatus)> {
        self.poll().iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    /// Doorbells that were rung on the rails so far.
    pub fn doorbells_rung(&self) -> u64 {
        self.rails.iter().map(|rail| rail.counters().doorbells).sum()
    }

    /// The fragments of each batch posted to a rail since the last call.
    pub fn pieces(&self, rail: usize) -> Vec<Vec<Piece>> {
        pieces(&self.rails[rail].take_doorbells())
    }

    /// The opcodes posted to a rail since the last call.
    pub fn opcodes(&self, rail: usize) -> Vec<Opcode> {
        let doorbells = self.rails[rail].take_doorbells();
        doorbells.into_iter().flatten().map(|request| request.opcode).collect()
    }

    /// The immediates of each batch of notifies since the last call, as numbers.
    pub fn notifies(&self) -> Vec<Vec<u32>> {
        let doorbells = self.notify().take_doorbells();
        let imms = |batch: &Vec<_>| batch.iter().map(notified).collect();
        doorbells.iter().map(imms).collect()
    }

    /// Completes everything on all rails, then polls, until nothing is in flight.
    pub fn run_dry(&mut self) -> Vec<VirtualWc> {
        let mut all = Vec::new();
        loop {
            let handles = self.rails.iter().chain(&self.notify);
            let busy: usize = handles.map(complete_all).sum();
            let wcs = self.poll();
            if busy == 0 && wcs.is_empty() {
                return all;
            }
            all.extend(wcs);
        }
    }
}

fn complete_all(handle: &QpHandle) -> usize {
    let count = handle.sends().len();
    handle.complete_all();
    count
}

/// The immediate of a request, which must be a notify.
fn notified(request: &polyrail_core::verbs::SendRequest) -> u32 {
    assert_eq!(request.opcode, Opcode::RdmaWriteWithImm);
    assert_eq!(request.sge.length(), 0, "a notify carries no data");
    request.imm.number()
}

/// The immediate of a numbered fragment of DQPLB.
pub fn imm(number: u32, last: bool) -> Imm {
    SequenceImm { number: SequenceNumber::new(number).expect("a number"), last }.encode()
}

/// The successful completion of a request of a rig.
pub fn done(wr_id: u64, opcode: WcOpcode, byte_len: u32) -> VirtualWc {
    let status = WcStatus::SUCCESS;
    let qp_num = VIRTUAL_QP_NUM;
    VirtualWc { wr_id, status, opcode, qp_num, byte_len, imm: None }
}

/// Names with SUCCESS: what [`Rig::poll_ids`] returns when all requests succeed.
pub fn ok(ids: &[u64]) -> Vec<(u64, WcStatus)> {
    ids.iter().map(|id| (*id, WcStatus::SUCCESS)).collect()
}
