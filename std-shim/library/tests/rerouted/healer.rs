//! One end that heals over a channel, as a process does. One of the two offers new queue pairs, the other
//! answers.

use polyrail::endpoint::{Endpoint, Replacement, ReplacementAddress};
use polyrail::nic::QueuePair;
use polyrail::virtual_qp::{ControlMessage, RailId, RailState};

/// What travels, as bytes.
#[derive(Debug)]
pub enum Parcel {
    /// What an endpoint tells.
    Control([u8; ControlMessage::BYTES]),
    /// A queue pair that the peer is to answer with one of its own.
    Offer(String),
    /// One that is in place, and goes with the offered one.
    Answer(String),
    /// An offer or an answer came in vain: its queue pair has no other end.
    InVain(RailId, u16),
}

/// What an end knows of replacing.
#[derive(Debug)]
pub struct Healer {
    offers: bool,
    /// Its queue pairs that were offered.
    offered: Vec<Replacement<QueuePair>>,
}

fn rails() -> impl Iterator<Item = RailId> {
    (0..4).map(RailId::Data).chain([RailId::Notify])
}

fn state(endpoint: &Endpoint, rail: RailId) -> Option<RailState> {
    endpoint.virtual_qp().rail_state(rail)
}

impl Healer {
    pub fn new(offers: bool) -> Self {
        Self { offers, offered: Vec::new() }
    }

    /// After a poll: what there is to be sent.
    pub fn said(&mut self, endpoint: &mut Endpoint) -> Vec<Parcel> {
        let told = std::iter::from_fn(|| endpoint.next_control());
        let mut said: Vec<Parcel> = told.map(|told| Parcel::Control(told.encode())).collect();
        if self.offers {
            said.extend(rails().filter_map(|rail| self.offer(endpoint, rail)));
        }
        said
    }

    fn offer(&mut self, endpoint: &Endpoint, rail: RailId) -> Option<Parcel> {
        if state(endpoint, rail) != Some(RailState::Down) {
            return None;
        }
        let next = endpoint.virtual_qp().rail_generation(rail).map(|now| now.wrapping_add(1));
        let is_next = |own: &Replacement<_>| Some(own.address().generation) == next;
        self.offered.retain(|own| own.address().rail != rail || is_next(own));
        if self.offered.iter().any(|own| own.address().rail == rail) {
            return None;
        }
        let own = endpoint.new_queue_pair(rail).ok()?;
        let offer = Parcel::Offer(own.address().to_json());
        self.offered.push(own);
        Some(offer)
    }

    /// Takes what came; returns what there is to be answered.
    pub fn hear(&mut self, endpoint: &mut Endpoint, parcel: Parcel) -> Option<Parcel> {
        let read = |text: &str| ReplacementAddress::from_json(text.as_bytes()).unwrap();
        match parcel {
            Parcel::Control(bytes) => {
                endpoint.control(ControlMessage::decode(&bytes).unwrap()).unwrap();
                None
            }
            Parcel::Offer(text) => Some(answer(endpoint, &read(&text))),
            Parcel::Answer(text) => self.answered(endpoint, &read(&text)),
            Parcel::InVain(rail, generation) => {
                let is_it =
                    |own: &ReplacementAddress| (own.rail, own.generation) == (rail, generation);
                self.offered.retain(|own| !is_it(own.address()));
                if endpoint.virtual_qp().rail_generation(rail) == Some(generation) {
                    endpoint.fail_rail(rail);
                }
                None
            }
        }
    }

    fn answered(&mut self, endpoint: &mut Endpoint, peer: &ReplacementAddress) -> Option<Parcel> {
        let at = self.offered.iter().position(|own| own.address().rail == peer.rail);
        let replaced = at.map(|at| endpoint.replace(self.offered.swap_remove(at), peer));
        let in_vain = Parcel::InVain(peer.rail, peer.generation);
        if replaced.is_some_and(|replaced| replaced.is_ok()) { None } else { Some(in_vain) }
    }

    /// What was under way is lost. New queue pairs that the other end may never have heard of are given up.
    pub fn link_broke(&mut self, endpoint: &mut Endpoint) {
        self.offered.clear();
        for rail in rails() {
            if state(endpoint, rail) == Some(RailState::Joining) {
                endpoint.fail_rail(rail);
            }
        }
        endpoint.control_lost();
    }
}

fn answer(endpoint: &mut Endpoint, offer: &ReplacementAddress) -> Parcel {
    let answer = endpoint.new_queue_pair_for(offer).and_then(|own| {
        let address = *own.address();
        endpoint.replace(own, offer).map(|()| address)
    });
    match answer {
        Ok(address) => Parcel::Answer(address.to_json()),
        Err(_) => Parcel::InVain(offer.rail, offer.generation),
    }
}
