//! Links that are connected in a process without file descriptors. Alone in its process, since it
//! takes them all.

use polyrail_c::*;
use std::ffi::{CStr, CString, c_char};
use std::fs::File;
use std::mem::zeroed;
use std::net::TcpListener;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take, on a machine that does other things too.
const LONG: Duration = Duration::from_secs(600);

#[track_caller]
fn ok(code: Code) {
    assert_eq!(code, Code::Ok);
}

/// Takes all file descriptors that this process may have, until the files are dropped.
fn no_descriptor() -> Vec<File> {
    let limit = libc::rlimit { rlim_cur: 128, rlim_max: 128 };
    // SAFETY: a limit, which the call copies.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

/// A peer for requests on the software NIC.
struct End {
    peers: *mut Peers,
    peer: u64,
}

impl End {
    fn new(domain: *mut Domain) -> Self {
        let (mut peers, mut peer) = (ptr::null_mut(), 0);
        // SAFETY: all pointers are to what they should be.
        unsafe {
            ok(polyrail_peers_open(domain, ptr::null(), &raw mut peers));
            ok(polyrail_peers_add(peers, ptr::null(), &raw mut peer));
        }
        Self { peers, peer }
    }

    fn meet(&self, link: *mut Link) {
        // SAFETY: there is no hello.
        ok(unsafe { polyrail_peers_meet(self.peers, self.peer, link, ptr::null(), 0) });
    }

    /// Returns the next event: its kind, and its words.
    fn event(&self) -> Option<(u32, String)> {
        ok(polyrail_peers_drive(self.peers));
        let mut bytes = [0u8; POLYRAIL_MESSAGE_BYTES];
        // SAFETY: zeros are values of an event, and all pointers are to what they should be.
        let (taken, event) = unsafe {
            let mut event = Event { size: size_of::<Event>() as u32, ..zeroed() };
            let start = bytes.as_mut_ptr().cast();
            (polyrail_peers_next_event(self.peers, &raw mut event, start, bytes.len()), event)
        };
        let words = String::from_utf8_lossy(&bytes[..event.length as usize]).into_owned();
        (taken != Code::NotNow).then_some((event.kind, words))
    }

    /// For a time that is far longer than all attempts take if there is a descriptor.
    fn waits(&self) {
        for _ in 0..200 {
            assert_eq!(self.event(), None);
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Two ends, and a listener of one of them.
struct Ends {
    domain: *mut Domain,
    ends: [End; 2],
    listener: *mut Listener,
    address: String,
}

impl Ends {
    fn new() -> Self {
        let (mut domain, mut listener) = (ptr::null_mut(), ptr::null_mut());
        let (mut text, mut length) = ([0 as c_char; 64], 0);
        // SAFETY: zeros are values of options, and all pointers are to what they should be.
        let address = unsafe {
            let options = DomainOptions {
                size: size_of::<DomainOptions>() as u32,
                backend: Backend::Software as u32,
                ..zeroed()
            };
            ok(polyrail_domain_open(&raw const options, &raw mut domain));
            let any = c"127.0.0.1:0".as_ptr();
            ok(polyrail_listener_open(any, ptr::null(), &raw mut listener));
            let start = text.as_mut_ptr();
            ok(polyrail_listener_address(listener, start, text.len(), &raw mut length));
            CStr::from_ptr(start).to_str().unwrap().to_owned()
        };
        let ends = [End::new(domain), End::new(domain)];
        Self { domain, ends, listener, address }
    }

    /// The first end begins to connect to these addresses.
    fn connect(&self, addresses: &str) {
        let (mut link, addresses) = (ptr::null_mut(), CString::new(addresses).unwrap());
        // SAFETY: all pointers are to what they should be.
        ok(unsafe { polyrail_link_open(addresses.as_ptr(), ptr::null(), &raw mut link) });
        self.ends[0].meet(link);
    }

    /// The ends connect, and are closed.
    fn finish(self) {
        let Self { domain, ends, listener, .. } = self;
        let (mut link, mut connected) = (ptr::null_mut(), 0);
        let begin = Instant::now();
        while connected < 2 {
            assert!(begin.elapsed() < LONG, "the two ends did not connect");
            // SAFETY: a listener, and a place for a link.
            match unsafe { polyrail_listener_accept(listener, &raw mut link) } {
                Code::NotNow => {}
                code => {
                    ok(code);
                    ends[1].meet(link);
                }
            }
            for (kind, words) in ends.iter().filter_map(End::event) {
                assert_eq!(kind, EventKind::Connected as u32, "{words}");
                connected += 1;
            }
        }
        ends.iter().for_each(|end| ok(polyrail_peers_close(end.peers)));
        ok(polyrail_listener_close(listener));
        ok(polyrail_domain_close(domain));
    }
}

#[test]
fn links_connect_once_there_are_descriptors() {
    // None for the lookup of a name, the first of this process: until one has succeeded, glibc
    // reports an unknown name. None for the first attempt.
    for host in ["localhost", "127.0.0.1"] {
        let ends = Ends::new();
        let files = no_descriptor();
        ends.connect(&ends.address.replace("127.0.0.1", host));
        ends.ends[0].waits();
        drop(files);
        ends.finish();
    }
    // One, which the link to a listener that is not the peer's has.
    let ends = Ends::new();
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let wrong = stranger.local_addr().unwrap();
    let mut files = no_descriptor();
    files.pop();
    ends.connect(&format!("{wrong},{}", ends.address));
    ends.ends[0].waits();
    // Ends the link, too.
    drop(stranger);
    files.extend(no_descriptor());
    ends.ends[0].waits();
    drop(files);
    ends.finish();
}
