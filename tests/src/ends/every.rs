//! Every order in which things can happen in a small world.

use super::World;
use super::action::Action;
use super::search::{Failure, caught, forget, happens};
use super::shape::Shape;
use std::collections::HashSet;
use std::fmt::{self, Write};

/// What was explored.
#[derive(Clone, Copy, Debug, Default)]
pub struct Explored {
    /// States that differ.
    pub states: u64,
    /// Steps between them.
    pub steps: u64,
    /// Ends that were reached.
    pub ends: u64,
    /// Nothing was left out.
    pub is_complete: bool,
}

/// Lets everything happen in every order, until so many states were seen.
///
/// # Errors
///
/// A promise was broken.
pub fn explore(shape: &Shape, most_states: u64) -> Result<Explored, Box<Failure>> {
    caught(shape, || every_path(shape, most_states))
}

fn every_path(shape: &Shape, most_states: u64) -> Explored {
    let mut explored = Explored::default();
    let mut seen = HashSet::new();
    // Each choice, and how many there were.
    let mut path: Vec<(usize, usize)> = Vec::new();
    loop {
        let mut world = World::new(shape.clone());
        forget();
        for (choice, _) in &path {
            let action = world.possible()[*choice];
            happens(&mut world, action);
        }
        explored.steps += 1;
        while seen.insert(world.fingerprint()) {
            let actions = world.possible();
            if actions.iter().all(|action| world.is_trouble(action)) {
                world.finish();
                explored.ends += 1;
                break;
            }
            path.push((0, actions.len()));
            happens(&mut world, actions[0]);
            explored.steps += 1;
        }
        explored.states = seen.len() as u64;
        if explored.states >= most_states {
            return explored;
        }
        if !advance(&mut path) {
            return Explored { is_complete: true, ..explored };
        }
    }
}

/// Moves to the next path. Returns false if there is none.
fn advance(path: &mut Vec<(usize, usize)>) -> bool {
    while let Some((choice, choices)) = path.pop() {
        if choice + 1 < choices {
            path.push((choice + 1, choices));
            return true;
        }
    }
    false
}

/// Hashes what is written.
struct Fingerprint(u64);

impl Fingerprint {
    fn add(&mut self, word: u64) {
        let mixed = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ mixed >> 31;
    }
}

impl Write for Fingerprint {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let (words, rest) = text.as_bytes().as_chunks::<8>();
        words.iter().for_each(|word| self.add(u64::from_le_bytes(*word)));
        self.add(rest.iter().fold(1, |word, byte| word << 8 | u64::from(*byte)));
        Ok(())
    }
}

impl World {
    /// Differs for states from which different things can happen.
    fn fingerprint(&self) -> u64 {
        let Self { nics, ends, directions, link, attempts, left, lost_completions, .. } = self;
        let mut hash = Fingerprint(1);
        write!(
            hash,
            "{nics:?}{ends:?}{directions:?}{link:?}{attempts:?}{left:?}{lost_completions}"
        )
        .expect("hashing does not fail");
        hash.0
    }

    /// Whether this need not happen.
    fn is_trouble(&self, action: &Action) -> bool {
        match action {
            Action::Fail(name, _) => !self.nics.borrow().is_unanswered(self.at(*name)),
            Action::Break(_)
            | Action::FailConnect { .. }
            | Action::Distrust { .. }
            | Action::Remove(_)
            | Action::BreakCq { .. }
            | Action::Refuse { .. }
            | Action::Surrender(_) => true,
            _ => false,
        }
    }
}
