//! The control link between the owners of two ends, which carries their messages as bytes.

use polyrail_core::virtual_qp::ControlMessage;
use std::collections::VecDeque;

/// A message, as it is carried.
pub(crate) type Message = [u8; ControlMessage::BYTES];

/// What becomes of messages that are under way when the link breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Old {
    /// They are lost.
    Lost,
    /// They arrive before those of the new link.
    First,
    /// They arrive at any later time.
    Late,
}

/// Messages from one end to the other.
#[derive(Debug, Default)]
struct Way {
    queue: VecDeque<Message>,
    /// Those of links that broke, which arrive late.
    late: VecDeque<Message>,
    /// The sending end has not noticed yet that the link is a new one.
    unnoticed: bool,
}

/// A queue in each direction, by the sending end.
#[derive(Debug, Default)]
pub(crate) struct Link {
    ways: [Way; 2],
    carried: u64,
}

impl Link {
    /// Carries a message away from an end.
    pub(crate) fn send(&mut self, from: usize, message: Message) {
        self.ways[from].queue.push_back(message);
        self.carried += 1;
    }

    /// Messages that were sent so far.
    pub(crate) fn carried(&self) -> u64 {
        self.carried
    }

    /// Whether something from this end can arrive.
    pub(crate) fn carries(&self, from: usize, late: bool) -> bool {
        let way = &self.ways[from];
        if late { !way.late.is_empty() } else { !way.queue.is_empty() }
    }

    /// The next message from this end, of the link or of those before it.
    pub(crate) fn receive(&mut self, from: usize, late: bool) -> Option<Message> {
        let way = &mut self.ways[from];
        if late { way.late.pop_front() } else { way.queue.pop_front() }
    }

    /// The link breaks, and is there again; neither end has noticed.
    pub(crate) fn fail(&mut self, old: Old) {
        for way in &mut self.ways {
            way.unnoticed = true;
            match old {
                Old::Lost => way.queue.clear(),
                Old::First => {}
                Old::Late => way.late.append(&mut way.queue),
            }
        }
    }

    /// Whether an end has not noticed that the link is a new one: it neither sends nor receives.
    pub(crate) fn is_unnoticed(&self, end: usize) -> bool {
        self.ways[end].unnoticed
    }

    pub(crate) fn notice(&mut self, end: usize) {
        self.ways[end].unnoticed = false;
    }
}
