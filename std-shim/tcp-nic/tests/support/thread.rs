//! What the I/O threads of this process do.

use std::fs;
use std::time::Duration;

/// Processor time of the I/O threads so far, in ticks of 10 ms.
pub fn ticks() -> u64 {
    let mut sum = 0;
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path();
        // A thread may end meanwhile.
        let (Ok(name), Ok(stat)) =
            (fs::read_to_string(path.join("comm")), fs::read_to_string(path.join("stat")))
        else {
            continue;
        };
        if name.trim() == "polyrail-tcp" {
            let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
            // proc_pid_stat(5): fields 14 and 15, utime and stime; the third is the first here.
            sum += fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        }
    }
    sum
}

/// Whether an I/O thread works all the time, although there is nothing to do.
pub fn spins() -> bool {
    let before = ticks();
    // A thread that spins gets at least a tenth of a processor, however busy the machine is.
    std::thread::sleep(Duration::from_secs(2));
    ticks() - before > 20
}
