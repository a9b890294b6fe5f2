//! What the peer does: it writes what arrives, counts numbers, and notifies its application.

use super::state::{Item, Request, State, all};
use super::step::{Fault, Outcome};
use super::world::{Kind, World};

impl State {
    /// The peer executes the oldest request of a queue pair that it has not executed.
    ///
    /// # Errors
    ///
    /// That breaks a promise.
    pub(super) fn execute(&mut self, world: &World, qp: usize) -> Result<(), Fault> {
        let it = &mut self.queue_pairs[qp];
        let item = it.items[usize::from(it.executed)].expect("the step is possible");
        it.executed += 1;
        let failed_here = it.failed_here;
        match item {
            Item::Data { request, fragment } => {
                let job = world.jobs[usize::from(request)];
                // The response of a READ finds a queue pair that takes nothing any more.
                if job.kind == Kind::Read && failed_here {
                    return Ok(());
                }
                let it = &mut self.requests[usize::from(request)];
                let has_ended = !matches!(it.outcome, None | Some(Outcome::Unknown));
                if has_ended || it.is_notified {
                    return Err(Fault::LateWrite(request.into()));
                }
                it.written |= 1 << fragment;
                let is_last = usize::from(fragment) + 1 == job.fragments;
                self.arrive(world, request, fragment, is_last)
            }
            Item::Gap { request, fragment } => {
                let is_last =
                    usize::from(fragment) + 1 == world.jobs[usize::from(request)].fragments;
                let is_marked = is_last && !world.rules.fills_without_last_mark;
                self.arrive(world, request, fragment, is_marked)
            }
            Item::Notification { request } => self.notify(world, request.into()),
        }
    }

    /// The peer counts the number of a fragment, if it has one.
    fn arrive(
        &mut self,
        world: &World,
        request: u8,
        fragment: u8,
        mark: bool,
    ) -> Result<(), Fault> {
        let Some(number) = self.fragment(request, fragment).number else { return Ok(()) };
        if self.arrived & 1 << number != 0 {
            return Err(Fault::Twice(number));
        }
        self.arrived |= 1 << number;
        self.marked |= u8::from(mark) << number;
        while self.arrived & 1 << self.counted != 0 {
            let (number, is_marked) = (self.counted, self.marked & 1 << self.counted != 0);
            self.counted += 1;
            if is_marked {
                let has = |it: &Request| it.fragments.iter().any(|it| it.number == Some(number));
                let owner = self.requests.iter().position(has).expect("a number has an owner");
                self.notify(world, owner)?;
            }
        }
        Ok(())
    }

    fn notify(&mut self, world: &World, request: usize) -> Result<(), Fault> {
        let later = self.requests[request + 1..].iter().any(|it| it.is_notified);
        let it = &mut self.requests[request];
        if matches!(it.outcome, Some(Outcome::WrittenUnnotified | Outcome::PerhapsWritten(_))) {
            return Err(Fault::NotifiedThoughTakenBack(request));
        }
        if later || it.is_notified || it.written != all(world, request) {
            return Err(Fault::Notification(request));
        }
        it.is_notified = true;
        Ok(())
    }
}
