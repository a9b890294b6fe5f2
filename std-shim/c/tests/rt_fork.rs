//! A child of a process that uses the library: it releases nothing, sends nothing, and does not
//! hang.

#[path = "../../process/tests/in_fork/mod.rs"]
mod in_fork;

use in_fork::in_fork;
use polyrail_c::*;
use std::ffi::{CStr, c_char, c_void};
use std::mem::zeroed;
use std::ptr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const BYTES: usize = 4096;

fn ok(code: Code) {
    assert_eq!(code, Code::Ok);
}

/// Refused, with words that name both processes.
#[track_caller]
fn forked(code: Code) {
    assert_eq!(code, Code::Forked);
    // SAFETY: the text is this thread's, until its next call.
    let words = unsafe { CStr::from_ptr(polyrail_last_error()) }.to_str().unwrap();
    let processes = format!("process {} is a fork of process", std::process::id());
    assert!(words.contains(&processes), "{words}");
}

struct End {
    domain: *mut Domain,
    peers: *mut Peers,
    peer: u64,
    region: *mut Region,
}

/// An end for requests on the software NIC, with memory.
fn end(memory: &mut [u8]) -> End {
    let (mut domain, mut peers, mut region) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    let mut peer = 0;
    // SAFETY: zeros are values of options, and all pointers are to what they should be; the memory
    // outlives the region.
    unsafe {
        let options = DomainOptions {
            size: size_of::<DomainOptions>() as u32,
            backend: Backend::Software as u32,
            ..zeroed()
        };
        ok(polyrail_domain_open(&raw const options, &raw mut domain));
        ok(polyrail_peers_open(domain, ptr::null(), &raw mut peers));
        ok(polyrail_peers_add(peers, ptr::null(), &raw mut peer));
        let start = memory.as_mut_ptr().cast();
        ok(polyrail_region_register(
            domain,
            start,
            memory.len(),
            POLYRAIL_ACCESS_LOCAL_WRITE,
            &raw mut region,
        ));
    }
    End { domain, peers, peer, region }
}

unsafe extern "C" fn ignore(_: *mut c_void, _: u32, _: *const c_char) {}

#[test]
fn a_child_is_refused_with_words_and_its_parent_goes_on() {
    // SAFETY: the logger may be called from any thread.
    ok(unsafe { polyrail_log(LogLevel::Error as u32, Some(ignore), ptr::null_mut()) });
    let mut memory = vec![0; BYTES];
    let here = end(&mut memory);
    let mut link = ptr::null_mut();
    let mut listener = ptr::null_mut();
    // SAFETY: the addresses end with 0, and the pointers are to places for handles.
    unsafe {
        ok(polyrail_listener_open(c"127.0.0.1:0".as_ptr(), ptr::null(), &raw mut listener));
        ok(polyrail_link_open(c"127.0.0.1:9".as_ptr(), ptr::null(), &raw mut link));
    }
    let End { domain, peers, peer, region } = here;
    in_fork(|| {
        let (mut count, mut number) = (0, 0);
        // SAFETY: as above.
        unsafe {
            let mut completion = zeroed();
            forked(polyrail_peers_poll(peers, &raw mut completion, 1, &raw mut count));
            forked(polyrail_peers_add(peers, ptr::null(), &raw mut number));
        }
        forked(polyrail_peers_drive(peers));
        forked(polyrail_peers_remove(peers, peer));
        forked(polyrail_peers_close(peers));
        forked(polyrail_link_close(link));
        forked(polyrail_listener_close(listener));
        forked(polyrail_region_close(region));
        forked(polyrail_domain_close(domain));
        // SAFETY: the logger is NULL.
        forked(unsafe { polyrail_log(LogLevel::Error as u32, None, ptr::null_mut()) });
        // The child has software NICs of its own.
        let mut memory = vec![0; BYTES];
        let End { domain, peers, region, .. } = end(&mut memory);
        ok(polyrail_peers_close(peers));
        ok(polyrail_region_close(region));
        ok(polyrail_domain_close(domain));
    });
    ok(polyrail_peers_drive(peers));
    ok(polyrail_peers_remove(peers, peer));
    ok(polyrail_peers_close(peers));
    ok(polyrail_link_close(link));
    ok(polyrail_listener_close(listener));
    ok(polyrail_region_close(region));
    ok(polyrail_domain_close(domain));
    a_child_waits_for_no_logger_of_its_parent();
}

/// A logger that returns in a fork of `owner`, and otherwise when it is released.
struct Held {
    owner: u32,
    entered: mpsc::Sender<()>,
    released: mpsc::Receiver<()>,
}

unsafe extern "C" fn hold(held: *mut c_void, _: u32, _: *const c_char) {
    // SAFETY: the context outlives the logger, and one thread is in it.
    let held = unsafe { &*held.cast::<Held>() };
    if held.owner != std::process::id() {
        return;
    }
    held.entered.send(()).unwrap();
    // Without a sender, the test has failed.
    _ = held.released.recv();
}

/// One thread is in the logger, and another one waits to replace it.
fn a_child_waits_for_no_logger_of_its_parent() {
    let (entered, has_entered) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let held = Held { owner: std::process::id(), entered, released };
    let context = (&raw const held).cast_mut().cast();
    // SAFETY: one thread at a time is in the logger.
    ok(unsafe { polyrail_log(LogLevel::Error as u32, Some(hold), context) });
    thread::scope(|scope| {
        let release = release;
        scope.spawn(|| tracing::error!("held"));
        has_entered.recv().unwrap();
        // SAFETY: nothing is logged.
        scope.spawn(|| ok(unsafe { polyrail_log(0, None, ptr::null_mut()) }));
        // Long enough that the thread waits by then. If it does not, the child has less to show.
        thread::sleep(Duration::from_millis(200));
        in_fork(|| tracing::error!("of the child"));
        release.send(()).unwrap();
    });
}
