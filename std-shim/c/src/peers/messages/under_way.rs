//! Unfinished messages, by the numbers of their requests.

use crate::code::Code;
use crate::error::{Refusal, refuse};
use polyrail::p2p::{FlushHandle, Received, RecvHandle, SendHandle};

const PLACE_BITS: u32 = 24;

/// The kind of a request, with its handle.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    Send(SendHandle),
    Receive(RecvHandle),
    /// A receive that is done and was kept.
    Kept(Received),
    Flush(FlushHandle),
}

/// A request, and its peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) peer: u64,
    pub(super) work: Work,
}

/// Messages that are not done, by place. Places are reused, but numbers are not.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    places: Vec<(u64, Option<Entry>)>,
    free: Vec<u32>,
}

impl UnderWay {
    /// Whether there is room for one more, so that no message starts without a number for its
    /// request.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty() || self.places.len() < 1 << PLACE_BITS
    }

    /// Adds a request, and returns its number.
    pub(super) fn add(&mut self, entry: Entry) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            (self.places.len() - 1) as u32
        });
        let (generation, slot) = &mut self.places[place as usize];
        *generation += 1;
        *slot = Some(entry);
        *generation << PLACE_BITS | u64::from(place)
    }

    /// Returns the request with this number.
    #[inline]
    pub(super) fn get(&mut self, number: u64) -> Result<&mut Entry, Refusal> {
        let place = (number & ((1 << PLACE_BITS) - 1)) as usize;
        match self.places.get_mut(place) {
            Some((generation, Some(entry))) if *generation == number >> PLACE_BITS => Ok(entry),
            _ => {
                let words =
                    format!("request {number:#x} is unknown, or its result was already returned");
                refuse(Code::Request, words)
            }
        }
    }

    /// Removes the requests of this peer.
    pub(super) fn forget_of(&mut self, peer: u64) {
        for (place, (_, slot)) in (0..).zip(&mut self.places) {
            if slot.take_if(|entry| entry.peer == peer).is_some() {
                self.free.push(place);
            }
        }
    }

    /// Removes the request with this number.
    pub(super) fn forget(&mut self, number: u64) {
        let place = (number & ((1 << PLACE_BITS) - 1)) as usize;
        if let Some((generation, slot)) = self.places.get_mut(place)
            && *generation == number >> PLACE_BITS
            && slot.take().is_some()
        {
            self.free.push(place as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail::memory::RegisteredBuffer;
    use polyrail::nic::{DeviceConfig, Fabric};
    use polyrail::p2p::{P2pBuilder, RecvBuffer, connect_endpoints};
    use polyrail::verbs::AccessFlags;

    #[test]
    fn a_number_is_of_one_request_only() {
        let fabric = Fabric::threaded();
        let domain = fabric.create_device(DeviceConfig::named("a")).alloc_pd().unwrap();
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let buffer = RegisteredBuffer::new(64, access, &[&domain]).unwrap();
        let builder = P2pBuilder::new();
        let mut near = builder.build(&[&domain]).unwrap();
        let mut far = builder.build(&[&domain]).unwrap();
        connect_endpoints(&mut near, &mut far).unwrap();
        let keys = buffer.own_keys();
        let offered = RecvBuffer { local: buffer.local(0, 64).unwrap(), tag: 0, keys: &keys };
        let work = Work::Receive(near.irecv(&[offered]).unwrap());
        let mut requests = UnderWay::default();
        let first = requests.add(Entry { peer: 1, work });
        let second = requests.add(Entry { peer: 2, work });
        assert_eq!(requests.get(first).unwrap().peer, 1);
        requests.forget(first);
        assert!(requests.get(first).is_err());
        requests.forget(first);
        let third = requests.add(Entry { peer: 3, work });
        assert!(third != first && requests.get(first).is_err());
        assert_eq!(requests.get(third).unwrap().peer, 3);
        assert_eq!(requests.get(second).unwrap().peer, 2);
        let fourth = requests.add(Entry { peer: 4, work });
        assert_eq!(requests.get(fourth).unwrap().peer, 4);
        requests.forget_of(3);
        assert!(requests.get(third).is_err() && requests.get(fourth).is_ok());
        let fifth = requests.add(Entry { peer: 5, work });
        assert_eq!((requests.places.len(), requests.get(fifth).unwrap().peer), (3, 5));
        for never in [0, u64::MAX, first + (1 << PLACE_BITS << 5)] {
            assert!(requests.get(never).is_err(), "{never:#x}");
        }
    }
}
