//! A state of both ends, and what the sending end does.

use super::step::{Fault, Outcome, Step};
use super::world::{Kind, World};
use polyrail_core::virtual_qp::Scheme;

const REQUESTS: usize = 3;
const FRAGMENTS: usize = 2;
const QUEUE_PAIRS: usize = 3;
/// Requests on one queue pair: all fragments, and as many numbers without data.
const ITEMS: usize = 2 * REQUESTS * FRAGMENTS;

/// A request on a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Item {
    Data {
        request: u8,
        fragment: u8,
    },
    /// The number of a fragment without its data.
    Gap {
        request: u8,
        fragment: u8,
    },
    Notification {
        request: u8,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct QueuePair {
    pub(super) items: [Option<Item>; ITEMS],
    posted: u8,
    pub(super) executed: u8,
    pub(super) failed_here: bool,
    failed_there: bool,
}

/// Something that is sent once, or again after a fence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Sent {
    #[default]
    No,
    Owed,
    Posted,
    Done,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Fragment {
    /// Queue pairs that carry it and have neither acknowledged it nor are fenced, a bit each.
    carriers: u8,
    was_posted: bool,
    is_owed: bool,
    is_done: bool,
    /// Its number, with DQPLB.
    pub(super) number: Option<u8>,
    /// Its number without data.
    gap: Sent,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Cancel {
    #[default]
    No,
    Asked,
    TooLate,
    Done,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Request {
    pub(super) fragments: [Fragment; FRAGMENTS],
    notification: Sent,
    cancel: Cancel,
    pub(super) outcome: Option<Outcome>,
    /// What the promises are checked against: the fragments that were written, a bit each.
    pub(super) written: u8,
    pub(super) is_notified: bool,
}

/// A state of both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) requests: [Request; REQUESTS],
    pub(super) queue_pairs: [QueuePair; QUEUE_PAIRS],
    next_number: u8,
    faults: u8,
    link_is_lost: bool,
    /// At the peer: numbers that arrived, those of them with the mark of the last one, and the next
    /// one that counts.
    pub(super) arrived: u8,
    pub(super) marked: u8,
    pub(super) counted: u8,
}

impl State {
    /// Returns the state in which all requests are accepted and none is posted.
    pub(super) fn new(world: &World) -> Self {
        let mut requests = [Request::default(); REQUESTS];
        for (request, job) in requests.iter_mut().zip(&world.jobs) {
            request.fragments[..job.fragments].iter_mut().for_each(|it| it.is_owed = true);
        }
        Self {
            requests,
            queue_pairs: [QueuePair::default(); QUEUE_PAIRS],
            next_number: 0,
            faults: world.faults,
            link_is_lost: false,
            arrived: 0,
            marked: 0,
            counted: 0,
        }
    }

    /// Returns what can happen next.
    pub(super) fn steps(&self, world: &World) -> Vec<Step> {
        let mut steps = Vec::new();
        let queue_pairs = world.rails + usize::from(world.scheme == Scheme::Spray);
        for qp in 0..queue_pairs {
            let it = &self.queue_pairs[qp];
            let mut add = |is_possible, step| steps.extend(Some(step).filter(|_| is_possible));
            let is_rail = qp < world.rails;
            add(is_rail && !it.failed_here && self.next_item(world).is_some(), Step::Post(qp));
            add(!it.failed_there && it.executed < it.posted, Step::Execute(qp));
            add(!it.failed_here && it.executed > 0, Step::Acknowledge(qp));
            add(!it.failed_here && self.faults > 0, Step::FailHere(qp));
            add(!it.failed_there && self.faults > 0, Step::FailThere(qp));
            add(!it.failed_here && it.failed_there, Step::NoticeHere(qp));
            let is_linked = !self.link_is_lost;
            add(is_linked && it.failed_here && !it.failed_there, Step::NoticeThere(qp));
            add(is_linked && it.failed_here && it.failed_there, Step::Fence(qp));
            add(!it.failed_here && self.is_wanted_back(qp), Step::FenceOnPurpose(qp));
        }
        for (at, request) in self.requests[..world.jobs.len()].iter().enumerate() {
            if request.outcome.is_some() {
                continue;
            }
            if world.cancels[at] && request.cancel == Cancel::No {
                steps.push(Step::Cancel(at));
            }
            if self.link_is_lost && request.cancel == Cancel::Asked {
                steps.push(Step::GiveUp(at));
            }
        }
        if world.loses_link && !self.link_is_lost {
            steps.push(Step::LoseLink);
        }
        steps
    }

    /// Returns the state after a step.
    ///
    /// # Errors
    ///
    /// The step breaks a promise.
    pub(super) fn after(mut self, world: &World, step: Step) -> Result<Self, Fault> {
        match step {
            Step::Post(qp) => self.post(world, qp),
            Step::Execute(qp) => self.execute(world, qp)?,
            Step::Acknowledge(qp) => self.acknowledge(qp),
            Step::FailHere(qp) => {
                self.faults -= 1;
                self.stop(world, qp);
            }
            Step::FailThere(qp) => {
                self.faults -= 1;
                self.queue_pairs[qp].failed_there = true;
            }
            Step::NoticeHere(qp) | Step::FenceOnPurpose(qp) => self.stop(world, qp),
            Step::NoticeThere(qp) => self.queue_pairs[qp].failed_there = true,
            Step::Fence(qp) => self.fence(world, qp),
            Step::Cancel(at) => {
                let request = &mut self.requests[at];
                let is_notifying = matches!(request.notification, Sent::Posted | Sent::Done);
                let is_too_late = is_notifying && world.rules.notification_is_too_late;
                request.cancel = if is_too_late { Cancel::TooLate } else { Cancel::Asked };
            }
            Step::LoseLink => self.link_is_lost = true,
            Step::GiveUp(at) => {
                self.requests[at].cancel = Cancel::Done;
                self.requests[at].outcome = Some(Outcome::Unknown);
            }
        }
        self.settle(world)?;
        Ok(self)
    }

    /// Returns the promise that is broken if nothing happens any more.
    pub(super) fn unfinished(&self, world: &World) -> Option<Fault> {
        // Without a link, a connection whose rails failed ends.
        let has_ended = self.link_is_lost && self.queue_pairs.iter().any(|qp| qp.failed_here);
        let mut requests = self.requests[..world.jobs.len()].iter();
        let request = requests.position(|request| {
            request.outcome.is_none() && !(has_ended && request.cancel != Cancel::Asked)
        })?;
        Some(Fault::Stuck(request))
    }

    /// Whether a queue pair carries something of a request that is wanted back.
    fn is_wanted_back(&self, qp: usize) -> bool {
        let asked = self.requests.iter().filter(|request| request.cancel == Cancel::Asked);
        asked.flat_map(|request| request.fragments).any(|it| it.carriers & 1 << qp != 0)
    }

    /// Returns the next data, or number without data, to be posted on a rail.
    fn next_item(&self, world: &World) -> Option<Item> {
        for (request, job) in (0..).zip(&world.jobs) {
            for fragment in 0..job.fragments as u8 {
                let it = &self.requests[usize::from(request)].fragments[usize::from(fragment)];
                if it.is_owed {
                    return Some(Item::Data { request, fragment });
                }
                if it.gap == Sent::Owed {
                    return Some(Item::Gap { request, fragment });
                }
            }
        }
        None
    }

    fn post(&mut self, world: &World, qp: usize) {
        let item = self.next_item(world).expect("the step is possible");
        match item {
            Item::Data { request, fragment } => {
                let number = self.next_number;
                let is_numbered = is_numbered(world, request);
                let it = self.fragment(request, fragment);
                it.is_owed = false;
                it.was_posted = true;
                it.carriers |= 1 << qp;
                if is_numbered && it.number.is_none() {
                    it.number = Some(number);
                    self.next_number += 1;
                }
            }
            Item::Gap { request, fragment } => self.fragment(request, fragment).gap = Sent::Posted,
            Item::Notification { .. } => unreachable!("it is posted by `advance`"),
        }
        self.queue_pairs[qp].push(item);
    }

    fn acknowledge(&mut self, qp: usize) {
        for item in self.queue_pairs[qp].take_executed() {
            match item {
                Item::Data { request, fragment } => {
                    let it = self.fragment(request, fragment);
                    it.is_done = true;
                    it.is_owed = false;
                    it.carriers &= !(1 << qp);
                }
                Item::Gap { request, fragment } => {
                    self.fragment(request, fragment).gap = Sent::Done
                }
                Item::Notification { request } => {
                    self.requests[usize::from(request)].notification = Sent::Done;
                }
            }
        }
    }

    /// This end stops using a queue pair. Data without numbers may go out again at once, because the
    /// same bytes may be written twice.
    fn stop(&mut self, world: &World, qp: usize) {
        self.queue_pairs[qp].failed_here = true;
        for item in self.queue_pairs[qp].items.into_iter().flatten() {
            let Item::Data { request, fragment } = item else { continue };
            let kind = world.jobs[usize::from(request)].kind;
            let is_numbered = is_numbered(world, request);
            let is_wanted_back = self.requests[usize::from(request)].cancel == Cancel::Asked;
            let it = self.fragment(request, fragment);
            if kind == Kind::Read {
                it.carriers &= !(1 << qp);
            }
            if !is_numbered {
                it.is_owed = !it.is_done;
            } else if is_wanted_back && !world.rules.fills_after_fence {
                it.gap = Sent::Owed;
            }
        }
    }

    /// The peer's queue pair is in the error state, too, and its count of what has arrived is here.
    fn fence(&mut self, world: &World, qp: usize) {
        let failed = std::mem::take(&mut self.queue_pairs[qp]);
        for (at, item) in failed.items.into_iter().flatten().enumerate() {
            let has_arrived = at < usize::from(failed.executed);
            match item {
                Item::Data { request, fragment } => {
                    let is_numbered = is_numbered(world, request);
                    let it = self.fragment(request, fragment);
                    let resolved = if world.rules.awaits_copies { 1 << qp } else { u8::MAX };
                    it.carriers &= !resolved;
                    if is_numbered {
                        it.is_done |= has_arrived;
                        it.is_owed = !it.is_done;
                    }
                }
                Item::Gap { request, fragment } => {
                    let is_done = has_arrived || !world.rules.fills_again;
                    self.fragment(request, fragment).gap =
                        if is_done { Sent::Done } else { Sent::Owed };
                }
                Item::Notification { request } => {
                    self.requests[usize::from(request)].notification =
                        if has_arrived { Sent::Done } else { Sent::Owed };
                }
            }
        }
    }

    /// What this end does by itself after each step.
    fn settle(&mut self, world: &World) -> Result<(), Fault> {
        for request in 0..world.jobs.len() {
            if self.requests[request].cancel == Cancel::Asked {
                self.take_back(world, request)?;
            }
            self.advance(world, request)?;
        }
        Ok(())
    }

    fn take_back(&mut self, world: &World, request: usize) -> Result<(), Fault> {
        let rules = &world.rules;
        let job = world.jobs[request];
        let failed = (0..QUEUE_PAIRS).filter(|qp| self.queue_pairs[*qp].failed_here);
        let failed: u8 = failed.map(|qp| 1 << qp).sum();
        let ignored = if rules.awaits_failed_rails { 0 } else { failed };
        let fragments = &mut self.requests[request].fragments[..job.fragments];
        if rules.posts_nothing_again {
            fragments.iter_mut().for_each(|it| it.is_owed = false);
        }
        if fragments.iter().any(|it| it.carriers & !ignored != 0) {
            return Ok(());
        }
        let is_last_done = fragments[job.fragments - 1].is_done;
        let is_numbered = is_numbered(world, request as u8);
        if is_numbered && is_last_done && rules.completes_if_last_arrived {
            fragments.iter_mut().for_each(|it| it.is_owed = !it.is_done);
            self.requests[request].cancel = Cancel::TooLate;
            return Ok(());
        }
        let is_whole = fragments.iter().all(|it| it.is_done);
        let is_perhaps = |it: &Fragment| {
            it.is_done || it.was_posted && !is_numbered && rules.reports_unacknowledged
        };
        let perhaps = (0..).zip(&*fragments).filter(|(_, it)| is_perhaps(it));
        let perhaps = perhaps.map(|(at, _)| 1 << at).sum();
        for it in fragments {
            let is_gap = it.number.is_some() && !it.is_done && it.gap == Sent::No;
            if is_gap && rules.fills_gaps {
                it.gap = Sent::Owed;
            }
        }
        self.requests[request].cancel = Cancel::Done;
        let outcome = match (is_whole, job.kind) {
            (true, Kind::Write | Kind::Read) => Outcome::Delivered,
            (true, Kind::WriteWithImm) => Outcome::WrittenUnnotified,
            (false, _) => Outcome::PerhapsWritten(perhaps),
        };
        self.report(world, request, outcome)
    }

    /// Posts the notification of a request whose data is in place, and reports it.
    fn advance(&mut self, world: &World, request: usize) -> Result<(), Fault> {
        let job = world.jobs[request];
        let it = &self.requests[request];
        let is_taken_back = matches!(it.cancel, Cancel::Asked | Cancel::Done);
        let fragments = &it.fragments[..job.fragments];
        let is_in_place = fragments.iter().all(|it| it.is_done && it.carriers == 0);
        if !is_in_place || is_taken_back && world.rules.sends_no_notification {
            return Ok(());
        }
        if is_notified_apart(world, request) {
            let is_owed = matches!(self.requests[request].notification, Sent::No | Sent::Owed);
            let earlier_wait = (0..request).any(|at| {
                let it = &self.requests[at];
                let is_passed = it.cancel == Cancel::Done && world.rules.later_ones_pass;
                let is_sent = matches!(it.notification, Sent::Posted | Sent::Done);
                is_notified_apart(world, at) && !is_sent && !is_passed
            });
            let notifications = &mut self.queue_pairs[world.rails];
            if is_owed && !earlier_wait && !notifications.failed_here {
                notifications.push(Item::Notification { request: request as u8 });
                self.requests[request].notification = Sent::Posted;
            }
            if self.requests[request].notification != Sent::Done {
                return Ok(());
            }
        }
        let is_retired = |it: &Request| {
            let is_filled =
                !it.fragments.iter().any(|it| matches!(it.gap, Sent::Owed | Sent::Posted));
            it.outcome.is_some() && (is_filled || !world.rules.later_reports_await_gaps)
        };
        let is_its_turn = self.requests[..request].iter().all(is_retired);
        if is_its_turn && self.requests[request].outcome.is_none() {
            self.report(world, request, Outcome::Delivered)?;
        }
        Ok(())
    }

    fn report(&mut self, world: &World, request: usize, outcome: Outcome) -> Result<(), Fault> {
        let it = &mut self.requests[request];
        let is_whole = it.written == all(world, request);
        let is_notifying = world.jobs[request].kind == Kind::WriteWithImm;
        let is_true = match outcome {
            Outcome::Delivered => is_whole && (it.is_notified || !is_notifying),
            Outcome::WrittenUnnotified => is_whole && !it.is_notified,
            Outcome::PerhapsWritten(fragments) => it.written & !fragments == 0 && !it.is_notified,
            Outcome::Unknown => true,
        };
        it.outcome = Some(outcome);
        if is_true { Ok(()) } else { Err(Fault::FalseReport(request, outcome)) }
    }

    pub(super) fn fragment(&mut self, request: u8, fragment: u8) -> &mut Fragment {
        &mut self.requests[usize::from(request)].fragments[usize::from(fragment)]
    }
}

impl QueuePair {
    fn push(&mut self, item: Item) {
        self.items[usize::from(self.posted)] = Some(item);
        self.posted += 1;
    }

    /// Removes what the peer executed, which is acknowledged.
    fn take_executed(&mut self) -> Vec<Item> {
        let executed = usize::from(self.executed);
        let taken = self.items[..executed].iter().flatten().copied().collect();
        self.items.rotate_left(executed);
        self.items[ITEMS - executed..].fill(None);
        self.posted -= self.executed;
        self.executed = 0;
        taken
    }
}

/// Whether fragments of a request have numbers.
fn is_numbered(world: &World, request: u8) -> bool {
    let kind = world.jobs[usize::from(request)].kind;
    world.scheme == Scheme::Dqplb && kind == Kind::WriteWithImm
}

/// Whether the peer is notified of a request by a request of its own.
fn is_notified_apart(world: &World, request: usize) -> bool {
    world.scheme == Scheme::Spray && world.jobs[request].kind == Kind::WriteWithImm
}

/// All fragments of a request, a bit each.
pub(super) fn all(world: &World, request: usize) -> u8 {
    (1 << world.jobs[request].fragments) - 1
}
