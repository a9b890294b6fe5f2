//! Memory that NCCL registered with one connection.

use crate::rails::Registered;
use crate::slots::Kind;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum registrations of a connection.
const MOST: usize = 1 << PLACE_BITS;
const PLACE_BITS: u32 = 20;
const SERIAL_BITS: u32 = 40;
const KIND_SHIFT: u32 = 60;

/// Number of registrations so far, of all connections, so that handles are unique in the process.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// The handle of a registration that NCCL keeps.
pub(crate) type MemoryHandle = *mut c_void;

/// The registrations of one connection.
#[derive(Default)]
pub(super) struct Memory {
    places: Vec<(u64, Option<Registered>)>,
    free: Vec<usize>,
}

impl Memory {
    /// Adds a registration; returns `None` if there are too many.
    pub(super) fn insert(&mut self, registered: Registered) -> Option<MemoryHandle> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.places.len() < MOST => {
                self.places.push((0, None));
                self.places.len() - 1
            }
            None => return None,
        };
        let serial = COUNT.fetch_add(1, Ordering::Relaxed) % (1 << SERIAL_BITS);
        self.places[place] = (serial, Some(registered));
        let handle = (Kind::Memory as u64) << KIND_SHIFT | serial << PLACE_BITS | place as u64;
        Some(ptr::without_provenance_mut(handle as usize))
    }

    fn decode(handle: MemoryHandle) -> Option<(u64, usize)> {
        let handle = handle.addr() as u64;
        let serial = handle >> PLACE_BITS & ((1 << SERIAL_BITS) - 1);
        (handle >> KIND_SHIFT == Kind::Memory as u64).then_some((serial, handle as usize % MOST))
    }

    #[inline]
    pub(super) fn get(&self, handle: MemoryHandle) -> Option<&Registered> {
        let (serial, place) = Self::decode(handle)?;
        let (its, registered) = self.places.get(place)?;
        registered.as_ref().filter(|_| *its == serial)
    }

    /// Removes a registration.
    pub(super) fn remove(&mut self, handle: MemoryHandle) -> Option<Registered> {
        let (serial, place) = Self::decode(handle)?;
        let (its, registered) = self.places.get_mut(place)?;
        let registered = if *its == serial { registered.take() } else { None }?;
        self.free.push(place);
        Some(registered)
    }
}
