//! Memory of the simulated hosts, divided into places: one for each request that is under way.

use polyrail::memory::RegisteredBuffer;
use std::hash::Hasher;

/// Bytes that one request has to itself.
pub(super) const STRIDE: usize = 4096;
/// Requests of one direction of a connection that can be under way.
pub(super) const PLACES: usize = 24;
/// Bytes of all places together.
pub(super) const AREA: usize = PLACES * STRIDE;
/// Bytes behind all places, up to the end of a host's memory: unused, for requests that reach
/// beyond it.
pub(super) const EDGE: usize = STRIDE;

/// The bytes that a request moves: a pattern that no other request has.
pub(super) fn pattern(salt: u64, length: usize) -> Vec<u8> {
    let word = |number: usize| {
        let mixed = (salt << 32 | number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        // No byte is 0, so that missing bytes show.
        (mixed ^ mixed >> 29 | 0x0101_0101_0101_0101).to_le_bytes()
    };
    let mut bytes: Vec<u8> = (0..length.div_ceil(8)).flat_map(word).collect();
    bytes.truncate(length);
    bytes
}

/// The places of one direction, as they lie in both hosts' memory.
#[derive(Clone, Copy)]
pub(super) struct Ground<'m> {
    pub(super) near: &'m RegisteredBuffer,
    pub(super) far: &'m RegisteredBuffer,
    /// Offset of the first place, near and far.
    pub(super) near_at: usize,
    pub(super) far_at: usize,
}

impl Ground<'_> {
    pub(super) fn near_offset(&self, place: usize) -> usize {
        self.near_at + place * STRIDE
    }

    pub(super) fn far_offset(&self, place: usize) -> usize {
        self.far_at + place * STRIDE
    }

    /// A number that stands for the bytes of a place at both ends.
    fn digest(&self, place: usize) -> u64 {
        let mut hasher = std::hash::DefaultHasher::new();
        hasher.write(&read(self.near, self.near_offset(place), STRIDE));
        hasher.write(&read(self.far, self.far_offset(place), STRIDE));
        hasher.finish()
    }
}

pub(super) fn read(memory: &RegisteredBuffer, offset: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    memory.read_at(offset, &mut bytes).expect("within the buffer");
    bytes
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// An unreported request has it.
    busy: bool,
    /// Requests that send from it although another request has it.
    pins: u32,
    /// Its contents when its request was reported, which may not change.
    frozen: Option<u64>,
}

/// The owners of the places.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    slots: [Slot; PLACES],
    next: usize,
}

impl Places {
    /// The free place that was used longest ago.
    pub(super) fn free(&self) -> Option<usize> {
        self.all_free().next()
    }

    /// The free places.
    pub(super) fn all_free(&self) -> impl Iterator<Item = usize> {
        let places = (0..PLACES).map(|step| (self.next + step) % PLACES);
        places.filter(|place| !self.slots[*place].busy && self.slots[*place].pins == 0)
    }

    /// Called before a write into a free place: checks that its contents are as reported.
    pub(super) fn thaw(&mut self, place: usize, ground: &Ground<'_>) {
        if let Some(frozen) = self.slots[place].frozen.take() {
            assert_eq!(frozen, ground.digest(place), "a reported buffer was touched again");
        }
    }

    /// A request is under way in a place.
    pub(super) fn take(&mut self, place: usize) {
        self.slots[place].busy = true;
        self.next = place + 1;
    }

    /// The request of a place was reported.
    pub(super) fn release(&mut self, place: usize, ground: &Ground<'_>) {
        self.slots[place].busy = false;
        self.slots[place].frozen = Some(ground.digest(place));
    }

    pub(super) fn pin(&mut self, place: usize) {
        self.slots[place].pins += 1;
    }

    pub(super) fn unpin(&mut self, place: usize) {
        self.slots[place].pins -= 1;
    }

    /// Checks that reported buffers are untouched.
    pub(super) fn check(&mut self, ground: &Ground<'_>) {
        (0..PLACES).for_each(|place| self.thaw(place, ground));
    }
}
