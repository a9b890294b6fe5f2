//! The attached virtual queue pairs, and the list of those that may have something to report
//! without a completion.

/// What is known of an attached virtual queue pair.
#[derive(Clone, Copy, Debug)]
struct Attached {
    /// The number that its completions carry.
    virtual_qp_num: u32,
    /// It is in the queue of those that have something left to report.
    // So that each index is in the queue once, which bounds it.
    queued: bool,
}

/// The attached virtual queue pairs, by index.
#[derive(Debug)]
pub(super) struct Registry<const ROUTES: usize> {
    attached: [Option<Attached>; ROUTES],
    /// Those with several rails, which can have something to report without a completion.
    multi: heapless::Vec<u16, ROUTES>,
    /// Where the next look around begins.
    next_look: usize,
    /// Those with something left to report, for want of budget or because a driver refuses what
    /// they have to post; longest waiting first.
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

    /// Puts a virtual queue pair into the queue of those with something left to report.
    pub(super) fn enqueue(&mut self, index: u16) {
        if let Some(Some(attached)) = self.attached.get_mut(index as usize)
            && !attached.queued
        {
            // One place for each index: the queue cannot be full.
            attached.queued = self.queue.push_back(index).is_ok();
        }
    }

    /// Removes the one that has waited longest from the queue, and returns it.
    #[inline]
    pub(super) fn dequeue(&mut self) -> Option<u16> {
        let index = self.queue.pop_front()?;
        if let Some(Some(attached)) = self.attached.get_mut(index as usize) {
            attached.queued = false;
        }
        Some(index)
    }

    /// Returns whether any has something left to report.
    #[inline]
    pub(super) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns how many have something left to report.
    #[inline]
    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Puts all those with several rails into the queue.
    #[cold]
    pub(super) fn enqueue_all(&mut self) {
        for at in 0..self.multi.len() {
            self.enqueue(self.multi[at]);
        }
    }

    /// Calls `each` with the virtual queue pairs that have several rails: all of them, or the
    /// `most` whose turn it is.
    #[inline]
    pub(super) fn look(&mut self, most: usize, mut each: impl FnMut(u16)) {
        // With few, all are looked at, and no turn has to be noted.
        if self.multi.len() <= most {
            self.multi.iter().for_each(|index| each(*index));
            return;
        }
        for _ in 0..most {
            let at = if self.next_look < self.multi.len() { self.next_look } else { 0 };
            self.next_look = at + 1;
            each(self.multi[at]);
        }
    }

    /// Returns the number of virtual queue pairs with several rails.
    #[inline]
    pub(super) fn to_look_at(&self) -> usize {
        self.multi.len()
    }

    /// Whether a virtual queue pair can be attached at this index.
    pub(super) fn is_free(&self, index: u16) -> bool {
        matches!(self.attached.get(index as usize), Some(None))
    }

    /// Whether one is attached at this index.
    pub(super) fn contains(&self, index: u16) -> bool {
        matches!(self.attached.get(index as usize), Some(Some(_)))
    }

    /// Index of the one with this number.
    pub(super) fn index_of(&self, virtual_qp_num: u32) -> Option<u16> {
        let has_it = |attached: &Option<Attached>| {
            attached.is_some_and(|attached| attached.virtual_qp_num == virtual_qp_num)
        };
        self.attached.iter().position(has_it).map(|index| index as u16)
    }

    /// Adds a virtual queue pair that is attached.
    pub(super) fn add(&mut self, index: u16, virtual_qp_num: u32, multi: bool) {
        self.attached[index as usize] = Some(Attached { virtual_qp_num, queued: false });
        if multi {
            // One place for each index: the list cannot be full.
            let _ = self.multi.push(index);
            // A poll whose sink panicked may have left it without a chance to go on.
            self.enqueue(index);
        }
    }

    /// Removes a virtual queue pair.
    pub(super) fn remove(&mut self, index: u16) {
        self.multi.retain(|other| *other != index);
        // The queue has no removal from the middle; the others keep their order.
        for _ in 0..self.queue.len() {
            if let Some(other) = self.queue.pop_front()
                && other != index
            {
                let _ = self.queue.push_back(other);
            }
        }
        self.attached[index as usize] = None;
    }

    /// What must hold between any two calls.
    pub(super) fn invariants(&self) {
        let queued = self.attached.iter().flatten().filter(|attached| attached.queued).count();
        assert_eq!(queued, self.queue.len(), "the queue holds those marked");
    }
}
