//! Drivers are offered again what they refused: the rest of batches that they took in part, before
//! anything else goes to those rails.

use super::fragments::{Offered, post_fragments};
use super::qp::VirtualQp;
use super::scheme::dqplb::SendNumbers;
use super::scheme::{SchemeRules, Unnumbered};
use crate::hardware::QueuePair;
use crate::rail::{RailError, RailId, RailSet};

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Offers every driver what it refused.
    #[cold]
    pub(super) fn retry_refused(&mut self) {
        let retry = core::mem::replace(&mut self.offers.sends, RailSet::EMPTY);
        for id in retry {
            if self.health.failed {
                self.mark_end(id);
            } else if let Err(error) = self.retry(id) {
                self.fail(error);
            }
            if let RailId::Data(rail) = id {
                self.update_availability(rail as usize);
            }
        }
    }

    fn retry(&mut self, id: RailId) -> Result<(), RailError> {
        match id {
            RailId::Data(rail) => self.retry_fragments(rail as usize),
            RailId::Notify => self.scheme.retry_notifies(&mut self.sends, &mut self.offers),
        }
    }

    /// Offers the driver the rest of a batch of fragments that it took in part.
    fn retry_fragments(&mut self, at: usize) -> Result<(), RailError> {
        let rail = &mut self.rails[at];
        let Some((batch, index, tag)) = rail.sends.partial() else { return Ok(()) };
        let slot = self.sends.slot(batch.wr);
        let size = self.config.max_msg_size;
        let taken = if slot.is_numbered() {
            let rest = Offered::<SendNumbers>::rest(&batch, index, tag, slot, size);
            post_fragments::<_, Q, RAILS, DEPTH>(rail, slot, rest, size)
        } else {
            let rest = Offered::<Unnumbered>::rest(&batch, index, tag, slot, size);
            post_fragments::<_, Q, RAILS, DEPTH>(rail, slot, rest, size)
        };
        rail.sends.accepted(taken.count);
        rail.more_doorbells += u64::from(taken.count > 0);
        let Some(refusal) = taken.refusal else { return Ok(()) };
        self.offers.sends.insert(rail.id);
        let Some(errno) = refusal.errno() else { return Ok(()) };
        let offset = batch.offset + batch.bytes_of(index + taken.count, size);
        let error = rail.refusal_error(errno, offset);
        slot.fail(error.status);
        Err(error)
    }
}
