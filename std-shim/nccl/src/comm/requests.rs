//! Requests that NCCL holds, of one connection.

use super::arrived::Addrs;
use crate::slots::SERIALS;
use polyrail::p2p::{FlushHandle, Received, RecvHandle, SendHandle};

/// Requests that one connection can have: more than its slots, each with eight buffers, ever need.
const MOST: usize = 512;

/// What is waited for.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Send {
        handle: SendHandle,
        bytes: u32,
    },
    Recv {
        handle: RecvHandle,
        /// Where its buffers begin, if they may be flushed.
        addrs: Option<Addrs>,
    },
    /// A receive whose completion nobody waits for.
    Early {
        count: u8,
    },
    Flush {
        handle: FlushHandle,
    },
    /// There was no room for it.
    FlushLater {
        received: Received,
    },
}

/// The requests of one connection, by serial numbers that rise.
#[derive(Debug)]
pub(super) struct Requests {
    all: Box<[Option<(u64, Request)>; MOST]>,
    /// The next serial number, if its place is free.
    next: u64,
    used: usize,
}

impl Requests {
    /// None yet; serial numbers begin here.
    pub(super) fn new(next: u64) -> Self {
        Self { all: Box::new([const { None }; MOST]), next, used: 0 }
    }

    /// Serial numbers below this were given.
    pub(super) const fn spent(&self) -> u64 {
        self.next
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Whether one more finds a place.
    #[inline]
    pub(super) const fn has_room(&self) -> bool {
        self.used < MOST
    }

    /// Takes one, if there is [room](Self::has_room), and returns its serial number.
    #[inline]
    pub(super) fn insert(&mut self, request: Request) -> Option<u64> {
        if !self.has_room() {
            return None;
        }
        // One of as many numbers as there are places has a free one.
        loop {
            let serial = self.next;
            self.next = (serial + 1) % SERIALS;
            let place = &mut self.all[serial as usize % MOST];
            if place.is_none() {
                *place = Some((serial, request));
                self.used += 1;
                return Some(serial);
            }
        }
    }

    #[inline]
    pub(super) fn get(&self, serial: u64) -> Option<&Request> {
        match &self.all[serial as usize % MOST] {
            Some((its, request)) if *its == serial => Some(request),
            _ => None,
        }
    }

    /// It waits for something else now.
    pub(super) fn replace(&mut self, serial: u64, request: Request) {
        if let Some((its, old)) = &mut self.all[serial as usize % MOST]
            && *its == serial
        {
            *old = request;
        }
    }

    /// The caller was told.
    #[inline]
    pub(super) fn remove(&mut self, serial: u64) {
        let place = &mut self.all[serial as usize % MOST];
        if place.take_if(|(its, _)| *its == serial).is_some() {
            self.used -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EARLY: Request = Request::Early { count: 1 };

    #[test]
    fn a_full_table_refuses_and_a_serial_number_is_never_given_twice() {
        let mut requests = Requests::new(SERIALS - 100);
        let serials: Vec<u64> = (0..MOST).map(|_| requests.insert(EARLY).unwrap()).collect();
        assert_eq!(requests.insert(EARLY), None);
        requests.remove(serials[7]);
        requests.remove(serials[7]);
        assert!(requests.get(serials[7]).is_none());
        let again = requests.insert(EARLY).unwrap();
        assert!(!serials.contains(&again), "the place of number 7 has another number now");
        assert_eq!(again as usize % MOST, serials[7] as usize % MOST);
        assert_eq!(requests.insert(EARLY), None);
        assert!(requests.get(again).is_some());
    }
}
