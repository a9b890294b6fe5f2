//! Memory of this process that devices access: rings, records, staging copies.

use super::entry::ENTRY_KEYS;
use super::error::BuildError;
use crate::verbs::{DeviceId, DeviceKeys, LocalBuffer, Sge};
use arrayvec::ArrayVec;
use core::ops::{Deref, Range};
use core::sync::atomic::AtomicU64;
use stable_deref_trait::StableDeref;

/// A handle of words whose address does not change when the handle is moved: a reference, a `Box`,
/// an `Arc`.
pub trait Words: Deref<Target = [AtomicU64]> + StableDeref {}

impl<M: Deref<Target = [AtomicU64]> + StableDeref> Words for M {}

/// Words that devices and this process access at the same time. They are atomics, so that no access
/// is a data race.
#[derive(Debug)]
pub struct Region<M> {
    words: M,
    keys: ArrayVec<DeviceKeys, ENTRY_KEYS>,
}

/// Keys for more devices than there can be; the region is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("keys for too many devices: the limit is {ENTRY_KEYS}")]
pub struct TooManyKeys;

impl<M: Words> Region<M> {
    /// A region of these words, which are registered with each device that `keys` names: for local
    /// writing and for writing by peers.
    ///
    /// # Errors
    ///
    /// More than 8 devices.
    ///
    /// # Safety
    ///
    /// The words stay allocated and registered for as long as a queue pair of the connection
    /// exists, also when the region was dropped, and nobody else uses them.
    #[allow(unsafe_code, reason = "the one place where an address becomes a promise")]
    pub unsafe fn new(
        words: M,
        keys: impl IntoIterator<Item = DeviceKeys>,
    ) -> Result<Self, TooManyKeys> {
        let mut all = ArrayVec::new();
        for keys in keys {
            all.try_push(keys).map_err(|_| TooManyKeys)?;
        }
        Ok(Self { words, keys: all })
    }

    /// Returns the words in this range, or none if the region is too short.
    #[inline]
    pub(super) fn words(&self, range: Range<usize>) -> &[AtomicU64] {
        // A handle of the caller may deref to fewer words than when it was checked. Then nothing is
        // accessed, which a missing entry or a record that was not written shows.
        self.words.get(range).unwrap_or_default()
    }

    /// Checks that the region has enough words, and keys for these devices.
    pub(super) fn check(&self, needed: usize, devices: &[DeviceId]) -> Result<(), BuildError> {
        let given = self.words.len();
        // Aligned to 64, an entry or a record is in one cache line, and inside the 128 bytes for
        // which a device may promise that words become visible in order (`EntryForm::Plain`).
        if given < needed || !self.addr(0).is_multiple_of(64) {
            return Err(BuildError::Region { given, needed });
        }
        let missing = devices.iter().find(|device| self.keys(**device).is_none());
        missing.map_or(Ok(()), |device| Err(BuildError::MissingKeys { device: *device }))
    }

    /// Returns the address of a word.
    #[inline]
    pub(super) fn addr(&self, word: usize) -> u64 {
        self.words.as_ptr().addr() as u64 + (word * size_of::<u64>()) as u64
    }

    /// Returns the rkeys, in this order of devices.
    pub(super) fn rkeys(&self, devices: &[DeviceId]) -> [u32; ENTRY_KEYS] {
        let mut rkeys = [0; ENTRY_KEYS];
        for (rkey, device) in rkeys.iter_mut().zip(devices) {
            *rkey = self.keys(*device).map_or(0, |keys| keys.rkey);
        }
        rkeys
    }

    /// Returns the lkeys, in this order of devices.
    pub(super) fn lkeys(&self, devices: &[DeviceId]) -> [u32; ENTRY_KEYS] {
        let mut lkeys = [0; ENTRY_KEYS];
        for (lkey, device) in lkeys.iter_mut().zip(devices) {
            *lkey = self.lkey(*device);
        }
        lkeys
    }

    /// Returns the lkey for one device.
    #[inline]
    pub(super) fn lkey(&self, device: DeviceId) -> u32 {
        // `check` has refused regions without a key for a device in use.
        self.keys(device).map_or(0, |keys| keys.lkey)
    }

    /// Returns the keys for one device.
    #[inline]
    fn keys(&self, device: DeviceId) -> Option<DeviceKeys> {
        self.keys.iter().find(|keys| keys.device == device).copied()
    }

    /// The words in this range, or none if they are not all there; and the first `bytes` of them,
    /// for a request.
    #[inline]
    pub(super) fn part(&self, range: Range<usize>, bytes: usize) -> (&[AtomicU64], LocalBuffer) {
        let Some(words) = self.words.get(range) else { return no_part() };
        let bytes = bytes.min(size_of_val(words));
        // SAFETY: the words are there, atomics may be written while they are read, and who made the
        // region promised that they stay.
        #[allow(unsafe_code, reason = "see above")]
        let local = unsafe { LocalBuffer::new(words.as_ptr().addr() as u64, bytes as u32) };
        (words, local)
    }

    /// The first `bytes` of the words in this range, for a request.
    pub(super) fn sge(&self, range: Range<usize>, bytes: usize, lkey: u32) -> Sge {
        self.part(range, bytes).1.sge(lkey)
    }
}

/// The part of a region that has fewer words than when it was checked.
#[cold]
const fn no_part() -> (&'static [AtomicU64], LocalBuffer) {
    (&[], LocalBuffer::EMPTY)
}
