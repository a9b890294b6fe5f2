//! Transitions of queue pairs.

use crate::device::PORT;
use crate::ending;
use crate::queue_pair::QueuePair;
use polyrail_nic_parts::address::RemoteQp;
use polyrail_nic_parts::options::ConnectOptions;
use polyrail_nic_parts::state::{self, Attribute, ModifyError, QpAttributes, QpState, ack_timeout};
use polyrail_nic_parts::sync::lock;

impl QueuePair {
    /// Moves the queue pair from RESET to INIT, so that receives can be posted before the peer is
    /// known.
    ///
    /// # Errors
    ///
    /// The queue pair is in another state; a value is out of range; this process is a fork.
    pub fn to_init(&self, options: &ConnectOptions) -> Result<(), ModifyError> {
        let attributes = QpAttributes { port_num: Some(PORT), ..options.to_init() };
        self.modify(QpState::Init, &attributes, |queues| queues.access = options.access)
    }

    /// Moves the queue pair from INIT to RTR. The connection to the peer is made from now on, by
    /// one of the two ends; this call does not wait for it. `max_rd_atomic` of the options is the
    /// limit that was sent to the peer.
    ///
    /// # Errors
    ///
    /// The queue pair is in another state; a value is out of range; the peer's address is not one
    /// of a TCP NIC; this process is a fork.
    pub fn to_rtr(&self, peer: &RemoteQp, options: &ConnectOptions) -> Result<(), ModifyError> {
        self.shared.device.process.check()?;
        if peer.meeting.is_none() {
            return Err(ModifyError::NoMeeting);
        }
        let most = self.most_rd_atomic(Attribute::MaxDestRdAtomic, options)?;
        self.modify(QpState::Rtr, &options.to_rtr(peer), |queues| {
            queues.responder.set_most_responses(most);
            queues.responder.min_rnr_timer = options.min_rnr_timer;
        })?;
        self.shared.meet(peer);
        Ok(())
    }

    /// Moves the queue pair from RTR to RTS: requests can be posted. They wait for the connection.
    /// `max_rd_atomic` of the options is the peer's limit.
    ///
    /// # Errors
    ///
    /// The queue pair is in another state; a value is out of range; this process is a fork.
    pub fn to_rts(&self, psn: u32, options: &ConnectOptions) -> Result<(), ModifyError> {
        let most = self.most_rd_atomic(Attribute::MaxRdAtomic, options)?;
        let tries = u64::from(options.retry_cnt) + 1;
        let limit = ack_timeout(options.timeout).map(|timeout| timeout.saturating_mul(tries));
        self.modify(QpState::Rts, &options.to_rts(psn), |queues| {
            let timers = &mut queues.requester.timers;
            timers.max_rd_atomic = most;
            timers.rnr_retry = options.rnr_retry;
            timers.limit = limit;
        })
    }

    /// Moves the queue pair to RTS, from RESET or INIT.
    ///
    /// # Errors
    ///
    /// As [`to_init`](Self::to_init), [`to_rtr`](Self::to_rtr) and [`to_rts`](Self::to_rts).
    /// Earlier successful transitions are not undone.
    pub fn connect(
        &self,
        psn: u32,
        peer: &RemoteQp,
        options: &ConnectOptions,
    ) -> Result<(), ModifyError> {
        if self.state() == QpState::Reset {
            self.to_init(options)?;
        }
        self.to_rtr(peer, options)?;
        self.to_rts(psn, options)
    }

    /// Moves the queue pair to ERR, and flushes all outstanding requests. When it returns, nothing
    /// of the peer is placed any more, and no request's memory is accessed.
    ///
    /// # Errors
    ///
    /// The queue pair is in RESET; this process is a fork.
    pub fn to_error(&self) -> Result<(), ModifyError> {
        let qp = &self.shared;
        qp.device.process.check()?;
        state::check(qp.state.get(), QpState::Err, &QpAttributes::default())?;
        qp.send_held();
        ending::cut(qp);
        Ok(())
    }

    fn most_rd_atomic(
        &self,
        attribute: Attribute,
        options: &ConnectOptions,
    ) -> Result<u8, ModifyError> {
        let most = options.max_rd_atomic;
        if most > self.shared.device.limits.max_qp_rd_atom {
            return Err(ModifyError::Value { attribute, value: most.into() });
        }
        Ok(most)
    }

    fn modify(
        &self,
        to: QpState,
        attributes: &QpAttributes,
        apply: impl FnOnce(&mut crate::shared::Queues),
    ) -> Result<(), ModifyError> {
        let qp = &self.shared;
        qp.device.process.check()?;
        let mut queues = lock(&qp.queues);
        let from = qp.state.get();
        state::check(from, to, attributes)?;
        apply(&mut queues);
        // A completion queue that overruns fails its queue pairs without the lock.
        if !qp.state.change(from, to) {
            return Err(ModifyError::Transition { from: qp.state.get(), to });
        }
        Ok(())
    }
}

/// Connects two queue pairs of the same process that are in RESET.
///
/// # Errors
///
/// As [`QueuePair::connect`].
pub fn connect_pair(
    a: &QueuePair,
    b: &QueuePair,
    options: &ConnectOptions,
) -> Result<(), ModifyError> {
    const PSN: u32 = 0;
    for qp in [a, b] {
        if qp.state() == QpState::Reset {
            qp.to_init(options)?;
        }
    }
    let (remote_a, remote_b) = (a.as_remote(PSN), b.as_remote(PSN));
    a.connect(PSN, &remote_b, options)?;
    b.connect(PSN, &remote_a, options)
}
