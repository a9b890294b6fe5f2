//! Wakers, which progress threads run: what they drop, wait for, and panic about is their own.

mod fixture;
mod threads;

use fixture::{ALL_ACCESS, LONG, ended, submit};
use polyrail::endpoint::{EndpointBuilder, EndpointSet, connect_endpoints};
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{DeviceConfig, Fabric};
use polyrail::p2p::{CallError, P2pBuilder};
use polyrail::progress::messages::P2pError;
use polyrail::progress::{
    Handle, Outcome, Pending, ProgressThread, RequestError, ShutdownError, SubmitError,
};
use polyrail::verbs::{RecvWr, SendWr, WcStatus};
use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake};
use threads::World;

type Work = Box<dyn FnOnce() + Send>;

/// A waker that works once.
struct Working(Mutex<Option<Work>>);

impl Wake for Working {
    fn wake(self: Arc<Self>) {
        let work = self.0.lock().unwrap().take();
        work.into_iter().for_each(|work| work());
    }
}

/// Has the progress thread do the work as soon as the request ends, which has not ended yet. The
/// task stays registered while the `Pending` exists.
fn when_ended<O: Outcome>(
    mut pending: Pending<O>,
    work: impl FnOnce() + Send + 'static,
) -> Pending<O> {
    let waker = Arc::new(Working(Mutex::new(Some(Box::new(work))))).into();
    let polled = Pin::new(&mut pending).poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    pending
}

const BYTES: usize = 4096;

/// Two connected virtual queue pairs in the care of one thread.
struct Pair {
    thread: Option<ProgressThread>,
    /// A handle of each.
    handles: [Handle; 2],
    buffer: RegisteredBuffer,
}

impl Pair {
    fn new() -> Self {
        let fabric = Fabric::threaded();
        let domain = fabric.create_device(DeviceConfig::named("nic")).alloc_pd().unwrap();
        let mut set = EndpointSet::build([(EndpointBuilder::new(), [&domain]); 2]).unwrap();
        let Some([near, far]) = set.get_disjoint_mut([0, 1]) else { panic!("two") };
        connect_endpoints(near, far).unwrap();
        let buffer = RegisteredBuffer::new(BYTES, ALL_ACCESS, &[&domain]).unwrap();
        let thread = ProgressThread::spawn(set).unwrap();
        let handles = [0, 1].map(|qp| thread.handle(qp).unwrap());
        Self { thread: Some(thread), handles, buffer }
    }

    fn receive(&mut self, qp: usize, wr_id: u64) -> Pending {
        submit(|| self.handles[qp].post_recv(&RecvWr::notification(wr_id)))
    }

    /// Ends the next receive of the other virtual queue pair.
    fn notify(&mut self, qp: usize) -> Pending {
        let keys = self.buffer.toward(&self.buffer.remote()).unwrap();
        let local = self.buffer.local(0, BYTES as u32).unwrap();
        let wr = SendWr::write_with_imm(7, local, self.buffer.addr(), 1, &keys);
        submit(|| self.handles[qp].post_send(&wr))
    }
}

/// Returns what a waker found.
fn found<T>(by: &Receiver<T>) -> T {
    by.recv_timeout(LONG).expect("the waker ran to its end")
}

#[test]
fn a_thread_that_a_waker_drops_ends_and_abandons_no_request() {
    let mut pair = Pair::new();
    let [first, other] = [pair.receive(0, 1), pair.receive(1, 2)];
    let thread = pair.thread.take();
    let (find, by_waker) = channel();
    let first = when_ended(first, move || {
        drop(thread);
        find.send(()).unwrap();
    });
    let sent = pair.notify(1);
    found(&by_waker);
    assert_eq!(ended(first).unwrap().wr_id, 1);
    assert_eq!(ended(sent).unwrap().status, WcStatus::SUCCESS);
    // It was posted, and flushed at the end.
    assert_eq!(ended(other).unwrap().status, WcStatus::WR_FLUSH_ERR);
    let refused = pair.handles[0].post_recv(&RecvWr::notification(3)).map(drop);
    assert_eq!(refused, Err(SubmitError::ThreadGone));
}

#[test]
fn a_waker_cannot_get_the_set_of_the_thread_that_runs_it() {
    let mut pair = Pair::new();
    let [first, other] = [pair.receive(0, 1), pair.receive(1, 2)];
    let thread = pair.thread.take().unwrap();
    let (find, by_waker) = channel();
    let first = when_ended(first, move || find.send(thread.shutdown().map(drop)).unwrap());
    let sent = pair.notify(1);
    assert_eq!(found(&by_waker), Err(ShutdownError::OwnThread));
    assert!(ended(first).is_ok() && ended(sent).is_ok());
    assert_eq!(ended(other).unwrap().status, WcStatus::WR_FLUSH_ERR);
}

#[test]
fn a_waker_that_waits_for_its_own_thread_gets_an_error() {
    let mut pair = Pair::new();
    let [first, other] = [pair.receive(0, 1), pair.receive(0, 2)];
    let (find, by_waker) = channel();
    let first = when_ended(first, move || find.send(other.wait()).unwrap());
    let sent = pair.notify(1);
    assert_eq!(found(&by_waker), Err(RequestError::OwnThread));
    // The thread goes on.
    assert!(ended(first).is_ok() && ended(sent).is_ok());
    assert_eq!(ended(pair.notify(1)).unwrap().status, WcStatus::SUCCESS);
    pair.thread.take().unwrap().shutdown().unwrap();
}

#[test]
fn a_waker_that_panics_costs_other_requests_nothing() {
    let mut pair = Pair::new();
    let [first, other] = [pair.receive(0, 1), pair.receive(0, 2)];
    let (find, by_waker) = channel();
    let first = when_ended(first, move || {
        find.send(()).unwrap();
        panic!("as wakers should not");
    });
    let sent = pair.notify(1);
    found(&by_waker);
    assert!(ended(first).is_ok() && ended(sent).is_ok());
    assert_eq!(ended(pair.notify(1)).unwrap().status, WcStatus::SUCCESS);
    assert_eq!(ended(other).unwrap().imm, Some(1));
    pair.thread.take().unwrap().shutdown().unwrap();
}

#[test]
fn a_thread_of_messages_that_a_waker_drops_ends_and_abandons_no_request() {
    let world = World::new(1, &P2pBuilder::new());
    let (mut near, mut far) = (world.near.handle(), world.far.handle());
    let first = submit(|| world.near.offer(&mut near, &[(0, 8, 1)]));
    let other = submit(|| world.near.offer(&mut near, &[(8, 8, 2)]));
    let threads::Side { host, keys, thread, .. } = world.near;
    let (find, by_waker) = channel();
    let first = when_ended(first, move || {
        drop(thread);
        find.send(()).unwrap();
    });
    let sent = submit(|| world.far.send(&mut far, (0, 8, 1)));
    found(&by_waker);
    assert_eq!(ended(first).unwrap().sizes(), [8]);
    assert_eq!(ended(sent), Ok(()));
    let failed = ended(other).map(drop);
    assert!(matches!(failed, Err(P2pError::Call(CallError::Failed(_)))), "{failed:?}");
    drop((host, keys));
}
