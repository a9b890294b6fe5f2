//! The search for worlds that break a promise, whatever kind of world that is: by seed
//! ([`Search`]), by bytes ([`run_bytes`]), in every order ([`explore`]); and for the fewest things
//! that have to happen for it ([`Failure::shortest`]).
//!
//! A kind of world is a [`Shape`], from which a [`World`] is built; what happens in it is a row of
//! actions that can be chosen, kept, left out in part, and repeated.

mod every;
mod panics;
mod seeds;
mod shrink;

pub use every::{
    Bounds, Every, Explored, Fingerprint, Outcome, Small, SmallWorld, explore, explore_all,
};
pub use panics::capture_panics;
pub use seeds::Search;
pub use shrink::{kind, replay};

pub(crate) use panics::message;

use crate::choices::{Bytes, Choices, Seeded};
use std::fmt::{Debug, Display};
use std::ops::AddAssign;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a world of some kind is made of.
pub trait Shape: Clone + Debug + PartialEq {
    /// What can happen.
    type Action: Copy + Debug;
    /// What happened, in one sentence.
    type Summary: Copy + Debug + Default + AddAssign + Display;

    /// The name of this kind, for command lines.
    const NAME: &'static str;

    /// Any world.
    fn choose(choices: &mut dyn Choices) -> Self;

    /// A world of this shape, in which nothing has happened.
    fn build(&self) -> AnyWorld<Self>;

    /// Shapes that are plainer in one way, this one among them where it is as plain already.
    fn plainer(&self) -> Vec<Self>;
}

/// A world of a shape.
pub type AnyWorld<S> =
    Box<dyn World<Action = <S as Shape>::Action, Summary = <S as Shape>::Summary>>;

/// A world in which one thing happens after the other. Each checks its promises, and panics if one
/// is broken.
pub trait World {
    /// What can happen.
    type Action;
    /// What happened.
    type Summary;

    /// What happens next, unless nothing can.
    fn choose(&self, choices: &mut dyn Choices) -> Option<Self::Action>;

    /// Whether this can happen now. By default, what cannot happen changes nothing.
    fn can(&self, _action: &Self::Action) -> bool {
        true
    }

    /// Lets something happen.
    fn perform(&mut self, action: Self::Action);

    /// How many steps follow, at most this many.
    fn steps(&self, most: u64) -> u64 {
        most
    }

    /// Lets everything happen that must, and checks that nothing is left.
    fn finish(&mut self) -> Self::Summary;

    /// Prints what happens from now on.
    fn be_loud(&mut self);
}

/// A world that breaks a promise.
#[derive(Clone, Debug)]
pub struct Failure<S: Shape> {
    /// What it was made of.
    pub shape: S,
    /// What happened.
    pub actions: Vec<S::Action>,
    /// The broken promise.
    pub message: String,
}

/// Runs the world of a seed for at most this many steps, and lets it end.
///
/// # Errors
///
/// A promise was broken.
pub fn attempt<S: Shape>(seed: u64, steps: u64) -> Result<S::Summary, Box<Failure<S>>> {
    let mut choices = Seeded::new(seed);
    let shape = S::choose(&mut choices);
    caught(&shape, |history| {
        let mut world = shape.build();
        let mut left = steps;
        while left > 0 {
            let Some(action) = world.choose(&mut choices) else { break };
            history.push(action);
            world.perform(action);
            left = world.steps(left - 1);
        }
        world.finish()
    })
}

/// Runs the world that these bytes choose, until they are used up, and lets it end.
///
/// # Panics
///
/// If a promise is broken.
pub fn run_bytes<S: Shape>(bytes: &[u8]) -> S::Summary {
    let mut choices = Bytes::new(bytes);
    let mut world = S::choose(&mut choices).build();
    while !choices.is_empty() {
        let Some(action) = world.choose(&mut choices) else { break };
        world.perform(action);
    }
    world.finish()
}

/// What comes of a world of this shape, or what happened until it broke a promise.
fn caught<S: Shape, T>(
    shape: &S,
    run: impl FnOnce(&mut Vec<S::Action>) -> T,
) -> Result<T, Box<Failure<S>>> {
    let mut actions = Vec::new();
    let ran = catch_unwind(AssertUnwindSafe(|| run(&mut actions)));
    ran.map_err(|payload| {
        Box::new(Failure { shape: shape.clone(), actions, message: message(&*payload) })
    })
}
