//! What happened in simulated worlds, in numbers.

/// What happened in a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Steps of the simulation: posts, polls, faults.
    pub steps: u64,
    /// Steps of the software NIC: requests carried out, completions shown.
    pub nic_steps: u64,
    /// Requests posted, and how many of them were refused.
    pub requests: u64,
    /// See [`requests`](Self::requests).
    pub refused: u64,
    /// Accepted requests that had to fail.
    pub flawed: u64,
    /// Receives posted.
    pub receives: u64,
    /// Completions of virtual queue pairs.
    pub reports: u64,
    /// Those that failed.
    pub failures: u64,
    /// Faults injected.
    pub faults: u64,
    /// Immediates from nowhere.
    pub strays: u64,
    /// Virtual queue pairs detached and attached again.
    pub reattached: u64,
    /// Virtual queue pairs that stood elsewhere for a while.
    pub displaced: u64,
    /// Receives of shared queues that completed.
    pub shared: u64,
    /// Connections that failed and were replaced.
    pub replaced: u64,
    /// Connections that were moved to the error state at the end, because they had failed, because
    /// one of their devices was gone, or because a stray jammed one of their rails.
    pub failed: u64,
    /// See [`failed`](Self::failed).
    pub bereft: u64,
    /// See [`failed`](Self::failed).
    pub jammed: u64,
    /// Ends of connections that lost a device and still reported everything.
    pub survivors: u64,
    /// Physical queues whose receives were counted at the end.
    pub receive_queues: u64,
    /// A digest of all reports, in order.
    pub history: u64,
}

impl std::ops::AddAssign for Summary {
    fn add_assign(&mut self, other: Self) {
        self.steps += other.steps;
        self.nic_steps += other.nic_steps;
        self.requests += other.requests;
        self.refused += other.refused;
        self.receives += other.receives;
        self.reports += other.reports;
        self.failures += other.failures;
        self.flawed += other.flawed;
        self.faults += other.faults;
        self.strays += other.strays;
        self.reattached += other.reattached;
        self.displaced += other.displaced;
        self.shared += other.shared;
        self.replaced += other.replaced;
        self.failed += other.failed;
        self.bereft += other.bereft;
        self.jammed += other.jammed;
        self.survivors += other.survivors;
        self.receive_queues += other.receive_queues;
        self.history = self.history.rotate_left(1) ^ other.history;
    }
}
