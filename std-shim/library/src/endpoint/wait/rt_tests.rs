//! Completions that come at any moment: none is missed.

use super::*;
use polyrail_core::verbs::{Completion, DeviceId, WcOpcode};

/// A completion: after how many steps of the owner it comes, and whether it finishes something.
type Arrival = (usize, bool);

/// A completion queue as drivers have it. Before each step of its owner, completions come as
/// planned.
struct Scripted {
    /// The last first.
    arrivals: Vec<Arrival>,
    steps: usize,
    /// Those that are there: whether they finish something.
    held: Vec<bool>,
    armed: bool,
    told: bool,
    /// Steps of `arm`, in their order: `true` arms, `false` forgets.
    arming: Vec<bool>,
}

impl Scripted {
    fn step(&mut self) {
        while let Some((_, finishes)) = self.arrivals.pop_if(|(at, _)| *at <= self.steps) {
            self.held.push(finishes);
            if std::mem::take(&mut self.armed) {
                self.told = true;
            }
        }
        self.steps = self.steps.saturating_add(1);
    }
}

/// A completion would be waited for that is there.
const MISSED: WaitError = WaitError::System { errno: -1 };

impl Armed for Scripted {
    fn arm(&mut self) -> Result<(), WaitError> {
        for at in 0..self.arming.len() {
            self.step();
            if self.arming[at] {
                self.armed = true;
            } else {
                self.told = false;
            }
        }
        Ok(())
    }

    fn poll_all(&mut self, sink: &mut dyn FnMut(Event)) -> Polled {
        self.step();
        let events = self.held.drain(..).filter(|finishes| *finishes).count();
        let completion = Completion::success(0, 0, WcOpcode::SEND);
        (0..events).for_each(|_| sink(Event::Foreign { device: DeviceId(0), completion }));
        Polled { events, ..Polled::default() }
    }

    fn polls_before_waiting(&self) -> usize {
        1
    }
}

impl Waits for Scripted {
    fn sleep(&mut self, _until: Option<Instant>) -> Result<(), WaitError> {
        // All that is still to come, comes while it sleeps.
        self.step();
        if !self.told {
            self.steps = usize::MAX;
            let was_empty = self.held.is_empty();
            self.step();
            if !was_empty || !self.told {
                return Err(MISSED);
            }
        }
        Ok(())
    }
}

/// Waits for as many completions as come, at all moments; returns whether one was missed.
fn misses(arming: &[bool]) -> bool {
    const STEPS: usize = 12;
    let moments =
        (0..STEPS).flat_map(|a| (a..STEPS).flat_map(move |b| (b..STEPS).map(move |c| [c, b, a])));
    let mut missed = false;
    let finishing = [[true; 3], [true, true, false], [true, false, true], [true, false, false]];
    let all =
        moments.flat_map(|at| finishing.map(|finishes| [0, 1, 2].map(|i| (at[i], finishes[i]))));
    for arrivals in all {
        let mut waits = Scripted {
            arrivals: arrivals.into(),
            steps: 0,
            held: Vec::new(),
            armed: false,
            told: false,
            arming: arming.into(),
        };
        let wanted = arrivals.iter().filter(|(_, finishes)| *finishes).count();
        let mut came = 0;
        while came < wanted {
            match waits.wait_all(None, &mut |_| came += 1) {
                Ok(polled) => assert!(polled.events > 0, "{arrivals:?}: woken for nothing"),
                Err(error) => {
                    assert_eq!(error, MISSED);
                    missed = true;
                    break;
                }
            }
        }
    }
    missed
}

#[test]
fn no_completion_is_missed_whenever_it_comes() {
    assert!(!misses(&[false, true]));
}

/// The test would find it.
#[test]
fn what_is_forgotten_after_arming_is_missed() {
    assert!(misses(&[true, false]));
    assert!(misses(&[false]));
}
