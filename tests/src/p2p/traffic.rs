//! Applications send and receive, and the oracle computes the expected result.

use super::World;
use super::cancel::is_taken_back;
use super::connection::{Connection, Flush, Outgoing, Place, Receive, keys};
use super::memory::{Kind, Owner, Source, Target};
use crate::choices::{Choices, Seeded, pick};
use polyrail_core::internals::entry_word;
use polyrail_core::p2p::{CallError, NotNow, Received, RecvBuffer, SendHandle};
use polyrail_core::verbs::LocalBuffer;
use polyrail_core::virtual_qp::RailState;

/// A buffer that only the NICs of the test read.
fn local(addr: u64, length: u32) -> LocalBuffer {
    // SAFETY: no device reads or writes it: only what would land there is kept.
    unsafe { LocalBuffer::new(addr, length) }
}

impl<const DEPTH: usize, const SLOTS: usize> World<DEPTH, SLOTS> {
    /// An application offers buffers.
    pub(super) fn irecv(&mut self, at: usize, draw: u32) {
        let mut choices = Seeded::new(draw.into());
        let connection = &self.connections[at];
        if !self.shape.script.is_empty() {
            return self.offer_next(at);
        }
        let line = &connection.line;
        if connection.receives.len() - connection.sent >= line.ahead as usize {
            return;
        }
        let count = if choices.coin() { 1 } else { 1 + choices.below(line.buffers) };
        let lengths: Vec<_> = (0..count).map(|_| line.length(&mut choices)).collect();
        let tags = pick(&mut choices, &[1, 2, 1 << 16]);
        let tags: Vec<_> = (0..count).map(|_| choices.below(tags)).collect();
        self.offer(at, &lengths, &tags);
    }

    /// Offers the buffers of the script.
    fn offer_next(&mut self, at: usize) {
        let number = self.connections[at].receives.len();
        if let Some(lengths) = self.shape.script.get(number).cloned() {
            let tags: Vec<_> = (0..lengths.len() as u32).collect();
            self.offer(at, &lengths, &tags);
        }
    }

    /// Offers buffers of these lengths. Returns whether that was taken.
    pub(super) fn offer(&mut self, at: usize, lengths: &[u32], tags: &[u32]) -> bool {
        let connection = &mut self.connections[at];
        let to = 1 - connection.line.from;
        let number = connection.receives.len() as u64 + 1;
        let nics = &self.nics;
        let place = |(buffer, (length, tag)): (usize, (&u32, &u32))| {
            let owner = Owner { connection: connection.id, number, buffer: buffer as u8 };
            let kind = Kind::Target(Target::new(owner));
            let block = nics.borrow_mut().memory.buffer(to, *length, kind);
            Place { block, capacity: *length, tag: *tag, sent: None }
        };
        let places: Vec<_> = lengths.iter().zip(tags).enumerate().map(place).collect();
        let keys: Vec<_> = places.iter().map(|place| keys(to, place.block)).collect();
        let buffers: Vec<_> = places
            .iter()
            .zip(&keys)
            .map(|(place, keys)| {
                let addr = nics.borrow().memory.block(place.block).addr;
                RecvBuffer { local: local(addr, place.capacity), tag: place.tag, keys }
            })
            .collect();
        let before = nics.borrow().posted;
        nics.borrow_mut().has_refused = false;
        let result = connection.receiver.irecv(&buffers);
        let (after, has_refused) = (nics.borrow().posted, nics.borrow().has_refused);
        match result {
            Ok(handle) => {
                assert_eq!(handle.number(), number, "receives are numbered in order");
                connection.receives.push(Receive {
                    handle: Some(handle),
                    places,
                    is_offered: false,
                    mask: 0,
                    signals: 0,
                    carriers: 0,
                    is_asked: false,
                    is_unwanted: false,
                    is_void: false,
                    is_delivered: false,
                });
                self.summary.receives += 1;
                self.check_promised(to);
                true
            }
            Err(error) => {
                let is_same = after == before || connection.may_fail || connection.failures > 0;
                assert!(is_same, "{error}: nothing changed");
                if self.is_loud {
                    eprintln!("  {error}");
                }
                connection.check_irecv_error(error, number, has_refused);
                if after == before {
                    nics.borrow_mut().memory.forget(places.len());
                }
                self.summary.refused += 1;
                false
            }
        }
    }

    /// An application sends, mostly what is waited for.
    pub(super) fn isend(&mut self, at: usize, draw: u32) {
        let mut choices = Seeded::new(draw.into());
        let connection = &self.connections[at];
        let Some(front) = connection.receives.get(connection.sent) else {
            let length = connection.line.length(&mut choices);
            self.send(at, choices.below(4), length);
            return;
        };
        let open: Vec<_> = front.places.iter().filter(|place| place.sent.is_none()).collect();
        if open.is_empty() {
            // A send to it was taken back, and is not tested.
            return;
        }
        if !self.shape.script.is_empty() {
            let Place { capacity, tag, .. } = *open[0];
            self.send(at, tag, capacity);
            return;
        }
        let Place { capacity, tag, .. } = *pick(&mut choices, &open);
        let length = match choices.below(8) {
            0..=3 => capacity,
            4 => capacity.saturating_sub(choices.below(200)),
            5 => choices.below(65_536).min(capacity),
            6 => connection.line.length(&mut choices).min(capacity),
            _ => connection.line.length(&mut choices),
        };
        let tag = if choices.one_in(16) { choices.below(3) } else { tag };
        self.send(at, tag, length);
    }

    /// Sends a buffer of this length. Returns whether that was taken.
    pub(super) fn send(&mut self, at: usize, tag: u32, length: u32) -> bool {
        let connection = &mut self.connections[at];
        let from = connection.line.from;
        let number = connection.sent as u64 + 1;
        let owner = Owner { connection: connection.id, number, buffer: 0 };
        let is_readable = tag.is_multiple_of(2);
        let source = Kind::Source(Source { owner, is_readable, is_given_back: false });
        let block = self.nics.borrow_mut().memory.buffer(from, length, source);
        let addr = self.nics.borrow().memory.block(block).addr;
        let before = self.nics.borrow().posted;
        self.nics.borrow_mut().has_refused = false;
        let (local, keys) = (local(addr, length), keys(from, block));
        let result = match is_readable {
            true => connection.sender.isend_inline(local, tag, &keys),
            false => connection.sender.isend(local, tag, &keys),
        };
        let (after, has_refused) = (self.nics.borrow().posted, self.nics.borrow().has_refused);
        match result {
            Ok(handle) => {
                let nics = &mut *self.nics.borrow_mut();
                let place = connection.sent(handle, (block, length), tag);
                if let Some(place) = place {
                    assert!(length <= place.capacity, "a send is longer than its buffer");
                    nics.memory.target(place.block).source = Some(block);
                }
                self.summary.sends += 1;
                true
            }
            Err(error) => {
                let is_same = after == before || connection.may_fail || connection.failures > 0;
                assert!(is_same, "{error}: nothing changed");
                if self.is_loud {
                    eprintln!("  {error}");
                }
                if after == before {
                    self.nics.borrow_mut().memory.forget(1);
                }
                let is_shown = self.is_shown(at);
                self.connections[at].check_isend_error(error, (tag, length), is_shown, has_refused);
                self.summary.refused += 1;
                false
            }
        }
    }

    /// Whether the sender can see all entries of the receive that is next.
    fn is_shown(&self, at: usize) -> bool {
        let connection = &self.connections[at];
        let Some(front) = connection.receives.get(connection.sent) else { return false };
        let slot = Connection::<DEPTH, SLOTS>::slot(connection.sent as u64 + 1);
        let first = entry_word(SLOTS, slot, front.places.len());
        let words = first..first + front.places.len() * 8;
        front.is_offered && self.nics.borrow().shows(connection.ring, words)
    }

    /// An application asks for one of its receives.
    pub(super) fn test_receive(&mut self, at: usize, which: u32) {
        let connection = &mut self.connections[at];
        let Some(index) = connection.waiting_receive(which) else { return };
        let handle = connection.receives[index].handle.expect("it waits");
        let result = connection.receiver.test(handle);
        match result {
            Ok(None) => return,
            Ok(Some(received)) => self.received(at, index, &received),
            Err(CallError::Failed(failure)) => {
                assert_eq!(connection.receiver.failure(), Some(&failure));
                assert!(connection.receiver.is_drained(), "buffers are given back too early");
            }
            Err(error) if is_taken_back(&error) => {
                if connection.is_known() {
                    connection.taken_back(index);
                }
                self.summary.taken_back += 1;
            }
            Err(error) => panic!("a receive is tested: {error}"),
        }
        let connection = &mut self.connections[at];
        connection.receives[index].handle = None;
        for place in &connection.receives[index].places {
            self.nics.borrow_mut().memory.target(place.block).is_given_back = true;
        }
        let again = connection.receiver.test(handle);
        assert!(matches!(again, Err(CallError::NoRequest { .. })), "told twice: {again:?}");
        self.summary.reports += 1;
    }

    /// The receiver reports that a message has arrived.
    fn received(&mut self, at: usize, index: usize, received: &Received) {
        let connection = &mut self.connections[at];
        let receive = &connection.receives[index];
        assert_eq!(received.number(), index as u64 + 1);
        let receive = receive.clone();
        if connection.is_known() {
            connection.delivered(index);
        }
        let capacities = receive.places.iter().map(|place| place.capacity);
        let fits = received.sizes().iter().zip(capacities).all(|(size, room)| *size <= room);
        assert!(fits && received.sizes().len() == receive.places.len());
        if connection.is_known() {
            let sent = receive.places.iter().map(|place| place.sent.expect("it was sent").1);
            assert!(sent.eq(received.sizes().iter().copied()), "sizes: {received:?}");
            check_arrived(&mut self.nics.borrow_mut(), &receive);
        }
        let is_empty = received.sizes().iter().all(|size| *size == 0);
        let carriers = if is_empty { 0 } else { receive.carriers };
        let blocks = receive.places.iter().map(|place| place.block).collect();
        match connection.receiver.flush(received) {
            Ok(handle) => connection.flushes.push(Flush { handle, blocks, carriers }),
            Err(CallError::NotNow(_)) => {}
            Err(CallError::CannotFlush { .. }) => {
                let has_failed = connection.may_fail || connection.failures > 0;
                assert!(!connection.line.flushes || has_failed, "nothing to flush with");
            }
            Err(error) => panic!("a message is flushed: {error}"),
        }
    }

    /// An application asks for its oldest flush.
    pub(super) fn test_flush(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        let Some(Flush { handle, blocks, carriers }) = connection.flushes.first().cloned() else {
            return;
        };
        match connection.receiver.test_flush(&handle) {
            Ok(false) => return,
            Ok(true) => {
                let memory = &mut self.nics.borrow_mut().memory;
                let read = blocks.iter().map(|block| memory.target(*block).flushed);
                let read = read.fold(0, |all, one| all | one);
                let is_known = connection.is_known();
                assert!(read & carriers == carriers || !is_known, "carriers that did not read");
                self.summary.flushes += u64::from(carriers > 0);
            }
            Err(CallError::CannotFlush { .. }) => {
                let has_failed = connection.may_fail || connection.failures > 0;
                assert!(has_failed, "a flush that fails for nothing");
            }
            Err(error) => panic!("a flush is tested: {error}"),
        }
        connection.flushes.remove(0);
    }

    /// The caller has the result of a send that was taken back: nothing more of it is written.
    fn send_taken_back(&mut self, at: usize, outgoing: &Outgoing) {
        let connection = &mut self.connections[at];
        let is_void = connection.send_taken_back(outgoing);
        let index = outgoing.handle.number() as usize - 1;
        let memory = &mut self.nics.borrow_mut().memory;
        for place in &connection.receives[index].places {
            let target = memory.target(place.block);
            target.is_given_back |= is_void;
            if place.sent.is_none() {
                target.source = None;
            }
        }
    }

    /// An application asks for one of its sends.
    pub(super) fn test_send(&mut self, at: usize, which: u32) {
        let connection = &mut self.connections[at];
        if connection.outgoing.is_empty() {
            return;
        }
        let which = which as usize % connection.outgoing.len();
        let outgoing = connection.outgoing[which];
        let Outgoing { handle, block, buffer, .. } = outgoing;
        match connection.sender.test(handle) {
            Ok(false) => return,
            Ok(true) if connection.is_known() => {
                connection.delivered(handle.number() as usize - 1);
                let receive = &connection.receives[handle.number() as usize - 1];
                check_arrived(&mut self.nics.borrow_mut(), receive);
                let place = receive.places[buffer];
                assert_eq!(place.sent.map(|(block, _)| block), Some(block));
            }
            Ok(true) => {}
            Err(CallError::Failed(failure)) => {
                assert_eq!(connection.sender.failure(), Some(&failure));
                assert!(connection.sender.is_drained(), "a buffer is given back too early");
            }
            Err(error) if is_taken_back(&error) => {
                self.summary.taken_back += 1;
                if connection.is_known() {
                    self.send_taken_back(at, &outgoing);
                }
            }
            Err(error) => panic!("a send is tested: {error}"),
        }
        let connection = &mut self.connections[at];
        connection.outgoing.swap_remove(which);
        self.nics.borrow_mut().memory.source(block).is_given_back = true;
        let again = connection.sender.test(handle);
        assert!(matches!(again, Err(CallError::NoRequest { .. })), "told twice: {again:?}");
        self.summary.reports += 1;
    }
}

/// Every byte of a message is there, and every immediate was carried out.
fn check_arrived(nics: &mut super::fabric::Fabric, receive: &Receive) {
    assert!(receive.has_arrived(), "not all signals: {receive:?}");
    for Place { block, sent, .. } in &receive.places {
        let length = sent.expect("it was sent").1;
        let target = nics.memory.target(*block);
        assert!(target.holds(length), "{length} bytes, and {target:?}");
    }
}

impl<const DEPTH: usize, const SLOTS: usize> Connection<DEPTH, SLOTS> {
    /// A send was taken. Returns the buffer that it is for, if that can be known.
    fn sent(&mut self, handle: SendHandle, sent: (usize, u32), tag: u32) -> Option<Place> {
        let block = sent.0;
        let number = self.sent as u64 + 1;
        if !self.is_known() {
            self.outgoing.push(Outgoing { handle, block, buffer: 0, is_cancelled: false });
            return None;
        }
        if handle.number() > number {
            self.passed_by(handle.number() as usize - 2);
        }
        assert_eq!(handle.number(), self.sent as u64 + 1, "messages are numbered in order");
        let front = self.receives.get_mut(self.sent).expect("a buffer was offered");
        let fits = |place: &&mut Place| place.tag == tag && place.sent.is_none();
        let found = front.places.iter_mut().enumerate().find(|(_, place)| fits(place));
        let (buffer, place) = found.expect("a buffer with this tag");
        place.sent = Some(sent);
        let place = *place;
        let is_whole = front.places.iter().all(|place| place.sent.is_some());
        // The sends to a receive go out when none of them is to be taken back.
        let is_its = |other: &&Outgoing| other.handle.number() == handle.number();
        let is_wanted = self.outgoing.iter().filter(is_its).all(|other| !other.is_cancelled);
        self.outgoing.push(Outgoing { handle, block, buffer, is_cancelled: false });
        self.sent += usize::from(is_whole && is_wanted);
        Some(place)
    }

    /// A receive was refused: for a reason that is true.
    fn check_irecv_error(&self, error: CallError, number: u64, has_refused: bool) {
        let not_now = match error {
            CallError::NotNow(not_now) => not_now,
            CallError::Failed(failure) => {
                return assert_eq!(self.receiver.failure(), Some(&failure));
            }
            other => panic!("a receive is refused: {other}"),
        };
        match not_now {
            NotNow::SlotTaken { number: other } => {
                assert_eq!(other + SLOTS as u64, number);
                let before = &self.receives[other as usize - 1];
                let is_rewritten = self.line.reroutes && self.failures > 0;
                let is_in_use = before.handle.is_some() || before.holds_slot();
                assert!(is_in_use || is_rewritten, "the slot is free");
            }
            NotNow::PoolFull { .. } => {
                let waits = |receive: &&Receive| receive.handle.is_some() || receive.holds_slot();
                let waiting = self.receives.iter().filter(waits);
                let most = (waiting.count() + 1) * self.line.rails;
                assert!(most as u32 > self.line.limit, "the account has room");
            }
            NotNow::PoolRefused { .. } | NotNow::Refused { .. } => assert!(has_refused, "{error}"),
            NotNow::NoCredits => {}
            NotNow::NoEntry | NotNow::NoSuchTag => panic!("not of a receive: {error}"),
        }
    }

    /// A send was refused: for a reason that is true.
    fn check_isend_error(
        &self,
        error: CallError,
        (tag, bytes): (u32, u32),
        is_shown: bool,
        has_refused: bool,
    ) {
        let front = self.receives.get(self.sent);
        let mut open = front.into_iter().flat_map(|front| &front.places);
        let place = open.find(|place| place.sent.is_none() && place.tag == tag);
        if let CallError::NotNow(NotNow::NoCredits | NotNow::NoEntry) = error {
            let from = self.line.from;
            let is_in_service = |place| self.state(from, place).0 == RailState::InService;
            let has_rail = (0..self.near.len()).any(is_in_service);
            assert_eq!(self.sender.waits_for_rail(), !has_rail, "{error}");
        }
        match error {
            CallError::Failed(failure) => assert_eq!(self.sender.failure(), Some(&failure)),
            CallError::NotNow(NotNow::Refused { .. }) => assert!(has_refused, "{error}"),
            CallError::NotNow(NotNow::NoCredits) => {}
            _ if !self.is_known() || self.may_have_passed() => {}
            CallError::NotNow(NotNow::NoEntry) => assert!(!is_shown, "the entries are there"),
            CallError::NotNow(NotNow::NoSuchTag) => {
                assert!(front.is_some() && place.is_none(), "there is a buffer with this tag");
            }
            CallError::NotNow(NotNow::SlotTaken { number }) => {
                assert_eq!(number + SLOTS as u64, self.sent as u64 + 1);
                let is_it = |outgoing: &Outgoing| outgoing.handle.number() == number;
                let is_void = self.receives[number as usize - 1].holds_slot();
                assert!(is_void || self.outgoing.iter().any(is_it), "the slot is free");
            }
            CallError::TooLong { length, capacity } => {
                let expected = place.map(|place| place.capacity);
                assert_eq!((length, Some(capacity)), (bytes, expected));
                assert!(length > capacity);
            }
            other => panic!("a send is refused: {other}"),
        }
    }
}
