//! The code that sender and receiver share: handshake, counting completions, waiting, and an
//! orderly end.

use super::error::TransferError;
use crate::job::{Hello, JobOutcome, Link, Message, Sum};
use crate::session::{About, Counterpart, Environment, Failure, SessionError, Traffic};
use crate::threads::watched;
use polyrail::backend::{Domain, Region};
use polyrail::endpoint::RailReport;
use polyrail::idle::{Idle, NAP, Rest};
use polyrail::memory::{OutOfRange, RegisteredBuffer};
use polyrail::verbs::{AccessFlags, RecvWr, SendWr};

/// `wr_id` of notification receives; requests of this side have their sequence number. Over a
/// single rail, a failed completion has no opcode, so only the `wr_id` distinguishes the two.
const NOTIFICATION: u64 = u64::MAX;

/// Idle polls between polls of the control channel.
const POLL_EVERY: u32 = 32;

/// One side of a copy. Notifications of the other side are numbered as its requests are.
pub(super) struct Side<'a, D: Domain> {
    pub(super) environment: Environment<'a, D>,
    peer: Counterpart<'a>,
    pub(super) traffic: Traffic<D>,
    idle: Idle,
    /// Idle polls since the control channel was polled.
    idle_polls: u32,
}

/// The registered memory of a side.
pub(super) struct Buffers<R> {
    pub(super) ring: RegisteredBuffer<R>,
    pub(super) credits: RegisteredBuffer<R>,
}

impl<R: Region> Buffers<R> {
    /// Registers the bytes of the ring and of the credits, with these access flags.
    fn new<D: Domain<Region = R>>(
        domains: &[&D],
        (ring_bytes, ring_access): (usize, AccessFlags),
        (credit_bytes, credit_access): (usize, AccessFlags),
    ) -> Result<Self, TransferError> {
        let ring = RegisteredBuffer::new(ring_bytes, ring_access, domains)?;
        let credits = RegisteredBuffer::new(credit_bytes, credit_access, domains)?;
        Ok(Self { ring, credits })
    }
}

impl<'a, D: Domain> Side<'a, D> {
    pub(super) fn new(
        environment: Environment<'a, D>,
        control: Link,
    ) -> Result<Self, TransferError> {
        let mut peer = Counterpart::new(control, environment.timeouts, environment.interrupted);
        let built = environment.builder.build(&environment.domains).map_err(TransferError::from);
        let endpoint = built.inspect_err(|error| peer.tell_failure(error))?;
        peer.carry_for(&endpoint);
        let reporter = environment.reporter.clone();
        let traffic = Traffic::new(endpoint, environment.stall_timeout, reporter);
        Ok(Self { peer, traffic, idle: Idle::default(), idle_polls: 0, environment })
    }

    /// Registers the memory of this side. It is kept until no requests of the other side can
    /// arrive.
    ///
    /// # Errors
    ///
    /// A device refuses to register it; the other side is informed.
    pub(super) fn buffers(
        &mut self,
        ring: (usize, AccessFlags),
        credits: (usize, AccessFlags),
    ) -> Result<Buffers<D::Region>, TransferError> {
        let buffers = Buffers::new(&self.environment.domains, ring, credits);
        buffers.inspect_err(|error| self.conclude(Some(error)))
    }

    /// Returns this side's hello.
    pub(super) fn hello(&self, buffer: &RegisteredBuffer<D::Region>) -> Hello {
        let endpoint = self.traffic.endpoint.address();
        let session = self.peer.session();
        Hello { reach: endpoint.into(), buffer: buffer.remote(), purpose: None, session }
    }

    /// Sends the other side a message.
    pub(super) fn tell(&mut self, message: &Message) -> Result<(), TransferError> {
        Ok(self.peer.tell(message)?)
    }

    /// Sends the last report; see [`Counterpart::report`].
    pub(super) fn report(&mut self, outcome: JobOutcome) -> Result<(), TransferError> {
        Ok(self.peer.report(outcome)?)
    }

    /// Sets what this side waits for from now on, for error messages.
    pub(super) fn awaits(&mut self, what: &'static str) {
        self.peer.awaits(what);
    }

    /// Polls the control channel if a poll is due, and reports that this side is alive: call it
    /// regularly during long work.
    ///
    /// # Errors
    ///
    /// The other side failed or closed the connection; the user interrupted.
    pub(super) fn keep_company(&mut self) -> Result<(), TransferError> {
        Ok(self.peer.keep_company()?)
    }

    /// Runs work that cannot poll the control channel, and meanwhile reports that this side is
    /// alive.
    ///
    /// # Errors
    ///
    /// The system cannot start a thread for the work.
    pub(super) fn keeping_company<T: Send>(
        &mut self,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, SessionError> {
        watched("completes the copy", work, || self.peer.stand_by())
    }

    /// Waits for the receiver's hello.
    pub(super) fn expect_hello(&mut self) -> Result<Hello, TransferError> {
        Ok(self.peer.expect_hello()?)
    }

    /// Posts `receives` notification receives, connects with the other side, and waits until the
    /// other side is ready, too.
    pub(super) fn meet(&mut self, hello: &Hello, receives: u32) -> Result<(), TransferError> {
        self.peer.bring_up(&mut self.traffic.endpoint, hello, |endpoint| {
            for _ in 0..receives {
                endpoint.post_recv(&RecvWr::notification(NOTIFICATION))?;
            }
            Ok::<(), TransferError>(())
        })
    }

    /// Posts a request. Returns `false` if the queue is full until a request completes.
    pub(super) fn post(&mut self, wr: &SendWr<'_>) -> Result<bool, TransferError> {
        Ok(self.traffic.post(wr)?)
    }

    /// Counts completions, and posts the receives that were consumed again. Returns whether a
    /// request completed.
    pub(super) fn poll(&mut self) -> Result<bool, TransferError> {
        let Traffic { arrived: before, .. } = self.traffic;
        let mut stray = None;
        let completed = self.traffic.poll(|wc, notified| {
            if wc.wr_id != NOTIFICATION {
                return About::Own;
            }
            // With DQPLB there is no immediate: notifications arrive in posting order.
            stray = stray.or(wc.imm.filter(|imm| *imm != notified as u32));
            About::Arrival
        })?;
        if let Some(imm) = stray {
            let what = format!("it sent a notification out of order, with immediate {imm}");
            return Err(SessionError::Protocol(what).into());
        }
        let Traffic { endpoint, arrived, .. } = &mut self.traffic;
        for _ in before..*arrived {
            let posted = endpoint.post_recv(&RecvWr::notification(NOTIFICATION));
            posted.map_err(|refusal| SessionError::refused(endpoint, refusal))?;
        }
        Ok(completed > 0)
    }

    /// Ends a round of the loop: waits briefly if there was no progress.
    ///
    /// # Errors
    ///
    /// The other side failed or closed the connection; the user interrupted; requests of this side
    /// make no progress.
    pub(super) fn rest(&mut self, progress: bool) -> Result<(), TransferError> {
        if progress {
            self.idle.reset();
            return Ok(self.peer.go_on()?);
        }
        self.wait()
    }

    /// Waits for the other side's checksum, which errors call `awaited`.
    pub(super) fn expect_sum(&mut self, awaited: &'static str) -> Result<Sum, TransferError> {
        let outcome = self.expect_outcome(awaited)?;
        Ok(outcome.sum().ok_or_else(SessionError::other_outcome)?)
    }

    /// Waits for the other side's final report, which errors call `awaited`. It may arrive before
    /// the last credit does.
    pub(super) fn expect_outcome(
        &mut self,
        awaited: &'static str,
    ) -> Result<JobOutcome, TransferError> {
        self.awaits(awaited);
        loop {
            if let Some(outcome) = self.peer.outcome() {
                return Ok(outcome);
            }
            // The other side's last requests may still arrive, and rails may need repair.
            let progress = self.poll()?;
            self.rest(progress)?;
        }
    }

    fn wait(&mut self) -> Result<(), TransferError> {
        match self.idle.rest() {
            Rest::Spin => std::hint::spin_loop(),
            Rest::Yield => std::thread::yield_now(),
            // The other side is busy with its disk, which is slower than the rails.
            Rest::Sleep => std::thread::sleep(NAP),
        }
        self.idle_polls += 1;
        if self.idle_polls < POLL_EVERY {
            return Ok(());
        }
        self.idle_polls = 0;
        self.traffic.check_progress()?;
        Ok(self.peer.poll_control()?)
    }

    /// Returns the sender's report of a rail failure, if one comes, instead of the receiver's.
    pub(super) fn defer_to_sender(&mut self, failure: TransferError) -> TransferError {
        match failure {
            TransferError::Session(error) => self.peer.defer(error).into(),
            failure => failure,
        }
    }

    /// Returns the counts of each rail.
    pub(super) fn rail_reports(&mut self) -> Vec<RailReport> {
        self.traffic.rail_reports()
    }

    /// Ends this side's part; see [`Counterpart::conclude`].
    pub(super) fn conclude(&mut self, failure: Option<&impl Failure>) {
        let endpoint = &mut self.traffic.endpoint;
        self.peer.conclude(|timeout| endpoint.give_up(timeout), failure);
    }
}

/// Bytes of a chunk that are read or written at a time. An interrupt waits until a piece is done,
/// so pieces are short enough for a slow disk.
pub(super) const PIECE: u32 = 256 << 10;

/// Returns the pieces of a chunk of `length` bytes, as offset and length.
pub(super) fn pieces(length: u32) -> impl Iterator<Item = (u32, u32)> {
    (0..length).step_by(PIECE as usize).map(move |start| (start, PIECE.min(length - start)))
}

/// Adds `length` bytes of a buffer to a checksum. Copies them to a local array first, since there
/// must be no references to memory that devices may write.
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

#[cfg(test)]
mod rt_tests {
    use super::*;
    use crate::hosts::{Host, software_hosts};
    use crate::session::Reporter;
    use polyrail::endpoint::{EndpointBuilder, EndpointError, connect_endpoints};
    use polyrail::hardware::Refusal;
    use polyrail::nic::{Fault, ProtectionDomain};
    use polyrail::verbs::{AccessFlags, WcStatus};
    use polyrail::virtual_qp::RailId;
    use polyrail_faults::{DriverFault, Faults, Faulty, WorkQueue};
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    const DELAY: Duration = Duration::from_millis(100);

    fn wrapped(host: &Host, faults: &Faults) -> Vec<Faulty<ProtectionDomain>> {
        host.domains().into_iter().map(|domain| faults.domain(domain.clone())).collect()
    }

    /// Returns how a side with one posted receive handles a notification after which something
    /// happens to its rails, or to their driver.
    fn notified(
        rails: usize,
        after: impl FnOnce(&mut Side<'_, Faulty<ProtectionDomain>>, &Host, &Faults),
    ) -> TransferError {
        let (here, there) = software_hosts(2).unwrap();
        let faults = Faults::new();
        let faulty = wrapped(&there, &faults);
        let sound = wrapped(&here, &Faults::new());
        let builder = EndpointBuilder::new().rails(rails);
        let interrupted = AtomicBool::new(false);
        let environment = Environment {
            domains: faulty.iter().collect(),
            builder: &builder,
            stall_timeout: Duration::from_secs(60),
            reporter: Reporter::unheard(),
            timeouts: None,
            interrupted: &interrupted,
        };
        let (_near, far) = Link::pair().unwrap();
        let mut side = Side::new(environment, far).unwrap();
        let sound: Vec<_> = sound.iter().collect();
        let mut peer = builder.build(&sound).unwrap();
        side.traffic.endpoint.post_recv(&RecvWr::notification(NOTIFICATION)).unwrap();
        connect_endpoints(&mut side.traffic.endpoint, &mut peer).unwrap();
        let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let to = RegisteredBuffer::new(256, writable, &there.domains()).unwrap();
        let from = RegisteredBuffer::new(256, writable, &here.domains()).unwrap();
        let keys = from.toward(&to.remote()).unwrap();
        let wr = SendWr::write_with_imm(0, from.local(0, 8).unwrap(), to.addr(), 0, &keys);
        there.inject(0, Fault::DelayCompletions(DELAY));
        peer.post_send(&wr).unwrap();
        let begin = Instant::now();
        while peer.poll(1).completions.is_empty() {
            assert!(begin.elapsed() < Duration::from_secs(60));
        }
        after(&mut side, &there, &faults);
        loop {
            match side.poll() {
                Ok(_) => assert!(begin.elapsed() < Duration::from_secs(60)),
                Err(error) => return error,
            }
        }
    }

    #[test]
    fn a_receive_that_is_refused_after_a_rail_failed_is_not_the_reason() {
        let error = notified(2, |side, host, _| {
            let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
            let buffer = RegisteredBuffer::new(256, writable, &host.domains()).unwrap();
            let keys = buffer.toward(&buffer.remote()).unwrap();
            let wr = SendWr::write(1, buffer.local(0, 8).unwrap(), buffer.addr(), &keys);
            // The first request hides the second one's failure, since reports are in order.
            host.inject(0, Fault::Silent(true));
            side.traffic.endpoint.fail_rail(RailId::Data(1));
            assert!(side.post(&wr).unwrap() && side.post(&wr).unwrap());
            std::thread::sleep(2 * DELAY);
        });
        let TransferError::Session(SessionError::Endpoint(EndpointError::Rail(failure))) = &error
        else {
            panic!("{error}")
        };
        assert_eq!(failure.error.rail, RailId::Data(1), "{error}");
    }

    #[test]
    fn a_single_rails_failure_is_looked_for_when_its_driver_refuses_a_receive() {
        let error = notified(1, |side, _, faults| {
            side.traffic.endpoint.post_recv(&RecvWr::notification(NOTIFICATION)).unwrap();
            std::thread::sleep(DELAY / 2);
            side.traffic.endpoint.fail_rail(RailId::Data(0));
            let refusal = Refusal::Driver(libc::EINVAL);
            let queue = WorkQueue::Recv;
            faults.inject(DriverFault::AcceptOnly { queue, nth_batch: 0, requests: 0, refusal });
        });
        let TransferError::Session(SessionError::Endpoint(EndpointError::Rail(failure))) = &error
        else {
            panic!("{error}")
        };
        assert_eq!(failure.error.status, WcStatus::WR_FLUSH_ERR, "{error}");
    }

    #[test]
    fn a_busy_side_tells_that_it_is_alive() {
        let (_here, there) = software_hosts(1).unwrap();
        let builder = EndpointBuilder::new();
        let interrupted = AtomicBool::new(false);
        let environment = Environment {
            domains: there.domains(),
            builder: &builder,
            stall_timeout: Duration::from_secs(60),
            reporter: Reporter::unheard(),
            timeouts: None,
            interrupted: &interrupted,
        };
        let (mut near, far) = Link::pair().unwrap();
        let mut side = Side::new(environment, far).unwrap();
        let buffer = RegisteredBuffer::new(64, AccessFlags::empty(), &there.domains()).unwrap();
        side.tell(&Message::Hello(side.hello(&buffer))).unwrap();
        side.tell(&Message::Ready {}).unwrap();
        near.expect_hello().unwrap();
        near.expect_ready().unwrap();
        let heard = side.keeping_company(|| near.expect(Duration::from_secs(60)));
        assert_eq!(heard.unwrap().unwrap(), Message::Alive {});
        let begin = Instant::now();
        while near.try_recv().unwrap() != Some(Message::Alive {}) {
            assert!(begin.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(10));
            side.keep_company().unwrap();
        }
    }
}
