//! Queue pairs that are being connected.

use super::error::DeviceError;
use std::sync::mpsc::{Receiver, TryRecvError};

/// A queue pair on its way to RTS. Dropped, it is destroyed once it is there.
#[derive(Debug)]
pub struct Connecting<Q>(State<Q>);

#[derive(Debug)]
enum State<Q> {
    Done(Option<Result<Q, DeviceError>>),
    UnderWay(Receiver<Result<Q, DeviceError>>),
}

impl<Q> Connecting<Q> {
    /// One that is there, or will never be.
    pub const fn done(result: Result<Q, DeviceError>) -> Self {
        Self(State::Done(Some(result)))
    }

    /// One that another thread is at work on.
    pub const fn under_way(result: Receiver<Result<Q, DeviceError>>) -> Self {
        Self(State::UnderWay(result))
    }

    /// The queue pair, or why it is none; once, and `None` until it is known.
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
}
