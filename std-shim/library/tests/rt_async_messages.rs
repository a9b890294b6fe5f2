//! The example `async_messages`, whose sender is killed.

#![cfg(feature = "tcp")]

use polyrail::link::{Arrivals, Link, Listener, Timeouts};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

#[allow(dead_code, reason = "the test starts the two sides itself")]
#[path = "../examples/async_messages.rs"]
mod example;

const NAME: &str = "a_receiver_ends_when_its_sender_is_killed";
/// Has another process of this program be the sender, to the receiver at this address.
const ADDRESS: &str = "POLYRAIL_TEST_ASYNC_MESSAGES_TO";
const CONNECTED: &str = "the sender is connected";

/// Connects, sends nothing, and waits for its end.
fn sender(address: &str) {
    let link = Link::connect(address, &Timeouts::default()).unwrap();
    let _connected = example::connect(link, None, &["tcp:lo".into()]).unwrap();
    println!("{CONNECTED}");
    // The test closes it, if it ends early.
    _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// Nothing is in flight to the sender, so no rail fails: only the link shows that it is gone.
#[test]
fn a_receiver_ends_when_its_sender_is_killed() {
    if let Ok(address) = std::env::var(ADDRESS) {
        return sender(&address);
    }
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(ADDRESS, listener.local_addr().unwrap().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let timeouts = Timeouts { accept: Some(Duration::from_secs(60)), ..Timeouts::default() };
    let arrival = Arrivals::default().accept(&listener, &timeouts).unwrap();
    let (ended, end) = mpsc::channel();
    thread::spawn(move || {
        let ran = example::run(arrival.link, Some(arrival.hello), &["tcp:lo".into()]);
        ended.send(ran.map_err(|error| error.to_string()))
    });
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains(CONNECTED)));
    let early = end.recv_timeout(Duration::from_millis(300));
    assert_eq!(early, Err(mpsc::RecvTimeoutError::Timeout), "it waits for the message");
    child.kill().unwrap();
    child.wait().unwrap();
    let ran = end.recv_timeout(Duration::from_secs(60)).expect("the receiver ends");
    assert!(ran.is_err());
}
