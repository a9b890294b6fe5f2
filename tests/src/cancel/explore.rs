//! Everything that can happen in a world, in every order.

use super::state::State;
use super::step::{Fault, Step};
use super::world::World;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;

/// What was explored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Explored {
    /// States that differ.
    pub states: usize,
    /// Steps between them.
    pub steps: usize,
    /// States in which nothing has to happen any more.
    pub ends: usize,
}

/// A promise that was broken, after as few steps as possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The promise.
    pub fault: Fault,
    /// The steps that led to it.
    pub steps: Vec<Step>,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} after", self.fault)?;
        self.steps.iter().try_for_each(|step| write!(f, "\n  {step}"))
    }
}

/// Explores all states of a world, breadth first.
///
/// # Errors
///
/// A promise is broken; the steps to it are as few as possible.
///
/// # Panics
///
/// There are more than `most` states.
pub fn explore(world: &World, most: usize) -> Result<Explored, Broken> {
    let first = State::new(world);
    let mut states = vec![first];
    // The state before each, and the step from it.
    let mut before: HashMap<State, Option<(usize, Step)>> = HashMap::from([(first, None)]);
    let mut explored = Explored { states: 1, ..Explored::default() };
    let mut at = 0;
    while let Some(state) = states.get(at).copied() {
        let steps = state.steps(world);
        let goes_on = steps.iter().any(|step| step.is_certain());
        let fault = if goes_on { None } else { state.unfinished(world) };
        let broken = |fault, last: Option<Step>| {
            let mut way: Vec<Step> = last.into_iter().collect();
            let mut from = state;
            while let Some((earlier, step)) = before[&from] {
                way.push(step);
                from = states[earlier];
            }
            way.reverse();
            Broken { fault, steps: way }
        };
        if let Some(fault) = fault {
            return Err(broken(fault, None));
        }
        explored.ends += usize::from(!goes_on);
        let mut reached = Vec::new();
        for step in steps {
            explored.steps += 1;
            let next = state.after(world, step).map_err(|fault| broken(fault, Some(step)))?;
            reached.push((next, step));
        }
        for (next, step) in reached {
            if let Entry::Vacant(new) = before.entry(next) {
                new.insert(Some((at, step)));
                states.push(next);
            }
        }
        at += 1;
        assert!(states.len() <= most, "more than {most} states: {world:?}");
    }
    explored.states = states.len();
    Ok(explored)
}
