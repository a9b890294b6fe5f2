//! Handles of connections, listening ends and registrations. A handle is a number and not an
//! address, so stale and invalid handles are detected.
//!
//! ```text
//!  bits 63..=60  kind, never 0
//!       59..=16  serial number in its place, from 1: the next object in the place has another one
//!       15..=0   place
//! ```
//!
//! As an address, a handle would not be canonical, so it never equals a pointer.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The kind of a handle's object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Context = 1,
    Listener,
    Attempt,
    Sender,
    Receiver,
    /// A request; the place is that of its connection.
    Request,
    Memory,
}

const KIND_SHIFT: u32 = 60;
const PLACE_BITS: u32 = 16;
const PLACES: usize = 1 << PLACE_BITS;
/// Upper limit of serial numbers.
pub(crate) const SERIALS: u64 = 1 << (KIND_SHIFT - PLACE_BITS);

/// Returns a handle as NCCL's pointer.
pub(crate) fn encode(kind: Kind, serial: u64, place: u16) -> *mut c_void {
    let handle = (kind as u64) << KIND_SHIFT | (serial % SERIALS) << PLACE_BITS | u64::from(place);
    ptr::without_provenance_mut(handle as usize)
}

/// Returns serial number and place of a handle of this kind.
#[inline]
pub(crate) fn decode(kind: Kind, handle: *mut c_void) -> Option<(u64, u16)> {
    let handle = handle.addr() as u64;
    let serial = handle >> PLACE_BITS & (SERIALS - 1);
    (handle >> KIND_SHIFT == kind as u64).then_some((serial, handle as u16))
}

/// Objects for which NCCL has handles. Places are never freed.
pub(crate) struct Slots<T: 'static> {
    chunks: [OnceLock<Box<[Place<T>]>>; CHUNKS],
    free: Mutex<Free>,
}

/// An object and its serial number.
#[derive(Debug)]
pub(crate) struct Slot<T> {
    pub(crate) serial: u64,
    /// Serial numbers below this were used for parts of earlier objects in this place.
    pub(crate) spent: u64,
    pub(crate) value: Option<T>,
}

type Place<T> = Mutex<Slot<T>>;

#[derive(Debug)]
struct Free {
    places: Vec<u16>,
    /// Number of places used so far.
    used: usize,
}

const CHUNK: usize = 64;
const CHUNKS: usize = PLACES / CHUNK;

/// Why a handle has no object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// The handle is stale, or of another kind.
    NoSuch,
    /// The plugin panicked in a call with the object.
    Poisoned,
}

impl<T> Slots<T> {
    pub(crate) const fn new() -> Self {
        let free = Free { places: Vec::new(), used: 0 };
        Self { chunks: [const { OnceLock::new() }; CHUNKS], free: Mutex::new(free) }
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn chunk(&self, place: u16) -> &OnceLock<Box<[Place<T>]>> {
        &self.chunks[usize::from(place) / CHUNK]
    }

    /// Inserts an object, and returns its serial number and place; `None` if all places are taken.
    /// `make` receives the number of [spent](Slot::spent) serial numbers.
    pub(crate) fn insert(&self, make: impl FnOnce(u64) -> T) -> Option<(u64, u16)> {
        let place = {
            let mut free = self.free();
            match free.places.pop() {
                Some(place) => place,
                None => {
                    let place = u16::try_from(free.used).ok()?;
                    free.used += 1;
                    place
                }
            }
        };
        let empty = |_| Mutex::new(Slot { serial: 0, spent: 1, value: None });
        let chunk = self.chunk(place).get_or_init(|| (0..CHUNK).map(empty).collect());
        let slot = &chunk[usize::from(place) % CHUNK];
        slot.clear_poison();
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        slot.serial = (slot.serial + 1) % SERIALS;
        slot.value = Some(make(slot.spent));
        Some((slot.serial, place))
    }

    /// Locks a place. The caller checks whether it contains the expected object.
    #[inline]
    pub(crate) fn at(&self, place: u16) -> Result<MutexGuard<'_, Slot<T>>, Missing> {
        let chunk = self.chunk(place).get().ok_or(Missing::NoSuch)?;
        chunk[usize::from(place) % CHUNK].lock().map_err(|_| Missing::Poisoned)
    }

    /// Locks a place, unless another call has locked it.
    pub(crate) fn try_at(&self, place: u16) -> Option<MutexGuard<'_, Slot<T>>> {
        self.chunk(place).get()?[usize::from(place) % CHUNK].try_lock().ok()
    }

    /// Locks the object of a handle, whose value is present.
    #[inline]
    pub(crate) fn get(
        &self,
        (serial, place): (u64, u16),
    ) -> Result<MutexGuard<'_, Slot<T>>, Missing> {
        let slot = self.at(place)?;
        if slot.serial == serial && slot.value.is_some() { Ok(slot) } else { Err(Missing::NoSuch) }
    }

    /// Removes an object, even if the plugin panicked in a call with it.
    pub(crate) fn remove(&self, (serial, place): (u64, u16)) -> Option<T> {
        let slot = &self.chunk(place).get()?[usize::from(place) % CHUNK];
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        let value = if slot.serial == serial { slot.value.take() } else { None }?;
        drop(slot);
        self.free().places.push(place);
        Some(value)
    }

    /// Returns serial numbers and places of matching objects. Waits for calls that use them, and
    /// includes objects in whose calls the plugin panicked.
    pub(crate) fn find_all(&self, fits: impl Fn(&T) -> bool) -> Vec<(u64, u16)> {
        let found = |place: usize| {
            let place = place as u16;
            let slot = &self.chunk(place).get()?[usize::from(place) % CHUNK];
            let slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
            slot.value.as_ref().is_some_and(&fits).then_some((slot.serial, place))
        };
        (0..self.bound()).filter_map(found).collect()
    }

    /// Returns the number of objects.
    pub(crate) fn len(&self) -> usize {
        let free = self.free();
        free.used - free.places.len()
    }

    /// Returns the upper limit of places used so far.
    pub(crate) fn bound(&self) -> usize {
        self.free().used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_of_one_thing_only() {
        static THINGS: Slots<&str> = Slots::new();
        let first = THINGS.insert(|_| "first").unwrap();
        let second = THINGS.insert(|_| "second").unwrap();
        assert_eq!(THINGS.get(first).unwrap().value, Some("first"));
        assert_eq!(THINGS.remove(first), Some("first"));
        assert_eq!(THINGS.remove(first), None);
        let third = THINGS.insert(|_| "third").unwrap();
        assert_eq!((third.1, THINGS.len()), (first.1, 2), "the place is used again");
        assert_eq!(THINGS.get(first).unwrap_err(), Missing::NoSuch);
        assert_eq!(THINGS.get(second).unwrap().value, Some("second"));
        assert_eq!(THINGS.get((1, 60_000)).unwrap_err(), Missing::NoSuch);

        let handle = encode(Kind::Sender, third.0, third.1);
        assert_eq!(decode(Kind::Sender, handle), Some(third));
        assert_eq!(decode(Kind::Receiver, handle), None);
        assert_eq!(decode(Kind::Sender, ptr::null_mut()), None);
        assert_eq!(decode(Kind::Sender, ptr::without_provenance_mut(1)), None);
    }

    /// Serial numbers have 44 bits, all of which are compared.
    #[test]
    fn handles_are_not_cut_to_32_bits() {
        let serial = 5 + (1 << 33);
        let (one, other) = (encode(Kind::Request, serial, 7), encode(Kind::Request, 5, 7));
        assert_ne!(one, other);
        assert_eq!(decode(Kind::Request, one), Some((serial, 7)));
    }

    #[test]
    fn what_panicked_is_refused_until_it_is_removed() {
        static THINGS: Slots<u32> = Slots::new();
        let handle = THINGS.insert(|_| 1).unwrap();
        let panicking = std::thread::spawn(move || {
            let _slot = THINGS.get(handle);
            panic!("with the lock held");
        });
        assert!(panicking.join().is_err());
        assert_eq!(THINGS.get(handle).unwrap_err(), Missing::Poisoned);
        assert!(THINGS.try_at(handle.1).is_none());
        assert_eq!(THINGS.remove(handle), Some(1));
        let again = THINGS.insert(|_| 2).unwrap();
        assert_eq!(THINGS.get(again).unwrap().value, Some(2));
    }
}
