//! What the two ends of a connection must know of each other before there is traffic.

use super::entry::{ENTRY_KEYS, EntryForm};
use super::error::CardError;
use super::immediate::SIZE_UNIT;
use crate::rail::MAX_RAILS;

/// Memory of the other end, with its key for each device of that end's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteMemory {
    /// Address of the first byte.
    pub addr: u64,
    /// Keys, in the order in which that end lists its devices.
    pub rkeys: [u32; ENTRY_KEYS],
}

/// What both cards say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// How many rails there are.
    pub rails: u8,
    /// Receives that can be outstanding.
    pub slots: u16,
    /// Whether other rails take over from one that fails.
    pub reroutes: bool,
    /// The place, in the list of this end's devices, of the one that each rail is on.
    pub devices: [u8; MAX_RAILS],
    /// The longest message that each rail's port takes, in bytes.
    pub max_message: [u32; MAX_RAILS],
}

/// What a sender tells its receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderCard {
    /// Its rails and slots.
    pub ports: Ports,
    /// Where the entries of slot 0 begin.
    pub ring: RemoteMemory,
    /// How entries are to be written.
    pub form: EntryForm,
}

/// What a receiver tells its sender.
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
    /// Checks the other end's against this one's.
    pub(super) fn fit(&self, theirs: &Self) -> Result<(), CardError> {
        if theirs.rails != self.rails {
            return Err(CardError::Rails { theirs: theirs.rails, ours: self.rails });
        }
        if theirs.slots != self.slots {
            return Err(CardError::Slots { theirs: theirs.slots, ours: self.slots });
        }
        if theirs.reroutes != self.reroutes {
            return Err(CardError::Reroutes { theirs: theirs.reroutes });
        }
        for rail in 0..self.rails {
            let device = theirs.devices[usize::from(rail)];
            if usize::from(device) >= ENTRY_KEYS {
                return Err(CardError::Device { rail, device });
            }
            let bytes = theirs.max_message[usize::from(rail)];
            if bytes < SIZE_UNIT {
                return Err(CardError::MessageSize { rail, bytes });
            }
        }
        Ok(())
    }
}

impl RemoteMemory {
    /// Checks that `bytes` bytes can be there.
    pub(super) const fn check(&self, bytes: usize) -> Result<(), CardError> {
        let aligned = self.addr.is_multiple_of(64);
        match self.addr.checked_add(bytes as u64) {
            Some(_) if aligned => Ok(()),
            _ => Err(CardError::Memory { addr: self.addr }),
        }
    }
}
