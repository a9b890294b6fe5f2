//! Changing a queue pair's state and attributes.

use crate::ending;
use crate::queue_pair::QueuePair;
use crate::receives::Responder;
use crate::shared::{DeviceShared, QpShared, SendQueue};
use crate::transmit;
use polyrail_nic_parts::event::AsyncEvent;
use polyrail_nic_parts::state::{self, Attribute, ModifyError, QpAttributes, QpState};
use polyrail_nic_parts::sync::lock;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

impl QueuePair {
    /// Moves the queue pair to a state, and changes the given attributes (`ibv_modify_qp`).
    ///
    /// ERR flushes all outstanding requests. RESET drops them, and also completions that are not
    /// visible yet. When either returns, no device accesses memory for these requests any more.
    ///
    /// # Errors
    ///
    /// The transition does not exist; attributes are missing, not allowed or out of range; the
    /// peer's address is not on this fabric; the device is gone; a fault
    /// [refuses](crate::Fault::RefuseRtr) the transition. Nothing changed.
    pub fn modify(&self, to: QpState, attributes: &QpAttributes) -> Result<(), ModifyError> {
        self.shared.modify(to, attributes)
    }

    /// Returns a handle that connects the queue pair on another thread.
    pub fn connector(&self) -> Connector {
        Connector(Arc::clone(&self.shared))
    }

    /// Returns whether a transition to RTR takes time now: see
    /// [`SearchPaths`](crate::Fault::SearchPaths).
    pub fn searches_paths(&self) -> bool {
        self.shared.device.faults.path_search() > 0
    }
}

/// Moves a queue pair from INIT to RTS, on any thread. Does not keep it alive: if it was destroyed,
/// it is in RESET, and the transitions are refused.
#[derive(Debug)]
pub struct Connector(Arc<QpShared>);

impl Connector {
    /// Moves the queue pair from INIT to RTR, then to RTS.
    ///
    /// # Errors
    ///
    /// As [`QueuePair::modify`]. The queue pair is in the state that was reached.
    pub fn connect(self, to_rtr: &QpAttributes, to_rts: &QpAttributes) -> Result<(), ModifyError> {
        self.0.modify(QpState::Rtr, to_rtr)?;
        self.0.modify(QpState::Rts, to_rts)
    }
}

impl QpShared {
    fn modify(&self, to: QpState, attributes: &QpAttributes) -> Result<(), ModifyError> {
        let qp = self;
        qp.device.fabric.process.check()?;
        if qp.device.is_gone() {
            return Err(ModifyError::DeviceGone);
        }
        if to == QpState::Rtr {
            // Without a lock, as in the kernel.
            thread::sleep(Duration::from_nanos(qp.device.faults.path_search()));
        }
        {
            let mut send = lock(&qp.send);
            let mut recv = lock(&qp.recv);
            let from = qp.state.get();
            state::check(from, to, attributes)?;
            check_device(&qp.device, attributes)?;
            if to == QpState::Rtr && qp.device.faults.refuses_rtr() {
                return Err(ModifyError::NoPath);
            }
            apply(qp, &mut send, &mut recv, attributes);
            enter(qp, &mut send, &mut recv, from, to);
        }
        if matches!(to, QpState::Reset | QpState::Err) {
            qp.device.fabric.quiesce();
        }
        qp.device.fabric.note_change();
        qp.list_work();
        Ok(())
    }
}

/// Checks the attributes that depend on the device.
fn check_device(device: &DeviceShared, attributes: &QpAttributes) -> Result<(), ModifyError> {
    let value = |attribute, value: u8| ModifyError::Value { attribute, value: value.into() };
    if let Some(port) = attributes.port_num.filter(|&port| device.gid(port).is_none()) {
        return Err(value(Attribute::Port, port));
    }
    if let Some(gid) = attributes.gid.filter(|&gid| !device.reaches(gid)) {
        return Err(ModifyError::Unreachable { gid });
    }
    let max = device.limits.max_qp_rd_atom;
    if let Some(depth) = attributes.max_rd_atomic.filter(|&depth| depth > max) {
        return Err(value(Attribute::MaxRdAtomic, depth));
    }
    if let Some(depth) = attributes.max_dest_rd_atomic.filter(|&depth| depth > max) {
        return Err(value(Attribute::MaxDestRdAtomic, depth));
    }
    Ok(())
}

fn set<T: Copy>(place: &mut T, given: Option<T>) {
    if let Some(value) = given {
        *place = value;
    }
}

fn apply(qp: &QpShared, send: &mut SendQueue, recv: &mut Responder, a: &QpAttributes) {
    if let Some(port) = a.port_num {
        qp.port.store(port, Ordering::Relaxed);
        send.path.port = port;
        send.path.own_gid = qp.device.gid(port).unwrap_or_default();
        send.own_qp_num = qp.number;
    }
    if a.gid.is_some() || a.dest_qp_num.is_some() {
        send.path.peer = transmit::NO_PEER;
    }
    set(&mut send.path.gid, a.gid);
    set(&mut send.path.dest_qp_num, a.dest_qp_num);
    set(&mut send.path.mtu, a.path_mtu);
    set(&mut send.psn, a.sq_psn);
    set(&mut send.timers.timeout, a.timeout);
    set(&mut send.timers.retry_cnt, a.retry_cnt);
    set(&mut send.timers.rnr_retry, a.rnr_retry);
    set(&mut send.timers.max_rd_atomic, a.max_rd_atomic);
    set(&mut recv.gid, a.gid);
    set(&mut recv.dest_qp_num, a.dest_qp_num);
    set(&mut recv.mtu, a.path_mtu);
    set(&mut recv.expected_psn, a.rq_psn);
    set(&mut recv.access, a.access);
    set(&mut recv.max_dest_rd_atomic, a.max_dest_rd_atomic);
    set(&mut recv.min_rnr_timer, a.min_rnr_timer);
}

fn enter(qp: &QpShared, send: &mut SendQueue, recv: &mut Responder, from: QpState, to: QpState) {
    qp.state.set(to);
    match to {
        QpState::Reset => {
            qp.clear(send, recv);
            qp.port.store(0, Ordering::Relaxed);
            qp.send_cq.forget_pending(qp.send_owner);
            qp.recv_cq.forget_pending(qp.recv_owner);
        }
        QpState::Err => {
            transmit::flush(qp, send);
            ending::flush(qp, recv);
        }
        QpState::Sqd if from == QpState::Rts && !send.is_underway() => {
            qp.device.push_event(AsyncEvent::SqDrained { qp_num: qp.number });
        }
        _ => {}
    }
}
