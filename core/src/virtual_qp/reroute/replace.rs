//! A new queue pair takes the place of one that failed.

use crate::hardware::{CompletionQueue, QueuePair, Taken};
use crate::rail::tag::TagKind;
use crate::rail::{PhysicalRail, RailId, Rails, Rejected};
use crate::virtual_cq::VirtualCq;
use crate::virtual_qp::data_receives::Buffer;
use crate::virtual_qp::parts::Gathered;
use crate::virtual_qp::qp::VirtualQp;

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Puts a new queue pair in the place of one that failed, and routes its completions: `index`
    /// is where this virtual queue pair is attached to `cq`. The rail is Down, and the queue pair
    /// is connected to the peer's of the same `generation`, the one after
    /// [`rail_generation`](Self::rail_generation).
    ///
    /// The queue pair may be on any device that a rail was built on. Whichever it is, it uses keys
    /// of requests for that device, and for the peer's device that the rail
    /// [met](Self::pair_devices) from the beginning.
    ///
    /// The old queue pair is returned, to be destroyed. (Destroyed before there is a new one, its
    /// number might be given away again.) The rail carries requests once the peer's queue pair is
    /// there too.
    ///
    /// # Errors
    ///
    /// Nothing changed, and the queue pair is given back: see
    /// [`ReplaceError`](crate::virtual_qp::ReplaceError).
    pub fn replace_rail<C: CompletionQueue, const CQS: usize, const ROUTES: usize>(
        &mut self,
        cq: &mut VirtualCq<C, CQS, ROUTES>,
        index: u16,
        rail: RailId,
        generation: u16,
        queue_pair: Q,
    ) -> Result<Q, Rejected<Q>> {
        let old = self.replace((cq, index), rail, generation, queue_pair)?;
        if rail == RailId::Notify {
            self.move_notify_keys();
        }
        // If its driver refuses them, the rail fails behind its return.
        self.post_receives_again(rail);
        self.pump_all();
        Ok(old)
    }

    /// Requests that wait to be notified of carry the key of the device that the notify queue pair
    /// is on.
    fn move_notify_keys(&mut self) {
        let keys_at = self.scheme.notify().map_or(0, |notify| usize::from(notify.keys_at));
        for id in self.sends.alive() {
            let slot = self.sends.slot(id);
            // A key is valid on one device only, and the new queue pair may be on another one.
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
                // All of them, because the peer may send as soon as it has Ready:
                // `rails-that-fail.md`, "What happens to requests".
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
            // Nothing is posted, as `set_kind` requires: a receive queue has receives of one kind
            // only.
            rail.recvs.set_kind(TagKind::DataRecv);
        }
        let mut count = 0;
        while let Some(receive) = self.data_receives.first_unposted(rail.recvs.posted()) {
            let sge =
                |buffer: &Buffer<RAILS>| buffer.local.sge(buffer.lkeys[usize::from(rail.keys_at)]);
            let sges: Gathered = receive.map(sge).collect();
            match rail.post_data_recv(&sges) {
                Ok((_, None)) => count += 1,
                // The driver took the receive and complained, so it counts as posted.
                Ok((_, complaint)) => return Taken { count: count + 1, refusal: complaint },
                Err(refusal) => return Taken { count, refusal: Some(refusal) },
            }
        }
        Taken { count, refusal: None }
    }
}
