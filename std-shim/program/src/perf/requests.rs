//! The ends of a measurement over a virtual queue pair: they post requests, and the receives that
//! requests consume.

use super::drive::{Flush, Receiver, Sender, sum};
use super::ends::{End, Slots};
use super::error::PerfError;
use super::ping_pong::Player;
use super::sampler::Sampler;
use crate::job::{Hello, Operation};
use crate::session::{About, Counterpart, SessionError, Traffic};
use polyrail::backend::Domain;
use polyrail::endpoint::{EndpointError, EndpointQp};
use polyrail::verbs::{RecvWr, SendFlags, SendWr, WcOpcode};
use polyrail::virtual_qp::{RailCounters, RailId};
use std::time::Duration;

/// One of this many answered requests is signaled, because their answers show that the others are
/// done. Far fewer than a queue pair holds.
const SIGNALED_OF_ANSWERED: u64 = 64;

/// Reads of unchanged memory between two polls, which detect failed rails.
const LOOKS_PER_POLL: u32 = 1024;

/// The end that posts requests. If both ends post, both are of this type.
pub(super) struct RequestSender<D: Domain> {
    pub(super) end: End<D>,
    /// For the other end's requests, if it posts any.
    receives: Receives,
    sampler: Sampler,
}

impl<D: Domain> RequestSender<D> {
    pub(super) fn new(end: End<D>) -> Self {
        Self { end, receives: Receives::NONE, sampler: Sampler::off() }
    }

    /// Posts receives for the other end's requests, if it posts any.
    pub(super) fn make_room(&mut self) -> Result<(), PerfError> {
        if self.end.slots.workload.bidirectional {
            self.receives.post(&mut self.end)
        } else {
            Ok(())
        }
    }

    /// Connects with the other end, in another process.
    pub(super) fn bring_up(
        &mut self,
        peer: &mut Counterpart<'_>,
        hello: &Hello,
    ) -> Result<(), PerfError> {
        if self.end.slots.workload.bidirectional {
            return self.receives.bring_up(&mut self.end, peer, hello);
        }
        peer.bring_up(&mut self.end.traffic.endpoint, hello, |_| Ok(()))
    }
}

impl<D: Domain> Flush for RequestSender<D> {
    fn flush(&mut self, timeout: Duration) {
        self.end.traffic.endpoint.give_up(timeout);
    }
}

impl<D: Domain> Sender for RequestSender<D> {
    fn post(&mut self) -> Result<bool, PerfError> {
        self.end.post(SendFlags::SIGNALED)
    }

    fn poll(&mut self) -> Result<bool, PerfError> {
        if !self.end.slots.workload.bidirectional {
            return Ok(self.end.traffic.poll(|_, _| About::Own)? > 0);
        }
        let before = self.arrived();
        let busy = self.end.traffic.poll(|wc, _| whose(wc.opcode, About::Own))? > 0;
        if self.arrived() > before {
            self.make_room()?;
        }
        Ok(busy)
    }

    fn arrived(&self) -> u64 {
        self.end.traffic.arrived
    }

    fn posted(&self) -> u64 {
        self.end.traffic.posted
    }

    fn completed(&self) -> u64 {
        self.end.traffic.reported
    }

    fn window(&self) -> u64 {
        self.end.slots.workload.window.into()
    }

    fn message_size(&self) -> u64 {
        self.end.slots.workload.message_size.into()
    }

    fn check_progress(&mut self) -> Result<(), PerfError> {
        Ok(self.end.traffic.check_progress()?)
    }

    fn rails(&self) -> impl Iterator<Item = RailCounters> {
        let qp = self.end.traffic.endpoint.virtual_qp();
        (0..).map_while(|rail| qp.counters(RailId::Data(rail)))
    }

    fn counters(&self) -> RailCounters {
        let notify = self.end.traffic.endpoint.virtual_qp().counters(RailId::Notify);
        sum(self.rails().chain(notify))
    }

    fn device_of(&self, rail: usize) -> String {
        self.end.traffic.endpoint.device_of(RailId::Data(rail as u8))
    }

    fn sampler(&mut self) -> &mut Sampler {
        &mut self.sampler
    }
}

/// The receiving end, which posts receives if the operation consumes any.
pub(super) struct RequestReceiver<D: Domain> {
    pub(super) end: End<D>,
    receives: Receives,
}

impl<D: Domain> RequestReceiver<D> {
    pub(super) const fn new(end: End<D>) -> Self {
        Self { end, receives: Receives::NONE }
    }

    /// Connects with the near end, in another process, after posting receives.
    pub(super) fn bring_up(
        &mut self,
        peer: &mut Counterpart<'_>,
        hello: &Hello,
    ) -> Result<(), PerfError> {
        self.receives.bring_up(&mut self.end, peer, hello)
    }

    /// Posts receives up to the number that stays posted.
    pub(super) fn post_receives(&mut self) -> Result<(), PerfError> {
        self.receives.post(&mut self.end)
    }
}

impl<D: Domain> Flush for RequestReceiver<D> {
    fn flush(&mut self, timeout: Duration) {
        self.end.traffic.endpoint.give_up(timeout);
    }
}

impl<D: Domain> Receiver for RequestReceiver<D> {
    fn poll(&mut self) -> Result<bool, PerfError> {
        let received = self.end.traffic.poll(|_, _| About::Arrival)?;
        if received > 0 {
            self.post_receives()?;
        }
        Ok(received > 0)
    }

    fn received(&self) -> u64 {
        self.end.traffic.arrived
    }

    fn has_all(&self, requests: u64) -> bool {
        !self.end.slots.workload.operation.is_received() || self.received() >= requests
    }
}

/// Returns whose request completed: `own` for this end's requests, otherwise the other end's.
fn whose(opcode: WcOpcode, own: About) -> About {
    if opcode.is_recv() { About::Arrival } else { own }
}

/// Either end of a ping-pong: it posts requests, and receives for the other end's requests. With
/// requests that are round trips by themselves, only one end plays.
pub(super) struct RequestPlayer<D: Domain> {
    end: End<D>,
    receives: Receives,
    /// One of this many requests is signaled.
    signaled_of: u64,
    /// Reads of unchanged memory since the last poll.
    looks: u32,
}

impl<D: Domain> RequestPlayer<D> {
    pub(super) fn new(end: End<D>) -> Self {
        let is_single = end.traffic.endpoint.virtual_qp().rails().count() == 1;
        let is_noticed = end.slots.workload.operation.is_received();
        // Over several rails the engine signals every request anyway.
        let signaled_of = if is_single && is_noticed { SIGNALED_OF_ANSWERED } else { 1 };
        Self { end, receives: Receives::NONE, signaled_of, looks: 0 }
    }

    /// Connects with the other end, in another process, after posting receives.
    pub(super) fn bring_up(
        &mut self,
        peer: &mut Counterpart<'_>,
        hello: &Hello,
    ) -> Result<(), PerfError> {
        self.receives.bring_up(&mut self.end, peer, hello)
    }
}

impl<D: Domain> Flush for RequestPlayer<D> {
    fn flush(&mut self, timeout: Duration) {
        self.end.traffic.endpoint.give_up(timeout);
    }
}

impl<D: Domain> Player for RequestPlayer<D> {
    fn make_room(&mut self) -> Result<(), PerfError> {
        self.receives.post(&mut self.end)
    }

    fn hit(&mut self) -> Result<bool, PerfError> {
        let request = self.end.traffic.posted;
        if self.end.slots.workload.operation == Operation::Write {
            self.end.slots.stamp(request)?;
        }
        let is_signaled = request % self.signaled_of == self.signaled_of - 1;
        self.end.post(if is_signaled { SendFlags::SIGNALED } else { SendFlags::empty() })
    }

    fn arrivals(&mut self) -> Result<u64, PerfError> {
        let operation = self.end.slots.workload.operation;
        if operation == Operation::Write {
            return self.written();
        }
        self.end.traffic.poll(|wc, _| whose(wc.opcode, About::OwnAndBefore))?;
        let Traffic { reported, arrived, .. } = &self.end.traffic;
        Ok(if operation.fetches() { *reported } else { *arrived })
    }

    fn check_progress(&mut self) -> Result<(), PerfError> {
        Ok(self.end.traffic.check_progress()?)
    }
}

impl<D: Domain> RequestPlayer<D> {
    /// Polls the completions of this end's WRITEs, then polls the last byte of the other end's next
    /// WRITE, which is how a WRITE is detected. Returns how many have arrived.
    fn written(&mut self) -> Result<u64, PerfError> {
        let Self { end: End { traffic, slots }, looks, .. } = self;
        *looks += 1;
        if traffic.reported < traffic.posted || *looks >= LOOKS_PER_POLL {
            *looks = 0;
            traffic.poll(|_, _| About::OwnAndBefore)?;
        }
        if traffic.reported == traffic.posted && slots.has_arrived(traffic.arrived)? {
            traffic.arrived += 1;
        }
        Ok(traffic.arrived)
    }
}

impl<D: Domain> End<D> {
    /// Posts the next request with these flags, inline if it is short enough; returns `false` if
    /// there is no room until something completes.
    fn post(&mut self, flags: SendFlags) -> Result<bool, PerfError> {
        let Self { traffic, slots } = self;
        let request = traffic.posted;
        let local = slots.local(request)?;
        let remote = slots.remote(request)?;
        let keys = &slots.keys;
        let wr = match slots.workload.operation {
            Operation::Write => SendWr::write(request, local, remote, keys),
            Operation::WriteImm => {
                SendWr::write_with_imm(request, local, remote, request as u32, keys)
            }
            Operation::Read => SendWr::read(request, local, remote, keys),
            Operation::Send => SendWr::send(request, local, keys),
            Operation::FetchAdd => SendWr::fetch_add(request, local, remote, 1, keys),
            Operation::CompareSwap => {
                SendWr::compare_swap(request, local, remote, request, request + 1, keys)
            }
            Operation::P2p => return Err(SessionError::other_kind("messages", "requests").into()),
        };
        let inline =
            if slots.workload.is_inline() { SendFlags::INLINE } else { SendFlags::empty() };
        Ok(traffic.post(&wr.with_flags(flags | inline))?)
    }
}

/// The receives of an end.
struct Receives {
    /// Number of posted receives.
    posted: u64,
}

impl Receives {
    const NONE: Self = Self { posted: 0 };

    /// Posts the receives, and connects with an end in another process.
    fn bring_up<D: Domain>(
        &mut self,
        End { traffic, slots }: &mut End<D>,
        peer: &mut Counterpart<'_>,
        hello: &Hello,
    ) -> Result<(), PerfError> {
        let Traffic { endpoint, arrived, .. } = traffic;
        peer.bring_up(endpoint, hello, |endpoint| self.replenish::<D>(endpoint, slots, *arrived))
    }

    /// Posts receives up to the number that stays posted.
    fn post<D: Domain>(&mut self, End { traffic, slots }: &mut End<D>) -> Result<(), PerfError> {
        let Traffic { endpoint, arrived, .. } = traffic;
        self.replenish::<D>(endpoint, slots, *arrived).map_err(|error| match error {
            PerfError::Session(SessionError::Post(EndpointError::Refused(refusal))) => {
                SessionError::refused(endpoint, refusal).into()
            }
            error => error,
        })
    }

    /// Posts receives until enough are posted, if the operation consumes any.
    fn replenish<D: Domain>(
        &mut self,
        endpoint: &mut EndpointQp<D::Qp>,
        slots: &Slots<D::Region>,
        received: u64,
    ) -> Result<(), PerfError> {
        let operation = slots.workload.operation;
        // As many as the queue pair holds, so that a sender never waits for a receiver that is
        // slightly late.
        let most = u64::from(slots.workload.queue_depth());
        let posted = &mut self.posted;
        while operation.is_received() && *posted < received + most {
            let wr = match operation {
                Operation::Send => RecvWr::data(*posted, slots.arriving(*posted)?, &slots.keys),
                _ => RecvWr::notification(*posted),
            };
            match endpoint.post_recv(&wr) {
                Ok(()) => *posted += 1,
                Err(refusal) if refusal.is_back_pressure() => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
