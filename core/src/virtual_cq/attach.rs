//! Attaching virtual queue pairs: their routes, and the depth that they need.

use super::cq::VirtualCq;
use super::routing::{Reserved, Route, RouteError};
use crate::completion::{CompletionTarget, PhysicalQp, Role};
use crate::hardware::{CompletionQueue, CqId};
use crate::verbs::DeviceId;

/// A virtual queue pair could not be attached; nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// Another virtual queue pair has this index, or the index is too large.
    #[error("index {index} is already used, or is not below {limit}")]
    Index {
        /// The requested index.
        index: u16,
        /// Indices are below this.
        limit: usize,
    },
    /// Another attached virtual queue pair has this number, so their completions could not be
    /// distinguished.
    #[error("virtual queue pair number {virtual_qp_num} is already used at index {index}")]
    Number {
        /// The number of both.
        virtual_qp_num: u32,
        /// Index of the attached virtual queue pair.
        index: u16,
    },
    /// A physical queue pair completes on a queue that this virtual completion queue does not own.
    #[error("queue pair {qp_num} of device {} completes on a queue that this virtual completion queue does not own", device.0)]
    ForeignCq {
        /// Its device.
        device: DeviceId,
        /// Its number.
        qp_num: u32,
    },
    /// The virtual queue pair is not attached at this index, or does not have this queue pair.
    #[error("queue pair {qp_num} of device {} is not attached to this virtual completion queue", device.0)]
    NotAttached {
        /// Its device.
        device: DeviceId,
        /// Its number.
        qp_num: u32,
    },
    /// A completion queue could overrun.
    #[error("completion queue {} has {capacity} entries, but {needed} may be needed", cq.0)]
    CqTooSmall {
        /// The queue.
        cq: CqId,
        /// Entries it holds.
        capacity: u32,
        /// Entries that everything in flight could need in total, with all queue pairs of this
        /// virtual queue pair that complete there. A queue of this size suffices.
        needed: u32,
    },
    /// No route could be added.
    #[error(transparent)]
    Route(#[from] RouteError),
}

impl<C: CompletionQueue, const CQS: usize, const ROUTES: usize> VirtualCq<C, CQS, ROUTES> {
    /// Routes the completions of a virtual queue pair's physical queue pairs to `index` of the set
    /// that is passed to polls.
    ///
    /// # Errors
    ///
    /// Nothing changed: see [`AttachError`]. If this queue owns physical queues, every physical
    /// queue pair must complete on one of them, which must be deep enough for everything that can
    /// be in flight: an overrun is fatal. [`AttachError::CqTooSmall`] has the size that suffices;
    /// [`VirtualQp::cq_entries`](crate::virtual_qp::VirtualQp::cq_entries) is known before the
    /// queue is created. Receives of shared receive queues are not known here; reserve entries for
    /// them by [`set_aside`](Self::set_aside).
    pub fn attach(
        &mut self,
        index: u16,
        qp: &(impl CompletionTarget + ?Sized),
    ) -> Result<(), AttachError> {
        if !self.registry.is_free(index) {
            return Err(AttachError::Index { index, limit: ROUTES });
        }
        let virtual_qp_num = qp.virtual_qp_num();
        // Callers distinguish completions by this number, and `resolve` checks indices by it.
        if let Some(index) = self.registry.index_of(virtual_qp_num) {
            return Err(AttachError::Number { virtual_qp_num, index });
        }
        // A copy, which is stored only if there is room for every physical queue pair.
        let mut reserved = self.reserved;
        let mut multi = false;
        let mut result: Result<(), AttachError> = Ok(());
        qp.list_physical(&mut |physical, role, entries| {
            multi |= role != Role::Single;
            if result.is_ok() {
                result = self.reserve_for(&mut reserved, physical, entries).and_then(|reserved| {
                    let route = Route { index, role, virtual_qp_num };
                    let (device, qp_num) = (physical.device(), physical.qp_num());
                    Ok(self.routes.insert(device, qp_num, route, reserved)?)
                });
            }
        });
        // Registered even if the attachment failed, so that its routes are found and removed.
        self.registry.add(index, virtual_qp_num, multi);
        match result {
            Ok(()) => self.reserved = reserved,
            Err(ref mut error) => {
                self.forget(index);
                self.complete_needs(error, qp);
            }
        }
        result
    }

    /// Sets the needs of a queue that is too small to the total with all physical queue pairs of
    /// `qp`, so that the caller learns its size at once and not one queue pair at a time.
    #[cold]
    fn complete_needs(&self, error: &mut AttachError, qp: &(impl CompletionTarget + ?Sized)) {
        let AttachError::CqTooSmall { cq, needed, .. } = error else { return };
        let Some(at) = self.place(*cq) else { return };
        *needed = self.reserved[usize::from(at)];
        qp.list_physical(&mut |physical, _, entries| {
            if physical.cq() == *cq {
                *needed = needed.saturating_add(entries);
            }
        });
    }

    /// Reserves entries of a completion queue permanently, for completions that are not known when
    /// queue pairs are attached, such as the receives of a shared receive queue.
    ///
    /// # Errors
    ///
    /// There is no such queue (then the error has capacity 0), or it is too small; nothing changed.
    pub fn set_aside(&mut self, cq: CqId, entries: u32) -> Result<(), AttachError> {
        let none = AttachError::CqTooSmall { cq, capacity: 0, needed: entries };
        let at = self.place(cq).ok_or(none)?;
        let mut reserved = self.reserved;
        self.reserve(&mut reserved, at, entries)?;
        self.reserved = reserved;
        Ok(())
    }

    /// Returns the place of a completion queue, if this virtual one owns it.
    fn place(&self, cq: CqId) -> Option<u8> {
        // There are 256 places at most.
        self.cqs.iter().position(|own| own.id() == cq).map(|at| at as u8)
    }

    /// Reserves entries in the completion queue at a place.
    fn reserve(&self, reserved: &mut [u32; CQS], at: u8, entries: u32) -> Result<(), AttachError> {
        let at = usize::from(at);
        let (cq, capacity) = (self.cqs[at].id(), self.cqs[at].capacity());
        // A saturated sum would be too small after a part of it is given back.
        match reserved[at].checked_add(entries) {
            Some(needed) if needed <= capacity => reserved[at] = needed,
            needed => {
                let needed = needed.unwrap_or(u32::MAX);
                return Err(AttachError::CqTooSmall { cq, capacity, needed });
            }
        }
        Ok(())
    }

    /// Reserves entries for a physical queue pair, and returns what. Without any queue, there is
    /// nothing to reserve them in.
    fn reserve_for(
        &self,
        reserved: &mut [u32; CQS],
        qp: &dyn PhysicalQp,
        entries: u32,
    ) -> Result<Reserved, AttachError> {
        // The owner feeds completions and bounds its own queues.
        if self.cqs.is_empty() {
            return Ok(Reserved { queue: None, entries });
        }
        let foreign = AttachError::ForeignCq { device: qp.device(), qp_num: qp.qp_num() };
        let at = self.place(qp.cq()).ok_or(foreign)?;
        self.reserve(reserved, at, entries)?;
        Ok(Reserved { queue: Some(at), entries })
    }

    /// Routes the completions of a new physical queue pair instead of `old`, given by device and
    /// number. The new queue pair must complete on an owned queue if `old` did.
    pub(crate) fn replace_route(
        &mut self,
        index: u16,
        old: (DeviceId, u32),
        new: &dyn PhysicalQp,
    ) -> Result<(), AttachError> {
        let (device, qp_num) = old;
        let found = self.routes.find_all(device, qp_num).filter(|(route, _)| route.index == index);
        let (route, before) = found.ok_or(AttachError::NotAttached { device, qp_num })?;
        let mut reserved = self.reserved;
        // The owner feeds its completions, and may continue to.
        let fed = before.queue.is_none() && self.place(new.cq()).is_none();
        let of_new = if fed {
            before
        } else {
            give_back(&mut reserved, before);
            self.reserve_for(&mut reserved, new, before.entries)?
        };
        // Removed first, because the table may be full.
        self.routes.remove(old.0, old.1);
        if let Err(error) = self.routes.insert(new.device(), new.qp_num(), route, of_new) {
            self.routes.insert(old.0, old.1, route, before)?;
            return Err(error.into());
        }
        self.reserved = reserved;
        Ok(())
    }

    /// Removes the routes of the virtual queue pair at `index`, which need not exist any more, and
    /// returns whether there were any. Later completions are foreign; some may already wait for
    /// budget. A caller that attaches it again and feeds it the foreign completions first polls
    /// until there are none, so that all are handled in order.
    pub fn detach(&mut self, index: u16) -> bool {
        if !self.registry.contains(index) {
            return false;
        }
        for (_, reserved) in self.routes.iter().filter(|(route, _)| route.index == index) {
            give_back(&mut self.reserved, reserved);
        }
        self.forget(index);
        true
    }

    fn forget(&mut self, index: u16) {
        self.routes.remove_index(index);
        self.registry.remove(index);
    }
}

/// Frees entries that were reserved, if any were.
fn give_back<const CQS: usize>(all: &mut [u32; CQS], reserved: Reserved) {
    if let Some(at) = reserved.queue {
        all[usize::from(at)] -= reserved.entries;
    }
}
