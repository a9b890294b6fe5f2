//! The progress loop: takes requests from handles, submits them, polls, reports, and rests.

use super::outcome::ShutdownError;
use super::set::{ArmedPoll, Awaits, FLUSH_TIMEOUT, Port, Ports, ProgressSet};
use super::shared::{Alarm, Presence, Shared};
use crate::idle::{Idle, NAP, Rest};
use crate::sync::{JoinHandle, new_thread, park, park_timeout};
use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

/// Rounds between two [looks](ProgressSet::look), which cost more than a round.
const ROUNDS_PER_LOOK: u32 = 256;

/// The longest sleep while something may change that does not wake the thread, but is not urgent
/// either: peers may have reported failed rails.
pub(super) const LONG_NAP: Duration = Duration::from_millis(10);

/// The state of a progress thread. Its steps are visible to the tests of each kind of set, which
/// take them one at a time.
#[derive(Debug)]
pub(super) struct ProgressLoop<S: ProgressSet> {
    pub(super) set: S,
    pub(super) ports: Ports<S::Port>,
    rounds_to_look: u32,
    idle: Idle,
    /// A completion queue has notified, and no round has found anything since.
    notified: bool,
    /// The owner has requested that the thread ends.
    draining: bool,
    drain_timeout: Duration,
    // Last: when it reports that the thread is gone, all ports were dropped.
    shared: Presence<S::Port, S::Mailbox>,
}

impl<S: ProgressSet> ProgressLoop<S> {
    /// `drain_timeout` limits how long sends may take once the thread is to end.
    pub(super) fn new(
        set: S,
        shared: Arc<Shared<S::Port, S::Mailbox>>,
        drain_timeout: Duration,
    ) -> Self {
        Self {
            set,
            ports: Ports::default(),
            rounds_to_look: ROUNDS_PER_LOOK,
            idle: Idle::default(),
            notified: false,
            draining: false,
            drain_timeout,
            shared: Presence(shared),
        }
    }

    /// Runs until the owner closes the thread, then drains and gives the set back.
    pub(super) fn run(mut self) -> S::Set {
        self.shared.0.enter();
        while !self.shared.0.is_closing() {
            self.round();
        }
        self.draining = true;
        self.drain(self.drain_timeout, Port::has_sent);
        self.set.fail_all();
        self.drain(FLUSH_TIMEOUT, Port::is_drained);
        self.set.into_set(&self.shared.0.mailbox)
    }

    /// Runs until `is_drained` holds for every port, but at most for `timeout`.
    fn drain(&mut self, timeout: Duration, is_drained: impl Fn(&S::Port) -> bool) {
        // A timeout that overflows the clock never ends.
        let end = Instant::now().checked_add(timeout);
        while self.shared.0.has_newcomers() || !self.ports.iter().all(&is_drained) {
            if end.is_some_and(|end| Instant::now() >= end) {
                return;
            }
            self.round();
        }
    }

    /// Takes every step once, and rests if none of them moved anything.
    pub(super) fn round(&mut self) {
        let mut moved = self.adopt();
        moved |= self.set.follow_instructions(&self.shared.0.mailbox);
        moved |= self.submit();
        moved |= self.poll();
        self.look_at_times();
        self.forget();
        if moved {
            self.idle.reset();
            self.notified = false;
            return;
        }
        match self.idle.rest() {
            Rest::Spin => std::hint::spin_loop(),
            Rest::Yield => std::thread::yield_now(),
            Rest::Sleep => self.sleep(),
        }
    }

    /// Adopts the ports of new handles.
    pub(super) fn adopt(&mut self) -> bool {
        let newcomers = self.shared.0.take_newcomers();
        let any = !newcomers.is_empty();
        newcomers.into_iter().for_each(|port| self.ports.add(port));
        any
    }

    pub(super) fn submit(&mut self) -> bool {
        let Self { set, ports, .. } = self;
        ports.in_turn(|number, port| set.submit(number, port))
    }

    pub(super) fn poll(&mut self) -> bool {
        self.set.poll(&mut self.ports, &self.shared.0.mailbox)
    }

    fn look_at_times(&mut self) {
        self.rounds_to_look -= 1;
        if self.rounds_to_look == 0 {
            self.rounds_to_look = ROUNDS_PER_LOOK;
            self.set.look(&self.ports, &self.shared.0.mailbox);
        }
    }

    /// Forgets ports whose requests have ended, or can never be reported.
    pub(super) fn forget(&mut self) {
        let Self { set, ports, .. } = self;
        ports.forget(|port| set.has_lost(port) || port.is_done());
    }

    fn sleep(&mut self) {
        let shared = Arc::clone(&self.shared.0);
        shared.while_armed(|| {
            if !self.has_something_to_do() {
                let nap = self.nap();
                match (shared.alarm(), nap) {
                    (Some(alarm), _) => self.wait(alarm, nap),
                    (None, Some(nap)) => park_timeout(nap),
                    (None, None) => park(),
                }
            }
        });
        self.set.wake(&mut self.ports, &shared.mailbox);
    }

    /// Whether something is left to do that nothing will wake the thread for.
    pub(super) fn has_something_to_do(&self) -> bool {
        let shared = &self.shared.0;
        (shared.is_closing() && !self.draining)
            || shared.has_newcomers()
            || S::has_instructions(&shared.mailbox)
            || self.set.has_messages()
            || self.ports.iter().any(Port::has_news)
    }

    /// Waits for completions, for the alarm, or for `nap` to end. Does not wait if completions came
    /// before.
    pub(super) fn wait(&mut self, alarm: &Alarm, nap: Option<Duration>) {
        if std::mem::take(&mut self.notified) {
            // A device whose requests are all under way notifies as soon as its completion queue is
            // armed: armed again at once, it would keep the thread from sleeping at all.
            alarm.sleep(None, Some(NAP));
            return;
        }
        match self.set.poll_armed(&mut self.ports) {
            Ok(ArmedPoll { moved, is_broken }) => {
                if moved {
                    self.idle.reset();
                }
                if is_broken {
                    alarm.sleep(None, Some(LONG_NAP));
                } else if !moved {
                    self.notified = alarm.sleep(self.set.completion_fd(), nap);
                }
            }
            // A completion queue that cannot be armed is polled.
            Err(_) => _ = alarm.sleep(None, Some(NAP)),
        }
    }

    /// Returns how long the thread may sleep at a time.
    pub(super) fn nap(&self) -> Option<Duration> {
        let mut awaits = self.set.awaits(&self.ports);
        if self.draining {
            awaits = awaits.max(Awaits::Devices);
        }
        let nap = match awaits {
            Awaits::Handles => return None,
            Awaits::Devices if self.shared.0.alarm().is_none() => NAP,
            Awaits::Peers | Awaits::Devices => LONG_NAP,
            Awaits::Memory => NAP,
        };
        Some(self.set.stall_interval().map_or(nap, |interval| nap.min(interval)))
    }
}

/// A thread that drives a set and gives back a `T`. Dropping it shuts the thread down, and waits
/// for its end unless the thread itself drops it, in a waker.
#[derive(Debug)]
pub(super) struct Worker<P, X, T> {
    pub(super) shared: Arc<Shared<P, X>>,
    /// `None` once it was joined.
    thread: Option<JoinHandle<T>>,
}

impl<P, X, T> Worker<P, X, T> {
    /// Starts a thread for a set.
    pub(super) fn spawn<S>(set: S, mailbox: X, drain_timeout: Duration) -> io::Result<Self>
    where
        S: ProgressSet<Port = P, Mailbox = X, Set = T> + Send + 'static,
        P: Send + 'static,
        X: Send + Sync + 'static,
        T: Send + 'static,
    {
        let alarm = set.completion_fd().map(|_| Alarm::new()).transpose()?;
        let shared = Arc::new(Shared::new(mailbox, alarm));
        set.set_waker(&Waker::from(Arc::clone(&shared)));
        let progress = ProgressLoop::new(set, Arc::clone(&shared), drain_timeout);
        let builder = new_thread().name("polyrail-progress".to_owned());
        let thread = Some(builder.spawn(move || progress.run())?);
        Ok(Self { shared, thread })
    }

    /// Ends the thread and returns what it owned.
    pub(super) fn shutdown(mut self) -> Result<T, ShutdownError> {
        self.shared.driver.check_process()?;
        if self.shared.driver.is_current() {
            return Err(ShutdownError::OwnThread);
        }
        let thread = self.close().expect("only this and drop join the thread");
        thread.join().map_err(|_| ShutdownError::ThreadPanicked)
    }

    /// Has the thread shut down. Returns what is left to be joined.
    fn close(&mut self) -> Option<JoinHandle<T>> {
        self.shared.close();
        self.thread.take()
    }
}

impl<P, X, T> Drop for Worker<P, X, T> {
    fn drop(&mut self) {
        if self.shared.driver.is_forked() {
            // The thread is the parent's. To detach it here would free its stack a second time.
            std::mem::forget(self.thread.take());
            return;
        }
        let thread = self.close();
        // In a waker, the thread would wait for itself. It ends after the waker has returned.
        if !self.shared.driver.is_current() {
            // The panic was printed, and handles see that the thread is gone.
            _ = thread.map(JoinHandle::join);
        }
    }
}
