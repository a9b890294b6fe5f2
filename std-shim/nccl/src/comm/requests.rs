//! The requests of one connection that NCCL has a handle of.

use super::arrived::Addrs;
use crate::slots::SERIALS;
use polyrail::p2p::{FlushHandle, Received, RecvHandle, SendHandle};

/// Maximum requests of a connection: more than its slots, each with eight buffers, can need.
const MOST: usize = 512;

/// A request in flight.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Send {
        handle: SendHandle,
        bytes: u32,
    },
    Recv {
        handle: RecvHandle,
        /// The addresses of its buffers, if they may be flushed.
        addrs: Option<Addrs>,
    },
    /// A receive that is reported as done when it is posted.
    Early {
        count: u8,
    },
    Flush {
        handle: FlushHandle,
    },
    /// A flush that could not be posted yet.
    FlushLater {
        received: Received,
    },
}

/// The requests of one connection, by ascending serial numbers.
#[derive(Debug)]
pub(super) struct Requests {
    all: Box<[Option<(u64, Request)>; MOST]>,
    /// The next serial number, if its place is free.
    next: u64,
    used: usize,
}

impl Requests {
    /// Makes an empty table; `next` is the first serial number.
    pub(super) fn new(next: u64) -> Self {
        Self { all: Box::new([const { None }; MOST]), next, used: 0 }
    }

    /// Returns the next serial number; lower ones were used.
    pub(super) const fn spent(&self) -> u64 {
        self.next
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Returns whether another request fits.
    #[inline]
    pub(super) const fn has_room(&self) -> bool {
        self.used < MOST
    }

    /// Adds a request, if there is [room](Self::has_room), and returns its serial number.
    #[inline]
    pub(super) fn insert(&mut self, request: Request) -> Option<u64> {
        if !self.has_room() {
            return None;
        }
        // Not full, so one of the next `MOST` numbers has a free place.
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

    /// Replaces a request under the same serial number.
    pub(super) fn replace(&mut self, serial: u64, request: Request) {
        if let Some((its, old)) = &mut self.all[serial as usize % MOST]
            && *its == serial
        {
            *old = request;
        }
    }

    /// Removes a request whose result the caller has.
    #[inline]
    pub(super) fn remove(&mut self, serial: u64) {
        let place = &mut self.all[serial as usize % MOST];
        // Not taken out, which would copy it.
        if matches!(place, Some((its, _)) if *its == serial) {
            *place = None;
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
