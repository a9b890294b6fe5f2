//! The thread's rounds, one at a time.

use super::super::outcome::{RequestError, SubmitError};
use super::super::run::ProgressLoop;
use super::super::{HANDLE_DEPTH, Handle, Pending, port};
use super::*;
use crate::endpoint::{EndpointBuilder, SET_ROUTES, connect_endpoints};
use crate::memory::RegisteredBuffer;
use polyrail_core::verbs::{AccessFlags, RecvWr, SendWr};
use polyrail_software_nic::{self as nic, DeviceConfig, Fabric};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake};

/// Counts wake-ups.
#[derive(Default)]
struct Counting(AtomicUsize);

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn handle(shared: &Arc<QpShared>, qp: usize) -> Handle {
    let (requests, replies, side) = port::port(qp, &shared.driver);
    shared.introduce(side);
    Handle::new(qp, requests, replies, Arc::clone(shared))
}

type TestLoop = ProgressLoop<Endpoints<nic::QueuePair, nic::CompletionQueue, SET_ROUTES>>;

fn progress_loop(set: EndpointSet, shared: &Arc<QpShared>) -> TestLoop {
    ProgressLoop::new(Endpoints::new(set, None), Arc::clone(shared), Duration::from_secs(5))
}

#[test]
fn a_thread_leaves_nobody_waiting_however_it_ends() {
    let shared = Arc::new(Shared::new(QpMailbox::new([Some(false)]), None));
    let device = Fabric::threaded().create_device(DeviceConfig::named("nic"));
    let domain = device.alloc_pd().unwrap();
    let set = EndpointSet::build([(EndpointBuilder::new(), [&domain])]).unwrap();
    let mut progress = progress_loop(set, &shared);
    let mut adopted = handle(&shared, 0);
    let mut newcomer = None;
    let waits = [0, 1].map(|wr_id| {
        let pending = adopted.post_recv(&RecvWr::notification(wr_id)).unwrap();
        assert!(progress.adopt() || wr_id == 1);
        pending
    });
    let newcomers = newcomer.insert(handle(&shared, 0)).post_recv(&RecvWr::notification(2));
    let [awaited, looked_at] = waits;
    let mut awaited = pin!(awaited);
    let wakes = Arc::new(Counting::default());
    let waker = Arc::clone(&wakes).into();
    let context = &mut Context::from_waker(&waker);
    assert!(awaited.as_mut().poll(context).is_pending());
    drop(progress);
    assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
    assert_eq!(awaited.poll(context), Poll::Ready(Err(RequestError::Abandoned)));
    for pending in [looked_at, newcomers.unwrap()] {
        assert_eq!(pending.wait(), Err(RequestError::Abandoned));
    }
    let refused = adopted.post_recv(&RecvWr::notification(3)).unwrap_err();
    assert_eq!(refused, SubmitError::ThreadGone);
    let refused = handle(&shared, 0).post_recv(&RecvWr::notification(4)).unwrap_err();
    assert_eq!(refused, SubmitError::ThreadGone);
}

#[cfg(feature = "metrics")]
#[test]
fn a_source_ends_with_the_thread_however_it_ends() {
    let shared = Arc::new(Shared::new(QpMailbox::new([Some(false)]), None));
    let device = Fabric::threaded().create_device(DeviceConfig::named("nic"));
    let domain = device.alloc_pd().unwrap();
    let set = EndpointSet::build([(EndpointBuilder::new(), [&domain])]).unwrap();
    let progress = progress_loop(set, &shared);
    let metrics = crate::metrics::Metrics::new("test");
    // Series of a source, for which readers wait.
    let has_source = |name: &str| {
        let text = metrics.text(crate::metrics::Format::Prometheus).unwrap();
        text.lines()
            .any(|line| line.starts_with("polyrail_snapshot_age_seconds{") && line.contains(name))
    };
    shared.mailbox.handover.put(metrics.source("waits"));
    assert!(has_source("waits"));
    // As if the thread panicked before it took the source.
    drop(progress);
    assert!(!has_source("waits"));
    shared.mailbox.handover.put(metrics.source("late"));
    assert!(!has_source("late"));
}

#[test]
fn late_completions_of_a_handle_that_was_given_up_are_dropped() {
    let fabric = Fabric::threaded();
    let devices = ["stays", "goes"].map(|name| fabric.create_device(DeviceConfig::named(name)));
    let [stays, goes] = devices.each_ref().map(|device| device.alloc_pd().unwrap());
    // The notify queue pair, which receives, is on the first device.
    let builder = EndpointBuilder::new();
    let members = [(builder, vec![&stays, &goes]), (builder, vec![&stays])];
    let set = EndpointSet::build(members).unwrap();
    let shared = Arc::new(Shared::new(QpMailbox::new([Some(false); 2]), None));
    let mut progress = progress_loop(set, &shared);
    let post = |handle: &mut Handle| handle.post_recv(&RecvWr::notification(1)).unwrap();

    let mut gives_up = handle(&shared, 0);
    let mut given_up: Vec<_> = (0..20).map(|_| post(&mut gives_up)).collect();
    progress.round();
    devices[1].inject(nic::When::Now, nic::Fault::DeviceGone);
    let mut newcomer = handle(&shared, 0);
    given_up.push(post(&mut newcomer));
    progress.poll();
    assert!(progress.adopt() && !progress.submit());
    progress.forget();
    let abandoned = |pending: Pending| pending.wait() == Err(RequestError::Abandoned);
    assert!(given_up.into_iter().all(abandoned));
    // Another handle gets its number, and its requests the names of those.
    let mut other = handle(&shared, 1);
    let mut waits: Vec<_> = (0..20).map(|_| post(&mut other)).collect();
    let flushed = |progress: &TestLoop| progress.set.set.get(0).unwrap().unreported() == 0;
    assert!(!flushed(&progress));
    (0..10).for_each(|_| progress.round());
    assert!(flushed(&progress));
    assert!(waits.iter_mut().all(|pending| pending.try_take().is_none()));
}

#[test]
fn a_greedy_handle_leaves_room_for_others() {
    for rails in [1, 4] {
        let fabric = Fabric::threaded();
        let domain = fabric.create_device(DeviceConfig::named("nic")).alloc_pd().unwrap();
        let builder = EndpointBuilder::new().rails(rails);
        let mut set = EndpointSet::build([(builder, [&domain]); 2]).unwrap();
        let Some([near, far]) = set.get_disjoint_mut([0, 1]) else { panic!("two") };
        connect_endpoints(near, far).unwrap();
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let buffer = RegisteredBuffer::new(64, access, &[&domain]).unwrap();
        let keys = buffer.toward(&buffer.remote()).unwrap();
        let wr = SendWr::write(1, buffer.local(0, 64).unwrap(), buffer.addr(), &keys);
        let shared = Arc::new(Shared::new(QpMailbox::new([Some(false); 2]), None));
        let mut progress = progress_loop(set, &shared);
        let [mut first, mut second, mut third] = [(); 3].map(|()| handle(&shared, 0));
        // The members on both sides are greedy: they use every place that becomes free.
        let mut greedy = Vec::with_capacity(2 * HANDLE_DEPTH);
        let mut modest = None;
        for round in 0.. {
            greedy.retain_mut(|pending: &mut Pending| pending.try_take().is_none());
            for handle in [&mut first, &mut third] {
                greedy.extend(std::iter::from_fn(|| handle.post_send(&wr).ok()));
            }
            progress.round();
            if round == 20 {
                modest = Some(second.post_send(&wr).unwrap());
            }
            if modest.as_mut().is_some_and(|modest| modest.try_take().is_some()) {
                break;
            }
            assert!(round < 100, "over {rails} rails");
        }
    }
}
