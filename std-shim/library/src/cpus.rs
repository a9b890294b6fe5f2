//! Processors: which of them are near a NIC, and threads that stay on them.
//!
//! A NIC hangs on one socket of a machine; threads and memory of another one reach it over the link
//! between sockets, later and slower. A thread that is pinned before it allocates has both: Linux
//! takes a page from the node of the processor that touches it first.
//!
//! ```
//! use polyrail::cpus::{CpuList, pin_thread};
//!
//! let near: CpuList = "0-3,8".parse()?; // as `lscpu`, `taskset` and sysfs write it
//! assert_eq!(near.iter().collect::<Vec<_>>(), [0, 1, 2, 3, 8]);
//! assert!("3-1".parse::<CpuList>().is_err());
//! pin_thread(&"0".parse()?)?; // this thread, and threads that it starts
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use rustix::thread::{CpuSet, sched_setaffinity};
use serde::{Serialize, Serializer};
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::str::FromStr;

/// Processors by their numbers, at least one; written as ranges: `0-3,8`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CpuList(BTreeSet<usize>);

/// What is not a list of processors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{part:?} is not a processor from 0 to {}, nor a range such as 0-3", CpuSet::MAX_CPU - 1)]
pub struct CpuListError {
    /// The invalid part.
    pub part: String,
}

impl CpuList {
    /// The numbers, rising.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }
}

impl FromStr for CpuList {
    type Err = CpuListError;

    fn from_str(text: &str) -> Result<Self, CpuListError> {
        let mut cpus = BTreeSet::new();
        for part in text.trim().split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            match (number(first), number(last)) {
                (Some(first), Some(last)) if first <= last => cpus.extend(first..=last),
                _ => return Err(CpuListError { part: part.into() }),
            }
        }
        Ok(Self(cpus))
    }
}

/// A processor's number, if a set has room for it.
fn number(text: &str) -> Option<usize> {
    text.trim().parse().ok().filter(|number| *number < CpuSet::MAX_CPU)
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.iter().peekable();
        let mut comma = "";
        while let Some(first) = rest.next() {
            let mut last = first;
            while let Some(next) = rest.next_if_eq(&(last + 1)) {
                last = next;
            }
            write!(f, "{comma}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            comma = ",";
        }
        Ok(())
    }
}

impl Serialize for CpuList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Keeps the calling thread, and threads that it starts from now on, on these processors.
///
/// # Errors
///
/// EINVAL: none of them is there, or this process may not use them. EPERM.
pub fn pin_thread(cpus: &CpuList) -> io::Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(cpu));
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_written_as_the_kernel_writes_it() {
        for (text, written) in
            [("0", "0"), ("0-3\n", "0-3"), ("8, 1-2,3", "1-3,8"), ("5-5,7", "5,7"), ("1,1", "1")]
        {
            assert_eq!(text.parse::<CpuList>().unwrap().to_string(), written, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused_with_the_part_that_is_wrong() {
        for (text, part) in
            [("", ""), ("1,,2", ""), ("1-", "1-"), ("0,x", "x"), ("3-1", "3-1"), ("1024", "1024")]
        {
            let error = text.parse::<CpuList>().unwrap_err();
            assert_eq!(error, CpuListError { part: part.into() }, "{text:?}");
        }
    }

    #[test]
    fn a_pinned_thread_runs_where_it_was_told_to() {
        std::thread::spawn(|| {
            let allowed = rustix::thread::sched_getaffinity(None).unwrap();
            let last = (0..CpuSet::MAX_CPU).rfind(|cpu| allowed.is_set(*cpu)).unwrap();
            pin_thread(&last.to_string().parse().unwrap()).unwrap();
            assert_eq!(rustix::thread::sched_getcpu(), last);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn processors_that_are_not_there_are_refused() {
        let error = pin_thread(&"1023".parse().unwrap()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
}
