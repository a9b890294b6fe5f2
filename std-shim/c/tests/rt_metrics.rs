//! `POLYRAIL_METRICS`, which a process reads once, so each case is a process of its own.

use polyrail_c::*;
use std::ffi::{CStr, c_char, c_void};
use std::fs;
use std::io::{Read, Write};
use std::mem::zeroed;
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

/// What a process of this test program does.
const CASE: &str = "METRICS_TEST_CASE";

const BYTES: usize = 1 << 20;

/// How long anything may take, on a machine that does other things too.
const LONG: Duration = Duration::from_secs(600);

unsafe extern "C" fn print(_: *mut c_void, _: u32, line: *const c_char) {
    // SAFETY: the library passes text that ends with 0.
    println!("logged: {}", unsafe { CStr::from_ptr(line) }.to_str().unwrap());
}

#[track_caller]
fn ok(code: Code) {
    assert_eq!(code, Code::Ok);
}

/// Two peers of one object on the software NIC, and memory.
struct World {
    domain: *mut Domain,
    peers: *mut Peers,
    ends: [u64; 2],
    region: *mut Region,
    remote: *mut Remote,
    _memory: Vec<u8>,
}

impl World {
    fn new() -> Self {
        let (mut domain, mut peers) = (ptr::null_mut(), ptr::null_mut());
        let (mut region, mut remote) = (ptr::null_mut(), ptr::null_mut());
        let mut ends = [0_u64; 2];
        let mut memory = vec![7_u8; 2 * BYTES];
        let mut travels = [0_u8; POLYRAIL_REMOTE_BYTES];
        let mut length = 0;
        // SAFETY: zeros are values of options, and all pointers are to what they should be; the
        // memory outlives the region.
        unsafe {
            let options = DomainOptions {
                size: size_of::<DomainOptions>() as u32,
                backend: Backend::Software as u32,
                ..zeroed()
            };
            ok(polyrail_domain_open(&raw const options, &raw mut domain));
            ok(polyrail_peers_open(domain, ptr::null(), &raw mut peers));
            for end in &mut ends {
                ok(polyrail_peers_add(peers, ptr::null(), end));
            }
            let start = memory.as_mut_ptr().cast();
            let access = POLYRAIL_ACCESS_LOCAL_WRITE | POLYRAIL_ACCESS_REMOTE_WRITE;
            ok(polyrail_region_register(domain, start, memory.len(), access, &raw mut region));
            let text = travels.as_mut_ptr().cast();
            ok(polyrail_region_export(region, text, travels.len(), &raw mut length));
            ok(polyrail_remote_import(travels.as_ptr().cast(), length, &raw mut remote));
        }
        let cards = ends.map(|end| {
            let (mut card, mut length) = (vec![0_u8; POLYRAIL_CARD_BYTES], 0);
            let start = card.as_mut_ptr().cast();
            // SAFETY: the room is as long as its length says.
            ok(unsafe { polyrail_peers_card(peers, end, start, card.len(), &raw mut length) });
            card.truncate(length);
            card
        });
        for (end, card) in ends.into_iter().zip(cards.iter().rev()) {
            // SAFETY: the card is as long as its length says.
            ok(unsafe { polyrail_peers_connect(peers, end, card.as_ptr().cast(), card.len()) });
        }
        Self { domain, peers, ends, region, remote, _memory: memory }
    }

    /// Writes the first half of the memory to the second one.
    fn write(&self) {
        // SAFETY: zeros are values of requests, and the memory is not used meanwhile.
        let request = unsafe {
            Request {
                opcode: Opcode::Write as u32,
                region: self.region,
                length: BYTES as u32,
                remote: self.remote,
                remote_offset: BYTES as u64,
                ..zeroed()
            }
        };
        // SAFETY: all pointers are to what they should be.
        ok(unsafe { polyrail_peers_post(self.peers, self.ends[0], &raw const request) });
        let begin = Instant::now();
        while !self.poll() {
            assert!(begin.elapsed() < LONG);
        }
    }

    /// Returns whether a request completed.
    fn poll(&self) -> bool {
        // SAFETY: zeros are values of completions, and there is room for one.
        let (done, count) = unsafe {
            let (mut done, mut count): (Completion, usize) = (zeroed(), 0);
            ok(polyrail_peers_poll(self.peers, &raw mut done, 1, &raw mut count));
            (done, count)
        };
        assert_eq!(done.status, 0);
        count > 0
    }

    /// Polls until a scrape has its answer. The text is empty if nothing answers there.
    fn scrape(&self, address: &str) -> String {
        thread::scope(|scope| {
            let scraped = scope.spawn(|| {
                let mut answer = String::new();
                if let Ok(mut stream) = TcpStream::connect(address) {
                    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
                    stream.read_to_string(&mut answer).unwrap();
                }
                answer
            });
            while !scraped.is_finished() {
                self.poll();
            }
            scraped.join().unwrap()
        })
    }

    fn close(self) {
        ok(polyrail_peers_close(self.peers));
        ok(polyrail_region_close(self.region));
        ok(polyrail_remote_close(self.remote));
        ok(polyrail_domain_close(self.domain));
    }
}

/// Sums the series of a text whose lines begin with a name and have these parts.
fn sum(text: &str, name: &str, parts: &[&str]) -> f64 {
    let fits = |line: &&str| {
        line.starts_with(&format!("{name}{{")) && parts.iter().all(|part| line.contains(part))
    };
    let value = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
    text.lines().filter(fits).map(value).sum()
}

/// What the processes do. Does nothing as a test.
#[test]
fn case() {
    let Ok(case) = std::env::var(CASE) else { return };
    if case != "move silently" {
        // SAFETY: any thread may call the function.
        ok(unsafe { polyrail_log(LogLevel::Info as u32, Some(print), ptr::null_mut()) });
    }
    let world = World::new();
    world.write();
    if let Some(address) = case.strip_prefix("scrape ") {
        let begin = Instant::now();
        let scraped = loop {
            // A scrape waits for 100 ms. If this thread does not run meanwhile, the text has what
            // was published before.
            let text = world.scrape(address);
            let is_there = sum(&text, "polyrail_rail_sent_bytes_total", DEVICE) == BYTES as f64;
            if is_there || text.is_empty() || begin.elapsed() > LONG {
                break text;
            }
        };
        println!("{scraped}");
    }
    world.close();
    println!("moved");
}

/// Runs a case in a process whose metrics go to this target. Returns what it printed and its number.
fn run(case: &str, target: &str) -> (String, u32) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["case", "--exact", "--nocapture"]);
    command.env(CASE, case).env("POLYRAIL_METRICS", target);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8(text).unwrap());
    let said = stdout + &stderr;
    assert!(status.success() && said.contains("moved"), "{said}");
    (said, pid)
}

const DEVICE: &[&str] = &["component=\"c\"", "name=\"peers\"", "device=\"soft0\""];

#[test]
fn a_folder_has_what_a_process_carried_until_it_closed_its_peers() {
    let folder = std::env::temp_dir().join(format!("polyrail-metrics-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (_, pid) = run("move", folder.to_str().unwrap());
    let text = fs::read_to_string(folder.join(format!("polyrail-c-{pid}.prom"))).unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let of_process = format!("pid=\"{pid}\"");
    let labels = [DEVICE, &[&of_process]].concat();
    assert_eq!(sum(&text, "polyrail_rail_sent_bytes_total", &labels), BYTES as f64, "{text}");
    assert_eq!(sum(&text, "polyrail_connections", &[]), 0.0, "they are closed: {text}");
}

#[test]
fn a_process_that_polls_is_scraped() {
    let said = (0..10)
        .find_map(|_| {
            // Free again, unless another process takes it at this moment.
            let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
            let (said, _) = run(&format!("scrape {free}"), &free);
            (!said.contains("goes on without metrics")).then_some(said)
        })
        .expect("one of the ports is free");
    assert_eq!(sum(&said, "polyrail_rail_sent_bytes_total", DEVICE), BYTES as f64, "{said}");
    assert_eq!(sum(&said, "polyrail_connections", &["state=\"ready\""]), 2.0, "{said}");
}

#[test]
fn a_process_without_a_usable_target_goes_on() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for (target, why) in [
        (taken.as_str(), format!("metrics cannot be served at {taken}: ")),
        ("/does/not/exist", "metrics cannot be written to /does/not/exist/polyrail-c-".to_owned()),
        ("a:b", "a:b is not HOST:PORT".to_owned()),
    ] {
        // Without a logger, the line goes to the standard error output.
        for (case, by) in [("move", "logged: "), ("move silently", "polyrail: ")] {
            let (said, _) = run(case, target);
            let lines: Vec<_> =
                said.lines().filter(|line| line.contains("goes on without metrics")).collect();
            let [line] = lines[..] else { panic!("{target}: {said}") };
            let is_known = line.contains(&why) && line.contains(by);
            assert!(is_known, "{target}, {case}: {said}");
        }
    }
    let (said, _) = run("move", "");
    assert!(!said.contains("metrics"), "{said}");
}
