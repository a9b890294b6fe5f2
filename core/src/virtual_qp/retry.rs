//! Drivers are offered again what they refused: the rest of batches that they took in part, before
//! anything else goes to those rails.

use super::list_fragments::post_rest_of;
use super::parts::front_bytes;
use super::qp::VirtualQp;
use super::scheme::Refused;
use crate::hardware::QueuePair;
use crate::rail::{RailId, RailSet};

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Offers every driver what it refused.
    #[cold]
    pub(super) fn retry_refused(&mut self) {
        let retry = core::mem::replace(&mut self.offers.sends, RailSet::EMPTY);
        for id in retry {
            if self.health.failed || self.is_losing(id) {
                self.mark_end(id);
            } else if let Err(Refused { request, error }) = self.retry(id) {
                self.request_refused(request, error);
            }
            if let RailId::Data(rail) = id {
                self.update_availability(rail as usize);
            }
        }
    }

    fn retry(&mut self, id: RailId) -> Result<(), Refused> {
        match id {
            RailId::Data(rail) => self.retry_fragments(rail as usize),
            RailId::Notify => self.scheme.retry_notifies(&mut self.sends, &mut self.offers),
        }
    }

    /// Offers the driver the rest of a batch of fragments that it took in part.
    fn retry_fragments(&mut self, at: usize) -> Result<(), Refused> {
        let cut = self.cut();
        let rail = &mut self.rails[at];
        let Some((batch, index, tag)) = rail.sends.partial() else { return Ok(()) };
        let taken = post_rest_of(rail, &mut self.sends, &batch, index, tag, cut);
        rail.sends.accepted(taken.count);
        rail.more_doorbells += u64::from(taken.count > 0);
        let Some(refusal) = taken.refusal else { return Ok(()) };
        self.offers.sends.insert(rail.id);
        let Some(errno) = refusal.errno() else { return Ok(()) };
        let offset = batch.offset + front_bytes(&self.sends, &batch, index + taken.count, cut);
        Err(Refused { request: batch.wr, error: rail.refusal_error(errno, offset) })
    }
}
