//! The fewest things that have to happen for a failure.

use super::{AnyWorld, Failure, Shape, caught};

/// The first words of a broken promise, without its figures.
pub fn kind(message: &str) -> String {
    let words = message.chars().filter(|char| !char.is_ascii_digit() && *char != '\n');
    words.take(100).collect()
}

/// Lets these things happen, those that can, and the world end.
///
/// # Errors
///
/// The broken promise.
pub fn replay<S: Shape>(shape: &S, actions: &[S::Action]) -> Result<S::Summary, String> {
    let run = |_: &mut Vec<_>| perform_all::<S>(shape.build(), actions);
    caught(shape, run).map_err(|failure| failure.message)
}

fn perform_all<S: Shape>(mut world: AnyWorld<S>, actions: &[S::Action]) -> S::Summary {
    for action in actions {
        if world.can(action) {
            world.perform(*action);
        }
    }
    world.finish()
}

impl<S: Shape> Failure<S> {
    /// Lets it happen again, and prints everything.
    pub fn show(&self) {
        let mut world = self.shape.build();
        world.be_loud();
        // What is wrong is known.
        let _ = caught(&self.shape, |_| perform_all::<S>(world, &self.actions));
        eprintln!();
    }

    /// Shows the plainest form of the failure, and panics with it.
    pub fn raise(self, world: &str) -> ! {
        let failure = self.shortest();
        failure.show();
        panic!("{world}: {}\n{:?}\n{:#?}", failure.message, failure.shape, failure.actions);
    }

    /// The same failure with as little happening as possible, in a world as plain as possible.
    pub fn shortest(mut self) -> Self {
        loop {
            let before = (self.actions.len(), self.shape.clone());
            self.with_fewer_actions();
            self.in_a_plainer_world();
            if before == (self.actions.len(), self.shape.clone()) {
                return self;
            }
        }
    }

    fn with_fewer_actions(&mut self) {
        let mut size = self.actions.len().next_power_of_two();
        while size > 0 {
            let mut at = 0;
            while at < self.actions.len() {
                let end = (at + size).min(self.actions.len());
                let fewer = [&self.actions[..at], &self.actions[end..]].concat();
                if !self.fails_with(self.shape.clone(), fewer) {
                    at += size;
                }
            }
            size /= 2;
        }
    }

    fn in_a_plainer_world(&mut self) {
        let mut at = 0;
        while let Some(shape) = self.shape.plainer().into_iter().nth(at) {
            let is_new = shape != self.shape;
            if !is_new || !self.fails_with(shape, self.actions.clone()) {
                at += 1;
            }
        }
    }

    /// Whether this fails in the same way: then it takes the place of what is known.
    fn fails_with(&mut self, shape: S, actions: Vec<S::Action>) -> bool {
        let failed = replay(&shape, &actions).err();
        let Some(message) = failed.filter(|message| kind(message) == kind(&self.message)) else {
            return false;
        };
        *self = Self { shape, actions, message };
        true
    }
}
