//! What a thread has to do at certain times. The cost of a wake depends on what is due, not on
//! what there is.

use std::collections::{BTreeMap, BTreeSet};

/// Entries with names, each with the time from which on it is due.
#[derive(Debug)]
pub(crate) struct Schedule<T> {
    entries: BTreeMap<u64, (u64, T)>,
    /// The times with the names.
    times: BTreeSet<(u64, u64)>,
    /// How many entries were due, for tests.
    #[cfg(test)]
    pub(crate) visits: usize,
}

impl<T> Schedule<T> {
    pub(crate) fn new() -> Self {
        Self {
            entries: BTreeMap::new(),
            times: BTreeSet::new(),
            #[cfg(test)]
            visits: 0,
        }
    }

    /// Adds an entry, in place of the one with this name.
    pub(crate) fn insert(&mut self, name: u64, at: u64, entry: T) {
        self.remove(name);
        self.entries.insert(name, (at, entry));
        self.times.insert((at, name));
    }

    pub(crate) fn remove(&mut self, name: u64) -> Option<T> {
        let (at, entry) = self.entries.remove(&name)?;
        self.times.remove(&(at, name));
        Some(entry)
    }

    pub(crate) fn contains(&self, name: u64) -> bool {
        self.entries.contains_key(&name)
    }

    pub(crate) fn get_mut(&mut self, name: u64) -> Option<&mut T> {
        self.entries.get_mut(&name).map(|(_, entry)| entry)
    }

    /// Changes the time of an entry. Returns whether there is one with this name.
    pub(crate) fn set_time(&mut self, name: u64, at: u64) -> bool {
        let Some((old, _)) = self.entries.get_mut(&name) else { return false };
        self.times.remove(&(*old, name));
        self.times.insert((at, name));
        *old = at;
        true
    }

    /// Returns the entries in the order of their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> + Clone {
        self.entries.iter().map(|(name, (_, entry))| (*name, entry))
    }

    /// Removes the entry that has been due longest, and returns it with its name.
    pub(crate) fn take_due(&mut self, now: u64) -> Option<(u64, T)> {
        let (_, name) = *self.times.first().filter(|(at, _)| *at <= now)?;
        #[cfg(test)]
        {
            self.visits += 1;
        }
        self.remove(name).map(|entry| (name, entry))
    }

    /// Returns the time from which on the next entry is due.
    pub(crate) fn next_time(&self) -> Option<u64> {
        self.times.first().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_due_in_the_order_of_their_times() {
        let mut schedule = Schedule::new();
        assert_eq!((schedule.next_time(), schedule.take_due(u64::MAX)), (None, None));
        for (name, at) in [(1, 30), (2, 10), (3, 20), (4, 10)] {
            schedule.insert(name, at, name);
        }
        assert_eq!((schedule.next_time(), schedule.take_due(9)), (Some(10), None));
        assert_eq!(schedule.take_due(10), Some((2, 2)));
        assert_eq!(schedule.take_due(10), Some((4, 4)));
        assert_eq!((schedule.take_due(10), schedule.next_time()), (None, Some(20)));
        assert_eq!(schedule.visits, 2);
    }

    #[test]
    fn an_entry_has_one_time() {
        let mut schedule = Schedule::new();
        schedule.insert(1, 10, 'a');
        schedule.insert(2, 20, 'b');
        assert!(schedule.set_time(1, 30) && !schedule.set_time(3, 5));
        assert_eq!(schedule.next_time(), Some(20));
        schedule.insert(2, 40, 'c');
        assert_eq!(schedule.take_due(39), Some((1, 'a')));
        assert_eq!((schedule.take_due(39), schedule.next_time()), (None, Some(40)));
        assert_eq!(schedule.remove(2), Some('c'));
        assert_eq!((schedule.next_time(), schedule.iter().count()), (None, 0));
    }
}
