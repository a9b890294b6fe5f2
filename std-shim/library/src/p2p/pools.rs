//! The receives of each device, and who may have how many of them.

use super::sizes::SLOTS;
use crate::endpoint::MAX_DEVICES;
use polyrail_core::hardware::ReceiveQueue;
use polyrail_core::p2p::{Account, Pool, PoolError};
use polyrail_core::virtual_cq::Event;

/// Receives that a member's account of a device may have: enough for every slot, whatever rail each
/// message takes, and not fewer than are posted at once.
pub(super) const ACCOUNT: u32 = 512;
const _: () = assert!(ACCOUNT as usize >= SLOTS * MAX_DEVICES);

/// The shared receive queue of each device, with its pool.
#[derive(Debug)]
pub(super) struct Pools<S>(pub(super) Vec<(Pool, S)>);

impl<S: ReceiveQueue + Clone> Pools<S> {
    /// An account of each, or of none.
    pub(super) fn open(&mut self) -> Result<Vec<Account<S>>, PoolError> {
        let mut accounts = Vec::with_capacity(self.0.len());
        for at in 0..self.0.len() {
            let (pool, queue) = &mut self.0[at];
            match pool.open(queue.clone(), ACCOUNT.min(pool.capacity())) {
                Ok(account) => accounts.push(account),
                Err(error) => {
                    self.close(accounts);
                    return Err(error);
                }
            }
        }
        Ok(accounts)
    }

    /// Takes accounts back, of a member that has ended.
    pub(super) fn close(&mut self, accounts: impl IntoIterator<Item = Account<S>>) {
        for account in accounts {
            let device = account.device();
            let own = self.0.iter_mut().find(|(pool, _)| pool.device() == device);
            if let Some((pool, queue)) = own {
                // Its own: each device has one pool here, which opened the account.
                _ = pool.close(account);
                // If the driver refuses, the next foreign completion asks again.
                _ = pool.settle(queue);
            }
        }
    }

    /// Every completion queue was found empty, by a poll that began when no queue pair of a closed
    /// account took receives any more.
    pub(super) fn note_empty(&mut self) {
        self.0.iter_mut().for_each(|(pool, _)| pool.note_empty());
    }

    /// The completion queues could not all be polled before the queue pairs of closed accounts are
    /// destroyed.
    pub(super) fn write_off(&mut self) {
        self.0.iter_mut().for_each(|(pool, _)| pool.write_off());
    }

    /// A completion of a queue pair that nobody knows may have taken a receive.
    #[cold]
    pub(super) fn note_foreign(&mut self, event: &Event) {
        let Event::Foreign { device, completion } = event else { return };
        let pool = self.0.iter_mut().find(|(pool, _)| pool.device() == *device);
        if let Some((pool, queue)) = pool
            && pool.note_foreign(completion)
        {
            // If the driver refuses, the next one asks again.
            _ = pool.settle(queue);
        }
    }
}
