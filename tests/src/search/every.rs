//! Every order in which things can happen in a small world.

use super::{Failure, Shape, World, caught};
use std::collections::HashMap;
use std::fmt;
use std::ops::AddAssign;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A kind of world of which some are small enough to be explored.
pub trait Small: Shape {
    /// The shapes that are explored.
    fn all_small() -> Vec<Self>;

    /// What is particular about this one of them.
    fn describe(&self) -> String;

    /// A world of this shape, in which nothing has happened.
    fn build_small(&self) -> SmallWorld<Self>;
}

/// A world of a shape that can be explored.
pub type SmallWorld<S> =
    Box<dyn Every<Action = <S as Shape>::Action, Summary = <S as Shape>::Summary>>;

/// A world that can be explored.
pub trait Every: World {
    /// Everything that can happen next.
    fn possible(&self) -> Vec<Self::Action>;

    /// Whether this need not happen.
    fn is_trouble(&self, action: &Self::Action) -> bool;

    /// Differs for states from which different things can happen, and is the same for equal states
    /// of two worlds of a shape: so what follows a state is explored once, however often other
    /// orders lead to it.
    fn fingerprint(&self) -> u64;
}

/// How much is explored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// States of each world, about.
    pub states: u64,
    /// Places at which an order may differ from the plainest one, in which always the first
    /// possible thing happens.
    pub deviations: u32,
}

/// What was explored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Explored {
    /// States that differ.
    pub states: u64,
    /// Steps between them.
    pub steps: u64,
    /// Ways through them, each up to an end or to a state that was seen before.
    pub paths: u64,
    /// Ends that were reached.
    pub ends: u64,
    /// Nothing was left out.
    pub is_complete: bool,
}

impl fmt::Display for Explored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, steps, paths, ends, is_complete } = self;
        let all = if *is_complete { "all of them" } else { "there are more" };
        write!(
            f,
            "{states} states ({all}), {steps} steps between them on {paths} paths, {ends} ends"
        )
    }
}

impl AddAssign for Explored {
    fn add_assign(&mut self, other: Self) {
        self.states += other.states;
        self.steps += other.steps;
        self.paths += other.paths;
        self.ends += other.ends;
        self.is_complete &= other.is_complete;
    }
}

/// Lets everything happen in every order within these bounds.
///
/// # Errors
///
/// A promise was broken.
pub fn explore<S: Small>(shape: &S, bounds: Bounds) -> Result<Explored, Box<Failure<S>>> {
    caught(shape, |history| {
        let mut explorer = Explorer::new(bounds);
        while explorer.take_path(shape.build_small(), history) {}
        explorer.explored
    })
}

/// A small world, and what came of it.
pub type Outcome<S> = (S, Result<Explored, Box<Failure<S>>>);

/// Explores all small worlds of a kind within these bounds, with this many threads. Returns what
/// came of each, in order.
pub fn explore_all<S>(bounds: Bounds, jobs: usize) -> Vec<Outcome<S>>
where
    S: Small<Action: Send> + Send + Sync,
{
    let worlds = S::all_small();
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(shape) = worlds.get(at) else { return };
            let explored = explore(shape, bounds);
            done.lock().expect("no panic while it is locked").push((at, shape.clone(), explored));
        }
    };
    std::thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(work))));
    let mut done = done.into_inner().expect("no panic while it is locked");
    done.sort_by_key(|(at, ..)| *at);
    done.into_iter().map(|(_, shape, explored)| (shape, explored)).collect()
}

/// One step of a path.
#[derive(Debug)]
struct Turn<A> {
    /// The state before it.
    from: u64,
    /// Everything that could happen in that state.
    actions: Vec<A>,
    /// Which of them happened.
    choice: usize,
    /// It was not the first thing that changes anything.
    deviates: bool,
    /// It changed nothing.
    is_idle: bool,
}

struct Explorer<A> {
    bounds: Bounds,
    explored: Explored,
    /// States, and how many deviations were left in them at most.
    seen: HashMap<u64, u32>,
    path: Vec<Turn<A>>,
}

impl<A: Copy> Explorer<A> {
    fn new(bounds: Bounds) -> Self {
        Self { bounds, explored: Explored::default(), seen: HashMap::new(), path: Vec::new() }
    }

    /// Repeats the path that is next in this new world, and follows it up to an end, or to a state
    /// that was seen. Returns whether there is another path.
    fn take_path<S>(
        &mut self,
        mut world: Box<dyn Every<Action = A, Summary = S>>,
        history: &mut Vec<A>,
    ) -> bool {
        history.clear();
        for turn in &self.path {
            happens(&mut *world, history, turn.actions[turn.choice]);
        }
        self.explored.paths += 1;
        while let Some(from) = self.arrive(world.fingerprint()) {
            let actions = world.possible();
            if actions.iter().all(|action| world.is_trouble(action)) {
                world.finish();
                self.explored.ends += 1;
                break;
            }
            let first = actions[0];
            self.path.push(Turn { from, actions, choice: 0, deviates: false, is_idle: false });
            happens(&mut *world, history, first);
        }
        self.explored.states = self.seen.len() as u64;
        self.explored.is_complete = !self.advance();
        !self.explored.is_complete && self.explored.states < self.bounds.states
    }

    /// Notes where the last step of the path has led to. Returns it, if that is new.
    fn arrive(&mut self, at: u64) -> Option<u64> {
        self.explored.steps += 1;
        let left = self.bounds.deviations - self.deviations();
        if let Some(turn) = self.path.last_mut() {
            turn.is_idle = turn.from == at;
        }
        let most = self.seen.get(&at).copied();
        if most.is_some_and(|most| most >= left) {
            return None;
        }
        self.seen.insert(at, left);
        Some(at)
    }

    fn deviations(&self) -> u32 {
        self.path.iter().map(|turn| u32::from(turn.deviates)).sum()
    }

    /// Moves to the next path. Returns false if there is none.
    fn advance(&mut self) -> bool {
        while let Some(turn) = self.path.pop() {
            let deviates = turn.deviates || !turn.is_idle;
            let deviations = self.deviations() + u32::from(deviates);
            if turn.choice + 1 < turn.actions.len() && deviations <= self.bounds.deviations {
                self.path.push(Turn { choice: turn.choice + 1, deviates, ..turn });
                return true;
            }
        }
        false
    }
}

/// Lets something happen, and remembers it.
fn happens<A: Copy, S>(
    world: &mut dyn Every<Action = A, Summary = S>,
    history: &mut Vec<A>,
    action: A,
) {
    history.push(action);
    world.perform(action);
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
