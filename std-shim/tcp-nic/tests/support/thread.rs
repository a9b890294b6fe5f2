//! What the I/O threads of this process do.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// The directory of each I/O thread.
fn io_threads() -> impl Iterator<Item = PathBuf> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    // A thread may end meanwhile.
    tasks.filter(|task| {
        fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "polyrail-tcp")
    })
}

/// Waits until there is no I/O thread. The owner of the last device waits for its thread, unless
/// that thread holds the device at that moment, and closes it later.
pub fn wait_until_none() {
    super::wait("the end of the I/O threads", || io_threads().next().is_none());
}

/// Processor time of the I/O threads so far, in ticks of 10 ms.
pub fn ticks() -> u64 {
    let stats = io_threads().filter_map(|task| fs::read_to_string(task.join("stat")).ok());
    stats
        .map(|stat| {
            let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
            // proc_pid_stat(5): fields 14 and 15, utime and stime; the third is the first here.
            fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
        })
        .sum()
}

/// Whether an I/O thread works all the time, although there is nothing to do.
pub fn spins() -> bool {
    let before = ticks();
    // A thread that spins gets at least a tenth of a processor, however busy the machine is.
    std::thread::sleep(Duration::from_secs(2));
    ticks() - before > 20
}
