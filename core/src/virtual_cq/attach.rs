//! Attaching virtual queue pairs: routes, depth, and the list of those that may have something to
//! say without a completion.

use super::{CompletionTarget, VirtualCq};
use crate::hardware::{CompletionQueue, CqId};
use crate::routing::{Role, Route, RouteError};
use crate::verbs::DeviceId;

/// A virtual queue pair could not be attached; nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// Another virtual queue pair has this index, or the index is too large.
    #[error("index {index} is taken or not below {limit}")]
    Index {
        /// The index asked for.
        index: u16,
        /// Indices are below this.
        limit: usize,
    },
    /// Another attached virtual queue pair has this number: nobody could tell their completions
    /// apart.
    #[error("virtual queue pair number {virtual_qp_num} is taken by the one at index {index}")]
    Number {
        /// The number of both.
        virtual_qp_num: u32,
        /// Index of the one that has it.
        index: u16,
    },
    /// A physical queue pair completes elsewhere.
    #[error("queue pair {qp_num} of device {} completes on a queue that is not ours", device.0)]
    ForeignCq {
        /// Its device.
        device: DeviceId,
        /// Its number.
        qp_num: u32,
    },
    /// A completion queue could overrun.
    #[error("completion queue {} holds {capacity} entries, {needed} could be needed", cq.0)]
    CqTooSmall {
        /// The queue.
        cq: CqId,
        /// Entries it holds.
        capacity: u32,
        /// Entries that everything in flight could need, with this virtual queue pair.
        needed: u32,
    },
    /// No route could be added.
    #[error(transparent)]
    Route(#[from] RouteError),
}

/// What is known of an attached virtual queue pair.
#[derive(Clone, Copy, Debug)]
struct Attached {
    /// The number that its completions carry.
    virtual_qp_num: u32,
    /// It stands in the queue of those that have something left to say.
    queued: bool,
}

/// The attached virtual queue pairs, by index.
#[derive(Debug)]
pub(super) struct Registry<const ROUTES: usize> {
    attached: [Option<Attached>; ROUTES],
    /// Those of several rails: they can have something to say without a completion.
    multi: heapless::Vec<u16, ROUTES>,
    /// Where the next look around begins.
    next_look: usize,
    /// Those with something left to say, for want of budget or because a driver refuses what they
    /// have to post; longest waiting first.
    queue: heapless::Deque<u16, ROUTES>,
}

impl<const ROUTES: usize> Registry<ROUTES> {
    pub(super) const fn new() -> Self {
        Self {
            attached: [None; ROUTES],
            multi: heapless::Vec::new(),
            next_look: 0,
            queue: heapless::Deque::new(),
        }
    }

    /// Puts a virtual queue pair into the queue of those with something left to say.
    pub(super) fn enqueue(&mut self, index: u16) {
        if let Some(Some(attached)) = self.attached.get_mut(index as usize)
            && !attached.queued
        {
            // One place for each index: the queue cannot be full.
            attached.queued = self.queue.push_back(index).is_ok();
        }
    }

    /// Takes the one out that has waited longest.
    #[inline]
    pub(super) fn dequeue(&mut self) -> Option<u16> {
        let index = self.queue.pop_front()?;
        if let Some(Some(attached)) = self.attached.get_mut(index as usize) {
            attached.queued = false;
        }
        Some(index)
    }

    /// How many have something left to say.
    #[inline]
    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Puts all of several rails into the queue.
    #[cold]
    pub(super) fn enqueue_all(&mut self) {
        for at in 0..self.multi.len() {
            self.enqueue(self.multi[at]);
        }
    }

    /// The next virtual queue pair of several rails to look at.
    #[inline]
    pub(super) fn look(&mut self) -> Option<u16> {
        let index = *self.multi.get(self.next_look).or_else(|| self.multi.first())?;
        self.next_look =
            if self.next_look + 1 >= self.multi.len() { 0 } else { self.next_look + 1 };
        Some(index)
    }

    /// How many there are to look at.
    #[inline]
    pub(super) fn to_look_at(&self) -> usize {
        self.multi.len()
    }

    fn is_free(&self, index: u16) -> bool {
        matches!(self.attached.get(index as usize), Some(None))
    }

    /// Index of the one with this number.
    fn index_of(&self, virtual_qp_num: u32) -> Option<u16> {
        let has_it = |attached: &Option<Attached>| {
            attached.is_some_and(|attached| attached.virtual_qp_num == virtual_qp_num)
        };
        self.attached.iter().position(has_it).map(|index| index as u16)
    }

    fn add(&mut self, index: u16, virtual_qp_num: u32, multi: bool) {
        self.attached[index as usize] = Some(Attached { virtual_qp_num, queued: false });
        if multi {
            // One place for each index: the list cannot be full.
            let _ = self.multi.push(index);
        }
    }

    fn remove(&mut self, index: u16) {
        self.multi.retain(|other| *other != index);
        for _ in 0..self.queue.len() {
            if let Some(other) = self.queue.pop_front()
                && other != index
            {
                let _ = self.queue.push_back(other);
            }
        }
        self.attached[index as usize] = None;
    }

    pub(super) fn invariants(&self) {
        let queued = self.attached.iter().flatten().filter(|attached| attached.queued).count();
        assert_eq!(queued, self.queue.len(), "the queue holds those marked");
    }
}

impl<C: CompletionQueue, const CQS: usize, const ROUTES: usize> VirtualCq<C, CQS, ROUTES> {
    /// Routes the completions of a virtual queue pair's physical ones to `index` of the set that
    /// polls are handed.
    ///
    /// # Errors
    ///
    /// Nothing changed: see [`AttachError`]. If this queue owns physical queues, every physical
    /// queue pair must complete on one of them, and it must be deep enough for all that can be in
    /// flight: an overrun is fatal. Receives of shared receive queues are not known here, and come
    /// on top.
    pub fn attach(
        &mut self,
        index: u16,
        qp: &(impl CompletionTarget + ?Sized),
    ) -> Result<(), AttachError> {
        if !self.registry.is_free(index) {
            return Err(AttachError::Index { index, limit: ROUTES });
        }
        let virtual_qp_num = qp.virtual_qp_num();
        if let Some(index) = self.registry.index_of(virtual_qp_num) {
            return Err(AttachError::Number { virtual_qp_num, index });
        }
        let mut reserved = self.reserved;
        let mut multi = false;
        let mut result = Ok(());
        qp.for_each_physical(&mut |physical, role, entries| {
            multi |= role != Role::Single;
            if result.is_ok() {
                let (device, qp_num) = (physical.device(), physical.qp_num());
                result = self
                    .reserve(&mut reserved, physical.cq(), entries)
                    .and_then(|cq| cq.ok_or(AttachError::ForeignCq { device, qp_num }))
                    .and_then(|cq| {
                        let route = Route { index, role, virtual_qp_num, cq, entries };
                        Ok(self.routes.insert(device, qp_num, route)?)
                    });
            }
        });
        // Taken for a failed attachment too, so that its routes are found and removed.
        self.registry.add(index, virtual_qp_num, multi);
        match result {
            Ok(()) => self.reserved = reserved,
            Err(_) => self.forget(index),
        }
        result
    }

    /// Reserves entries and says on which completion queue; `None` if it is not ours.
    fn reserve(
        &self,
        reserved: &mut [u32; CQS],
        cq: CqId,
        entries: u32,
    ) -> Result<Option<u8>, AttachError> {
        if self.cqs.is_empty() {
            return Ok(Some(0));
        }
        let Some(at) = self.cqs.iter().position(|own| own.id() == cq) else { return Ok(None) };
        let capacity = self.cqs[at].capacity();
        let needed = reserved[at].saturating_add(entries);
        if needed > capacity {
            return Err(AttachError::CqTooSmall { cq, capacity, needed });
        }
        reserved[at] = needed;
        Ok(Some(at as u8))
    }

    /// Removes the routes of the virtual queue pair at `index`, which need not exist any more, and
    /// returns whether there were any. Completions still to come are foreign; some may wait for budget
    /// already. Whoever attaches it again and feeds it what was foreign polls until nothing foreign
    /// comes before that, so that all come in their order.
    pub fn detach(&mut self, index: u16) -> bool {
        if self.registry.attached.get(index as usize).is_none_or(|attached| attached.is_none()) {
            return false;
        }
        for route in self.routes.iter().filter(|route| route.index == index) {
            // With no queue of our own, nothing was reserved.
            if (route.cq as usize) < self.cqs.len() {
                self.reserved[route.cq as usize] -= route.entries;
            }
        }
        self.forget(index);
        true
    }

    fn forget(&mut self, index: u16) {
        self.routes.remove_index(index);
        self.registry.remove(index);
    }
}
