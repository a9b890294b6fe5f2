//! The virtual queue pairs of an [`EndpointSet`] under the progress loop, and what is shared about
//! them.

#[cfg(feature = "metrics")]
use super::metering::{Handover, Meter};
use super::port::{QpPort, number_and_place};
use super::set::{ArmedPoll, Awaits, POLL_BUDGET, Ports, ProgressSet};
use super::shared::{Mailbox, RecentEvents, Shared};
use crate::backend::{Connect, Notify};
use crate::endpoint::{
    EndpointError, EndpointQp, EndpointSet, NamedRailEvent, StallWatch, WaitError,
};
use arrayvec::ArrayVec;
use polyrail_core::hardware::CqError;
use polyrail_core::verbs::WcStatus;
use polyrail_core::virtual_cq::{Polled, VirtualWc};
use polyrail_core::virtual_qp::{QpState, Scheme};
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::task::Waker;
use std::time::Duration;

/// The state that the thread of virtual queue pairs shares.
pub(super) type QpShared = Shared<QpPort, QpMailbox>;

/// What handles and the thread's owner learn about virtual queue pairs.
#[derive(Debug)]
pub(super) struct QpMailbox {
    /// The reason why each virtual queue pair failed, by number; `None` where there is no virtual
    /// queue pair.
    errors: Box<[Option<OnceLock<EndpointError>>]>,
    /// Whether failed rails are re-routed, by number.
    reroutes: Box<[bool]>,
    /// Rail events that the owner has not read, with the numbers of their virtual queue pairs.
    pub(super) rail_events: RecentEvents<(usize, NamedRailEvent)>,
    #[cfg(feature = "metrics")]
    pub(super) handover: Handover,
}

impl QpMailbox {
    /// Makes a mailbox for virtual queue pairs, in the order of their numbers: whether each
    /// re-routes failed rails; `None` where there is none.
    pub(super) fn new(reroutes: impl IntoIterator<Item = Option<bool>>) -> Self {
        let one =
            |reroutes: Option<bool>| (reroutes.map(|_| OnceLock::new()), reroutes == Some(true));
        let (errors, reroutes): (Vec<_>, Vec<_>) = reroutes.into_iter().map(one).unzip();
        Self {
            errors: errors.into(),
            reroutes: reroutes.into(),
            rail_events: RecentEvents::default(),
            #[cfg(feature = "metrics")]
            handover: Handover::default(),
        }
    }

    /// Whether the thread has a virtual queue pair with this number.
    pub(super) fn has(&self, qp: usize) -> bool {
        self.errors.get(qp).is_some_and(Option::is_some)
    }

    /// Whether a virtual queue pair re-routes failed rails.
    pub(super) fn reroutes(&self, qp: usize) -> bool {
        self.reroutes.get(qp) == Some(&true)
    }

    /// Returns why a virtual queue pair failed, if it did.
    pub(super) fn error(&self, qp: usize) -> Option<&EndpointError> {
        self.errors.get(qp)?.as_ref()?.get()
    }

    /// Keeps why a virtual queue pair failed; the first reason stays.
    fn fail(&self, qp: usize, error: EndpointError) {
        if let Some(Some(known)) = self.errors.get(qp) {
            _ = known.set(error);
        }
    }
}

impl Mailbox for QpMailbox {
    fn end(&self) {
        #[cfg(feature = "metrics")]
        self.handover.end();
    }
}

/// The condition of a virtual queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Working,
    /// It failed, its queue pairs are in ERR, and its handles can read why.
    Failed,
    /// It failed, and one of its completion queues broke: some requests may never complete, and the
    /// thread waits for none of them.
    Broken,
}

/// The virtual queue pairs that a progress thread owns.
#[derive(Debug)]
pub(super) struct Endpoints<Q, C, const ROUTES: usize> {
    set: EndpointSet<Q, C, ROUTES>,
    /// By the number of the virtual queue pair.
    conditions: Box<[Condition]>,
    /// By the number of the virtual queue pair, if silence is limited.
    watches: Option<Box<[StallWatch]>>,
    /// Whether any virtual queue pair repairs its rails.
    heals: bool,
    /// What the poll before a sleep found, and its completions.
    polled: Polled,
    completions: Vec<VirtualWc>,
    #[cfg(feature = "metrics")]
    meter: Meter,
}

impl<Q: Connect, C: Notify, const ROUTES: usize> Endpoints<Q, C, ROUTES> {
    pub(super) fn new(set: EndpointSet<Q, C, ROUTES>, stall_timeout: Option<Duration>) -> Self {
        let watches = stall_timeout
            .map(|timeout| (0..set.bound()).map(|_| StallWatch::new(timeout)).collect());
        let heals = set.qps().any(|qp| qp.healing_link().is_some());
        Self {
            conditions: vec![Condition::Working; set.bound()].into(),
            watches,
            heals,
            set,
            polled: Polled::default(),
            completions: Vec::with_capacity(POLL_BUDGET),
            #[cfg(feature = "metrics")]
            meter: Meter::default(),
        }
    }

    /// Reports completions. Finds out first why their virtual queue pairs failed, if they did: a
    /// handle that sees a failed completion can read the reason.
    fn report_all(
        &mut self,
        error: Option<CqError>,
        completions: &[VirtualWc],
        ports: &mut Ports<QpPort>,
        mailbox: &QpMailbox,
    ) {
        self.find_failures(error, completions, mailbox);
        completions.iter().for_each(|wc| self.report(*wc, ports));
        if !completions.is_empty() {
            ports.iter_mut().for_each(QpPort::wake);
        }
    }

    /// Finds the virtual queue pairs that failed, stores why, and fails all their requests.
    fn find_failures(
        &mut self,
        error: Option<CqError>,
        completions: &[VirtualWc],
        mailbox: &QpMailbox,
    ) {
        for (number, qp) in self.set.numbered_mut() {
            let condition = &mut self.conditions[number];
            let broken = error.filter(|error| !qp.survives(error));
            let reason = match (broken, *condition) {
                (Some(error), Condition::Working | Condition::Failed) => {
                    *condition = Condition::Broken;
                    qp.queue_error(error)
                }
                (None, Condition::Working) if qp.state() == QpState::Error => {
                    *condition = Condition::Failed;
                    qp.explain(first_failure(completions, qp.virtual_qp().virtual_qp_num()))
                }
                _ => continue,
            };
            mailbox.fail(number, reason);
            qp.fail();
        }
    }

    /// Reports a completion to the handle whose request it completes.
    fn report(&self, wc: VirtualWc, ports: &mut Ports<QpPort>) {
        // Numbers of handles are reused, and the requests of an abandoned handle may complete late.
        if let Some((number, place)) = number_and_place(wc.wr_id)
            && let Some(port) = ports.get_mut(number)
            && self.set.number_of(wc.qp_num) == Some(port.qp)
        {
            port.complete(place, wc);
        }
    }

    /// Fails virtual queue pairs with silent rails.
    fn check_silence(&mut self, ports: &Ports<QpPort>, mailbox: &QpMailbox) {
        let Some(watches) = &mut self.watches else { return };
        for (number, qp) in self.set.numbered_mut() {
            let (condition, watch) = (&mut self.conditions[number], &mut watches[number]);
            if *condition != Condition::Working {
                continue;
            }
            let [posted, reported] = ports
                .iter()
                .filter(|port| port.qp == number)
                .map(QpPort::sends)
                .fold([0; 2], |sum, sends| [sum[0] + sends[0], sum[1] + sends[1]]);
            if let Err(silent) = watch.check(qp, posted, reported) {
                *condition = Condition::Failed;
                mailbox.fail(number, silent);
                qp.fail();
            }
        }
    }
}

impl<Q: Connect, C: Notify, const ROUTES: usize> ProgressSet for Endpoints<Q, C, ROUTES> {
    type Set = EndpointSet<Q, C, ROUTES>;
    type Port = QpPort;
    type Mailbox = QpMailbox;

    fn set_waker(&self, waker: &Waker) {
        let links = self.set.qps().filter_map(EndpointQp::healing_link);
        links.for_each(|link| link.set_waker(waker));
        #[cfg(feature = "metrics")]
        self.meter.set_waker(waker);
    }

    fn has_messages(&self) -> bool {
        self.heals && self.set.qps().any(EndpointQp::has_messages)
    }

    fn submit(&mut self, number: usize, port: &mut QpPort) -> bool {
        self.conditions[port.qp] != Condition::Broken
            && self.set.get_mut(port.qp).is_some_and(|qp| port.post(number, qp))
    }

    fn poll(&mut self, ports: &mut Ports<QpPort>, mailbox: &QpMailbox) -> bool {
        let mut completions = ArrayVec::<VirtualWc, POLL_BUDGET>::new();
        let polled = self.set.poll_with(POLL_BUDGET, |event| {
            // Foreign events belong to queue pairs that were taken out of the set.
            completions.extend(event.completion());
        });
        self.report_all(polled.error, &completions, ports, mailbox);
        polled.events > 0
    }

    /// Keeps completions until [`wake`](Self::wake): while the bell is armed, every request of a
    /// task that a report wakes would cost a system call.
    fn poll_armed(&mut self, _: &mut Ports<QpPort>) -> Result<ArmedPoll, WaitError> {
        let Self { set, polled, completions, .. } = self;
        *polled = set.poll_armed(|event| completions.extend(event.completion()))?;
        let is_broken = polled.error.is_some();
        Ok(ArmedPoll { moved: polled.events > 0 || is_broken, is_broken })
    }

    fn completion_fd(&self) -> Option<BorrowedFd<'_>> {
        self.set.completion_fd()
    }

    fn look(&mut self, ports: &Ports<QpPort>, mailbox: &QpMailbox) {
        self.check_silence(ports, mailbox);
        if self.heals {
            for (number, qp) in self.set.numbered_mut() {
                let events = std::iter::from_fn(|| qp.take_rail_event());
                events.for_each(|event| mailbox.rail_events.push((number, event)));
            }
        }
        #[cfg(feature = "metrics")]
        self.meter.look(&mailbox.handover, || self.set.metrics());
    }

    fn wake(&mut self, ports: &mut Ports<QpPort>, mailbox: &QpMailbox) {
        let polled = std::mem::take(&mut self.polled);
        if polled.events > 0 || polled.error.is_some() {
            let mut completions = std::mem::take(&mut self.completions);
            self.report_all(polled.error, &completions, ports, mailbox);
            // Its capacity is kept.
            completions.clear();
            self.completions = completions;
        }
        if self.heals {
            self.set.heal();
        }
        self.look(ports, mailbox);
    }

    fn has_lost(&self, port: &QpPort) -> bool {
        self.conditions[port.qp] == Condition::Broken
    }

    fn awaits(&self, ports: &Ports<QpPort>) -> Awaits {
        // DQPLB posts receives that it has to replace when peers use them up.
        let listens = |qp: &EndpointQp<Q>| {
            let qp = qp.virtual_qp();
            qp.is_multi() && qp.config().scheme == Scheme::Dqplb
        };
        // Posted before the thread began, so no port counts it. Polls post what comes after its
        // first parts.
        let has_earlier = |number: usize| {
            self.conditions[number] != Condition::Broken
                && self.set.get(number).is_some_and(|qp| qp.unreported() > 0)
        };
        match () {
            () if self.set.qps().any(EndpointQp::is_taking_back) => Awaits::Memory,
            () if ports.iter().any(QpPort::is_busy) => Awaits::Devices,
            () if self.set.qps().any(listens) => Awaits::Devices,
            () if (0..self.set.bound()).any(has_earlier) => Awaits::Devices,
            () if self.heals => Awaits::Peers,
            () => Awaits::Handles,
        }
    }

    fn stall_interval(&self) -> Option<Duration> {
        self.watches.iter().flatten().next().map(StallWatch::interval)
    }

    fn fail_all(&mut self) {
        self.set.qps_mut().for_each(EndpointQp::fail);
        // The peers are to learn of it, and the polls that follow may be too few for that.
        self.set.heal();
    }

    #[cfg_attr(
        not(feature = "metrics"),
        allow(unused_mut, unused_variables, reason = "without `metrics`, nothing is published")
    )]
    fn into_set(mut self, mailbox: &QpMailbox) -> Self::Set {
        #[cfg(feature = "metrics")]
        self.meter.end(&mailbox.handover, || self.set.metrics());
        self.set
    }
}

/// Returns the status with which the requests of a virtual queue pair began to fail. A driver that
/// refuses a post leaves none.
fn first_failure(completions: &[VirtualWc], virtual_qp_num: u32) -> WcStatus {
    let failed = |wc: &&VirtualWc| wc.qp_num == virtual_qp_num && !wc.status.is_success();
    completions.iter().find(failed).map_or(WcStatus::GENERAL_ERR, |wc| wc.status)
}

#[cfg(test)]
mod tests;
