//! Peers that do not trust each other.

use super::*;
use polyrail::verbs::{SendWr, WcStatus};
use std::thread::Builder;
use std::time::Instant;

/// Begins a copy, and returns the server's hello with the connected end.
fn visit(address: &str, host: &Host) -> (Hello, Link, Endpoint, RegisteredBuffer) {
    let plan = CopyPlan::new(4096, 4096, 1).unwrap();
    let job = CopyJob { name: crate::job::FileName::new("copy"), ..CopyJob::new(plan) };
    let (mut control, mut endpoint, buffer) = say_hello(address, host, Some(Job::Copy(job)));
    let hello = control.expect_hello().unwrap();
    bring_up(&mut endpoint, &mut control, &hello, |endpoint| {
        (0..8).try_for_each(|n| endpoint.post_recv(&RecvWr::notification(n)))?;
        Ok::<(), SessionError>(())
    })
    .unwrap();
    (hello, control, endpoint, buffer)
}

/// The status of a WRITE of 8 bytes to the beginning of the buffer in a hello.
fn write_to(hello: &Hello, endpoint: &mut Endpoint, buffer: &RegisteredBuffer) -> WcStatus {
    let keys = buffer.toward(&hello.buffer).unwrap();
    let local = buffer.local(0, 8).unwrap();
    endpoint.post_send(&SendWr::write(9, local, hello.buffer.addr, &keys)).unwrap();
    let begin = Instant::now();
    loop {
        let done = endpoint.poll(16).completions.into_iter().find(|done| done.wr_id == 9);
        if let Some(done) = done {
            return done.status;
        }
        assert!(begin.elapsed() < Duration::from_secs(60));
    }
}

#[test]
fn keys_of_one_visit_are_worth_nothing_in_another() {
    let (_directory, _, copies) = place_with_source();
    let options = ServeOptions { peers: 2, ..ServeOptions::new(&copies) };
    let (_, served, _) = run_server(&options, 2, |address, host| {
        let (own, _control, mut endpoint, buffer) = visit(address, host);
        let (other, _other_control, _other_endpoint, _other_buffer) = visit(address, host);
        assert_eq!(write_to(&own, &mut endpoint, &buffer), WcStatus::SUCCESS);
        assert_eq!(write_to(&other, &mut endpoint, &buffer), WcStatus::REM_ACCESS_ERR);
    });
    // Both left before their copies were complete.
    assert!(served.iter().all(Result::is_err), "{served:?}");
}

#[test]
fn a_peer_for_which_no_thread_starts_is_refused_with_the_reason_and_the_next_is_served() {
    let (_directory, source, copies) = place_with_source();
    let (here, there) = software_hosts(2).unwrap();
    let server = Server::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap().to_string();
    let options = ServeOptions::new(&copies);
    let gone = AtomicBool::new(false);
    let fails = AtomicBool::new(true);
    // More memory than there can be.
    let thread = || match fails.swap(false, Ordering::Relaxed) {
        true => Builder::new().stack_size(1 << 60),
        false => Builder::new(),
    };
    let mut strays = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            let _gone = SetAtEnd(&gone);
            let options = CopyOptions::default();
            let error = send(&source, None, &address, &here, &options).unwrap_err();
            let words = Chain(&error).to_string();
            assert!(words.contains("the other side reports: starting a thread"), "{words}");
            send(&source, None, &address, &here, &options).unwrap();
        });
        let attend = |visitor: Visitor| {
            let progress = CopyProgress::default();
            visitor.serve(there.all_domains(), &options, &progress, || ()).unwrap();
            ControlFlow::Break(())
        };
        server.run_on(thread, &options, &gone, attend, |_, error| strays.push(error)).unwrap();
    });
    let [SessionError::Link(LinkError::Io { doing: "starting a thread", .. })] = strays[..] else {
        panic!("{strays:?}")
    };
    assert_eq!(names(&copies), ["source"]);
}
