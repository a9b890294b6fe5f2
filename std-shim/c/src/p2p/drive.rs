//! What happens beside messages: links, rails, ends.

use super::meets::Member;
use super::object::{P2pOn, on_backend};
use crate::call::call;
use crate::code::Code;
use crate::error::{Failure, Refusal};
use crate::news::Item;
use crate::table::exclusive;
use crate::types::{Event, P2p};
use polyrail::backend::Domain;
use polyrail::chain::Chain;
use polyrail::p2p::End;
use std::ffi::c_void;

impl<D: Domain> P2pOn<D> {
    fn poll(&mut self, budget: usize) -> Result<(), Refusal> {
        let polled = self.set.poll(budget);
        if self.pace.is_time() {
            self.drive();
        }
        match polled {
            Err(error) if !self.survives() => {
                let words = format_args!("a completion queue cannot be polled: {error:?}");
                Err(Failure::new(Code::Device, words).into())
            }
            _ => Ok(()),
        }
    }

    /// Drives links of all peers, and finds out what happened to rails.
    #[cold]
    fn drive(&mut self) {
        let all: Vec<_> = self.numbers.all().collect();
        all.into_iter().for_each(|(place, peer)| self.drive_one(place, peer));
    }

    pub(super) fn drive_one(&mut self, place: usize, peer: u64) {
        let rails = self.rails;
        let Self { set, kept, news, .. } = self;
        let Some(kept) = kept.get_mut(place) else { return };
        kept.drive(peer, &mut Member { set, place }, news);
        let Some(member) = set.member_mut(place) else { return };
        while news.has_room() {
            let Some((end, place, event)) = member.take_event() else { break };
            let end = match end {
                End::Sender => "sends",
                End::Receiver => "receives",
            };
            let rail = place as u32 % rails;
            let device = member.device_of(place).unwrap_or_default();
            let words =
                format!("rail {rail} (device {device}), the end that {end}: {:?}", event.kind);
            news.push(peer, Item::of_rail(rail, &event.kind, words));
        }
        if let Some(failure) = member.send_failure().or(member.recv_failure()) {
            kept.fail(peer, || Chain(failure).to_string(), news);
        }
    }
}

/// Drives everything that waits for completions: takes up to `budget` of them; and now and then links and healing.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_p2p_poll(p2p: *mut P2p, budget: usize) -> Code {
    call(|| on_backend!(&mut *exclusive(p2p)?, p2p => p2p.poll(budget)))
}

/// Drives links and healing at once, which otherwise some of the polls do. Never waits for long: making a queue pair
/// may take a driver milliseconds.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_p2p_drive(p2p: *mut P2p) -> Code {
    call(|| {
        on_backend!(&mut *exclusive(p2p)?, p2p => {
            p2p.set.heal();
            p2p.drive();
        });
        Ok(())
    })
}

/// The oldest thing that happened to a peer and was not taken yet, with the bytes that came with it, which may be as
/// many as POLYRAIL_MESSAGE_BYTES; POLYRAIL_CODE_TOO_SHORT leaves it where it is. Never waits:
/// POLYRAIL_CODE_NOT_NOW.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_p2p_next_event(
    p2p: *mut P2p,
    event: *mut Event,
    bytes: *mut c_void,
    capacity: usize,
) -> Code {
    call(|| {
        on_backend!(&mut *exclusive(p2p)?, p2p => {
            // SAFETY: the caller's promise.
            unsafe { p2p.news.next(event, bytes, capacity) }
        })
    })
}
