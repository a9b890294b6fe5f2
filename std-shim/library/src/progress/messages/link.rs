//! What the thread's members and their peers have to tell each other.

use super::mailbox::{Instruction, P2pShared};
use crate::p2p::P2pMessage;
use std::sync::Arc;

/// Carries what members whose rails are [re-routed](crate::p2p::P2pBuilder::reroutes) and their peers tell each other:
/// from any thread, over any link that keeps the order, for as long as there are requests. It sleeps for nobody; the
/// thread has something to tell within 10 ms of a failure.
#[derive(Clone, Debug)]
pub struct P2pLink {
    shared: Arc<P2pShared>,
}

impl P2pLink {
    pub(super) fn new(shared: Arc<P2pShared>) -> Self {
        Self { shared }
    }

    /// The next message, with the number of the member whose peer is to [hear](Self::hear) it.
    pub fn next_message(&self) -> Option<(usize, P2pMessage)> {
        self.shared.mailbox.next_message()
    }

    /// A member's peer says this. If no correct peer does, an end of the member fails, and its requests show that.
    pub fn hear(&self, member: usize, message: P2pMessage) {
        self.instruct(member, Instruction::Message(message));
    }

    /// What carried a member's messages broke, and both ends have a new way; see
    /// [`P2pMember::link_restored`](crate::p2p::P2pMember::link_restored).
    pub fn link_restored(&self, member: usize) {
        self.instruct(member, Instruction::LinkRestored);
    }

    fn instruct(&self, member: usize, instruction: Instruction) {
        if self.shared.is_gone() {
            // Nobody would ever take it.
            return;
        }
        self.shared.mailbox.instruct(member, instruction);
        self.shared.wake();
    }
}
