//! Where in the ring lost batches are, and what is known of them: see `losing`.

/// Where lost batches are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    /// The first of them.
    pub(super) from: u64,
    /// The first one of which it is not known what arrived.
    pub(super) unresolved: u64,
    /// Behind the last of them.
    pub(super) to: u64,
    /// What fails is lost, from now on.
    pub(super) is_losing: bool,
    /// Receives of the peer's that unresolved batches take.
    pub(super) receives: u32,
    /// Requests of the newest batch that the driver did not take, and is not offered any more.
    pub(super) withheld: u32,
    /// The first request of the front batch that failed.
    pub(super) failed: Option<u32>,
    /// Requests of the front batch that are acknowledged.
    pub(super) acknowledged: u32,
    /// Requests that this queue pair lost.
    pub(super) requests: u32,
}

impl Lost {
    pub(super) const NONE: Self = Self {
        from: 0,
        unresolved: 0,
        to: 0,
        is_losing: false,
        receives: 0,
        withheld: 0,
        failed: None,
        acknowledged: 0,
        requests: 0,
    };
}
