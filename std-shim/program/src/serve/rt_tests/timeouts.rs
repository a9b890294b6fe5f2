//! Peers that stay connected without making progress.

use super::*;

/// Runs a receiver that sends its hello and `ready`, then receives nothing and calls `then`.
/// Returns the sender's error.
fn quiet_receiver(options: &CopyOptions, then: impl FnOnce(Link) + Send) -> CopyError {
    let (_directory, source, _) = place_with_source();
    let (here, there) = software_hosts(4).unwrap();
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::scope(|scope| {
        scope.spawn(|| {
            let Arrival { link: mut control, hello, .. } = arrival(&listener);
            let domains = there.domains();
            let mut endpoint: Endpoint = options.builder().build(&domains).unwrap();
            let ring = RegisteredBuffer::new(16 << 20, ALL_ACCESS, &domains).unwrap();
            let address = endpoint.address();
            let buffer = ring.remote();
            control
                .send(&Message::Hello(Hello {
                    reach: address.into(),
                    buffer,
                    purpose: None,
                    session: None,
                }))
                .unwrap();
            bring_up(&mut endpoint, &mut control, &hello, |endpoint| {
                (0..8).try_for_each(|n| endpoint.post_recv(&RecvWr::notification(n)))?;
                Ok::<(), SessionError>(())
            })
            .unwrap();
            then(control);
        });
        send(&source, None, &address, &here, options).unwrap_err()
    })
}

#[test]
fn a_sender_does_not_wait_forever_for_a_quiet_receiver() {
    let mut told = Vec::new();
    // On a busy machine, a short time may be over while the sender waits for something else.
    let is_told = [300, 3_000, 30_000].map(Duration::from_millis).into_iter().any(|idle| {
        let timeouts = PeerTimeouts { idle, ..PeerTimeouts::default() };
        let options = CopyOptions { timeouts, ..CopyOptions::default() };
        let error = quiet_receiver(&options, |mut control| {
            let reported = reported(&mut control);
            assert!(reported.contains("gave up: nothing happened for"), "{reported}");
        });
        let text = format!(
            "sender: nothing happened for {idle:?} while waiting for the receiver's credits for the \
             chunks that were sent"
        );
        told.push(Chain(&error).to_string());
        told.last() == Some(&text)
    });
    assert!(is_told, "{told:?}");
}

/// Sends `alive` until the peer gives up.
fn say_alive(control: &mut Link) -> LinkError {
    loop {
        control.send(&Message::Alive {}).unwrap();
        match control.expect(Duration::from_millis(20)) {
            Err(LinkError::NoAnswer { .. }) | Ok(Message::Alive {}) => {}
            Ok(message) => panic!("{message:?}"),
            Err(error) => return error,
        }
    }
}

/// Allows more silence than `say_alive` needs, and a little longer without data.
fn no_progress() -> PeerTimeouts {
    let idle = Duration::from_secs(3);
    let progress = Duration::from_secs(4);
    PeerTimeouts { idle, progress, ..PeerTimeouts::default() }
}

#[test]
fn a_sender_does_not_wait_forever_for_a_receiver_that_only_sends_alive() {
    let options = CopyOptions { timeouts: no_progress(), ..CopyOptions::default() };
    let error = quiet_receiver(&options, |mut control| {
        let reported = say_alive(&mut control).to_string();
        assert!(reported.contains("gave up: no data moved for 4s"), "{reported}");
    });
    assert!(Chain(&error).to_string().starts_with("sender: no data moved for 4s while"), "{error}");
}

#[test]
fn a_peer_that_only_sends_alive_is_sent_away() {
    let (_directory, _, copies) = place_with_source();
    let options = ServeOptions { timeouts: no_progress(), ..ServeOptions::new(copies.join("one")) };
    let copy = Job::Copy(CopyJob::new(CopyPlan::new(300_000, 4096, 4).unwrap()));
    let perf = |operation| Job::Perf(Workload::new(operation, 4096, 4).unwrap());
    let purposes = [copy, perf(Operation::Write), perf(Operation::Send)];
    let (_, served) = served(&options, purposes.len(), |address, host| {
        for purpose in purposes {
            let reported = ask(address, host, Some(purpose), say_alive).to_string();
            assert!(reported.contains("no data moved for 4s"), "{reported}");
        }
    });
    for served in served {
        assert!(Chain(&served.unwrap_err()).to_string().contains("no data moved for 4s"));
    }
    assert!(names(&copies).is_empty());
}

#[test]
fn a_peer_that_does_nothing_is_sent_away() {
    let (_directory, _, copies) = place_with_source();
    let timeouts = PeerTimeouts { idle: Duration::from_millis(100), ..PeerTimeouts::default() };
    let options = ServeOptions { timeouts, ..ServeOptions::new(copies.join("one")) };
    let copy = Job::Copy(CopyJob::new(CopyPlan::new(300_000, 4096, 4).unwrap()));
    let perf = |operation| Job::Perf(Workload::new(operation, 4096, 4).unwrap());
    let purposes = [copy, perf(Operation::Write), perf(Operation::WriteImm)];
    let (_, served) = served(&options, purposes.len(), |address, host| {
        for purpose in purposes {
            let reported = ask(address, host, Some(purpose), reported);
            assert!(reported.contains("nothing happened for"), "{reported}");
        }
    });
    for served in served {
        assert!(Chain(&served.unwrap_err()).to_string().contains("nothing happened for"));
    }
    assert!(names(&copies).is_empty());
}
