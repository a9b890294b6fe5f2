//! A virtual queue pair of one rail that shares a host's completion queues with connections.

use super::World;
use super::fabric::{NO_CONNECTION, Name, Nics, SimQp, device_id};
use super::host::Host;
use super::shape::Shape;
use polyrail_core::hardware::QpLimits;
use polyrail_core::verbs::{DeviceKeys, LocalBuffer, SendWr};
use polyrail_core::virtual_cq::VirtualWc;
use polyrail_core::virtual_qp::{Config, VirtualQp};

/// Requests in flight.
pub(super) const DEPTH: u32 = 8;

const WRS: usize = 16;

/// What its completions pass straight through: nothing of it may be lost, doubled, or overtaken.
#[derive(Debug)]
pub(super) struct Bystander {
    pub(super) qp: VirtualQp<SimQp, 1, { DEPTH as usize }, WRS>,
    /// Its queue pair, which is connected to itself.
    at: usize,
    keys: DeviceKeys,
    posted: u64,
    reported: u64,
}

impl Bystander {
    /// The one that this host has, attached behind all connections.
    pub(super) fn new(host: usize, nics: &Nics, to: &mut Host, shape: &Shape) -> Option<Self> {
        let device = shape.bystanders[host]?;
        let name = Name {
            connection: NO_CONNECTION,
            host,
            device,
            place: 0,
            rail: 0,
            is_receivers: false,
            is_for_flushes: false,
        };
        let limits = QpLimits {
            max_send_wr: DEPTH,
            max_recv_wr: 0,
            max_inline_data: 0,
            max_msg_size: 1 << 20,
            max_send_sge: 1,
            max_recv_sge: 0,
        };
        let at = nics.borrow_mut().make(name, limits, 0);
        nics.borrow_mut().connect(at, at);
        let index = shape.lines.len();
        let config = Config { virtual_qp_num: index as u32, ..Config::default() };
        let rail = SimQp::new(nics, at);
        let qp = VirtualQp::new(config, [rail], None).expect("one rail");
        to.cq.attach(index as u16, &qp).expect("deep completion queues");
        let keys = DeviceKeys { device: device_id(host, device), lkey: 0, rkey: 0 };
        Some(Self { qp, at, keys, posted: 0, reported: 0 })
    }

    fn post(&mut self) {
        let wr =
            SendWr::write(self.posted, LocalBuffer::EMPTY, 0, core::slice::from_ref(&self.keys));
        self.posted += u64::from(self.qp.post_send(&wr).is_ok());
    }

    fn reported(&mut self, report: &VirtualWc) {
        assert_eq!(report.wr_id, self.reported, "what passes straight through keeps its order");
        self.reported += 1;
    }
}

impl<const DEPTH: usize, const SLOTS: usize> World<DEPTH, SLOTS> {
    /// The virtual queue pair of a host posts a request.
    pub(super) fn bystand(&mut self, host: usize) {
        if let Some(bystander) = &mut self.bystanders[host] {
            let has_room =
                bystander.posted - bystander.reported < u64::from(super::bystander::DEPTH);
            let is_gone = self.nics.borrow().qps[bystander.at].is_gone;
            if has_room && !is_gone {
                bystander.post();
            }
        }
    }

    /// Takes the reports of a poll.
    pub(super) fn take_reports(&mut self, host: usize, reports: &[VirtualWc]) {
        let bystander = &mut self.bystanders[host];
        for report in reports {
            let bystander = bystander.as_mut().expect("connections report nothing");
            bystander.reported(report);
        }
    }

    /// Everything that bystanders posted was reported, but for what was lost with a device.
    pub(super) fn check_bystanders(&self) {
        for Bystander { at, posted, reported, .. } in self.bystanders.iter().flatten() {
            let is_gone = self.nics.borrow().qps[*at].is_gone;
            assert!(is_gone || posted == reported, "{reported} of {posted} requests are reported");
        }
    }
}
