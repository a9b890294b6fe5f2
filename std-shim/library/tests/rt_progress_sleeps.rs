//! Progress threads that have only to wait for their peers use no processor. Alone in its process,
//! whose progress threads it looks at.

mod fixture;

use fixture::{Host, LONG, connect_sets};
use polyrail::endpoint::EndpointBuilder;
use polyrail::nic::Fabric;
use polyrail::p2p::{P2pBuilder, RecvBuffer, connect_endpoints};
use polyrail::progress::ProgressThread;
use polyrail::progress::messages::P2pThread;
use polyrail::verbs::{RecvWr, WcStatus};
use polyrail::virtual_qp::RailFailure;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// All progress threads: their processor time so far, and whether each of them sleeps.
fn progress_threads() -> (Duration, bool) {
    let of_thread = |task: PathBuf| {
        let name = fs::read_to_string(task.join("comm")).ok()?;
        // The system keeps 15 bytes of a name.
        let is_ours = "polyrail-progress".starts_with(name.trim_end());
        let times = fs::read_to_string(task.join("schedstat")).ok()?;
        let on_processor: u64 = times.split_whitespace().next()?.parse().ok()?;
        // The state follows the name, which is in parentheses.
        let stat = fs::read_to_string(task.join("stat")).ok()?;
        let sleeps = stat.rsplit_once(") ")?.1.starts_with('S');
        is_ours.then(|| (Duration::from_nanos(on_processor), sleeps))
    };
    let tasks = fs::read_dir("/proc/self/task").expect("Linux has it");
    let threads: Vec<_> = tasks.filter_map(|task| of_thread(task.ok()?.path())).collect();
    (threads.iter().map(|(used, _)| used).sum(), threads.iter().all(|(_, sleeps)| *sleeps))
}

/// Checks that progress threads that wait use hardly any processor, once they have polled for a
/// while, which takes as long as others let it take. One that goes on polling never sleeps, however
/// little of the processor it gets.
fn they_sleep() {
    const WINDOW: Duration = Duration::from_millis(500);
    let begin = Instant::now();
    loop {
        let (before, slept_before) = progress_threads();
        std::thread::sleep(WINDOW);
        let (after, sleep_now) = progress_threads();
        let used = after - before;
        if before > Duration::ZERO && slept_before && sleep_now && used < WINDOW / 10 {
            return;
        }
        assert!(
            begin.elapsed() < LONG,
            "{used:?} of {WINDOW:?}; asleep: {slept_before}, {sleep_now}"
        );
    }
}

// One after the other: the threads of one would count for the other.
#[test]
fn a_thread_that_waits_for_a_peer_sleeps() {
    one_with_a_receive_sleeps();
    one_with_a_buffer_on_offer_sleeps();
}

fn one_with_a_receive_sleeps() {
    let fabric = Fabric::threaded();
    let builder = EndpointBuilder::new().completion_channel(0);
    let hosts = ["near", "far"].map(|name| Host::new(&fabric, name, 2, 64));
    let [mut near, mut far] = hosts.each_ref().map(|host| host.set(&[(builder, &[0, 1])]));
    connect_sets(&mut near, &mut far);
    let threads = [near, far].map(|set| ProgressThread::spawn(set).unwrap());
    let mut handle = threads[1].handle(0).unwrap();
    let pending = handle.post_recv(&RecvWr::notification(1)).unwrap();
    they_sleep();
    drop(threads);
    assert_eq!(pending.wait().unwrap().status, WcStatus::WR_FLUSH_ERR);
}

fn one_with_a_buffer_on_offer_sleeps() {
    let fabric = Fabric::threaded();
    let builder = P2pBuilder::new().completion_channel(0).rail_failure(RailFailure::Reroute);
    let hosts = ["near", "far"].map(|name| Host::new(&fabric, name, 2, 64));
    let [mut near, mut far] = hosts.each_ref().map(|host| builder.build(&host.all()).unwrap());
    connect_endpoints(&mut near, &mut far).unwrap();
    let threads = [near, far].map(|end| P2pThread::spawn(end).unwrap());
    let mut handle = threads[1].handle(0).unwrap();
    let keys = hosts[1].buffer.own_keys();
    let local = hosts[1].buffer.local(0, 64).unwrap();
    let pending = handle.irecv(&[RecvBuffer { local, tag: 1, keys: &keys }]).unwrap();
    they_sleep();
    drop(threads);
    assert!(pending.wait().is_err());
}
