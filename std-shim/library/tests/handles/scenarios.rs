//! What threads do with handles, and what must hold afterwards in any order of their steps.

use crate::stepped::step;
use crate::world::{Host, Route, hosts, receive, spawn, yield_now};
use polyrail::progress::{
    HANDLE_DEPTH, Handle, Pending, ProgressThread, RequestError, SubmitError,
};
use polyrail_core::verbs::WcStatus;

/// Hands over a request, when the handle has room.
fn submit(handle: &mut Handle, route: &Route, wr_id: u64) -> Pending {
    loop {
        match handle.post_send(&route.write(wr_id)) {
            Ok(pending) => return pending,
            Err(error) => assert_eq!(error, SubmitError::Full),
        }
        yield_now();
    }
}

fn succeeds(pending: Pending, wr_id: u64) {
    let completion = pending.wait().unwrap();
    assert_eq!((completion.wr_id, completion.status), (wr_id, WcStatus::SUCCESS));
}

fn a_request_wakes(tells: bool) {
    let [near, far] = hosts(tells);
    let route = Route::new(&near, &far);
    let Host { endpoint, buffer: _kept } = near;
    let thread = ProgressThread::spawn(endpoint).unwrap();
    let mut handle = thread.handle(0).unwrap();
    succeeds(submit(&mut handle, &route, 7), 7);
    drop(handle);
    thread.shutdown().unwrap();
}

pub(crate) fn a_thread_that_sleeps_is_woken_for_a_request() {
    a_request_wakes(false);
}

pub(crate) fn a_thread_that_waits_for_completions_is_woken_for_a_request() {
    a_request_wakes(true);
}

pub(crate) fn what_a_full_handle_took_is_carried_out() {
    let [near, far] = hosts(true);
    let route = Route::new(&near, &far);
    let Host { endpoint, buffer: _kept } = near;
    let thread = ProgressThread::spawn(endpoint).unwrap();
    let mut handle = thread.handle(0).unwrap();
    let mut taken = Vec::new();
    for wr_id in 0..HANDLE_DEPTH as u64 + 1 {
        match handle.post_send(&route.write(wr_id)) {
            Ok(pending) => taken.push((pending, wr_id)),
            Err(error) => assert_eq!(error, SubmitError::Full),
        }
    }
    assert!(!taken.is_empty());
    taken.into_iter().for_each(|(pending, wr_id)| succeeds(pending, wr_id));
    drop(handle);
    thread.shutdown().unwrap();
}

pub(crate) fn what_was_handed_over_together_is_carried_out() {
    let [near, far] = hosts(false);
    let route = Route::new(&near, &far);
    let Host { endpoint, buffer: _kept } = near;
    let thread = ProgressThread::spawn(endpoint).unwrap();
    let mut handle = thread.handle(0).unwrap();
    // Then the thread has the keys, and both places of the ring are for requests.
    succeeds(submit(&mut handle, &route, 7), 7);
    let wrs = [1, 2, 3].map(|wr_id| route.write(wr_id));
    let mut taken = Vec::new();
    match handle.post_many(&wrs, &mut taken) {
        Ok(()) => assert_eq!(taken.len(), wrs.len()),
        Err(some) => assert_eq!((some.submitted, some.error), (HANDLE_DEPTH, SubmitError::Full)),
    }
    assert!(taken.len() >= 2);
    (1..).zip(taken).for_each(|(wr_id, pending)| succeeds(pending, wr_id));
    drop(handle);
    thread.shutdown().unwrap();
}

pub(crate) fn handles_do_not_wait_for_each_other() {
    let [near, far] = hosts(false);
    let route = Route::new(&near, &far);
    let Host { endpoint, buffer: _kept } = near;
    let thread = ProgressThread::spawn(endpoint).unwrap();
    let [mut here, mut there] = [(); 2].map(|()| thread.handle(0).unwrap());
    let theirs = route.clone();
    let other = spawn(move || (submit(&mut there, &theirs, 8), there));
    let ours = submit(&mut here, &route, 7);
    let (theirs, _there) = other.join().unwrap();
    succeeds(ours, 7);
    succeeds(theirs, 8);
    thread.shutdown().unwrap();
}

pub(crate) fn a_thread_that_stops_leaves_nobody_waiting() {
    let [near, far] = hosts(true);
    let route = Route::new(&near, &far);
    let Host { endpoint, buffer: _kept } = near;
    let thread = ProgressThread::spawn(endpoint).unwrap();
    let mut handle = thread.handle(0).unwrap();
    let producer = spawn(move || {
        match handle.post_recv(&receive(6)) {
            // It was taken before the thread stopped, and flushed; or it came too late.
            Ok(pending) => match pending.wait() {
                Ok(completion) => assert_eq!(completion.status, WcStatus::WR_FLUSH_ERR),
                Err(error) => assert_eq!(error, RequestError::Abandoned),
            },
            Err(error) => assert_eq!(error, SubmitError::ThreadGone),
        }
        match handle.post_send(&route.write(7)) {
            Ok(pending) => assert!(pending.wait().is_ok_and(|wc| wc.wr_id == 7)),
            Err(error) => assert_eq!(error, SubmitError::ThreadGone),
        }
    });
    thread.shutdown().unwrap();
    producer.join().unwrap();
}

pub(crate) fn a_completion_that_a_peer_causes_wakes_the_thread_and_the_task() {
    let [near, far] = hosts(true);
    let [there, back] = [Route::new(&near, &far), Route::new(&far, &near)];
    let Host { endpoint, buffer: _kept } = near;
    let thread = ProgressThread::spawn(endpoint).unwrap();
    let mut handle = thread.handle(0).unwrap();
    let notified = handle.post_recv(&receive(6)).unwrap();
    // What was handed over first is posted first: the peer finds the receive.
    succeeds(submit(&mut handle, &there, 7), 7);
    let peer = spawn(move || notify(far, &back, 1));
    succeeds(notified, 6);
    peer.join().unwrap();
    drop(handle);
    thread.shutdown().unwrap();
}

/// Writes so often, each time with a notification.
fn notify(mut host: Host, route: &Route, times: u64) -> Host {
    for wr_id in 0..times {
        host.endpoint.post_send(&route.notify(wr_id)).unwrap();
        let mut sent = 0;
        while sent == 0 {
            step();
            sent = host.endpoint.poll(1).completions.len();
        }
    }
    host
}

pub(crate) fn an_endpoint_that_waits_misses_no_completion() {
    const TIMES: u64 = 3;
    let [mut near, far] = hosts(true);
    let route = Route::new(&far, &near);
    (0..TIMES).for_each(|wr_id| near.endpoint.post_recv(&receive(wr_id)).unwrap());
    let peer = spawn(move || notify(far, &route, TIMES));
    let mut arrived = 0;
    while arrived < TIMES {
        let polled = near.endpoint.wait(None, |event| {
            assert_eq!(event.completion().map(|wc| wc.wr_id), Some(arrived));
            arrived += 1;
        });
        assert!(polled.unwrap().events > 0);
    }
    peer.join().unwrap();
}
