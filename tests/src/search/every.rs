//! Every order in which things can happen in a small world.

use super::{Failure, Shape, World, caught};
use std::collections::HashSet;
use std::fmt;

/// A world that can be explored.
pub trait Every: World {
    /// Everything that can happen next.
    fn possible(&self) -> Vec<Self::Action>;

    /// Whether this need not happen.
    fn is_trouble(&self, action: &Self::Action) -> bool;

    /// Differs for states from which different things can happen.
    fn fingerprint(&self) -> u64;
}

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

/// Lets everything happen in every order, until so many states were seen, in worlds that are built by `build`.
///
/// # Errors
///
/// A promise was broken.
pub fn explore<S: Shape, W: Every<Action = S::Action>>(
    shape: &S,
    build: impl Fn(&S) -> W,
    most_states: u64,
) -> Result<Explored, Box<Failure<S>>> {
    caught(shape, |history| every_path(|| build(shape), history, most_states))
}

fn every_path<W: Every<Action: Copy>>(
    build: impl Fn() -> W,
    history: &mut Vec<W::Action>,
    most_states: u64,
) -> Explored {
    let mut explored = Explored::default();
    let mut seen = HashSet::new();
    // Each choice, and how many there were.
    let mut path: Vec<(usize, usize)> = Vec::new();
    loop {
        let mut world = build();
        history.clear();
        for (choice, _) in &path {
            let action = world.possible()[*choice];
            happens(&mut world, history, action);
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
            happens(&mut world, history, actions[0]);
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

/// Lets something happen, and remembers it.
fn happens<W: World<Action: Copy>>(world: &mut W, history: &mut Vec<W::Action>, action: W::Action) {
    history.push(action);
    world.perform(action);
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
#[derive(Clone, Copy, Debug)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// The fingerprint of this text.
    ///
    /// ```
    /// use polyrail_tests::search::Fingerprint;
    ///
    /// assert_ne!(Fingerprint::of(format_args!("one")), Fingerprint::of(format_args!("two")));
    /// ```
    pub fn of(text: fmt::Arguments<'_>) -> u64 {
        let mut hash = Self(1);
        fmt::write(&mut hash, text).expect("hashing does not fail");
        hash.0
    }

    fn add(&mut self, word: u64) {
        let mixed = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ mixed >> 31;
    }
}

impl fmt::Write for Fingerprint {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let (words, rest) = text.as_bytes().as_chunks::<8>();
        words.iter().for_each(|word| self.add(u64::from_le_bytes(*word)));
        self.add(rest.iter().fold(1, |word, byte| word << 8 | u64::from(*byte)));
        Ok(())
    }
}
