//! Queue pairs that are being connected.

use super::aside::{self, Work};
use super::error::DeviceError;
use polyrail_process::Process;
use std::mem;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};

/// The result of creating a queue pair or moving it to RTS, which may come later. If this is
/// dropped, a queue pair that is being created is destroyed when it is ready. In a fork of the
/// process, which does not have the thread that creates or moves it, the result is
/// [`DeviceError::Forked`].
#[derive(Debug)]
pub struct Connecting<Q>(State<Q>);

#[derive(Debug)]
enum State<Q> {
    Done(Option<Result<Q, DeviceError>>),
    UnderWay(UnderWay<Q>),
}

/// Another thread is at work.
#[derive(Debug)]
struct UnderWay<Q> {
    /// `Some` until this is dropped.
    result: Option<Receiver<Result<Q, DeviceError>>>,
    process: Process,
    /// Owns the work, if it waits in line.
    _work: Option<Arc<Work>>,
}

impl<Q> UnderWay<Q> {
    fn new(result: Receiver<Result<Q, DeviceError>>, work: Option<Arc<Work>>) -> Self {
        Self { result: Some(result), process: Process::current(), _work: work }
    }

    /// Returns where the result arrives. A fork of the process must not look: the thread may have
    /// been sending during the fork.
    fn receiver(&self) -> Result<&Receiver<Result<Q, DeviceError>>, DeviceError> {
        self.process.check()?;
        self.result.as_ref().ok_or(DeviceError::Unfinished)
    }
}

impl<Q> Drop for UnderWay<Q> {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // It would wait for a thread that was sending during the fork.
            mem::forget(self.result.take());
        }
    }
}

impl<Q> Connecting<Q> {
    /// A queue pair that is ready, or failed.
    pub const fn done(result: Result<Q, DeviceError>) -> Self {
        Self(State::Done(Some(result)))
    }

    /// A queue pair that another thread is connecting.
    pub fn under_way(result: Receiver<Result<Q, DeviceError>>) -> Self {
        Self(State::UnderWay(UnderWay::new(result, None)))
    }

    /// Runs `work` on another thread. A process has at most [`MOST_ASIDE`](super::MOST_ASIDE) such
    /// threads; further work waits in line until older work has ended. If this is dropped before
    /// `work` has begun, it never begins. If the system cannot start a thread, and none runs,
    /// `work` is dropped, and the result is [`DeviceError::Thread`].
    pub fn aside(work: impl FnOnce() -> Result<Q, DeviceError> + Send + 'static) -> Self
    where
        Q: Send + 'static,
    {
        let (done, result) = mpsc::channel();
        // If the receiver was dropped, the queue pair is dropped here.
        let work = move || _ = done.send(work());
        match aside::run(work) {
            Ok(work) => Self(State::UnderWay(UnderWay::new(result, Some(work)))),
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EAGAIN);
                Self::done(Err(DeviceError::Thread { errno }))
            }
        }
    }

    /// Returns the queue pair or the error, once; `None` while it is not known.
    pub fn take(&mut self) -> Option<Result<Q, DeviceError>> {
        match &mut self.0 {
            State::Done(result) => result.take(),
            State::UnderWay(under_way) => match under_way.receiver().map(Receiver::try_recv) {
                Err(error) => Some(Err(error)),
                Ok(Ok(result)) => Some(result),
                Ok(Err(TryRecvError::Empty)) => None,
                Ok(Err(TryRecvError::Disconnected)) => Some(Err(DeviceError::Unfinished)),
            },
        }
    }

    /// Waits until [`take`](Self::take) returns something.
    pub(crate) fn wait(&mut self) {
        if let State::UnderWay(under_way) = &self.0 {
            let received = under_way.receiver().map(Receiver::recv);
            let result = received.and_then(|done| done.unwrap_or(Err(DeviceError::Unfinished)));
            self.0 = State::Done(Some(result));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::aside::rt_tests::alone;
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    #[test]
    fn a_result_is_taken_once_and_a_thread_that_ends_without_one_is_an_error() {
        let mut done = Connecting::done(Ok(7));
        assert_eq!((done.take(), done.take()), (Some(Ok(7)), None));
        let (sender, result) = mpsc::channel();
        let mut later = Connecting::under_way(result);
        assert_eq!(later.take(), None);
        sender.send(Ok(8)).unwrap();
        assert_eq!(later.take(), Some(Ok(8)));
        drop(sender);
        assert_eq!(later.take(), Some(Err(DeviceError::Unfinished)));
    }

    #[test]
    fn work_is_done_on_another_thread() {
        let _alone = alone();
        let mut name = Connecting::aside(|| Ok(thread::current().name().map(str::to_owned)));
        name.wait();
        let found = name.take().unwrap().unwrap();
        assert_eq!((found.as_deref(), name.take()), (Some("polyrail-connect"), None));
    }
}
