//! The wrapper over the software NIC.

use polyrail::backend::{ConnectOptions, QpCap};
use polyrail::backend::{DeviceError, DeviceEvent, Domain};
use polyrail::hardware::{
    CommitError, CompletionQueue, CqError, QueuePair, ReceiveQueue, RecvBatch as _, Refusal,
    SendBatch as _,
};
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{
    self, DeviceConfig, Fabric, Fault, NicError, ProtectionDomain, QpInit, QpState, When,
    connect_pair,
};
use polyrail::verbs::{
    AccessFlags, Completion, Imm, LocalBuffer, Opcode, RecvRequest, SendFlags, SendRequest,
    WcStatus,
};
use polyrail_faults::{DriverFault, Faults, Faulty, WorkQueue};
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

const EIO: Refusal = Refusal::Driver(5);
const LIMIT: Duration = Duration::from_secs(600);

/// Names and statuses of completions.
type Ends = Vec<(u64, WcStatus)>;

fn refused(accepted: u32, refusal: Refusal) -> Result<(), CommitError> {
    Err(CommitError { accepted, refusal })
}

/// A queue pair that writes into its peer's memory.
struct Bare {
    qp: nic::QueuePair,
    cq: nic::CompletionQueue,
    rest: Rest,
}

/// What both have.
struct Rest {
    pd: ProtectionDomain,
    /// Its memory, and the peer's.
    buffers: [RegisteredBuffer; 2],
    /// Kept for the connection.
    _peer: nic::QueuePair,
}

impl Bare {
    fn new() -> Self {
        let fabric = Fabric::threaded();
        let pds = ["here", "there"]
            .map(|name| fabric.create_device(DeviceConfig::named(name)).alloc_pd().unwrap());
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let buffers = [0, 1].map(|end| RegisteredBuffer::new(64, access, &[&pds[end]]).unwrap());
        let cap = QpCap { max_send_wr: 8, max_recv_wr: 8, ..QpCap::default() };
        let end = |pd: &ProtectionDomain| {
            let cq = pd.device().create_cq(64).unwrap();
            let qp = pd.create_qp(&QpInit::new(&cq, cap)).unwrap();
            (qp, cq)
        };
        let (qp, cq) = end(&pds[0]);
        let (peer, _) = end(&pds[1]);
        connect_pair(&qp, &peer, &ConnectOptions::default()).unwrap();
        let [pd, _] = pds;
        Self { qp, cq, rest: Rest { pd, buffers, _peer: peer } }
    }
}

impl Rest {
    fn writes(&self, wr_ids: std::ops::Range<u64>) -> Vec<SendRequest> {
        let [from, to] = &self.buffers;
        let write = |wr_id| SendRequest {
            wr_id,
            opcode: Opcode::RdmaWrite,
            flags: SendFlags::SIGNALED,
            imm: Imm::default(),
            sge: from.local(0, 8).unwrap().sge(from.keys()[0].lkey),
            remote_addr: to.addr(),
            rkey: to.keys()[0].rkey,
            compare_add: 0,
            swap: 0,
        };
        wr_ids.map(write).collect()
    }
}

/// The same, wrapped.
struct Rig {
    faults: Faults,
    qp: Faulty<nic::QueuePair>,
    cq: Faulty<nic::CompletionQueue>,
    rest: Rest,
}

impl Rig {
    fn new() -> Self {
        let Bare { qp, cq, rest } = Bare::new();
        let faults = Faults::new();
        let qp = faults.queue_pair(qp);
        let cq = faults.completion_queue(cq);
        Self { faults, qp, cq, rest }
    }

    fn post(&mut self, wr_ids: std::ops::Range<u64>) -> Result<(), CommitError> {
        let writes = self.rest.writes(wr_ids);
        post(&mut self.qp, &writes)
    }

    /// Polls until this many completions have come, all of them successes. Returns their names.
    fn completions(&mut self, count: usize) -> Vec<u64> {
        let ends = completions(&mut self.cq, count);
        assert!(ends.iter().all(|(_, status)| status.is_success()), "{ends:?}");
        ends.iter().map(|(wr_id, _)| *wr_id).collect()
    }
}

fn post(qp: &mut impl QueuePair, requests: &[SendRequest]) -> Result<(), CommitError> {
    let mut batch = qp.start_send();
    requests.iter().for_each(|request| batch.add(request));
    batch.commit()
}

fn receive(queue: &mut impl ReceiveQueue, count: u64) -> Result<(), CommitError> {
    let mut batch = queue.start_recv();
    let sge = LocalBuffer::EMPTY.sge(0);
    (0..count).for_each(|wr_id| batch.add(&RecvRequest { wr_id, sge }));
    batch.commit()
}

fn poll(cq: &mut impl CompletionQueue) -> Result<Vec<Completion>, CqError> {
    let mut out = [MaybeUninit::uninit(); 8];
    cq.poll(&mut out).map(<[Completion]>::to_vec)
}

fn completions(cq: &mut impl CompletionQueue, count: usize) -> Ends {
    let mut ends = Vec::new();
    let start = Instant::now();
    while ends.len() < count {
        ends.extend(poll(cq).unwrap().iter().map(|wc| (wc.wr_id, wc.status)));
        assert!(start.elapsed() < LIMIT, "{ends:?}");
    }
    ends
}

#[test]
fn a_driver_that_takes_part_of_a_batch_runs_that_part() {
    let mut rig = Rig::new();
    let queue = WorkQueue::Send;
    rig.faults.inject(DriverFault::AcceptOnly { queue, nth_batch: 1, requests: 2, refusal: EIO });
    assert_eq!(rig.post(10..12), Ok(()));
    assert!(rig.faults.is_waiting());
    assert_eq!(rig.post(20..23), refused(2, EIO));
    assert!(!rig.faults.is_waiting());
    assert_eq!(rig.post(30..33), Ok(()));
    assert_eq!(rig.completions(7), [10, 11, 20, 21, 30, 31, 32]);
}

#[test]
fn a_driver_that_reports_full_takes_nothing_that_often() {
    let mut rig = Rig::new();
    let full = refused(0, Refusal::QueueFull);
    for queue in [WorkQueue::Send, WorkQueue::Recv] {
        rig.faults.inject(DriverFault::QueueFull { queue, commits: 2 });
    }
    assert_eq!([0, 1, 2].map(|id| rig.post(id..id + 1)), [full, full, Ok(())]);
    assert_eq!([(); 3].map(|()| receive(&mut rig.qp, 1)), [full, full, Ok(())]);
    assert_eq!(rig.completions(1), [2]);
}

#[test]
fn a_shared_receive_queue_suffers_with_its_device() {
    let rig = Rig::new();
    let srq = rig.rest.pd.create_srq(8, 0).unwrap();
    let capacity = srq.capacity();
    let mut srq = rig.faults.receive_queue(srq, capacity);
    let queue = WorkQueue::Recv;
    rig.faults.inject(DriverFault::AcceptOnly { queue, nth_batch: 0, requests: 3, refusal: EIO });
    assert_eq!(receive(&mut srq, 4), refused(3, EIO));
    assert_eq!(receive(&mut srq, 1), Ok(()));
    assert_eq!(srq.inner().len(), 4);
}

#[test]
fn whether_the_last_receive_was_taken_is_known_late() {
    let Bare { cq, rest, .. } = Bare::new();
    let srq = rest.pd.create_srq(8, 0).unwrap();
    let init = QpInit { srq: Some(&srq), ..QpInit::new(&cq, QpCap::default()) };
    let faults = Faults::new();
    let mut qp = faults.queue_pair(rest.pd.create_qp(&init).unwrap());
    faults.inject(DriverFault::DelayLastWqe { asks: 2 });
    assert_eq!(qp.last_wqe_reached(), Err(Refusal::Driver(22)), "not in ERR");
    qp.inner().modify(QpState::Init, &ConnectOptions::default().to_init()).unwrap();
    qp.enter_error().unwrap();
    assert_eq!([(); 4].map(|()| qp.last_wqe_reached()), [Ok(false), Ok(false), Ok(true), Ok(true)]);
    assert!(!faults.is_waiting());
}

#[test]
fn a_dropped_batch_posts_nothing_and_meets_no_fault() {
    let mut rig = Rig::new();
    rig.faults.inject(DriverFault::QueueFull { queue: WorkQueue::Send, commits: 1 });
    let writes = rig.rest.writes(0..2);
    {
        let mut batch = rig.qp.start_send();
        writes.iter().for_each(|request| batch.add(request));
    }
    assert_eq!(rig.post(2..3), refused(0, Refusal::QueueFull));
    assert_eq!(rig.post(3..4), Ok(()));
    assert_eq!(rig.completions(1), [3]);
}

#[test]
fn faults_that_are_lifted_have_no_effect() {
    let mut rig = Rig::new();
    let queue = WorkQueue::Send;
    rig.faults.inject(DriverFault::QueueFull { queue, commits: 9 });
    rig.faults.inject(DriverFault::FailPolls { errno: 5, polls: 9 });
    rig.faults.inject(DriverFault::DelayCompletions(LIMIT));
    rig.faults.lift();
    assert_eq!(rig.post(0..2), Ok(()));
    assert_eq!(rig.completions(2), [0, 1]);
}

#[test]
fn polls_that_fail_take_nothing() {
    let mut rig = Rig::new();
    rig.post(0..1).unwrap();
    rig.faults.inject(DriverFault::FailPolls { errno: 5, polls: 2 });
    let error = CqError { cq: rig.cq.id(), device: rig.cq.device(), errno: 5 };
    assert_eq!([(); 2].map(|()| poll(&mut rig.cq)), [Err(error), Err(error)]);
    assert_eq!(rig.completions(1), [0]);
}

#[test]
fn completions_come_late() {
    const DELAY: Duration = Duration::from_millis(30);
    let mut rig = Rig::new();
    rig.faults.inject(DriverFault::DelayCompletions(DELAY));
    let start = Instant::now();
    rig.post(0..8).unwrap();
    assert_eq!(rig.completions(8), (0..8).collect::<Vec<_>>());
    assert!(start.elapsed() >= DELAY);
}

/// Fills both queues, makes a request fail, and posts behind it. Returns every answer.
fn answers(
    qp: &mut impl QueuePair,
    cq: &mut impl CompletionQueue,
    writes: &[SendRequest],
) -> ([Result<(), CommitError>; 6], Ends) {
    let bad = SendRequest { rkey: !writes[1].rkey, ..writes[1] };
    let [empty, many, one_more] = [&[], writes, &writes[..1]].map(|requests| post(qp, requests));
    let mut ends = completions(cq, 8);
    let receives = receive(qp, 9);
    let failing = post(qp, &[writes[0], bad, writes[2]]);
    let behind = post(qp, &writes[..2]);
    ends.extend(completions(cq, 3 + 2 + 8));
    ([empty, many, one_more, receives, failing, behind], ends)
}

#[test]
fn without_faults_it_answers_as_what_is_inside() {
    let mut bare = Bare::new();
    let expected = answers(&mut bare.qp, &mut bare.cq, &bare.rest.writes(0..12));
    let full = |accepted| refused(accepted, Refusal::QueueFull);
    assert_eq!(expected.0, [Ok(()), full(8), full(0), full(8), Ok(()), Ok(())]);
    let mut rig = Rig::new();
    let writes = rig.rest.writes(0..12);
    assert_eq!(answers(&mut rig.qp, &mut rig.cq, &writes), expected);
    assert_eq!((rig.qp.qp_num(), rig.qp.limits()), (bare.qp.qp_num(), bare.qp.limits()));
    assert_eq!(rig.cq.capacity(), bare.cq.capacity());
}

#[test]
fn a_port_is_as_it_is_inside() {
    let pd = Fabric::threaded().create_device(DeviceConfig::named("here")).alloc_pd().unwrap();
    let domain = Faults::new().domain(pd.clone());
    assert_eq!((domain.port(1), domain.port(2)), (pd.port(1), pd.port(2)));
    pd.device().inject(When::Now, Fault::LinkDown);
    assert_eq!(domain.port(1), Err(DeviceError::PortDown { port: 1 }));
    pd.device().inject(When::Now, Fault::LinkUp);
    assert_eq!(domain.port(1), Ok(domain.ports().unwrap()[0]));
    pd.device().inject(When::Now, Fault::DeviceGone);
    assert_eq!(domain.port(1), Err(NicError::DeviceGone.into()));
}

#[test]
fn events_are_those_of_what_is_inside() {
    let pd = Fabric::threaded().create_device(DeviceConfig::named("here")).alloc_pd().unwrap();
    let domain = Faults::new().domain(pd.clone());
    pd.device().inject(When::Now, Fault::LinkDown);
    let mut reader = domain.event_cursor();
    pd.device().inject(When::Now, Fault::LinkUp);
    pd.device().inject(When::Now, Fault::DeviceGone);
    let expected = [Some(DeviceEvent::PortUp { port: 1 }), Some(DeviceEvent::Gone), None];
    assert_eq!([(); 3].map(|()| domain.clone().next_event(&mut reader)), expected);
}
