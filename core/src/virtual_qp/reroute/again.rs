//! What was lost is posted again, before anything else.

use crate::hardware::QueuePair;
use crate::rail::{Batch, Content, PhysicalRail, RailId};
use crate::virtual_qp::dispatch::load;
use crate::virtual_qp::list::post_rest_of;
use crate::virtual_qp::parts::front_bytes;
use crate::virtual_qp::qp::VirtualQp;
use crate::virtual_qp::scheme::Numbering;
use crate::virtual_qp::scheme::dqplb::SendNumbers;

/// A lost batch in the ring of the rail that lost it.
#[derive(Clone, Copy)]
struct Found {
    rail: usize,
    number: u64,
    batch: Batch,
}

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Posts lost fragments again as far as rails have credits.
    pub(super) fn post_again(&mut self) {
        for rail in 0..self.rails.len() {
            let mut from = 0;
            while let Some((number, batch)) = self.rails[rail].sends.next_lost(from) {
                from = number + u64::from(batch.count);
                let found = Found { rail, number, batch };
                if !self.may_go_again(&found) {
                    continue;
                }
                // No rail can take fragments now, so the other batches of this rail find none
                // either.
                let Some(target) = self.choose_again(rail, u32::from(batch.count)) else { break };
                self.post_lost(&found, target);
                // What it did not take is next.
                from = number;
            }
            self.update_rail(RailId::Data(rail as u8));
        }
    }

    /// Whether a lost batch may be posted again: plain fragments after the local drain, since they
    /// are reported only when the lost copies can no longer be executed; numbered ones when it is
    /// known that they did not arrive, since numbers must not arrive twice.
    fn may_go_again(&self, found: &Found) -> bool {
        let rail = &self.rails[found.rail];
        // Until the local drain is over, more of what this rail has in flight may complete with
        // success: `rails-that-fail.md`, "What happens to requests".
        let is_drained = !rail.sends.is_losing() || rail.health.lifecycle.is_drained();
        match found.batch.content {
            Content::Fragments => is_drained,
            Content::Numbered => rail.sends.is_resolved(found.number),
            _ => false,
        }
    }

    /// The rail for a lost batch of `count` fragments: its own rail if that is back, or any rail
    /// that may be given fragments.
    fn choose_again(&mut self, own: usize, count: u32) -> Option<usize> {
        let rail = &self.rails[own];
        // Lost batches keep their places in the ring of their rail, and while they do it carries
        // nothing else ("lost batches keep their places" in `lost_invariants`).
        if rail.is_in_service() && !self.is_owed(own) && rail.sends.credits() > 0 {
            return Some(own);
        }
        let Self { rails, chooser, .. } = self;
        let mut round = chooser.round();
        chooser.next(&mut round, count, count, || load(rails)).map(|(at, _)| at)
    }

    /// Posts as much of a lost batch to a rail as it has credits for.
    fn post_lost(&mut self, found: &Found, target: usize) {
        let Found { rail: own, number, batch } = *found;
        let cut = self.cut();
        let count = u32::from(batch.count).min(self.rails[target].sends.credits());
        let (piece, rest) = split(batch, count, front_bytes(&self.sends, &batch, count, cut));
        // Taken off first: on its own rail, it may move to the same place.
        self.rails[own].sends.take_lost(number, rest);
        // The batch is two from now on. Otherwise the request would look complete when this piece
        // is acknowledged.
        self.sends.slot(batch.wr).batches_in_flight += u32::from(rest.is_some());
        let rail = &mut self.rails[target];
        let tag = rail.sends.push_again(piece);
        let taken = post_rest_of(rail, &mut self.sends, &piece, 0, tag, cut);
        if taken.refusal.is_some() {
            rail.sends.truncate(count, taken.count);
            let id = rail.id;
            let error = taken.refusal.and_then(|refusal| refusal.errno());
            let error = error.map(|errno| rail.refusal_error(errno, piece.offset));
            // Nothing was posted, so the batch is whole again. Taken in part, the piece stays on
            // the target, whose driver is offered the rest.
            if taken.count == 0 {
                self.sends.slot(batch.wr).batches_in_flight -= u32::from(rest.is_some());
                self.rails[own].sends.put_back_lost(number, batch);
            }
            self.offers.sends.insert(id);
            if let Some(error) = error {
                self.request_refused(batch.wr, error);
            }
        }
        self.update_rail(RailId::Data(target as u8));
    }
}

/// Splits a lost batch into what goes out now, `bytes` of it, and the rest.
fn split(batch: Batch, count: u32, bytes: u32) -> (Batch, Option<Batch>) {
    if count == u32::from(batch.count) {
        return (batch, None);
    }
    let number = match batch.content {
        Content::Numbered => SendNumbers::number_of(&batch, count).get(),
        _ => 0,
    };
    let (front, rest) = batch.split(count, bytes, number);
    (front, Some(rest))
}
