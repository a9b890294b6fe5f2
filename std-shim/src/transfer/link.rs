//! The out-of-band channel between the two sides: set-up before the rails are connected, and the
//! news that must arrive though rails have failed.
//!
//! Within a process it is a pair of channels. Messages are plain data, so that a socket can take
//! their place between hosts.

use super::Plan;
use crate::RemoteBuffer;
use crate::endpoint::Address;
use std::sync::mpsc;
use std::time::Duration;

/// What one side tells the other.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Who I am; the first message either way.
    Hello(Hello),
    /// My queue pairs are connected and my receives are posted.
    Ready,
    /// All of it moved, as far as I am concerned.
    Done(Sum),
    /// I cannot go on, for this reason.
    Failed(String),
}

/// Where a side can be reached.
#[derive(Clone, Debug, PartialEq)]
pub struct Hello {
    /// Its endpoint.
    pub address: Address,
    /// The buffer that the other side writes into: chunks to the receiver, credits to the sender.
    pub buffer: RemoteBuffer,
    /// What is to be moved; the sender's.
    pub plan: Option<Plan>,
}

/// What a side saw of the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Bytes.
    pub bytes: u64,
    /// CRC-32 (IEEE 802.3) of them, as `crc32(1)` and gzip compute it.
    pub crc32: u32,
}

/// The other side is gone: it hung up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other side hung up")]
pub struct HungUp;

/// One side's end of the channel.
#[derive(Debug)]
pub struct Link {
    to: mpsc::Sender<Message>,
    from: mpsc::Receiver<Message>,
}

impl Link {
    /// The two ends of a channel within this process.
    pub fn pair() -> (Self, Self) {
        let (to_a, from_b) = mpsc::channel();
        let (to_b, from_a) = mpsc::channel();
        (Self { to: to_b, from: from_b }, Self { to: to_a, from: from_a })
    }

    /// Tells the other side. If it is gone, that shows at the next receive.
    pub fn send(&self, message: Message) {
        _ = self.to.send(message);
    }

    /// The next message, if there is one.
    ///
    /// # Errors
    ///
    /// [`HungUp`], after the last message was taken.
    pub fn try_recv(&self) -> Result<Option<Message>, HungUp> {
        match self.from.try_recv() {
            Ok(message) => Ok(Some(message)),
            Err(mpsc::TryRecvError::Empty) => Ok(None),
            Err(mpsc::TryRecvError::Disconnected) => Err(HungUp),
        }
    }

    /// Waits for the next message; `None` if there is none within `timeout`.
    ///
    /// # Errors
    ///
    /// [`HungUp`], after the last message was taken.
    pub fn recv(&self, timeout: Duration) -> Result<Option<Message>, HungUp> {
        match self.from.recv_timeout(timeout) {
            Ok(message) => Ok(Some(message)),
            Err(mpsc::RecvTimeoutError::Timeout) => Ok(None),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(HungUp),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_in_order_and_the_end_is_told() {
        let (a, b) = Link::pair();
        assert_eq!(b.try_recv(), Ok(None));
        a.send(Message::Ready);
        a.send(Message::Failed("disk".into()));
        drop(a);
        assert_eq!(b.recv(Duration::ZERO), Ok(Some(Message::Ready)));
        assert_eq!(b.try_recv(), Ok(Some(Message::Failed("disk".into()))));
        assert_eq!(b.try_recv(), Err(HungUp));
        b.send(Message::Ready);
    }
}
