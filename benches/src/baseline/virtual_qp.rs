//! Posting.

use super::physical::PhysicalQp;
use super::request::{Error, Keys, RecvWr, SendWr};
use super::sequence::SequenceTracker;
use super::tracker::{ActiveWr, WrTracker};
use hashbrown::HashMap;
use polyrail_core::hardware::QueuePair;
use polyrail_core::verbs::{DeviceId, Imm, Opcode, SendFlags, SendRequest, Sge};
use std::collections::VecDeque;

/// How the receiver learns that data is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// A notify on a separate queue pair.
    Spray,
    /// Sequence numbers in immediates.
    Dqplb,
}

/// The configuration of a virtual queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Its number.
    pub virtual_qp_num: u32,
    /// How receivers are notified.
    pub scheme: Scheme,
    /// Longest fragment, in bytes.
    pub max_msg_size: u32,
    /// Requests in flight on a physical queue pair.
    pub max_msgs_per_qp: usize,
}

/// One queue pair made of many (`IbvVirtualQp`).
#[derive(Debug)]
pub struct VirtualQp<Q> {
    pub(super) rails: Vec<PhysicalQp<Q>>,
    pub(super) notify: Option<PhysicalQp<Q>>,
    pub(super) rail_by_qp_num: HashMap<u32, usize>,
    pub(super) config: Config,
    pub(super) sequence: SequenceTracker,
    pub(super) sends: WrTracker,
    pub(super) recvs: WrTracker,
    pub(super) pending_notifies: VecDeque<u64>,
    next_physical_wr_id: u64,
    next_rail: usize,
    receives_posted: bool,
}

impl<Q: QueuePair> VirtualQp<Q> {
    /// Makes one queue pair out of `rails`.
    pub fn new(config: Config, rails: Vec<Q>, notify: Option<Q>) -> Self {
        let rails: Vec<_> = rails.into_iter().map(PhysicalQp::new).collect();
        let rail_by_qp_num = rails.iter().map(PhysicalQp::qp_num).zip(0..).collect();
        Self {
            rails,
            notify: notify.map(PhysicalQp::new),
            rail_by_qp_num,
            config,
            sequence: SequenceTracker::default(),
            sends: WrTracker::default(),
            recvs: WrTracker::default(),
            pending_notifies: VecDeque::new(),
            next_physical_wr_id: 0,
            next_rail: 0,
            receives_posted: false,
        }
    }

    /// Whether requests are spread.
    pub fn is_multi(&self) -> bool {
        self.rails.len() > 1
    }

    /// All physical queue pairs, the notify queue pair last.
    pub fn physical(&self) -> impl Iterator<Item = &PhysicalQp<Q>> {
        self.rails.iter().chain(&self.notify)
    }

    /// Posts a send.
    ///
    /// # Errors
    ///
    /// The request cannot be posted; it may still be tracked.
    pub fn post_send(&mut self, wr: &SendWr) -> Result<(), Error> {
        if !self.is_multi() {
            return self.post_single(wr);
        }
        if wr.local.length() == 0 {
            return Err(Error::Empty);
        }
        if !wr.flags.contains(SendFlags::SIGNALED) && wr.opcode != Opcode::RdmaWriteWithImm {
            return Err(Error::Unsignaled);
        }
        match wr.opcode {
            Opcode::Send | Opcode::FetchAdd | Opcode::CompareSwap => return self.post_single(wr),
            Opcode::RdmaWrite | Opcode::RdmaWriteWithImm | Opcode::RdmaRead => {}
            opcode => return Err(Error::Opcode(opcode)),
        }
        let needs_notify =
            wr.opcode == Opcode::RdmaWriteWithImm && self.config.scheme == Scheme::Spray;
        let fragments = wr.local.length().div_ceil(self.config.max_msg_size);
        let remaining = fragments + u32::from(needs_notify);
        self.sends.add(ActiveWr::send(wr, remaining, needs_notify));
        self.dispatch_pending_sends(None)
    }

    fn post_single(&mut self, wr: &SendWr) -> Result<(), Error> {
        if wr.local.length() == 0 {
            return Err(Error::Empty);
        }
        let rail = &mut self.rails[0];
        let keys = find_keys(&wr.device_keys, rail.device())?;
        rail.post_send(&SendRequest {
            wr_id: wr.wr_id,
            opcode: wr.opcode,
            flags: wr.flags,
            imm: Imm::from_number(wr.imm),
            sge: wr.local.sge(keys.lkey),
            remote_addr: wr.remote_addr,
            rkey: keys.rkey,
            compare_add: 0,
            swap: 0,
        })
    }

    /// Posts fragments of what waits, oldest first, while there is room; a rail that was just
    /// freed comes first.
    pub(super) fn dispatch_pending_sends(&mut self, freed: Option<usize>) -> Result<(), Error> {
        let Self { rails, sends, sequence, config, next_rail, next_physical_wr_id, .. } = self;
        let mut freed = freed;
        while let Some(id) = sends.front_pending() {
            let active = sends.find(id)?;
            while active.offset < active.local.length() {
                let hinted = freed.take().filter(|rail| has_room(&rails[*rail], config));
                let Some(rail) = hinted.or_else(|| find_rail(rails, next_rail, config)) else {
                    return Ok(());
                };
                let rail = &mut rails[rail];
                let wr_id = *next_physical_wr_id;
                *next_physical_wr_id += 1;
                let request = fragment(active, rail.device(), config, sequence, wr_id)?;
                rail.post_tracked(&request, id)?;
                active.offset += request.sge.length();
            }
            sends.pop_pending();
        }
        Ok(())
    }

    /// Posts the notify of a request on the notify queue pair.
    pub(super) fn post_notify(&mut self, id: u64) -> Result<(), Error> {
        let notify = self.notify.as_mut().ok_or(Error::NoNotifyQp)?;
        let active = self.sends.find(id)?;
        let keys = find_keys(&active.device_keys, notify.device())?;
        let request = SendRequest {
            wr_id: self.next_physical_wr_id,
            opcode: Opcode::RdmaWriteWithImm,
            flags: SendFlags::SIGNALED,
            imm: Imm::from_number(active.imm),
            sge: Sge::EMPTY,
            remote_addr: active.remote_addr,
            rkey: keys.rkey,
            compare_add: 0,
            swap: 0,
        };
        self.next_physical_wr_id += 1;
        notify.post_tracked(&request, id)
    }

    /// Posts a notification receive (DQPLB).
    ///
    /// # Errors
    ///
    /// Receives could not be posted; the request is still tracked.
    pub fn post_recv(&mut self, wr: &RecvWr) -> Result<(), Error> {
        self.recvs.add(ActiveWr::recv(wr.wr_id));
        // The reference leaves it in the posting queue forever; a bench would measure the leak.
        self.recvs.pop_pending();
        if !self.receives_posted {
            self.post_initial_receives()?;
        }
        Ok(())
    }

    fn post_initial_receives(&mut self) -> Result<(), Error> {
        for _ in 0..self.config.max_msgs_per_qp {
            for rail in 0..self.rails.len() {
                self.replenish(rail)?;
            }
        }
        self.receives_posted = true;
        Ok(())
    }

    /// Posts one zero-length receive.
    pub(super) fn replenish(&mut self, rail: usize) -> Result<(), Error> {
        self.rails[rail].post_recv(self.next_physical_wr_id)?;
        self.next_physical_wr_id += 1;
        Ok(())
    }
}

fn has_room<Q: QueuePair>(rail: &PhysicalQp<Q>, config: &Config) -> bool {
    rail.outstanding_sends() < config.max_msgs_per_qp
}

/// The next rail with room, in turn.
fn find_rail<Q: QueuePair>(
    rails: &[PhysicalQp<Q>],
    next: &mut usize,
    config: &Config,
) -> Option<usize> {
    for _ in 0..rails.len() {
        let rail = *next;
        *next = (rail + 1) % rails.len();
        if has_room(&rails[rail], config) {
            return Some(rail);
        }
    }
    None
}

/// The next fragment of a request.
fn fragment(
    active: &ActiveWr,
    device: DeviceId,
    config: &Config,
    sequence: &mut SequenceTracker,
    wr_id: u64,
) -> Result<SendRequest, Error> {
    let keys = find_keys(&active.device_keys, device)?;
    let length = config.max_msg_size.min(active.local.length() - active.offset);
    let local = active.local.slice(active.offset, length).ok_or(Error::Empty)?;
    let last = active.offset + length >= active.local.length();
    let (opcode, imm) = match (active.opcode, config.scheme) {
        (Opcode::RdmaWriteWithImm, Scheme::Spray) => (Opcode::RdmaWrite, Imm::default()),
        (opcode, Scheme::Spray) => (opcode, Imm::default()),
        (opcode, Scheme::Dqplb) => (opcode, sequence.send_imm(last)),
    };
    Ok(SendRequest {
        wr_id,
        opcode,
        flags: SendFlags::SIGNALED,
        imm,
        sge: local.sge(keys.lkey),
        remote_addr: active.remote_addr + u64::from(active.offset),
        rkey: keys.rkey,
        compare_add: 0,
        swap: 0,
    })
}

fn find_keys(keys: &HashMap<DeviceId, Keys>, device: DeviceId) -> Result<Keys, Error> {
    keys.get(&device).copied().ok_or(Error::MissingKeys(device))
}
