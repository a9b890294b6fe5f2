//! The receives of each device, and the accounts of members.

use super::sizes::SLOTS;
use crate::endpoint::MAX_DEVICES;
use polyrail_core::hardware::ReceiveQueue;
use polyrail_core::p2p::{Account, Pool, PoolError};
use polyrail_core::virtual_cq::Event;

/// Maximum receives of a member's account on a device: enough for every slot, whatever rail each
/// message takes, and not fewer than one post of receives.
pub(super) const ACCOUNT: u32 = 512;
const _: () = assert!(ACCOUNT as usize >= SLOTS * MAX_DEVICES);

/// The shared receive queue of each device, with its pool.
#[derive(Debug)]
pub(super) struct Pools<S>(pub(super) Vec<(Pool, S)>);

impl<S: ReceiveQueue + Clone> Pools<S> {
    /// Opens an account in every pool, or in none if one refuses.
    ///
    /// # Errors
    ///
    /// The place of the device whose pool refused, and why.
    pub(super) fn open(&mut self) -> Result<Vec<Account<S>>, (usize, PoolError)> {
        let mut accounts = Vec::with_capacity(self.0.len());
        for at in 0..self.0.len() {
            let (pool, queue) = &mut self.0[at];
            match pool.open(queue.clone(), ACCOUNT.min(pool.capacity())) {
                Ok(account) => accounts.push(account),
                Err(error) => {
                    self.close(accounts);
                    return Err((at, error));
                }
            }
        }
        Ok(accounts)
    }

    /// Closes the accounts of a member that has ended.
    pub(super) fn close(&mut self, accounts: impl IntoIterator<Item = Account<S>>) {
        for account in accounts {
            let device = account.device();
            let own = self.0.iter_mut().find(|(pool, _)| pool.device() == device);
            if let Some((pool, queue)) = own {
                // Cannot fail: each device has one pool here, which opened the account.
                _ = pool.close(account);
                // If the driver refuses, the next foreign completion tries again.
                _ = pool.settle(queue);
            }
        }
    }

    /// Records that every completion queue was found empty, by a poll that began when no queue pair
    /// of a closed account took receives any more.
    pub(super) fn note_empty(&mut self) {
        self.0.iter_mut().for_each(|(pool, _)| pool.note_empty());
    }

    /// Records that not all completion queues could be polled before the queue pairs of closed
    /// accounts are destroyed.
    pub(super) fn write_off(&mut self) {
        self.0.iter_mut().for_each(|(pool, _)| pool.write_off());
    }

    /// Handles a completion of an unknown queue pair, which may have taken a receive.
    #[cold]
    pub(super) fn note_foreign(&mut self, event: &Event) {
        let Event::Foreign { device, completion } = event else { return };
        let pool = self.0.iter_mut().find(|(pool, _)| pool.device() == *device);
        if let Some((pool, queue)) = pool
            && pool.note_foreign(completion)
        {
            // If the driver refuses, the next completion tries again.
            _ = pool.settle(queue);
        }
    }
}
