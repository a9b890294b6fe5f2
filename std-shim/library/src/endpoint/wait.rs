//! Waiting for completions instead of polling for them.
//!
//! An armed completion queue creates one event, at its next completion. So the owner discards old
//! events, arms all queues, polls until nothing is left, and then waits: completions before the
//! arming are polled, and completions after it create an event. The tests let a completion arrive
//! at every step of this sequence.

use super::qp::EndpointQp;
use super::set::EndpointSet;
use super::single::Endpoint;
use crate::backend::{Connect, DeviceError, Notify};
use crate::sync::poll;
use polyrail_core::virtual_cq::{Event, Polled};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Maximum length of one sleep of an endpoint that repairs its rails or needs polls. A repair
/// message from the peer, and a driver that accepts requests again, create no event that would wake
/// it.
const HEALING_NAP: Duration = Duration::from_millis(10);

/// The same while rails are fenced for requests that are taken back: a fence takes several messages
/// from end to end, and each waits for a nap.
const FENCING_NAP: Duration = Duration::from_micros(500);

/// Waiting for completions failed. Polling still works.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// A completion queue has no channel: see
    /// [`completion_channel`](super::EndpointBuilder::completion_channel).
    #[error("a completion queue has no completion channel: build with completion_channel")]
    NoChannel,
    /// A completion queue cannot be armed.
    #[error("cannot arm a completion queue")]
    Device(#[from] DeviceError),
    /// The file descriptor cannot be polled.
    #[error("cannot wait for completion channels: errno {errno}")]
    System {
        /// The operating system's error code.
        errno: i32,
    },
}

/// Completion queues that can be armed and polled before their owner waits.
pub(crate) trait Armed {
    /// Discards the events of the completion queues, and arms the queues for their next
    /// completions.
    fn arm(&mut self) -> Result<(), WaitError>;

    /// Polls without a limit.
    fn poll_all(&mut self, sink: &mut dyn FnMut(Event)) -> Polled;

    /// Returns how many polls in a row must find nothing before the owner may wait.
    fn polls_before_waiting(&self) -> usize;

    /// Arms, and polls until there is an event or nothing is left.
    fn poll_armed_all(&mut self, sink: &mut dyn FnMut(Event)) -> Result<Polled, WaitError> {
        self.arm()?;
        let mut polled = Polled::default();
        for _ in 0..self.polls_before_waiting() {
            polled = self.poll_all(sink);
            if has_news(&polled) {
                break;
            }
        }
        Ok(polled)
    }
}

/// Completion queues that can be waited for.
trait Waits: Armed {
    /// Sleeps until a completion queue creates an event, or until a given time.
    fn sleep(&mut self, until: Option<Instant>) -> Result<(), WaitError>;

    fn wait_all(
        &mut self,
        timeout: Option<Duration>,
        sink: &mut dyn FnMut(Event),
    ) -> Result<Polled, WaitError> {
        let polled = self.poll_all(sink);
        if has_news(&polled) {
            return Ok(polled);
        }
        // A timeout beyond the range of the clock is no limit.
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let polled = self.poll_armed_all(sink)?;
            if has_news(&polled) || until.is_some_and(|until| Instant::now() >= until) {
                return Ok(polled);
            }
            self.sleep(until)?;
        }
    }
}

fn has_news(polled: &Polled) -> bool {
    polled.events > 0 || polled.error.is_some()
}

/// Arms completion queues, all of which have channels.
pub(crate) fn arm(cqs: &mut [impl Notify]) -> Result<(), WaitError> {
    for cq in cqs {
        if cq.channel_fd().is_none() {
            return Err(WaitError::NoChannel);
        }
        cq.forget_events()?;
        cq.req_notify()?;
    }
    Ok(())
}

/// Waits until a file descriptor is readable, a given time, or a signal.
fn readable(fd: Option<BorrowedFd<'_>>, until: Option<Instant>) -> Result<(), WaitError> {
    let fd = fd.ok_or(WaitError::NoChannel)?;
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    // A timeout beyond the range of the system's clock is no limit.
    let left = left.and_then(|left| Timespec::try_from(left).ok());
    match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], left.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(WaitError::System { errno: error.raw_os_error() }),
    }
}

/// Returns the end of a sleep of these virtual queue pairs: `until`, or the end of a nap if that is
/// earlier.
fn nap_until<'q, Q: Connect + 'q>(
    until: Option<Instant>,
    qps: impl Iterator<Item = &'q EndpointQp<Q>>,
) -> Option<Instant> {
    let now = Instant::now();
    let ends = qps.filter(|qp| qp.is_taking_back());
    let ends = ends.map(|qp| qp.fences_at().unwrap_or_else(|| now + FENCING_NAP));
    ends.chain(until).chain([now + HEALING_NAP]).min()
}

impl<Q: Connect, C: Notify> Armed for Endpoint<Q, C> {
    fn arm(&mut self) -> Result<(), WaitError> {
        arm(self.cq.cqs_mut())
    }

    fn poll_all(&mut self, sink: &mut dyn FnMut(Event)) -> Polled {
        self.poll_with(usize::MAX, sink)
    }

    fn polls_before_waiting(&self) -> usize {
        self.cq.polls_before_waiting()
    }
}

impl<Q: Connect, C: Notify> Waits for Endpoint<Q, C> {
    fn sleep(&mut self, until: Option<Instant>) -> Result<(), WaitError> {
        let heals = self.qp.healer.is_some();
        let naps = heals || self.needs_poll();
        readable(
            self.channels.fd(),
            if naps { nap_until(until, std::iter::once(&self.qp)) } else { until },
        )?;
        if heals {
            self.heal();
        }
        Ok(())
    }
}

impl<Q: Connect, C: Notify, const ROUTES: usize> Armed for EndpointSet<Q, C, ROUTES> {
    fn arm(&mut self) -> Result<(), WaitError> {
        arm(self.common.cq.cqs_mut())
    }

    fn poll_all(&mut self, sink: &mut dyn FnMut(Event)) -> Polled {
        self.poll_with(usize::MAX, sink)
    }

    fn polls_before_waiting(&self) -> usize {
        self.common.cq.polls_before_waiting()
    }
}

impl<Q: Connect, C: Notify, const ROUTES: usize> Waits for EndpointSet<Q, C, ROUTES> {
    fn sleep(&mut self, until: Option<Instant>) -> Result<(), WaitError> {
        let heals = self.qps().any(|qp| qp.healer.is_some());
        let naps = heals || self.needs_poll();
        readable(
            self.common.channels.fd(),
            if naps { nap_until(until, self.qps()) } else { until },
        )?;
        if heals {
            self.heal();
        }
        Ok(())
    }
}

impl<Q: Connect, C: Notify> Endpoint<Q, C> {
    /// Polls all available events. If there are none, sleeps until there are, or until the timeout;
    /// without a timeout, there is no limit. The completion queues must have been built [with a
    /// channel](super::EndpointBuilder::completion_channel).
    ///
    /// Returns without events only after the timeout. If the driver executes requests on the
    /// calling thread, as the software NIC may do, it keeps polling while there are any.
    ///
    /// ```
    /// use polyrail::endpoint::{EndpointBuilder, connect_endpoints};
    /// use polyrail::nic::{DeviceConfig, Fabric};
    /// use polyrail::verbs::{LocalBuffer, RecvWr, SendWr};
    /// use std::time::Duration;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let fabric = Fabric::threaded();
    /// # let here = fabric.create_device(DeviceConfig::named("here")).alloc_pd()?;
    /// # let there = fabric.create_device(DeviceConfig::named("there")).alloc_pd()?;
    /// let builder = EndpointBuilder::new().rails(1).completion_channel(0);
    /// let mut sender = builder.build(&[&here])?;
    /// let mut receiver = builder.build(&[&there])?;
    /// connect_endpoints(&mut sender, &mut receiver)?;
    /// receiver.post_recv(&RecvWr::data(1, LocalBuffer::EMPTY, &[]))?;
    /// let waits = std::thread::spawn(move || {
    ///     let mut arrived = Vec::new();
    ///     let polled = receiver.wait(None, |event| arrived.extend(event.completion()));
    ///     polled.map(|_| arrived[0].wr_id)
    /// });
    /// sender.post_send(&SendWr::send(7, LocalBuffer::EMPTY, &[]))?;
    /// assert_eq!(sender.wait(None, |_| ())?.events, 1);
    /// assert_eq!(waits.join().expect("it did not panic")?, 1);
    /// assert_eq!(sender.wait(Some(Duration::ZERO), |_| ())?.events, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// See [`WaitError`].
    pub fn wait(
        &mut self,
        timeout: Option<Duration>,
        mut sink: impl FnMut(Event),
    ) -> Result<Polled, WaitError> {
        self.wait_all(timeout, &mut sink)
    }

    /// Arms the completion queues, and polls all available events. If there are none, and no error,
    /// the owner may wait until [`completion_fd`](Self::completion_fd) is readable, together with
    /// its other file descriptors, and must then repeat this. If the endpoint
    /// [repairs](crate::heal::Healing) its rails, limit the wait to the acceptable delay of
    /// repairs, and call [`heal`](Self::heal). If it [needs a poll](Self::needs_poll), keep the
    /// wait short, too.
    ///
    /// # Errors
    ///
    /// See [`WaitError`].
    pub fn poll_armed(&mut self, mut sink: impl FnMut(Event)) -> Result<Polled, WaitError> {
        self.poll_armed_all(&mut sink)
    }

    /// Whether a poll has work that no completion announces: a driver refused requests, or a failed
    /// rail is Draining and completes nothing more, or requests are being
    /// [taken back](super::EndpointQp::cancel). Instead of waiting for completions, the owner
    /// polls again, after a pause of a few milliseconds if it likes; [`wait`](Self::wait) does so.
    pub fn needs_poll(&self) -> bool {
        self.cq.needs_poll() || self.qp.is_taking_back()
    }

    /// Returns a file descriptor that is readable when a completion queue has reported completions
    /// since [`poll_armed`](Self::poll_armed); for `epoll` and event loops. `None` if the
    /// completion queues are only polled.
    pub fn completion_fd(&self) -> Option<BorrowedFd<'_>> {
        self.channels.fd()
    }
}

impl<Q: Connect, C: Notify, const ROUTES: usize> EndpointSet<Q, C, ROUTES> {
    /// [`Endpoint::wait`] for all virtual queue pairs.
    ///
    /// # Errors
    ///
    /// See [`WaitError`].
    pub fn wait(
        &mut self,
        timeout: Option<Duration>,
        mut sink: impl FnMut(Event),
    ) -> Result<Polled, WaitError> {
        self.wait_all(timeout, &mut sink)
    }

    /// [`Endpoint::poll_armed`] for all virtual queue pairs.
    ///
    /// # Errors
    ///
    /// See [`WaitError`].
    pub fn poll_armed(&mut self, mut sink: impl FnMut(Event)) -> Result<Polled, WaitError> {
        self.poll_armed_all(&mut sink)
    }

    /// [`Endpoint::needs_poll`] for all virtual queue pairs.
    pub fn needs_poll(&self) -> bool {
        self.common.cq.needs_poll() || self.qps().any(EndpointQp::is_taking_back)
    }

    /// [`Endpoint::completion_fd`] for all virtual queue pairs. A set that was built without
    /// members has none before the first is added. From then on it is the same file descriptor,
    /// whatever is added and removed, so register it once.
    pub fn completion_fd(&self) -> Option<BorrowedFd<'_>> {
        self.common.channels.fd()
    }
}

#[cfg(test)]
mod rt_tests;
