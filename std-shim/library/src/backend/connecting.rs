//! Queue pairs that are being connected.

use super::error::DeviceError;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;

/// A queue pair that is being created or moved to RTS. If this is dropped, the queue pair is
/// destroyed when it is ready.
#[derive(Debug)]
pub struct Connecting<Q>(State<Q>);

#[derive(Debug)]
enum State<Q> {
    Done(Option<Result<Q, DeviceError>>),
    UnderWay(Receiver<Result<Q, DeviceError>>),
}

impl<Q> Connecting<Q> {
    /// A queue pair that is ready, or failed.
    pub const fn done(result: Result<Q, DeviceError>) -> Self {
        Self(State::Done(Some(result)))
    }

    /// A queue pair that another thread is connecting.
    pub const fn under_way(result: Receiver<Result<Q, DeviceError>>) -> Self {
        Self(State::UnderWay(result))
    }

    /// Runs `work` on a new thread. If the system cannot start one, `work` is dropped, and the
    /// result is [`DeviceError::Thread`].
    pub fn aside(work: impl FnOnce() -> Result<Q, DeviceError> + Send + 'static) -> Self
    where
        Q: Send + 'static,
    {
        let (done, result) = mpsc::channel();
        // If the receiver was dropped, the queue pair is dropped here.
        let work = move || _ = done.send(work());
        match thread::Builder::new().name("polyrail-connect".to_owned()).spawn(work) {
            Ok(_) => Self::under_way(result),
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
            State::UnderWay(result) => match result.try_recv() {
                Ok(result) => Some(result),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => Some(Err(DeviceError::Unfinished)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

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
        let mut name = Connecting::aside(|| Ok(thread::current().name().map(str::to_owned)));
        let found = loop {
            match name.take() {
                Some(found) => break found.unwrap(),
                None => thread::yield_now(),
            }
        };
        assert_eq!(found.as_deref(), Some("polyrail-connect"));
    }
}
