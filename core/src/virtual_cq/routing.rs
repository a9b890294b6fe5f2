//! The routing table: which virtual queue pair a physical completion belongs to.
//!
//! Fixed open addressing with linear probing. `N` is a power of two; a quarter of the entries
//! stays free, so that probes stay short. Removal shifts entries back instead of leaving
//! tombstones: the table is as fast after a million re-attachments as when new.

use crate::completion::Role;
use crate::hardware::address;
use crate::verbs::DeviceId;

/// Where completions of a physical queue pair go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Index of the virtual queue pair in the set that `poll` is handed.
    pub index: u16,
    /// The physical queue pair's part in it.
    pub role: Role,
    /// The virtual queue pair's number.
    pub virtual_qp_num: u32,
}

/// What is reserved for a physical queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The place of the completion queue in which entries are reserved; `None` if the queue pair was
    /// attached while there was no queue.
    pub queue: Option<u8>,
    /// Entries that it may need.
    pub entries: u32,
}

impl Reserved {
    /// Nothing is reserved.
    pub const NOTHING: Self = Self { queue: None, entries: 0 };
}

/// A route could not be added; the table did not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// The physical queue pair has a route already.
    #[error("queue pair {qp_num} of device {} is already attached", device.0)]
    Taken {
        /// Its device.
        device: DeviceId,
        /// Its number.
        qp_num: u32,
    },
    /// The table is full.
    #[error(
        "the routing table of the virtual completion queue is full: its ROUTES allow {capacity} queue pairs"
    )]
    Full {
        /// Routes that fit.
        capacity: usize,
    },
}

#[derive(Clone, Copy, Debug)]
#[repr(align(16))]
struct Entry {
    address: u64,
    route: Route,
}

// With thousands of queue pairs, the entry of a completion is not in the cache. Four entries in a
// cache line need fewer lines, and none is in two of them.
static_assertions::const_assert_eq!(size_of::<Option<Entry>>(), 16);

/// Routes by device and queue pair number, in a table of `N` entries.
#[derive(Clone, Debug)]
pub struct RoutingTable<const N: usize> {
    entries: [Option<Entry>; N],
    len: usize,
    /// What is reserved for each entry. Separate, because no completion needs it.
    reserved: [Reserved; N],
}

impl<const N: usize> Default for RoutingTable<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> RoutingTable<N> {
    /// Routes that fit.
    pub const CAPACITY: usize = {
        assert!(N.is_power_of_two() && N >= 4, "a table's size is a power of two, at least 4");
        N - N / 4
    };

    /// An empty table.
    pub const fn new() -> Self {
        Self { entries: [None; N], len: 0, reserved: [Reserved::NOTHING; N] }
    }

    /// Routes in the table.
    #[cfg(feature = "internals")]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[cfg(feature = "internals")]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the search for an address starts. Numbers are handed out in runs, so the low bits of
    /// the product would do; the high ones also part devices (the constant is 2^64 over the golden
    /// ratio, Knuth's multiplicative hashing).
    #[inline]
    const fn home(address: u64) -> usize {
        (address.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - N.trailing_zeros())) as usize
    }

    /// The place of an address, with its entry; if it has none, the free place where it belongs.
    #[inline]
    fn probe(&self, address: u64) -> (usize, Option<&Entry>) {
        // Ends: `insert` leaves a quarter of the places free.
        let mut at = Self::home(address);
        loop {
            let place = at & (N - 1);
            match &self.entries[place] {
                Some(entry) if entry.address != address => at += 1,
                found => return (place, found.as_ref()),
            }
        }
    }

    /// The route of a physical queue pair.
    #[inline]
    pub fn find(&self, device: DeviceId, qp_num: u32) -> Option<&Route> {
        let (_, entry) = self.probe(address(device, qp_num));
        entry.map(|entry| &entry.route)
    }

    /// The route of a physical queue pair, and what is reserved for it.
    pub(super) fn find_all(&self, device: DeviceId, qp_num: u32) -> Option<(Route, Reserved)> {
        let (place, entry) = self.probe(address(device, qp_num));
        entry.map(|entry| (entry.route, self.reserved[place]))
    }

    /// Adds a route.
    ///
    /// # Errors
    ///
    /// The queue pair has a route, or the table is full.
    pub fn insert(
        &mut self,
        device: DeviceId,
        qp_num: u32,
        route: Route,
        reserved: Reserved,
    ) -> Result<(), RouteError> {
        let address = address(device, qp_num);
        let (free, None) = self.probe(address) else {
            return Err(RouteError::Taken { device, qp_num });
        };
        // With a full table, `probe` would not end for an unknown address.
        if self.len == Self::CAPACITY {
            return Err(RouteError::Full { capacity: Self::CAPACITY });
        }
        self.entries[free] = Some(Entry { address, route });
        self.reserved[free] = reserved;
        self.len += 1;
        Ok(())
    }

    /// Removes a route and returns it.
    pub fn remove(&mut self, device: DeviceId, qp_num: u32) -> Option<Route> {
        let (mut hole, _) = self.probe(address(device, qp_num));
        let removed = self.entries[hole].take()?;
        self.len -= 1;
        let mut at = hole;
        loop {
            at = (at + 1) & (N - 1);
            let Some(entry) = self.entries[at] else {
                self.reserved[hole] = Reserved::NOTHING;
                return Some(removed.route);
            };
            // An entry may move back only if its home does not lie behind the hole.
            let from_home = at.wrapping_sub(Self::home(entry.address)) & (N - 1);
            let from_hole = at.wrapping_sub(hole) & (N - 1);
            if from_home >= from_hole {
                self.entries[hole] = self.entries[at].take();
                self.reserved[hole] = self.reserved[at];
                hole = at;
            }
        }
    }

    /// All routes and what is reserved for each, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Route, Reserved)> {
        let all = self.entries.iter().zip(&self.reserved);
        all.filter_map(|(entry, reserved)| entry.map(|entry| (entry.route, *reserved)))
    }

    /// Removes every route to the virtual queue pair at `index`, and returns how many there were.
    pub fn remove_index(&mut self, index: u16) -> usize {
        let before = self.len;
        let mut at = 0;
        while at < N {
            match self.entries[at] {
                // Another entry may have moved here: look at the same place again.
                Some(entry) if entry.route.index == index => {
                    self.remove(DeviceId((entry.address >> 32) as u32), entry.address as u32);
                }
                _ => at += 1,
            }
        }
        before - self.len
    }

    /// Checks what must hold between any two calls.
    ///
    /// # Panics
    ///
    /// If it does not: a bug of this crate.
    pub fn invariants(&self) {
        assert!(self.len <= Self::CAPACITY);
        assert!(self.entries.iter().flatten().count() == self.len);
        for (at, entry) in self.entries.iter().enumerate() {
            if let Some(entry) = entry {
                assert!(self.probe(entry.address).0 == at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(index: u16) -> Route {
        Route { index, role: Role::Rail(0), virtual_qp_num: u32::from(index) }
    }

    /// Different for each queue pair.
    fn reserved(qp_num: u32) -> Reserved {
        Reserved { queue: Some(1), entries: qp_num }
    }

    #[test]
    fn same_number_on_two_devices_are_two_queue_pairs() {
        let mut table = RoutingTable::<8>::new();
        table.insert(DeviceId(0), 17, route(1), reserved(17)).unwrap();
        table.insert(DeviceId(1), 17, route(2), reserved(17)).unwrap();
        assert_eq!(table.find(DeviceId(0), 17), Some(&route(1)));
        assert_eq!(table.find(DeviceId(1), 17), Some(&route(2)));
        assert_eq!(table.find(DeviceId(2), 17), None);
    }

    #[test]
    fn a_taken_number_and_a_full_table_change_nothing() {
        let mut table = RoutingTable::<4>::new();
        for qp_num in 0..3 {
            table.insert(DeviceId(0), qp_num, route(0), reserved(qp_num)).unwrap();
        }
        let taken = RouteError::Taken { device: DeviceId(0), qp_num: 2 };
        assert_eq!(table.insert(DeviceId(0), 2, route(9), Reserved::NOTHING), Err(taken));
        let full = RouteError::Full { capacity: 3 };
        assert_eq!(table.insert(DeviceId(0), 3, route(9), Reserved::NOTHING), Err(full));
        assert_eq!(table.find(DeviceId(0), 2), Some(&route(0)));
        table.invariants();
    }

    #[test]
    fn remove_index_takes_all_of_one_and_none_of_the_others() {
        let mut table = RoutingTable::<64>::new();
        for qp_num in 0..48 {
            let route = route(qp_num as u16 % 4);
            table.insert(DeviceId(qp_num % 3), qp_num, route, reserved(qp_num)).unwrap();
        }
        assert_eq!(table.remove_index(2), 12);
        table.invariants();
        for qp_num in 0..48 {
            let expected = (qp_num % 4 != 2).then(|| route(qp_num as u16 % 4));
            assert_eq!(table.find(DeviceId(qp_num % 3), qp_num), expected.as_ref());
            // What is reserved moves with its route.
            let found = table.find_all(DeviceId(qp_num % 3), qp_num);
            assert_eq!(found, expected.map(|route| (route, reserved(qp_num))));
        }
    }
}
