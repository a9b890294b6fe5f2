//! What is done a thousand times, and undone, leaves nothing: file descriptors, threads, mappings
//! and memory are counted.

use crate::ranks::{LOGGER, LONG, Memory, Pair, logged, until};
use crate::table::{HANDLE, Pointer, Status};
use crate::works::merged;
use crate::{Plugin, VERSIONS, cases};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// What threads keep for their next allocation would count as in use: they keep nothing.
const COUNTED: &[(&str, &str)] = &[("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0")];

cases! {
    connections_leave_nothing: COUNTED,
    communicators_leave_nothing: COUNTED,
    refused_inits_leave_nothing: COUNTED,
    refused_calls_leave_nothing: COUNTED,
}

/// Rounds that are counted, and those before, after which everything that is made once is there.
const ROUNDS: usize = 1000;
const BEFORE: usize = 200;

/// What this process has.
#[derive(Debug)]
struct Held {
    files: usize,
    threads: usize,
    mappings: usize,
    /// Allocated, and not freed.
    bytes: usize,
    /// Resident.
    pages: usize,
}

fn held() -> Held {
    // SAFETY: nothing is asked of the caller.
    let allocated = unsafe { libc::mallinfo2() };
    let memory = fs::read_to_string("/proc/self/statm").unwrap();
    Held {
        files: fs::read_dir("/proc/self/fd").unwrap().count(),
        threads: fs::read_dir("/proc/self/task").unwrap().count(),
        mappings: fs::read_to_string("/proc/self/maps").unwrap().lines().count(),
        bytes: allocated.uordblks + allocated.hblkhd,
        pages: memory.split(' ').nth(1).unwrap().parse().unwrap(),
    }
}

/// The least of several looks: what ends in the background is not counted.
fn settled() -> Held {
    let mut least = held();
    for _ in 0..10 {
        thread::sleep(Duration::from_millis(3));
        let now = held();
        least = Held {
            files: least.files.min(now.files),
            threads: least.threads.min(now.threads),
            mappings: least.mappings.min(now.mappings),
            bytes: least.bytes.min(now.bytes),
            pages: least.pages.min(now.pages),
        };
    }
    least
}

/// Does something again and again: what the process has does not grow.
fn leaves_nothing(what: &str, mut round: impl FnMut(usize)) {
    (0..BEFORE).for_each(&mut round);
    let before = settled();
    (0..ROUNDS).for_each(&mut round);
    let is_left = |after: &Held| {
        after.files != before.files
            || after.threads > before.threads
            // Stacks of threads are kept for those that come: there may have been more at once than
            // before.
            || after.mappings >= before.mappings + 10
            // Half of the least that could be left each time: 16 bytes, or a page.
            || after.bytes >= before.bytes + ROUNDS * 16 / 2
            || after.pages >= before.pages + ROUNDS / 2
    };
    // What ends in the background ends a moment later.
    let begin = Instant::now();
    let mut after = held();
    while is_left(&after) && begin.elapsed() < LONG {
        thread::sleep(Duration::from_millis(1));
        after = held();
    }
    assert!(!is_left(&after), "{what}: {before:?}, and then {after:?}");
}

fn connections_leave_nothing(plugin: &Plugin) {
    let table = plugin.table(12);
    let context = table.init(LOGGER, -1).unwrap();
    let merged = [table.make_v_device(&[0, 1]).unwrap(), table.make_v_device(&[2, 3]).unwrap()];
    leaves_nothing("a connection", |round| {
        let pair = Pair::new(table, context, merged[0], merged[1]);
        if round.is_multiple_of(4) {
            let [mut from, mut to] = pair.memories(100);
            pair.send_through(&mut from, &mut to, 100);
        }
        if round.is_multiple_of(3) {
            // One that is never accepted.
            let mut handle = [0u8; HANDLE];
            let listener = table.listen(context, 0, handle.as_mut_ptr().cast()).unwrap();
            table.connect(context, 1, handle.as_mut_ptr().cast()).unwrap();
            assert_eq!(table.close_listen(listener), 0);
            until("a connection that will not be", || {
                table.connect(context, 1, handle.as_mut_ptr().cast()).err()
            });
        }
        pair.close();
        logged();
    });
}

fn communicators_leave_nothing(plugin: &Plugin) {
    let table = plugin.table(12);
    leaves_nothing("a communicator", |_| {
        let context = table.init(LOGGER, 7).unwrap();
        table.make_v_device(&[1, 3, 0]).unwrap();
        // What is left open ends with it: who listens, a connection under way, and one that is
        // made.
        let mut handle = [0u8; HANDLE];
        table.listen(context, 0, handle.as_mut_ptr().cast()).unwrap();
        table.connect(context, 1, handle.as_mut_ptr().cast()).unwrap();
        let Pair { send, recv, .. } = Pair::new(table, context, 1, 0);
        assert!(!send.is_null() && !recv.is_null());
        assert_eq!(table.finalize(context), 0);
        logged();
    });
    // Before version 11 there are none, and nothing to end.
    let table = plugin.table(10);
    leaves_nothing("init", |_| {
        table.init(LOGGER, -1).unwrap();
        table.make_v_device(&[1, 3, 0]).unwrap();
        logged();
    });
}

/// Settings that are wrong: while something is open they are not read.
fn refused_inits_leave_nothing(plugin: &Plugin) {
    for (name, value) in [("POLYRAIL_RIALS", "2"), ("POLYRAIL_RAILS", "many")] {
        // SAFETY: there is one thread.
        unsafe { env::set_var(name, value) };
        for version in VERSIONS {
            let table = plugin.table(version);
            refused_leave_nothing(name, || status(table.init(LOGGER, -1)));
        }
        // SAFETY: likewise.
        unsafe { env::remove_var(name) };
    }
}

fn refused_calls_leave_nothing(plugin: &Plugin) {
    let pair = merged(plugin);
    let Pair { table, context, send, recv } = pair;
    let mut from = Memory::new(&table, send, 1000);
    let mut to = Memory::new(&table, recv, 1000);
    let (data, room) = (from.at(0), to.at(0));
    let none = std::ptr::without_provenance_mut(77 << 16);
    let nowhere = Pointer::default();
    let mut handle = [0u8; HANDLE];
    let mut closed = [0u8; HANDLE];
    let listener = table.listen(context, 0, closed.as_mut_ptr().cast()).unwrap();
    assert_eq!(table.close_listen(listener), 0);
    let (handle, closed) = (handle.as_mut_ptr().cast(), closed.as_mut_ptr().cast());
    // A buffer that is offered, and too short.
    pair.irecv(&[(room, 10, 1, to.handle)]).unwrap();
    until("the offer", || table.isend(send, (data, 11), 1, from.handle).err());
    let buffer = (room, 1, 0, to.handle);
    let refusals: [(&str, &dyn Fn() -> Status); 28] = [
        ("init with a traffic class", &|| status(table.init(LOGGER, 256))),
        ("getProperties", &|| status(table.properties(77))),
        ("makeVDevice", &|| status(table.make_v_device(&[0, 0]))),
        ("listen", &|| status(table.listen(context, 77, handle))),
        ("listen for no communicator", &|| status(table.listen(none, 0, handle))),
        ("connect without a handle", &|| status(table.connect(context, 0, handle))),
        ("connect from no device", &|| status(table.connect(context, 77, closed))),
        ("connect where nobody listens", &|| {
            until("a refusal", || table.connect(context, 0, closed).err())
        }),
        ("accept", &|| status(table.accept(none))),
        ("regMr for no connection", &|| status(table.reg_mr(none, data, 1, 1))),
        ("regMr of nothing", &|| status(table.reg_mr(send, nowhere, 100, 1))),
        ("regMr without a length", &|| status(table.reg_mr(send, data, 0, 1))),
        ("regMr of GPU memory", &|| status(table.reg_mr(send, data, 100, 2))),
        ("regMrDmaBuf", &|| status(table.reg_mr_dma_buf(send, (data, 100), 2, 0))),
        ("regMrDmaBuf of no file", &|| status(table.reg_mr_dma_buf(send, (data, 100), 2, -1))),
        ("deregMr", &|| table.dereg_mr(send, none)),
        ("isend", &|| status(table.isend(none, (data, 1), 1, from.handle))),
        ("isend without memory", &|| status(table.isend(send, (data, 1), 1, none))),
        ("isend of more than there is", &|| {
            status(table.isend(send, (data, 1001), 1, from.handle))
        }),
        ("isend of more than is offered", &|| {
            status(table.isend(send, (data, 11), 1, from.handle))
        }),
        ("irecv", &|| status(table.irecv(none, &[buffer], false))),
        ("irecv of no buffer", &|| status(table.irecv(recv, &[], false))),
        ("irecv of nine", &|| status(table.irecv(recv, &[buffer; 9], false))),
        ("irecv into more than there is", &|| {
            status(table.irecv(recv, &[(room, 1001, 0, to.handle)], false))
        }),
        ("iflush", &|| status(table.iflush(none, &[(room, 1, to.handle)]))),
        ("test", &|| status(table.test(none))),
        ("closeSend, closeRecv, closeListen", &|| {
            let statuses =
                [table.close_send(none), table.close_recv(none), table.close_listen(none)];
            statuses.into_iter().min().unwrap()
        }),
        ("finalize", &|| table.finalize(none)),
    ];
    for (what, call) in refusals {
        refused_leave_nothing(what, call);
    }
    pair.close();
}

fn refused_leave_nothing(what: &str, call: impl Fn() -> Status) {
    leaves_nothing(what, |_| {
        assert_ne!(call(), 0, "{what} is not refused");
        logged();
    });
}

fn status<T>(result: Result<T, Status>) -> Status {
    result.err().unwrap_or(0)
}
