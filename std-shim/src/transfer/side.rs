//! What sender and receiver share: the handshake, counting completions, patience while nothing
//! happens, and a tidy end.

use super::error::TransferError;
use crate::backend::Domain;
use crate::endpoint::{Endpoint, EndpointBuilder, RailReport, StallWatch};
use crate::exchange::{HandshakeError, Hello, Link, LinkError, Message, Reason, Sum, bring_up};
use crate::memory::{OutOfRange, RegisteredBuffer};
use polyrail_core::verbs::{RecvWr, SendWr, WcStatus};
use polyrail_core::virtual_cq::Event;
use polyrail_core::virtual_qp::PostError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Events that one poll hands over at most.
const POLL_BUDGET: usize = 64;

/// How long a failed endpoint may take to give its requests back.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a receiver whose rail failed waits for the sender's word on it.
const BLAME_TIMEOUT: Duration = Duration::from_secs(1);

/// `wr_id` of notification receives. Own requests have their sequence number; over a single rail a
/// failed completion has nothing else to tell them apart.
const NOTIFICATION: u64 = u64::MAX;

/// Idle polls before the processor is offered to others, and before it is given up for a while.
const SPINS: u32 = 64;
const YIELDS: u32 = 4096;
/// A nap, when nothing happened for some time: the disk is slower than the rails.
const NAP: Duration = Duration::from_micros(50);
/// Idle polls between looks at the link.
const LOOK_EVERY: u32 = 32;

/// What a side is given to run in.
#[derive(Debug)]
pub(super) struct Environment<'a, D> {
    /// Its devices.
    pub(super) domains: Vec<&'a D>,
    pub(super) builder: &'a EndpointBuilder,
    /// How long own requests may make no headway.
    pub(super) stall_timeout: Duration,
    /// How long nothing at all may happen; `None`: for ever.
    pub(super) idle_timeout: Option<Duration>,
    /// Set when the user wants to stop.
    pub(super) interrupted: &'a AtomicBool,
}

/// One side of a copy. Its own requests and the other side's notifications are numbered from 0 on
/// and complete in order, so that counters are all there is to know.
pub(super) struct Side<'a, D: Domain> {
    pub(super) environment: Environment<'a, D>,
    link: Link,
    endpoint: Endpoint<D::Qp, D::Cq>,
    /// Own requests that were posted, and those that were reported.
    pub(super) posted: u64,
    pub(super) reported: u64,
    /// Notifications that came.
    pub(super) notified: u64,
    /// What the other side saw, once it has said so. The receiver does before its last credit is
    /// seen here.
    seen_there: Option<Sum>,
    /// Polls since something happened.
    idle: u32,
    /// When it was noticed that nothing happens.
    idle_since: Option<Instant>,
    watch: StallWatch,
}

impl<'a, D: Domain> Side<'a, D> {
    pub(super) fn new(
        environment: Environment<'a, D>,
        mut link: Link,
    ) -> Result<Self, TransferError> {
        let built = environment.builder.build(&environment.domains).map_err(TransferError::from);
        let endpoint = built.inspect_err(|error| tell_failure(&mut link, error))?;
        Ok(Self {
            link,
            endpoint,
            posted: 0,
            reported: 0,
            notified: 0,
            seen_there: None,
            idle: 0,
            idle_since: None,
            watch: StallWatch::new(environment.stall_timeout),
            environment,
        })
    }

    /// Who we are.
    pub(super) fn hello(&self, buffer: &RegisteredBuffer<D::Region>) -> Hello {
        Hello { endpoint: self.endpoint.address(), buffer: buffer.remote(), plan: None, name: None }
    }

    /// Tells the other side something.
    pub(super) fn tell(&mut self, message: &Message) -> Result<(), TransferError> {
        Ok(self.link.send(message)?)
    }

    /// Waits for the receiver's hello.
    pub(super) fn expect_hello(&mut self) -> Result<Hello, TransferError> {
        Ok(self.link.expect_hello()?)
    }

    /// Posts `receives` notification receives, connects with the other side, and waits until the
    /// other side has done the same.
    pub(super) fn meet(&mut self, peer: &Hello, receives: u32) -> Result<(), TransferError> {
        bring_up(&mut self.endpoint, &mut self.link, peer, |endpoint| {
            for _ in 0..receives {
                endpoint.post_recv(&RecvWr::notification(NOTIFICATION))?;
            }
            Ok::<(), TransferError>(())
        })
    }

    /// Posts a request; `false` if there is no room before something completes.
    pub(super) fn post(&mut self, wr: &SendWr<'_>) -> Result<bool, TransferError> {
        match self.endpoint.post_send(wr) {
            Ok(()) => {
                self.posted += 1;
                Ok(true)
            }
            Err(PostError::Full(_) | PostError::QueueFull) => Ok(false),
            // The reason is with the endpoint, and more telling.
            Err(PostError::InErrorState) => {
                Err(self.endpoint.explain(WcStatus::WR_FLUSH_ERR).into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Counts what completed, and posts receives again. Says whether anything did.
    pub(super) fn poll(&mut self) -> Result<bool, TransferError> {
        let (mut failed, mut stray) = (None, None);
        let (reported, notified) = (&mut self.reported, &mut self.notified);
        let before = *notified;
        let polled = self.endpoint.poll_with(POLL_BUDGET, |event| {
            let Event::Completion(wc) = event else { return };
            if wc.status != WcStatus::SUCCESS {
                failed = failed.or(Some(wc.status));
            } else if wc.wr_id == NOTIFICATION {
                // With DQPLB there is none, and the order of arrival says the same.
                stray = stray.or(wc.imm.filter(|imm| *imm != *notified as u32));
                *notified += 1;
            } else {
                *reported += 1;
            }
        });
        let arrived = *notified - before;
        if let Some(status) = failed {
            return Err(self.endpoint.explain(status).into());
        }
        if let Some(error) = polled.error {
            return Err(self.endpoint.queue_error(error).into());
        }
        if let Some(imm) = stray {
            let what = format!("a notification carries {imm}, which is not its number");
            return Err(TransferError::Protocol(what));
        }
        for _ in 0..arrived {
            self.endpoint.post_recv(&RecvWr::notification(NOTIFICATION))?;
        }
        Ok(polled.events > 0)
    }

    /// After a round: waits a little if nothing happened.
    ///
    /// # Errors
    ///
    /// The other side failed or is gone; the user wants to stop; own requests are stuck.
    pub(super) fn rest(&mut self, progress: bool) -> Result<(), TransferError> {
        if progress {
            self.idle = 0;
            self.idle_since = None;
            return Ok(());
        }
        self.wait()
    }

    /// Waits for what the other side saw.
    pub(super) fn expect_sum(&mut self) -> Result<Sum, TransferError> {
        loop {
            if let Some(sum) = self.seen_there {
                return Ok(sum);
            }
            // The other side may need answers of our device.
            let progress = self.poll()?;
            self.rest(progress)?;
        }
    }

    fn wait(&mut self) -> Result<(), TransferError> {
        self.idle = self.idle.checked_add(1).unwrap_or(YIELDS + 1);
        match self.idle {
            0..SPINS => std::hint::spin_loop(),
            SPINS..YIELDS => std::thread::yield_now(),
            _ => std::thread::sleep(NAP),
        }
        if !self.idle.is_multiple_of(LOOK_EVERY) {
            return Ok(());
        }
        if self.environment.interrupted.load(Ordering::Relaxed) {
            return Err(TransferError::Interrupted);
        }
        self.watch.check(&mut self.endpoint, self.posted, self.reported)?;
        let idle = self.idle_since.get_or_insert_with(Instant::now).elapsed();
        if let Some(waited) = self.environment.idle_timeout.filter(|timeout| idle >= *timeout) {
            return Err(TransferError::Idle { waited });
        }
        match self.link.try_recv()? {
            Some(Message::Failed { reason }) => return Err(TransferError::Peer(reason)),
            Some(Message::Done(sum)) => self.seen_there = Some(sum),
            Some(message) => {
                let error = HandshakeError::out_of_turn(&message, "\"done\"");
                return Err(LinkError::from(error).into());
            }
            None => {}
        }
        Ok(())
    }

    /// A receiver whose rail failed waits for the sender's word: a link that fails, fails for both,
    /// and the sender knows which part of the file was concerned.
    pub(super) fn defer_to_sender(&mut self, failure: TransferError) -> TransferError {
        if !matches!(failure, TransferError::Endpoint(_)) {
            return failure;
        }
        match self.link.expect(BLAME_TIMEOUT) {
            Err(LinkError::GaveUp { reason }) => TransferError::Peer(reason),
            _ => failure,
        }
    }

    /// What the rails did.
    pub(super) fn rail_reports(&self) -> Vec<RailReport> {
        self.endpoint.rail_reports()
    }

    /// Ends this side's part: tells the other side of a failure, and takes every request back from
    /// the devices. Buffers have to stay until this is over: without queue pairs the other side's
    /// requests meet silence, and the news overtakes them; without memory they would fail at once,
    /// and hide the reason.
    pub(super) fn conclude(&mut self, failure: Option<&TransferError>) {
        if let Some(error) = failure {
            tell_failure(&mut self.link, error);
        }
        self.endpoint.fail_all();
        let begin = Instant::now();
        loop {
            let polled = self.endpoint.poll_with(POLL_BUDGET, |_| ());
            let busy = polled.events > 0 || self.endpoint.outstanding() > 0;
            if !busy || polled.error.is_some() || begin.elapsed() > FLUSH_TIMEOUT {
                return;
            }
        }
    }
}

/// Tells the other side of a failure, unless it has told us.
pub(super) fn tell_failure(link: &mut Link, error: &TransferError) {
    if !error.is_echo() {
        // If it cannot be told, the other side sees that we are gone.
        _ = link.send(&Message::Failed { reason: Reason::new(error) });
    }
}

/// Waits for the sender's hello.
pub(super) fn expect_sender(link: &mut Link) -> Result<Hello, TransferError> {
    let hello = link.expect_hello().map_err(TransferError::from);
    hello.inspect_err(|error| tell_failure(link, error))
}

/// Adds `length` bytes of a buffer to a checksum. Through a small buffer of our own, since nobody
/// gets a reference to memory that devices may write.
pub(super) fn checksum<R>(
    crc: &mut crc32fast::Hasher,
    buffer: &RegisteredBuffer<R>,
    offset: usize,
    length: u32,
) -> Result<(), OutOfRange> {
    const PIECE: usize = 16 << 10;
    let mut piece = [0; PIECE];
    for start in (0..length as usize).step_by(PIECE) {
        let bytes = &mut piece[..PIECE.min(length as usize - start)];
        buffer.read_at(offset + start, bytes)?;
        crc.update(bytes);
    }
    Ok(())
}
