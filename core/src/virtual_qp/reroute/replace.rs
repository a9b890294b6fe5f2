//! A new queue pair takes the place of one that failed.

use crate::hardware::{CompletionQueue, QueuePair, Taken};
use crate::rail::tag::TagKind;
use crate::rail::{RailId, RailState};
use crate::verbs::DeviceId;
use crate::virtual_cq::{AttachError, VirtualCq};
use crate::virtual_qp::data_receives::Buffer;
use crate::virtual_qp::list::usable;
use crate::virtual_qp::parts::Gathered;
use crate::virtual_qp::qp::VirtualQp;

/// A queue pair that cannot take a rail's place; nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplaceError {
    /// There is no such rail.
    #[error("there is no such rail to replace: {0}")]
    NoRail(RailId),
    /// Both ends must know what arrived first.
    #[error("{rail} is {state:?}, and can be replaced when it is Down")]
    State {
        /// The rail.
        rail: RailId,
        /// Its state.
        state: RailState,
    },
    /// The virtual queue pair is in the error state.
    #[error("the virtual queue pair is in the error state")]
    InErrorState,
    /// The queue pair was made, and connected, for another generation.
    #[error("generation {given} for {rail}, whose next is {expected}")]
    Generation {
        /// The rail.
        rail: RailId,
        /// The next one.
        expected: u16,
        /// What was given.
        given: u16,
    },
    /// Requests carry no keys for its device: no rail was on it when the virtual queue pair was built.
    #[error("no rail was built on device {}, so requests carry no keys for it", device.0)]
    Device {
        /// Its device.
        device: DeviceId,
    },
    /// A queue or a message is smaller than that of the queue pair that failed.
    #[error("{what} of {given}, where the queue pair that failed has {needed}")]
    Limit {
        /// Which limit, as verbs name it.
        what: &'static str,
        /// What the queue pair was granted.
        given: u32,
        /// What it takes.
        needed: u32,
    },
    /// Its completions could not be routed.
    #[error(transparent)]
    Attach(#[from] AttachError),
}

/// A queue pair that was refused, given back.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Rejected<Q> {
    /// Why.
    pub error: ReplaceError,
    /// The queue pair.
    pub queue_pair: Q,
}

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Puts a new queue pair in the place of one that failed, and routes its completions: `index` is where
    /// this virtual queue pair is attached to `cq`. The rail is Down, and the queue pair is connected to
    /// the peer's of the same `generation`, the one after [`rail_generation`](Self::rail_generation).
    ///
    /// The queue pair may be on any device that a rail was built on. Whichever it is, it uses keys of requests for that
    /// device, and for the peer's device that the rail [met](Self::pair_devices) from the beginning.
    ///
    /// The old queue pair is returned, to be destroyed. (Destroyed before there is a new one, its number
    /// might be given away again.) The rail carries requests once the peer's queue pair is there too.
    ///
    /// # Errors
    ///
    /// Nothing changed, and the queue pair is given back: see [`ReplaceError`].
    pub fn replace_rail<C: CompletionQueue, const CQS: usize, const ROUTES: usize>(
        &mut self,
        cq: &mut VirtualCq<C, CQS, ROUTES>,
        index: u16,
        rail: RailId,
        generation: u16,
        queue_pair: Q,
    ) -> Result<Q, Rejected<Q>> {
        let replaceable = self
            .check_replacement(rail, generation, &queue_pair)
            .and_then(|old| Ok(cq.replace_route(index, old, &queue_pair)?));
        match replaceable {
            Ok(()) => Ok(self.replaced(rail, queue_pair)),
            Err(error) => Err(Rejected { error, queue_pair }),
        }
    }

    /// Returns device and number of the old queue pair.
    fn check_replacement(
        &self,
        id: RailId,
        given: u16,
        queue_pair: &Q,
    ) -> Result<(DeviceId, u32), ReplaceError> {
        let rail = self.rail(id).ok_or(ReplaceError::NoRail(id))?;
        if self.health.failed {
            return Err(ReplaceError::InErrorState);
        }
        let state = rail.lifecycle.state();
        if state != RailState::Down {
            return Err(ReplaceError::State { rail: id, state });
        }
        let expected = rail.lifecycle.next_generation();
        if given != expected {
            return Err(ReplaceError::Generation { rail: id, expected, given });
        }
        let device = queue_pair.device();
        if !self.devices.contains(device) {
            return Err(ReplaceError::Device { device });
        }
        let limits = queue_pair.limits();
        let message = if id == RailId::Notify { 0 } else { self.config.max_msg_size };
        // Lists are cut, and receives remembered, for what all queue pairs took when they were built.
        let send_sge = if id == RailId::Notify { 1 } else { self.max_sge };
        let recv_sge = if id == RailId::Data(0) { self.max_recv_sge } else { 1 };
        for (what, given, needed) in [
            ("max_send_wr", limits.max_send_wr, rail.sends.limit()),
            ("max_recv_wr", limits.max_recv_wr, rail.recvs.limit()),
            ("max_msg_size", limits.max_msg_size, message),
            ("max_send_sge", usable(limits.max_send_sge), send_sge),
            ("max_recv_sge", usable(limits.max_recv_sge), recv_sge),
        ] {
            if given < needed {
                return Err(ReplaceError::Limit { what, given, needed });
            }
        }
        Ok((rail.device, rail.qp_num))
    }

    fn replaced(&mut self, id: RailId, queue_pair: Q) -> Q {
        let keys_at = self.devices.place_of(id, queue_pair.device());
        let Some(rail) = self.rail_mut(id) else { return queue_pair };
        let is_back = rail.lifecycle.replaced();
        rail.keys_at = keys_at as u8;
        let old = rail.replace(queue_pair);
        if id == RailId::Notify {
            self.move_notify_keys(keys_at);
        }
        if is_back {
            self.rail_returned(id);
        }
        // Its driver may refuse them: then the rail fails behind its return.
        self.post_receives_again(id);
        self.health.needs_care = true;
        self.pump_all();
        old
    }

    /// Requests that wait to be notified of carry the key of the device that the notify queue pair is on.
    fn move_notify_keys(&mut self, keys_at: usize) {
        for id in self.sends.alive() {
            let slot = self.sends.slot(id);
            slot.notify_rkey = slot.keys[keys_at].rkey;
        }
    }

    /// Posts all receives that there are, before the peer may start.
    fn post_receives_again(&mut self, id: RailId) {
        let posted = match id {
            RailId::Data(0) if self.data_receives.used() => self.post_data_receives(),
            RailId::Data(at) => {
                let prepared = self.scheme.has_receives_on_rails();
                let rail = &mut self.rails[usize::from(at)];
                let wanted = if prepared { rail.recvs.limit() } else { 0 };
                if wanted == 0 {
                    Taken { count: 0, refusal: None }
                } else {
                    rail.post_empty_recvs(wanted)
                }
            }
            // The callers' own, which a pump posts.
            RailId::Notify => Taken { count: 0, refusal: None },
        };
        let refusal = posted.refusal;
        let error = self
            .rail(id)
            .zip(refusal)
            .map(|(rail, refusal)| rail.refusal_error(refusal.errno_or_full(), 0));
        if let Some(error) = error {
            self.rail_failed(error);
        }
    }

    /// Posts data receives that rail 0 has room for, oldest first.
    pub(in crate::virtual_qp) fn post_data_receives(&mut self) -> Taken {
        let rail = &mut self.rails[0];
        if rail.recvs.kind() != Some(TagKind::DataRecv) {
            rail.recvs.set_kind(TagKind::DataRecv);
        }
        let mut count = 0;
        while let Some(receive) = self.data_receives.first_unposted(rail.recvs.posted()) {
            let sge =
                |buffer: &Buffer<RAILS>| buffer.local.sge(buffer.lkeys[usize::from(rail.keys_at)]);
            let sges: Gathered = receive.map(sge).collect();
            match rail.post_data_recv(&sges) {
                Ok((_, None)) => count += 1,
                Ok((_, complaint)) => return Taken { count: count + 1, refusal: complaint },
                Err(refusal) => return Taken { count, refusal: Some(refusal) },
            }
        }
        Taken { count, refusal: None }
    }
}
