//! Numbers of peers: which place, and which peer in it.

use crate::code::Code;
use crate::error::{Refusal, refuse};

const PLACE_BITS: u32 = 16;

/// The peers of an object, by place.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// 0 in a free place.
    places: Vec<u64>,
    /// How many there have been.
    sequence: u64,
}

impl Numbers {
    /// Gives the peer in this place a number that none had before.
    pub(crate) fn add(&mut self, place: usize) -> u64 {
        self.sequence += 1;
        let number = self.sequence << PLACE_BITS | place as u64;
        if self.places.len() <= place {
            self.places.resize(place + 1, 0);
        }
        self.places[place] = number;
        number
    }

    /// Returns the place of a peer.
    #[inline]
    pub(crate) fn place(&self, peer: u64) -> Result<usize, Refusal> {
        let place = (peer & ((1 << PLACE_BITS) - 1)) as usize;
        if peer != 0 && self.places.get(place) == Some(&peer) {
            return Ok(place);
        }
        refuse(Code::Peer, format_args!("unknown or removed peer {peer:#x}"))
    }

    /// Refuses a peer that its set does not have.
    #[inline]
    pub(crate) fn found<T>(member: Option<T>, peer: u64) -> Result<T, Refusal> {
        match member {
            Some(member) => Ok(member),
            None => refuse(Code::Peer, format_args!("peer {peer:#x} was removed")),
        }
    }

    /// Frees this place.
    pub(crate) fn remove(&mut self, place: usize) {
        if let Some(number) = self.places.get_mut(place) {
            *number = 0;
        }
    }

    /// All of them, with their places.
    pub(crate) fn all(&self) -> impl Iterator<Item = (usize, u64)> {
        self.places.iter().copied().enumerate().filter(|(_, peer)| *peer != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_of_one_peer_only() {
        let mut numbers = Numbers::default();
        let (first, second) = (numbers.add(0), numbers.add(1));
        assert_eq!((first & 0xffff, second & 0xffff), (0, 1));
        assert_eq!((numbers.place(first).ok(), numbers.place(second).ok()), (Some(0), Some(1)));
        numbers.remove(0);
        assert!(numbers.place(first).is_err());
        let third = numbers.add(0);
        assert!(third != first && numbers.place(first).is_err());
        assert_eq!(numbers.all().collect::<Vec<_>>(), [(0, third), (1, second)]);
        for never in [0, 2, 1 << 40, u64::MAX] {
            assert!(numbers.place(never).is_err(), "{never}");
        }
    }
}
