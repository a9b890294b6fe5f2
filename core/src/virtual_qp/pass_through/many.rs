//! Several SENDs and atomics with one doorbell.

use crate::hardware::{QueuePair, Refusal, SendBatch, Taken};
use crate::rail::{Batch, Content, RailId};
use crate::verbs::{Opcode, SendFlags, SendWr};
use crate::virtual_qp::qp::VirtualQp;
use crate::virtual_qp::slot::Keys;

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Posts those of these requests, from the first on, that may go straight to rail 0, if they are several.
    /// Returns how many; the next one is to be looked at on its own.
    pub(in crate::virtual_qp) fn bypass_many(&mut self, wrs: &[SendWr<'_>]) -> usize {
        let room = self.rails[0].sends.credits() as usize;
        let may_pass = |(at, wr): &(usize, &SendWr<'_>)| {
            let follows = *at == 0 || !wr.flags.contains(SendFlags::FENCE);
            follows && is_pass_through(wr.opcode) && self.check_pass_through(wr).is_ok()
        };
        let count = wrs.iter().take(room).enumerate().take_while(may_pass).count();
        if count < 2 || self.health.failed || !self.may_bypass(&wrs[0]) {
            return 0;
        }
        let imm_order = self.header.imm_order;
        let rail = &mut self.rails[0];
        let mut added = 0;
        let mut sends = rail.qp.start_send();
        for wr in &wrs[..count] {
            let Ok(keys) = Keys::of(wr, rail.device, 0) else { break };
            let signaled = wr.flags.contains(SendFlags::SIGNALED);
            let content = if signaled { Content::PassThrough } else { Content::Unsignaled };
            let batch = Batch::one(wr.wr_id, wr.local.length(), content, wr.opcode);
            let mut request = keys.request(wr, imm_order);
            request.wr_id = rail.sends.push(batch).last().wr_id();
            request.flags |= SendFlags::SIGNALED;
            sends.add(&request);
            added += 1;
        }
        if added == 0 {
            return 0;
        }
        let taken = Taken::of(added, sends.commit());
        for _ in taken.count..added {
            rail.sends.truncate(1, 0);
        }
        rail.shared_doorbells += u64::from(taken.count.saturating_sub(1));
        self.pass_through.bypassing += taken.count;
        match taken.refusal {
            Some(Refusal::QueueFull) => self.offers.sends.insert(RailId::Data(0)),
            Some(complaint) if taken.count == added => {
                self.driver_complained(RailId::Data(0), complaint);
            }
            // The next one is offered again, and refused again or not.
            Some(Refusal::Driver(_)) | None => {}
        }
        self.update_availability(0);
        self.debug_invariants();
        taken.count as usize
    }
}

const fn is_pass_through(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::Send | Opcode::SendWithImm | Opcode::CompareSwap | Opcode::FetchAdd)
}
