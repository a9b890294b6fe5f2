//! Calls one function of the plugin's table again and again, over software NICs, so that callgrind
//! can count its instructions. `tests/count_calls.sh` counts.
//!
//! `count_calls PLUGIN idle|message|messages|sent|isend|irecv TIMES`
//!
//! - `idle`: `test` of a receive for which nothing arrives;
//! - `message`: the `test` that polls the completion of a message;
//! - `messages`: the same, with two messages at once;
//! - `sent`: the `test` of a send that the poll of an earlier call has completed;
//! - `isend` and `irecv`: 8 bytes in host memory.

#[path = "../tests/rt_plugin/ranks.rs"]
#[allow(dead_code, reason = "tests call what is not needed here")]
mod ranks;
#[path = "../tests/rt_plugin/table/mod.rs"]
#[allow(dead_code, reason = "tests call what is not needed here")]
mod table;

use ranks::{LOGGER, Memory, Pair, some, until};
use std::env;
use std::ffi::{c_int, c_void};
use std::process::ExitCode;
use std::ptr;
use table::{Pointer, Status, Table, call};

/// The version of the table.
const VERSION: u32 = 12;

const BYTES: usize = 8;

const TAG: c_int = 1;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [plugin, what, times] = &arguments[..] else {
        eprintln!("count_calls PLUGIN idle|message|messages|sent|isend|irecv TIMES");
        return ExitCode::FAILURE;
    };
    let times: usize = times.parse().expect("a number");
    let mut ranks = Ranks::new(plugin);
    match what.as_str() {
        "idle" => {
            let request = ranks.irecv(plainly);
            (0..times).for_each(|_| assert!(!ranks.test(request, counted)));
        }
        "message" => (0..times).for_each(|_| ranks.message()),
        "messages" | "sent" | "isend" | "irecv" => {
            (0..times).for_each(|_| ranks.messages(what));
        }
        _ => panic!("unknown: {what}"),
    }
    ranks.pair.close();
    ExitCode::SUCCESS
}

/// A connection of two ranks, and what they send.
struct Ranks {
    pair: Pair,
    from: Memory,
    to: Memory,
}

impl Ranks {
    fn new(plugin: &str) -> Self {
        // SAFETY: a plugin runs no code when it is loaded, and it stays loaded.
        let library = unsafe { libloading::Library::new(plugin) }.expect("the plugin");
        let library = Box::leak(Box::new(library));
        let name = format!("ncclNetPlugin_v{VERSION}");
        // SAFETY: the headers say what it is.
        let table = unsafe { library.get::<*const c_void>(name.as_bytes()) }.expect("its table");
        // SAFETY: it is of this version, and stays.
        let table = unsafe { Table::new(table.into_raw().into_raw(), VERSION) };
        let context = table.init(LOGGER, -1).expect("it starts");
        let pair = Pair::new(table, context, 0, 0);
        let [from, to] = pair.memories(4096);
        Self { pair, from, to }
    }

    /// Posts a receive.
    fn irecv(&mut self, run: Run) -> Pointer {
        let Self { pair: Pair { table, recv, .. }, to, .. } = self;
        let (data, sizes, tags, memories) = ([to.at(0)], [BYTES], [TAG], [to.handle]);
        let mut request = ptr::null_mut();
        let status = run(&mut || {
            call!(table, IRECV,
                *recv => Pointer,
                1 => c_int,
                data.as_ptr() => *const Pointer,
                sizes.as_ptr() => *const usize,
                tags.as_ptr() => *const c_int,
                memories.as_ptr() => *const Pointer,
                ptr::null() => *const Pointer,
                &raw mut request => *mut Pointer,
            )
        });
        assert!(status == 0 && !request.is_null());
        request
    }

    /// Posts a send, whose receive is on its way: the receiving end's polls have its NIC send it.
    fn isend(&mut self, received: Pointer, run: Run) -> Pointer {
        until("a send", || {
            let sent = self.try_isend(run);
            if sent.is_none() {
                assert!(!self.test(received, plainly));
            }
            sent
        })
    }

    fn try_isend(&mut self, run: Run) -> Option<Pointer> {
        let Self { pair: Pair { table, send, .. }, from, .. } = self;
        let data = from.at(0);
        let mut request = ptr::null_mut();
        let status = run(&mut || {
            call!(table, ISEND,
                *send => Pointer,
                data => Pointer,
                BYTES => usize,
                TAG => c_int,
                from.handle => Pointer,
                ptr::null_mut() => Pointer,
                &raw mut request => *mut Pointer,
            )
        });
        assert_eq!(status, 0);
        some(request)
    }

    /// Tests a request once, and returns whether it is done.
    fn test(&self, request: Pointer, run: Run) -> bool {
        let (mut done, mut sizes) = (-1, [-1; 8]);
        let status = run(&mut || {
            call!(self.pair.table, TEST,
                request => Pointer,
                &raw mut done => *mut c_int,
                sizes.as_mut_ptr() => *mut c_int,
            )
        });
        assert_eq!(status, 0);
        done == 1
    }

    fn finish(&self, request: Pointer) {
        until("a request", || self.test(request, plainly).then_some(()));
    }

    /// Sends a message, and counts the call that finds it.
    fn message(&mut self) {
        let received = self.irecv(plainly);
        // Polls have the NICs carry out what was posted.
        assert!(!self.test(received, plainly));
        let sent = self.isend(received, plainly);
        self.finish(sent);
        assert!(self.test(received, counted));
    }

    /// Sends two messages, and counts one call.
    fn messages(&mut self, what: &str) {
        let counts = |call| if call == what { counted } else { plainly };
        let received = [self.irecv(plainly), self.irecv(counts("irecv"))];
        assert!(!self.test(received[0], plainly));
        let sent = [self.isend(received[0], plainly), self.isend(received[0], counts("isend"))];
        self.finish(sent[0]);
        assert!(self.test(sent[1], counts("sent")));
        assert!(self.test(received[0], counts("messages")));
        self.finish(received[1]);
    }
}

/// How a call is made.
type Run = fn(&mut dyn FnMut() -> Status) -> Status;

/// Makes a call whose instructions are counted.
#[inline(never)]
fn counted(call: &mut dyn FnMut() -> Status) -> Status {
    call()
}

/// Makes a call whose instructions are not counted.
fn plainly(call: &mut dyn FnMut() -> Status) -> Status {
    call()
}
