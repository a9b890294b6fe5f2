//! The plugin's own thread, and processes that are forked, which have every descriptor too.

use crate::in_fork::in_fork;
use crate::ranks::{LOGGER, Pair, at_once, until};
use crate::sockets::sockets;
use crate::table::{INVALID_USAGE, REMOTE};
use crate::works::merged;
use crate::{Plugin, cases};
use std::ffi::c_int;
use std::fs;
use std::time::{Duration, Instant};

cases! {
    a_connection_that_panicked_costs_no_time,
    a_closed_connection_that_a_child_has_costs_no_time,
    a_peer_whose_link_a_child_has_ends_all_the_same,
    a_child_is_refused_and_its_parent_goes_on,
}

/// A process that was forked and does nothing, as workers that load data.
struct Child(libc::pid_t);

impl Child {
    /// One that closes these descriptors first.
    fn new(closed: &[c_int]) -> Self {
        // SAFETY: the child only calls what may be called after a fork.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            for descriptor in closed {
                // SAFETY: as above.
                unsafe { libc::close(*descriptor) };
            }
            // SAFETY: as above.
            unsafe {
                libc::sleep(60);
                libc::_exit(0)
            }
        }
        Self(child)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: it is a child of this process, and nothing else waits for it.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// Hundredths of a second of a processor that the plugin's thread has had.
fn ticks() -> u64 {
    let is_it = |task: &fs::DirEntry| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "polyrail-care\n")
    };
    // The thread sets its name itself, once it runs.
    let task =
        until("the thread", || fs::read_dir("/proc/self/task").unwrap().flatten().find(is_it));
    let state = fs::read_to_string(task.path().join("stat")).unwrap();
    let fields: Vec<&str> = state.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// It looks a hundred times a second, which costs next to nothing.
fn costs_no_time() {
    let before = ticks();
    std::thread::sleep(Duration::from_secs(2));
    let had = ticks() - before;
    assert!(had < 40, "{had} hundredths in two seconds");
}

fn a_connection_that_panicked_costs_no_time(plugin: &Plugin) {
    let table = plugin.table(12);
    let context = table.init(LOGGER, -1).unwrap();
    let pair = Pair::new(table, context, 0, 1);
    plugin.panic(pair.send);
    assert_eq!(table.close_recv(pair.recv), 0);
    costs_no_time();
    assert_eq!(table.close_send(pair.send), 0);
}

/// The child has one end of the link, whose other end is closed for good.
fn a_closed_connection_that_a_child_has_costs_no_time(plugin: &Plugin) {
    let table = plugin.table(12);
    let context = table.init(LOGGER, -1).unwrap();
    // The thread lives as long as there is one.
    let stays = Pair::new(table, context, 0, 1);
    let before = sockets();
    for end in [0, 1] {
        let pair = Pair::new(table, context, 0, 1);
        let ends: Vec<c_int> = sockets().into_iter().filter(|it| !before.contains(it)).collect();
        assert_eq!(ends.len(), 2);
        let child = Child::new(&ends[end..=end]);
        pair.close();
        costs_no_time();
        drop(child);
    }
    stays.close();
}

fn a_peer_whose_link_a_child_has_ends_all_the_same(plugin: &Plugin) {
    let pair = merged(plugin);
    let [mut from, mut to] = pair.memories(1000);
    pair.send_through(&mut from, &mut to, 1000);
    let child = Child::new(&[]);
    let receive = until("irecv", || pair.irecv(&[(to.at(0), 1000, 1, to.handle)]));
    // What is offered has arrived: nothing is under way whose failure would show it.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(300) {
        assert_eq!(pair.test(receive), None);
    }
    assert_eq!(pair.table.close_send(pair.send), 0);
    assert_eq!(until("an error", || at_once(|| pair.table.test(receive)).err()), REMOTE);
    assert_eq!(pair.table.close_recv(pair.recv), 0);
    drop(child);
}

/// The child calls everything, and ends as a program does.
fn a_child_is_refused_and_its_parent_goes_on(plugin: &Plugin) {
    let pair = merged(plugin);
    let [_from, mut to] = pair.memories(1000);
    let receive = until("irecv", || pair.irecv(&[(to.at(0), 1000, 1, to.handle)]));
    in_fork(|| {
        let table = &pair.table;
        assert_eq!(table.test(receive).map(drop), Err(INVALID_USAGE));
        assert_eq!(table.init(LOGGER, -1).map(drop), Err(INVALID_USAGE));
        assert_eq!(table.close_send(pair.send), INVALID_USAGE);
        assert_eq!(table.close_recv(pair.recv), INVALID_USAGE);
    });
    assert_eq!(pair.test(receive), None);
    assert_eq!(pair.table.close_send(pair.send), 0);
    assert_eq!(until("an error", || at_once(|| pair.table.test(receive)).err()), REMOTE);
    assert_eq!(pair.table.close_recv(pair.recv), 0);
}
