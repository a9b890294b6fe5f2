//! The thread: takes requests, posts them, polls, reports.

use super::message::Lane;
use super::news::{News, QpShared};
use super::options::ProgressOptions;
use super::port::{ThreadPort, number_and_place};
use super::shared::Presence;
use super::sleep::{HEALING_NAP, sleep};
use super::wait::{Found, Waits, wait};
use crate::backend::{Connect, Notify};
use crate::endpoint::{EndpointError, EndpointQp, EndpointSet, StallWatch, WaitError};
use crate::idle::{Idle, NAP, Rest};
use arrayvec::ArrayVec;
use polyrail_core::hardware::CqError;
use polyrail_core::verbs::WcStatus;
use polyrail_core::virtual_cq::{Polled, VirtualWc};
use polyrail_core::virtual_qp::{QpState, Scheme};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Completions of all virtual queue pairs together that are taken before it is the handles' turn.
const POLL_BUDGET: usize = 64;

/// How long devices may take to give requests back when the thread shuts down.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Rounds between two looks at rails, whether they fell silent, and what happened to them: a look costs more
/// than a round.
const ROUNDS_PER_LOOK: u32 = 256;

/// The condition of a virtual queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Working,
    /// It failed, its queue pairs are in ERR, and its handles know.
    Failed,
    /// It failed, and a completion queue of it broke: some requests may never complete, and none is
    /// waited for.
    Broken,
}

/// The thread's state.
#[derive(Debug)]
pub(super) struct ProgressLoop<Q, C, const ROUTES: usize> {
    set: EndpointSet<Q, C, ROUTES>,
    /// Of each virtual queue pair.
    conditions: Box<[Condition]>,
    /// Of each virtual queue pair, if silence has a limit.
    watches: Option<Box<[StallWatch]>>,
    /// Virtual queue pairs heal by themselves.
    heals: bool,
    /// Rounds until rails are looked at.
    rounds_to_look: u32,
    /// The handles, by number.
    ports: Vec<Option<ThreadPort>>,
    /// The number of the handle whose requests are posted first.
    first: usize,
    idle: Idle,
    /// What came while the thread went to sleep; empty otherwise.
    woken: Vec<VirtualWc>,
    /// A completion queue told that it has something, and nothing was found since.
    told: bool,
    /// The thread was told to shut down.
    draining: bool,
    /// How long sends may take then.
    drain_timeout: Duration,
    // Last: when it reports that the thread is gone, all handles were dropped.
    shared: Presence<ThreadPort, News>,
}

impl<Q, C, const ROUTES: usize> ProgressLoop<Q, C, ROUTES>
where
    Q: Connect,
    C: Notify,
{
    pub(super) fn new(
        set: EndpointSet<Q, C, ROUTES>,
        shared: Arc<QpShared>,
        options: ProgressOptions,
    ) -> Self {
        let ProgressOptions { drain_timeout, stall_timeout } = options;
        let watches = stall_timeout
            .map(|timeout| (0..set.bound()).map(|_| StallWatch::new(timeout)).collect());
        let heals = set.qps().any(|qp| qp.healing_link().is_some());
        Self {
            conditions: vec![Condition::Working; set.bound()].into(),
            heals,
            set,
            watches,
            rounds_to_look: ROUNDS_PER_LOOK,
            ports: Vec::new(),
            first: 0,
            idle: Idle::default(),
            woken: Vec::with_capacity(POLL_BUDGET),
            told: false,
            draining: false,
            drain_timeout,
            shared: Presence(shared),
        }
    }

    /// Runs until it is told to shut down, then drains.
    pub(super) fn run(mut self) -> EndpointSet<Q, C, ROUTES> {
        self.shared.0.enter();
        while !self.shared.0.is_closing() {
            self.round();
        }
        self.draining = true;
        self.drain(self.drain_timeout, |port| port.is_idle(Lane::Send));
        self.set.qps_mut().for_each(EndpointQp::fail_all);
        // Polls that tell the peers may be more than there are yet to come.
        self.set.heal();
        self.drain(FLUSH_TIMEOUT, ThreadPort::is_drained);
        self.set
    }

    /// Goes on until `is_drained` holds for every handle, or for `timeout`.
    fn drain(&mut self, timeout: Duration, is_drained: impl Fn(&ThreadPort) -> bool) {
        let end = Instant::now().checked_add(timeout);
        while self.shared.0.has_newcomers() || !self.ports.iter().flatten().all(&is_drained) {
            if end.is_some_and(|end| Instant::now() >= end) {
                return;
            }
            self.round();
        }
    }

    /// Does what there is to do, once, or rests.
    fn round(&mut self) {
        let mut busy = self.adopt();
        busy |= self.post();
        busy |= self.poll();
        self.look_at_rails();
        self.forget_handles();
        if busy {
            self.idle.reset();
            self.told = false;
            return;
        }
        match self.idle.rest() {
            Rest::Spin => std::hint::spin_loop(),
            Rest::Yield => std::thread::yield_now(),
            Rest::Sleep => self.sleep(),
        }
    }

    /// Adopts new handles.
    fn adopt(&mut self) -> bool {
        let newcomers = self.shared.0.take_newcomers();
        let any = !newcomers.is_empty();
        for mut port in newcomers {
            let free = self.ports.iter().position(Option::is_none);
            let number = free.unwrap_or(self.ports.len());
            port.set_number(number as u32);
            match self.ports.get_mut(number) {
                Some(place) => *place = Some(port),
                None => self.ports.push(Some(port)),
            }
        }
        any
    }

    /// Posts for each handle in turn, another one first each time: the first takes whatever room there is.
    fn post(&mut self) -> bool {
        let Self { set, conditions, ports, first, .. } = self;
        let (later, sooner) = ports.split_at_mut(*first);
        *first = if sooner.len() > 1 { *first + 1 } else { 0 };
        let mut moved = false;
        let has_hope = |port: &&mut ThreadPort| conditions[port.qp] != Condition::Broken;
        for port in sooner.iter_mut().chain(later).flatten().filter(has_hope) {
            moved |= set.get_mut(port.qp).is_some_and(|qp| port.post(qp));
        }
        moved
    }

    /// Polls for all completions. Nothing is reported before it is known why its virtual queue pair
    /// failed, if it did.
    fn poll(&mut self) -> bool {
        let mut completions = ArrayVec::<VirtualWc, POLL_BUDGET>::new();
        let polled = self.set.poll_with(POLL_BUDGET, |event| {
            // Foreign ones are of queue pairs that were taken out of the set.
            completions.extend(event.completion());
        });
        self.report_all(&polled, &completions);
        polled.events > 0
    }

    fn report_all(&mut self, polled: &Polled, completions: &[VirtualWc]) {
        self.find_failures(polled.error, completions);
        completions.iter().for_each(|wc| self.report(*wc));
        if !completions.is_empty() {
            self.ports.iter_mut().flatten().for_each(ThreadPort::wake);
        }
    }

    /// Finds the virtual queue pairs that failed. Their handles learn why, and all their requests come back.
    fn find_failures(&mut self, error: Option<CqError>, completions: &[VirtualWc]) {
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
            give_up(&self.shared, number, qp, reason);
        }
    }

    /// Looks at rails from time to time.
    fn look_at_rails(&mut self) {
        self.rounds_to_look -= 1;
        if self.rounds_to_look > 0 {
            return;
        }
        self.rounds_to_look = ROUNDS_PER_LOOK;
        self.check_silence();
        if self.heals {
            self.tell_events();
        }
    }

    /// What happened to rails is for the thread's owner.
    fn tell_events(&mut self) {
        for (number, qp) in self.set.numbered_mut() {
            while let Some(event) = qp.take_rail_event() {
                self.shared.0.news.add_rail_event(number, event);
            }
        }
    }

    /// Rails that fell silent: that is a failure like others.
    fn check_silence(&mut self) {
        let Some(watches) = &mut self.watches else { return };
        for (number, qp) in self.set.numbered_mut() {
            let (condition, watch) = (&mut self.conditions[number], &mut watches[number]);
            if *condition != Condition::Working {
                continue;
            }
            let ports = self.ports.iter().flatten().filter(|port| port.qp == number);
            let [posted, reported] = ports
                .map(ThreadPort::sends)
                .fold([0; 2], |sum, sends| [sum[0] + sends[0], sum[1] + sends[1]]);
            if let Err(silent) = watch.check(qp, posted, reported) {
                *condition = Condition::Failed;
                give_up(&self.shared, number, qp, silent);
            }
        }
    }

    /// Hands a completion to the handle that it belongs to.
    fn report(&mut self, wc: VirtualWc) {
        // Numbers of handles are reused, and a handle that was given up may have left requests.
        if let Some((number, place)) = number_and_place(wc.wr_id)
            && let Some(Some(port)) = self.ports.get_mut(number)
            && self.set.number_of(wc.qp_num) == Some(port.qp)
        {
            port.complete(place, wc);
        }
    }

    /// Forgets handles that are done, and those of virtual queue pairs that are broken.
    fn forget_handles(&mut self) {
        let is_done =
            |port: &mut ThreadPort| self.conditions[port.qp] == Condition::Broken || port.is_done();
        for place in &mut self.ports {
            drop(place.take_if(is_done));
        }
    }

    fn sleep(&mut self) {
        let nap = self.nap();
        let mut completions = std::mem::take(&mut self.woken);
        let mut polled = Polled::default();
        let Self { set, ports, shared, told, draining, .. } = self;
        let something_to_do = || {
            (shared.0.is_closing() && !*draining)
                || shared.0.has_newcomers()
                || ports.iter().flatten().any(ThreadPort::has_news)
        };
        shared.0.sleep(something_to_do, || match shared.0.alarm() {
            Some(alarm) => {
                let (polled, completions) = (&mut polled, &mut completions);
                wait(&mut Waiting { set, polled, completions }, alarm, nap, told);
            }
            None => sleep(nap),
        });
        if polled.events > 0 || polled.error.is_some() {
            self.report_all(&polled, &completions);
            self.idle.reset();
        }
        completions.clear();
        self.woken = completions;
        // Rounds, and polls that heal by themselves, are rare now.
        self.check_silence();
        if self.heals {
            self.set.heal();
            self.tell_events();
        }
    }

    /// How long it may sleep at a time.
    fn nap(&self) -> Option<Duration> {
        // The receives that DQPLB posts by itself are to be posted again when peers use them up.
        let listens = |qp: &EndpointQp<Q>| {
            let qp = qp.virtual_qp();
            qp.is_multi() && qp.config().scheme == Scheme::Dqplb
        };
        let mut ports = self.ports.iter().flatten();
        let devices_are_busy = self.draining
            || ports.any(|port| port.posted() > 0 || port.has_waiting())
            || self.set.qps().any(listens);
        let is_told = self.shared.0.alarm().is_some();
        let nap = match () {
            () if devices_are_busy && !is_told => NAP,
            () if devices_are_busy || self.heals => HEALING_NAP,
            () => return None,
        };
        let watch = self.watches.iter().flatten().next();
        Some(watch.map_or(nap, |watch| nap.min(watch.interval())))
    }
}

/// What the thread waits for, and what came instead.
struct Waiting<'w, Q, C, const ROUTES: usize> {
    set: &'w mut EndpointSet<Q, C, ROUTES>,
    polled: &'w mut Polled,
    completions: &'w mut Vec<VirtualWc>,
}

impl<Q: Connect, C: Notify, const ROUTES: usize> Waits for Waiting<'_, Q, C, ROUTES> {
    fn poll_armed(&mut self) -> Result<Found, WaitError> {
        let Self { set, polled, completions } = self;
        **polled = set.poll_armed(|event| completions.extend(event.completion()))?;
        Ok(match polled {
            Polled { error: Some(_), .. } => Found::Broken,
            Polled { events: 0, .. } => Found::Nothing,
            _ => Found::Something,
        })
    }

    fn completion_fd(&self) -> Option<BorrowedFd<'_>> {
        self.set.completion_fd()
    }
}

/// Tells the handles of a virtual queue pair why it failed, and makes all their requests come back.
fn give_up<Q: Connect>(
    shared: &Presence<ThreadPort, News>,
    number: usize,
    qp: &mut EndpointQp<Q>,
    reason: EndpointError,
) {
    shared.0.news.fail(number, reason);
    qp.fail_all();
}

/// The status with which the requests of a virtual queue pair began to fail. A driver that refuses a
/// post leaves none.
fn first_failure(completions: &[VirtualWc], virtual_qp_num: u32) -> WcStatus {
    let failed = |wc: &&VirtualWc| wc.qp_num == virtual_qp_num && !wc.status.is_success();
    completions.iter().find(failed).map_or(WcStatus::GENERAL_ERR, |wc| wc.status)
}

#[cfg(test)]
mod tests;
