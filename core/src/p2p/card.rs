//! Connection cards: what the two ends of a connection exchange before there is traffic.

use super::entry::{ENTRY_KEYS, EntryForm};
use super::error::CardError;
use super::immediate::SIZE_UNIT;
use crate::rail::MAX_RAILS;

/// Memory of the other end, with the rkey for each device of that end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteMemory {
    /// Address of the first byte.
    pub addr: u64,
    /// Keys, in the order in which that end lists its devices.
    pub rkeys: [u32; ENTRY_KEYS],
}

/// The contents of both cards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// How many rails there are.
    pub rails: u8,
    /// Receives that can be outstanding.
    pub slots: u16,
    /// Whether other rails take over from one that fails.
    pub reroutes: bool,
    /// How messages are taken back: the [`CANCEL_VERSION`](super::CANCEL_VERSION). Ends of
    /// different versions send messages all the same, and take nothing back.
    pub cancel_version: u32,
    /// The place, in the list of this end's devices, of the one that each rail is on.
    pub devices: [u8; MAX_RAILS],
    /// The longest message that each rail's port takes, in bytes.
    pub max_message: [u32; MAX_RAILS],
}

/// The card that a sender gives to its receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderCard {
    /// Its rails and slots.
    pub ports: Ports,
    /// Where the entries of slot 0 begin.
    pub ring: RemoteMemory,
    /// How entries are to be written.
    pub form: EntryForm,
}

/// The card that a receiver gives to its sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverCard {
    /// Its rails and slots.
    pub ports: Ports,
    /// Where the record of slot 0 begins.
    pub records: RemoteMemory,
    /// Slots of the send queues that entries go through.
    pub depth: u32,
}

impl Ports {
    /// Checks that the ports of the other end fit those of this end.
    pub(super) fn fit(&self, theirs: &Self) -> Result<(), CardError> {
        // The layout of immediates depends on the number of rails.
        if theirs.rails != self.rails {
            return Err(CardError::Rails { theirs: theirs.rails, ours: self.rails });
        }
        // Both ends compute the slot from the number of a message.
        if theirs.slots != self.slots {
            return Err(CardError::Slots { theirs: theirs.slots, ours: self.slots });
        }
        // An end that re-routes would wait for fences that the other end never sends.
        if theirs.reroutes != self.reroutes {
            return Err(CardError::Reroutes { theirs: theirs.reroutes });
        }
        for rail in 0..self.rails {
            let device = theirs.devices[usize::from(rail)];
            // The place is used as an index into the keys of each entry.
            if usize::from(device) >= ENTRY_KEYS {
                return Err(CardError::Device { rail, device });
            }
            let bytes = theirs.max_message[usize::from(rail)];
            // Parts begin at multiples of this unit. A limit of 0 would also be divided by.
            if bytes < SIZE_UNIT {
                return Err(CardError::MessageSize { rail, bytes });
            }
        }
        Ok(())
    }
}

impl RemoteMemory {
    /// Checks that the memory can have `bytes` bytes.
    pub(super) const fn check(&self, bytes: usize) -> Result<(), CardError> {
        let aligned = self.addr.is_multiple_of(64);
        // Requests add offsets to this address without a check.
        match self.addr.checked_add(bytes as u64) {
            Some(_) if aligned => Ok(()),
            _ => Err(CardError::Memory { addr: self.addr }),
        }
    }
}
