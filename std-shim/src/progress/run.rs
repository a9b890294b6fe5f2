//! The thread: takes requests, posts them, polls, reports.

use super::idle::{self, Idle, Rest};
use super::message::Lane;
use super::port::{PortSide, number_and_slot};
use super::shared::Shared;
use crate::backend::Connect;
use crate::endpoint::Endpoint;
use polyrail_core::hardware::{CompletionQueue, QueuePair};
use polyrail_core::verbs::WcStatus;
use polyrail_core::virtual_cq::{Event, Polled, VirtualWc};
use polyrail_core::virtual_qp::{QpState, Scheme};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Completions taken from one endpoint before it is the next one's turn.
const POLL_BUDGET: usize = 64;

/// How long devices may take to give requests back when the thread shuts down.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// An endpoint in the thread's care.
#[derive(Debug)]
struct Driven<Q, C, const RAILS: usize, const DEPTH: usize, const WRS: usize> {
    endpoint: Endpoint<Q, C, RAILS, DEPTH, WRS>,
    /// It failed, its queue pairs are in ERR, and its handles know.
    failed: bool,
    /// A completion queue of it broke: not all requests will be heard of, and none is waited for.
    broken: bool,
}

/// The thread's state.
#[derive(Debug)]
pub(super) struct Progress<Q, C, const RAILS: usize, const DEPTH: usize, const WRS: usize> {
    driven: Vec<Driven<Q, C, RAILS, DEPTH, WRS>>,
    /// The handles, by number.
    ports: Vec<Option<PortSide>>,
    /// Completions from the first failed one on, until it is known why the endpoint failed.
    deferred: Vec<VirtualWc>,
    idle: Idle,
    /// The thread was told to shut down.
    draining: bool,
    // Last: when it says that the thread is gone, all handles were let go of.
    shared: Presence,
}

/// The thread's hold of what is shared; however the thread ends, nobody waits for it afterwards.
#[derive(Debug)]
struct Presence(Arc<Shared>);

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl<Q, C, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    Progress<Q, C, RAILS, DEPTH, WRS>
where
    Q: QueuePair + Connect,
    C: CompletionQueue,
{
    pub(super) fn new(
        endpoints: Vec<Endpoint<Q, C, RAILS, DEPTH, WRS>>,
        shared: Arc<Shared>,
    ) -> Self {
        let driven = |endpoint| Driven { endpoint, failed: false, broken: false };
        let driven = endpoints.into_iter().map(driven).collect();
        let (ports, deferred) = (Vec::new(), Vec::new());
        let (idle, shared) = (Idle::default(), Presence(shared));
        Self { driven, ports, deferred, idle, draining: false, shared }
    }

    /// Runs until it is told to shut down, then drains; `grace` says how long sends may take.
    pub(super) fn run(mut self, grace: Duration) -> Vec<Endpoint<Q, C, RAILS, DEPTH, WRS>> {
        self.shared.0.enter();
        while !self.shared.0.is_closing() {
            self.round();
        }
        self.draining = true;
        self.drain_until(Instant::now() + grace, |port| port.is_idle(Lane::Send));
        for driven in &mut self.driven {
            driven.endpoint.fail_all();
        }
        self.drain_until(Instant::now() + FLUSH_TIMEOUT, PortSide::is_drained);
        self.driven.into_iter().map(|driven| driven.endpoint).collect()
    }

    /// Goes on until it holds for every handle, or until then.
    fn drain_until(&mut self, end: Instant, is_drained: impl Fn(&PortSide) -> bool) {
        while self.shared.0.has_newcomers() || !self.ports.iter().flatten().all(&is_drained) {
            if Instant::now() >= end {
                return;
            }
            self.round();
        }
    }

    /// Does what there is to do, once, or rests.
    fn round(&mut self) {
        let mut busy = self.adopt();
        busy |= self.post();
        busy |= self.poll();
        self.look_after();
        if busy {
            self.idle.reset();
            return;
        }
        match self.idle.rest() {
            Rest::Spin => std::hint::spin_loop(),
            Rest::Yield => std::thread::yield_now(),
            Rest::Sleep => self.sleep(),
        }
    }

    /// Takes new handles up.
    fn adopt(&mut self) -> bool {
        let newcomers = self.shared.0.take_newcomers();
        let any = !newcomers.is_empty();
        for mut port in newcomers {
            let free = self.ports.iter().position(Option::is_none);
            let number = free.unwrap_or(self.ports.len());
            port.set_number(number as u32);
            match self.ports.get_mut(number) {
                Some(place) => *place = Some(port),
                None => self.ports.push(Some(port)),
            }
        }
        any
    }

    /// Each handle in turn.
    fn post(&mut self) -> bool {
        let mut moved = false;
        for port in self.ports.iter_mut().flatten() {
            moved |= port.post(&mut self.driven[port.endpoint].endpoint);
        }
        moved
    }

    /// Each endpoint in turn.
    fn poll(&mut self) -> bool {
        let Self { driven, ports, deferred, shared, .. } = self;
        let mut events = 0;
        for (at, driven) in driven.iter_mut().enumerate().filter(|(_, driven)| !driven.broken) {
            let polled = driven.endpoint.poll_with(POLL_BUDGET, |event| {
                // Foreign ones are of queue pairs that the endpoint's owner destroyed.
                let Event::Completion(wc) = event else { return };
                if wc.status.is_success() && deferred.is_empty() {
                    report(ports, wc);
                } else {
                    deferred.push(wc);
                }
            });
            events += polled.events;
            let bad = deferred.first().map(|wc| wc.status);
            driven.look(&shared.0, at, polled, bad);
            deferred.drain(..).for_each(|wc| report(ports, wc));
        }
        events > 0
    }

    /// Forgets handles that are done, and those of endpoints that are beyond help.
    fn look_after(&mut self) {
        for place in &mut self.ports {
            drop(place.take_if(|port| self.driven[port.endpoint].broken || port.is_done()));
        }
    }

    fn sleep(&self) {
        let ports = || self.ports.iter().flatten();
        // The receives that DQPLB posts by itself are to be posted again when peers use them up.
        let listens = |driven: &Driven<Q, C, RAILS, DEPTH, WRS>| {
            let qp = driven.endpoint.virtual_qp();
            qp.is_multi() && qp.config().scheme == Scheme::Dqplb
        };
        let devices_are_busy = self.draining
            || ports().any(|port| port.posted() > 0 || port.is_holding())
            || self.driven.iter().any(listens);
        let something_to_do = || {
            (self.shared.0.is_closing() && !self.draining)
                || self.shared.0.has_newcomers()
                || ports().any(PortSide::has_news)
        };
        self.shared.0.sleep(something_to_do, || idle::sleep(devices_are_busy));
    }
}

/// Hands a completion to the handle that it belongs to.
fn report(ports: &mut [Option<PortSide>], wc: VirtualWc) {
    let (number, slot) = number_and_slot(wc.wr_id);
    if let Some(Some(port)) = ports.get_mut(number) {
        port.complete(slot, wc);
    }
}

impl<Q, C, const RAILS: usize, const DEPTH: usize, const WRS: usize> Driven<Q, C, RAILS, DEPTH, WRS>
where
    Q: QueuePair + Connect,
    C: CompletionQueue,
{
    /// After a poll: looks whether the endpoint failed. Then its handles are told why, and
    /// everything comes back.
    fn look(&mut self, shared: &Shared, at: usize, polled: Polled, bad: Option<WcStatus>) {
        let error = if let Some(error) = polled.error {
            self.broken = true;
            self.endpoint.queue_error(error)
        } else if self.endpoint.state() == QpState::Error && !self.failed {
            // A driver that refuses a post leaves no status.
            self.endpoint.explain(bad.unwrap_or(WcStatus::GENERAL_ERR))
        } else {
            return;
        };
        self.failed = true;
        shared.fail(at, error);
        self.endpoint.fail_all();
    }
}

#[cfg(test)]
mod tests {
    use super::super::error::{RequestError, SubmitError};
    use super::super::{Handle, port};
    use super::*;
    use crate::nic;
    use polyrail_core::verbs::RecvWr;
    use std::future::Future;
    use std::pin::pin;
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

    fn handle(shared: &Arc<Shared>) -> Handle {
        let (messages, port, side) = port::port(0);
        shared.introduce(side);
        Handle::new(0, messages, port, Arc::clone(shared))
    }

    #[test]
    fn a_thread_that_ends_however_it_ends_leaves_nobody_waiting() {
        let shared = Arc::new(Shared::new(1));
        let mut progress = Progress::<nic::QueuePair, nic::CompletionQueue, 8, 128, 256>::new(
            Vec::new(),
            Arc::clone(&shared),
        );
        let (mut adopted, mut newcomer) = (handle(&shared), None);
        let waits = [0, 1].map(|wr_id| {
            let pending = adopted.post_recv(&RecvWr::notification(wr_id)).unwrap();
            assert!(progress.adopt() || wr_id == 1);
            pending
        });
        let newcomers = newcomer.insert(handle(&shared)).post_recv(&RecvWr::notification(2));
        let [awaited, looked_at] = waits;
        let (mut awaited, wakes) = (pin!(awaited), Arc::new(Counting::default()));
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
        let refused = handle(&shared).post_recv(&RecvWr::notification(4)).unwrap_err();
        assert_eq!(refused, SubmitError::ThreadGone);
    }
}
