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
    /// Where entries are reserved for it.
    pub reserved_in: ReservedIn,
    /// Entries that it may need.
    pub entries: u32,
}

/// The place of the completion queue in which entries are reserved for a physical queue pair, if it
/// has any: one that was attached while there was no queue has none.
// Not an `Option`, whose niche the compiler would use to mark empty places of the table. That cost
// each lookup over several rails six instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservedIn(u16);

impl ReservedIn {
    /// In no queue.
    pub const NOWHERE: Self = Self(u16::MAX);

    /// In the queue at a place.
    pub const fn queue_at(place: u8) -> Self {
        Self(place as u16)
    }

    /// The place, if there is one.
    pub fn place(self) -> Option<usize> {
        (self != Self::NOWHERE).then_some(usize::from(self.0))
    }
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
struct Entry {
    address: u64,
    route: Route,
}

/// Routes by device and queue pair number, in a table of `N` entries.
#[derive(Clone, Debug)]
pub struct RoutingTable<const N: usize> {
    entries: [Option<Entry>; N],
    len: usize,
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
        Self { entries: [None; N], len: 0 }
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
            let Some(entry) = self.entries[at] else { return Some(removed.route) };
            // An entry may move back only if its home does not lie behind the hole.
            let from_home = at.wrapping_sub(Self::home(entry.address)) & (N - 1);
            let from_hole = at.wrapping_sub(hole) & (N - 1);
            if from_home >= from_hole {
                self.entries[hole] = self.entries[at].take();
                hole = at;
            }
        }
    }

    /// All routes, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Route> {
        self.entries.iter().flatten().map(|entry| &entry.route)
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
        let role = Role::Rail(0);
        Route {
            index,
            role,
            virtual_qp_num: u32::from(index),
            reserved_in: ReservedIn::NOWHERE,
            entries: 1,
        }
    }

    #[test]
    fn same_number_on_two_devices_are_two_queue_pairs() {
        let mut table = RoutingTable::<8>::new();
        table.insert(DeviceId(0), 17, route(1)).unwrap();
        table.insert(DeviceId(1), 17, route(2)).unwrap();
        assert_eq!(table.find(DeviceId(0), 17), Some(&route(1)));
        assert_eq!(table.find(DeviceId(1), 17), Some(&route(2)));
        assert_eq!(table.find(DeviceId(2), 17), None);
    }

    #[test]
    fn a_taken_number_and_a_full_table_change_nothing() {
        let mut table = RoutingTable::<4>::new();
        for qp_num in 0..3 {
            table.insert(DeviceId(0), qp_num, route(0)).unwrap();
        }
        let taken = RouteError::Taken { device: DeviceId(0), qp_num: 2 };
        assert_eq!(table.insert(DeviceId(0), 2, route(9)), Err(taken));
        assert_eq!(table.insert(DeviceId(0), 3, route(9)), Err(RouteError::Full { capacity: 3 }));
        assert_eq!(table.find(DeviceId(0), 2), Some(&route(0)));
        table.invariants();
    }

    #[test]
    fn remove_index_takes_all_of_one_and_none_of_the_others() {
        let mut table = RoutingTable::<64>::new();
        for qp_num in 0..48 {
            table.insert(DeviceId(qp_num % 3), qp_num, route(qp_num as u16 % 4)).unwrap();
        }
        assert_eq!(table.remove_index(2), 12);
        table.invariants();
        for qp_num in 0..48 {
            let expected = (qp_num % 4 != 2).then(|| route(qp_num as u16 % 4));
            assert_eq!(table.find(DeviceId(qp_num % 3), qp_num), expected.as_ref());
        }
    }
}
