//! What wakes the thread where it waits for completions too.

use crate::sync::{poll, system_call};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// A file descriptor beside those of completion channels.
#[derive(Debug)]
pub(super) struct Alarm(OwnedFd);

impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Ends a sleep, this one or the next.
    pub(super) fn ring(&self) {
        system_call();
        // It can fail only if it was rung 2^64 times, and then it rings already.
        _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Sleeps until it rings, `completions` can be read, or the time is over. Returns whether completions
    /// can be read.
    pub(super) fn sleep(
        &self,
        completions: Option<BorrowedFd<'_>>,
        timeout: Option<Duration>,
    ) -> bool {
        let own = PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN);
        let of_completions = completions.unwrap_or(self.0.as_fd());
        let mut both = [own, PollFd::from_borrowed_fd(of_completions, PollFlags::IN)];
        let watched = 1 + usize::from(completions.is_some());
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        // A signal wakes it as well, and nothing else goes wrong: the file descriptors are open.
        _ = poll(&mut both[..watched], timeout.as_ref());
        system_call();
        // That there was nothing to read is no error.
        _ = rustix::io::read(&self.0, &mut [0; 8]);
        completions.is_some() && !both[1].revents().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn it_ends_a_sleep_that_has_not_begun_once() {
        let [alarm, other] = [(); 2].map(|()| Alarm::new().unwrap());
        alarm.ring();
        assert!(!alarm.sleep(None, None));
        let begin = Instant::now();
        let nap = Duration::from_millis(5);
        assert!(!alarm.sleep(Some(other.0.as_fd()), Some(nap)));
        assert!(begin.elapsed() >= nap);
        other.ring();
        assert!(alarm.sleep(Some(other.0.as_fd()), None));
    }
}
