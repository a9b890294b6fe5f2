//! Progress threads that have only to wait for their peers use no processor. Alone in its process, whose
//! progress threads it looks at.

mod fixture;

use fixture::{Host, connect_sets};
use polyrail::endpoint::EndpointBuilder;
use polyrail::nic::Fabric;
use polyrail::progress::ProgressThread;
use polyrail::verbs::{RecvWr, WcStatus};
use std::fs;
use std::time::Duration;

/// Processor time of all progress threads so far.
fn processor_time() -> Duration {
    let of_thread = |task: std::path::PathBuf| {
        let name = fs::read_to_string(task.join("comm")).ok()?;
        // The system keeps 15 bytes of a name.
        let is_ours = "polyrail-progress".starts_with(name.trim_end());
        let times = fs::read_to_string(task.join("schedstat")).ok()?;
        let on_processor: u64 = times.split_whitespace().next()?.parse().ok()?;
        is_ours.then(|| Duration::from_nanos(on_processor))
    };
    let tasks = fs::read_dir("/proc/self/task").expect("Linux has it");
    tasks.filter_map(|task| of_thread(task.ok()?.path())).sum()
}

#[test]
fn a_thread_that_waits_for_a_peer_sleeps() {
    let fabric = Fabric::threaded();
    let builder = EndpointBuilder::new().completion_channel(0);
    let hosts = ["near", "far"].map(|name| Host::new(&fabric, name, 2, 64));
    let [mut near, mut far] = hosts.each_ref().map(|host| host.set(&[(builder, &[0, 1])]));
    connect_sets(&mut near, &mut far);
    let threads = [near, far].map(|set| ProgressThread::spawn(set).unwrap());
    let mut handle = threads[1].handle(0).unwrap();
    let pending = handle.post_recv(&RecvWr::notification(1)).unwrap();
    // They poll for a while before they sleep.
    const POLLING: Duration = Duration::from_millis(200);
    const SLEEPING: Duration = Duration::from_millis(500);
    std::thread::sleep(POLLING);
    let before = processor_time();
    assert!(before > Duration::ZERO);
    std::thread::sleep(SLEEPING);
    let used = processor_time() - before;
    assert!(used < SLEEPING / 10, "{used:?} of {SLEEPING:?}");
    drop(threads);
    assert_eq!(pending.wait().unwrap().status, WcStatus::WR_FLUSH_ERR);
}
