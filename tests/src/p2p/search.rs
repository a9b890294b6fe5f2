//! How a search sees this kind of world.

use super::action::Action;
use super::shape::{Shape, Size};
use super::{Summary, World};
use crate::choices::Choices;
use crate::search::{self, AnyWorld};

impl search::Shape for Shape {
    type Action = Action;
    type Summary = Summary;

    const NAME: &'static str = "p2p";

    fn choose(choices: &mut dyn Choices) -> Self {
        Self::choose(choices)
    }

    fn build(&self) -> AnyWorld<Self> {
        match self.size {
            Size::Small => Box::new(World::<4, 8>::new(self.clone())),
            Size::Middle => Box::new(World::<32, 16>::new(self.clone())),
            Size::Large => Box::new(World::<32, 256>::new(self.clone())),
        }
    }

    fn plainer(&self) -> Vec<Self> {
        let all = PLAINER.iter().map(|plainer| {
            let mut shape = self.clone();
            plainer(&mut shape);
            shape
        });
        all.collect()
    }
}

/// What makes a world plainer.
const PLAINER: [fn(&mut Shape); 19] = [
    |shape| shape.troubles.cancels = 0,
    |shape| shape.tears = false,
    |shape| shape.flushes_all = true,
    |shape| shape.word_after = 0,
    |shape| shape.lines.truncate(1),
    |shape| shape.mute = [1; 2],
    |shape| shape.is_early = false,
    |shape| shape.slow = None,
    |shape| shape.is_tardy = false,
    |shape| shape.bystanders = [None; 2],
    |shape| shape.rests = false,
    |shape| shape.lines.iter_mut().for_each(|line| line.flushes = false),
    |shape| shape.lines.iter_mut().for_each(|line| line.inline = 512),
    |shape| shape.lines.iter_mut().for_each(|line| line.split_threshold = 0),
    |shape| shape.lines.iter_mut().for_each(|line| line.separate_signal = None),
    |shape| shape.lines.iter_mut().for_each(|line| line.max_message = [[1 << 30; 8]; 2]),
    |shape| shape.lines.iter_mut().for_each(|line| line.split = Default::default()),
    |shape| shape.lines.iter_mut().for_each(|line| line.standby = [0; 2]),
    |shape| shape.lines.iter_mut().for_each(|line| line.standby[1] = 0),
];

impl<const DEPTH: usize, const SLOTS: usize> search::World for World<DEPTH, SLOTS> {
    type Action = Action;
    type Summary = Summary;

    fn choose(&self, choices: &mut dyn Choices) -> Option<Action> {
        Some(self.choose(choices))
    }

    fn perform(&mut self, action: Action) {
        self.perform(action);
    }

    fn finish(&mut self) -> Summary {
        self.finish()
    }

    fn be_loud(&mut self) {
        self.is_loud = true;
    }
}
