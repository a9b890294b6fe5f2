//! The processors on which an I/O thread runs.

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::path::Path;
use std::{fs, thread};

/// Where the I/O thread of a device runs. A thread that runs beside its NIC finds in its caches
/// what the NIC has written; one that is bound to a processor is never moved, which costs some ten
/// microseconds. Devices share a thread only if it may run on the same processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThreadPlace {
    /// Wherever the thread that opens the device may run.
    #[default]
    Anywhere,
    /// On the processors of the NIC's NUMA node (`local_cpus` in sysfs), as far as this process may
    /// use them. Anywhere if the interface is virtual, or if there are none.
    BesideNic,
    /// On this processor.
    Processor(u32),
}

/// A set of processors; `None`: all that the process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Processors(Option<CpuSet>);

impl ThreadPlace {
    /// Returns the processors for a device of this interface.
    pub(crate) fn processors(self, interface: &str) -> Processors {
        Processors(match self {
            Self::Anywhere => None,
            Self::BesideNic => beside(&Path::new("/sys/class/net").join(interface)),
            Self::Processor(number) => {
                let mut set = CpuSet::new();
                // Of a number for which the set has no room, it stays empty, and is refused.
                if (number as usize) < CpuSet::MAX_CPU {
                    set.set(number as usize);
                }
                Some(set)
            }
        })
    }
}

impl Processors {
    /// Number of processors, at least 1.
    pub(crate) fn count(self) -> usize {
        let count = |set: CpuSet| set.count() as usize;
        self.0.map_or_else(|| thread::available_parallelism().map_or(1, usize::from), count).max(1)
    }

    /// Binds the calling thread.
    ///
    /// # Errors
    ///
    /// EINVAL: this process may use none of them.
    pub(crate) fn pin(self) -> Result<(), Errno> {
        self.0.map_or(Ok(()), |set| sched_setaffinity(None, &set))
    }
}

/// Returns the processors beside an interface, by its directory in sysfs, that this process may
/// use.
fn beside(interface: &Path) -> Option<CpuSet> {
    let near = mask(&fs::read_to_string(interface.join("device/local_cpus")).ok()?)?;
    let allowed = sched_getaffinity(None).ok()?;
    let mut set = CpuSet::new();
    (0..CpuSet::MAX_CPU)
        .filter(|cpu| near.is_set(*cpu) && allowed.is_set(*cpu))
        .for_each(|cpu| set.set(cpu));
    (set.count() > 0).then_some(set)
}

/// Reads a mask of processors, as sysfs writes it: words of 32 bits in hexadecimal digits, the
/// highest first, with commas between them.
fn mask(text: &str) -> Option<CpuSet> {
    let mut set = CpuSet::new();
    for (index, word) in text.trim().rsplit(',').enumerate() {
        let word = u32::from_str_radix(word, 16).ok()?;
        let cpus = (0..32).filter(|bit| word >> bit & 1 == 1).map(|bit| 32 * index + bit);
        cpus.filter(|cpu| *cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(cpu));
    }
    Some(set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env;

    fn numbers(set: CpuSet) -> Vec<usize> {
        (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
    }

    #[test]
    fn a_mask_is_read_as_sysfs_writes_it() {
        let read = |text: &str| mask(text).map(numbers);
        assert_eq!(read("3\n"), Some(vec![0, 1]));
        assert_eq!(read("00000001,80000000,00000000\n"), Some(vec![63, 64]));
        assert_eq!(read(&format!("{}1", "0,".repeat(31))), Some(vec![0]));
        assert_eq!(read("0-3"), None);
        assert_eq!(read(""), None);
    }

    #[test]
    fn processors_beside_a_nic_are_those_that_the_process_may_use() {
        let folder = env::temp_dir().join(format!("polyrail-place-{}", std::process::id()));
        let device = folder.join("device");
        fs::create_dir_all(&device).unwrap();
        let allowed = numbers(sched_getaffinity(None).unwrap());
        let first = allowed[0];
        let words = |cpu: usize| format!("{:x}{}", 1_u32 << (cpu % 32), ",0".repeat(cpu / 32));
        fs::write(device.join("local_cpus"), words(first)).unwrap();
        assert_eq!(beside(&folder).map(numbers), Some(vec![first]));
        if let Some(other) = (0..CpuSet::MAX_CPU).find(|cpu| !allowed.contains(cpu)) {
            fs::write(device.join("local_cpus"), words(other)).unwrap();
            assert_eq!(beside(&folder), None, "it may use none of them");
        }
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(beside(&folder), None, "a virtual interface");
    }
}
