//! Rails of rxe devices, `rxeA0` joined to `rxeB0` by the veth pair `a0`, `b0`, and so on.

use crate::memory::Buffer;
use polyrail::rdma::{OpenOptions, VerbsDomain, open_devices};
use polyrail_core::verbs::{AccessFlags, WcStatus};
use polyrail_ffi::{
    CompletionQueue, Context, CqInit, DeviceList, Grh, Mtu, Path, PortState, PostMode,
    ProtectionDomain, QpCap, QpInit, QpState, QueuePair, SharedReceiveQueue, SrqInit, ToErr,
    ToInit, ToRtr, ToRts,
};
use polyrail_tests::behaviours::{ALL_ACCESS, End, Fixture, LIMIT, Retries, Statuses};
use std::process::Command;
use std::time::{Duration, Instant};

/// The only port of an rxe device.
pub(crate) const PORT: u8 = 1;

/// The index of the address that stays while a link is down: made from the MAC.
pub(crate) const GID_INDEX: u8 = 0;

/// Two ends of some rails.
#[derive(Debug)]
pub(crate) struct Rails {
    domains: [Vec<ProtectionDomain>; 2],
    post_mode: PostMode,
}

impl Rails {
    /// Opens the devices that exist.
    pub(crate) fn open(post_mode: PostMode) -> Self {
        let list = DeviceList::new().expect("a kernel with RDMA");
        let end = |name: &str| {
            let names = (0..).map(|rail| format!("rxe{name}{rail}"));
            let devices = names.map_while(|name| list.find(&name));
            let open = |device: polyrail_ffi::Device<'_>| {
                device.open().and_then(|context| context.alloc_pd()).expect("a device that works")
            };
            devices.map(open).collect::<Vec<_>>()
        };
        let domains = ["A", "B"].map(end);
        assert_eq!(domains[0].len(), domains[1].len());
        assert!(domains[0].len() >= 2, "two rails of rxe devices are needed");
        Self { domains, post_mode }
    }

    pub(crate) fn post_mode(&self) -> PostMode {
        self.post_mode
    }

    pub(crate) fn domain(&self, end: End, rail: usize) -> &ProtectionDomain {
        &self.domains[end as usize][rail]
    }

    pub(crate) fn context(&self, end: End, rail: usize) -> &Context {
        self.domain(end, rail).context()
    }

    /// The path to the other end.
    pub(crate) fn path_from(&self, end: End, rail: usize) -> Path {
        let peer = if end == End::Near { End::Far } else { End::Near };
        let gid = self.context(peer, rail).query_gid(PORT, GID_INDEX.into()).expect("an address");
        Path::roce(PORT, Grh::new(gid.gid, GID_INDEX))
    }

    fn is_active(&self, end: End, rail: usize) -> bool {
        let port = self.context(end, rail).query_port(PORT).expect("port 1");
        port.state == PortState::Active
    }
}

fn to_rts(qp: &QueuePair, path: Path, peer: &QueuePair, retries: Retries) {
    qp.modify(&ToRtr {
        path,
        path_mtu: Mtu::Mtu4096,
        dest_qp_num: peer.qp_num(),
        rq_psn: psn(peer),
        max_dest_rd_atomic: 16,
        min_rnr_timer: 12,
    })
    .expect("INIT to RTR");
    let Retries { timeout, retry_cnt, rnr_retry } = retries;
    qp.modify(&ToRts { sq_psn: psn(qp), timeout, retry_cnt, rnr_retry, max_rd_atomic: 16 })
        .expect("RTR to RTS");
}

/// The packet sequence number that a queue pair starts with.
fn psn(qp: &QueuePair) -> u32 {
    (0x0012_3400 + qp.qp_num()) & 0x00ff_ffff
}

impl Fixture for Rails {
    type Qp = QueuePair;
    type Cq = CompletionQueue;
    type Srq = SharedReceiveQueue;
    type Memory = Buffer;
    type Domain = VerbsDomain;

    fn rails(&self) -> usize {
        self.domains[0].len()
    }

    fn statuses(&self) -> Statuses {
        Statuses {
            write_with_bad_lkey: WcStatus::LOC_QP_OP_ERR,
            read_with_bad_lkey: WcStatus::LOC_PROT_ERR,
            receive_too_short: (WcStatus::REM_OP_ERR, WcStatus::LOC_QP_OP_ERR),
            receive_with_bad_lkey: (WcStatus::REM_OP_ERR, WcStatus::LOC_QP_OP_ERR),
        }
    }

    fn create_cq(&self, end: End, rail: usize, capacity: u32) -> CompletionQueue {
        let cq = self.context(end, rail).create_cq(&CqInit::new(capacity)).expect("a queue");
        assert!(cq.handle().capacity() >= capacity);
        cq
    }

    fn create_srq(&self, end: End, rail: usize, max_wr: u32) -> SharedReceiveQueue {
        self.domain(end, rail).create_srq(&SrqInit::new(max_wr)).expect("a shared receive queue")
    }

    fn create_qp(
        &self,
        end: End,
        rail: usize,
        cq: &CompletionQueue,
        srq: Option<&SharedReceiveQueue>,
        depth: u32,
    ) -> QueuePair {
        let cap = QpCap { max_send_sge: 4, max_recv_sge: 4, ..QpCap::new(depth, depth, 64) };
        let init = QpInit { srq, post_mode: self.post_mode, ..QpInit::new(cq, cap) };
        let qp: QueuePair = self.domain(end, rail).create_qp(&init).expect("a queue pair");
        assert_eq!(qp.is_extended(), self.post_mode != PostMode::Classic);
        qp.modify(&ToInit { port_num: PORT, pkey_index: 0, access: ALL_ACCESS }).expect("INIT");
        qp
    }

    fn connect(&self, rail: usize, near: &QueuePair, far: &QueuePair, retries: Retries) {
        to_rts(near, self.path_from(End::Near, rail), far, retries);
        to_rts(far, self.path_from(End::Far, rail), near, retries);
    }

    fn fail(&self, qp: &QueuePair) {
        qp.modify(&ToErr).expect("ERR can always be entered");
    }

    fn is_failed(&self, qp: &QueuePair) -> bool {
        qp.query().expect("a queue pair that exists").state == QpState::Err
    }

    fn memory(&self, end: End, bytes: usize, access: AccessFlags) -> Buffer {
        Buffer::new(bytes, access, &self.domains[end as usize])
    }

    fn open(&self, end: End) -> Vec<VerbsDomain> {
        let end = if end == End::Near { "A" } else { "B" };
        let names = (0..self.rails()).map(|rail| format!("rxe{end}{rail}").parse());
        let names = names.collect::<Result<Vec<_>, _>>().expect("names of devices");
        let options = OpenOptions { gid_index: Some(GID_INDEX), ..OpenOptions::default() };
        open_devices(&names, &options).expect("devices that work")
    }

    fn set_link(&self, rail: usize, up: bool) {
        let state = if up { "up" } else { "down" };
        let done = Command::new("ip").args(["link", "set", &format!("b{rail}"), state]).status();
        assert!(done.expect("the program ip").success());
        let start = Instant::now();
        let carries = || self.is_active(End::Near, rail) && self.is_active(End::Far, rail);
        while carries() != up {
            assert!(start.elapsed() < LIMIT, "link {rail} does not go {state}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
