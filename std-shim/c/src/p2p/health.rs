//! What can be asked about peers for messages.

use super::object::{P2pOn, on_backend};
use crate::arguments::give_list;
use crate::call::call;
use crate::code::Code;
use crate::devices::fixed;
use crate::error::Refusal;
use crate::numbers::Numbers;
use crate::peers::rail_state;
use crate::sized::place;
use crate::table::exclusive;
use crate::types::{P2p, PeerInfo, RailInfo, RailState};
use polyrail::backend::Domain;
use polyrail::hardware::QueuePair;
use polyrail::p2p::{End, P2pMember};
use polyrail::virtual_qp::{self, RailCounters};

/// Where the i-th queue pair of each end stands.
fn states<D: Domain>(member: &P2pMember<D>, at: usize) -> [(RailState, u16); 2] {
    let sends = member.queue_pair_state(End::Sender, at);
    let receives = member.queue_pair_state(End::Receiver, at);
    // Without rerouting, a rail is in service until the connection has failed.
    let known = |state: Option<(virtual_qp::RailState, u16)>| {
        state.map_or((RailState::InService, 0), |(state, of)| (rail_state(state), of))
    };
    [known(sends), known(receives)]
}

impl<D: Domain> P2pOn<D> {
    /// A rail is in service as long as one of its queue pairs is, at both ends.
    fn rails_in_service(member: &P2pMember<D>, rails: u32) -> u32 {
        let each = member.queue_pairs(End::Sender).count();
        let works =
            |at: usize| states(member, at).iter().all(|(state, _)| *state == RailState::InService);
        let in_service = |rail: &u32| (*rail as usize..each).step_by(rails as usize).any(works);
        (0..rails).filter(in_service).count() as u32
    }

    fn rails(&self, peer: u64) -> Result<Vec<RailInfo>, Refusal> {
        let place = self.numbers.place(peer)?;
        let member = Numbers::found(self.set.member(place), peer)?;
        let numbers = |end| member.queue_pairs(end).map(QueuePair::qp_num);
        let each = numbers(End::Sender).count();
        let numbers = numbers(End::Sender).chain(numbers(End::Receiver));
        let info = |((at, qp_num), counters): ((usize, u32), RailCounters)| {
            let place = at % each;
            let (state, generation) = states(member, place)[at / each];
            let RailCounters { bytes, send_requests, doorbells, completions, errors } = counters;
            RailInfo {
                device: fixed(member.device_of(place).unwrap_or_default()),
                rail: place as u32 % self.rails,
                state: state as u32,
                qp_num,
                generation: generation.into(),
                bytes,
                requests: send_requests,
                doorbells,
                completions,
                errors,
                failures: 0,
                posted_again: 0,
                reserved: [0; 2],
            }
        };
        Ok(numbers.enumerate().zip(member.counters()).map(info).collect())
    }

    fn info(&mut self, peer: u64) -> Result<PeerInfo, Refusal> {
        let place = self.numbers.place(peer)?;
        // Ends are noticed there.
        self.drive_one(place, peer);
        let kept = &self.kept[place];
        let member = Numbers::found(self.set.member(place), peer)?;
        let rails = self.rails;
        let in_service = Self::rails_in_service(member, rails);
        let state = kept.state(kept.end.is_some(), in_service < rails);
        let (sent, received) = member.unfinished();
        Ok(PeerInfo {
            size: 0,
            state: state as u32,
            rails,
            rails_in_service: in_service,
            unreported: (sent + received) as u32,
            has_link: kept.link.is_some().into(),
            words: fixed(kept.end.as_deref().unwrap_or_default()),
        })
    }
}

/// Where a connection stands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_p2p_info(p2p: *mut P2p, peer: u64, info: *mut PeerInfo) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { place(info) }?;
        place.put(&on_backend!(&mut *exclusive(p2p)?, p2p => p2p.info(peer)?));
        Ok(())
    })
}

/// What every queue pair of a connection did: those that send, then those that receive. Stores up to `capacity`, and
/// in `count` how many there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_p2p_rails(
    p2p: *mut P2p,
    peer: u64,
    rails: *mut RailInfo,
    capacity: usize,
    count: *mut usize,
) -> Code {
    call(|| {
        let all = on_backend!(&mut *exclusive(p2p)?, p2p => p2p.rails(peer)?);
        // SAFETY: the caller's promise.
        unsafe { give_list((rails, capacity), count, &all) }
    })
}
