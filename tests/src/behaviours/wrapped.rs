//! A backend over drivers that have faults.

use super::{End, Fixture, Retries, Statuses};
use polyrail_core::verbs::AccessFlags;
use polyrail_faults::{DriverFault, Faults, Faulty};

/// A fixture whose queues are wrapped, with faults for the driver of each device.
#[derive(Debug)]
pub struct Wrapped<'f, F> {
    fixture: &'f F,
    drivers: [Vec<Faults>; 2],
}

impl<'f, F: Fixture> Wrapped<'f, F> {
    /// Wraps a fixture. Without faults, it behaves as before.
    pub fn new(fixture: &'f F) -> Self {
        let drivers = || (0..fixture.rails()).map(|_| Faults::new()).collect();
        Self { fixture, drivers: [drivers(), drivers()] }
    }

    /// The driver of a rail's device at one end.
    pub fn driver(&self, end: End, rail: usize) -> &Faults {
        &self.drivers[end as usize][rail]
    }

    /// Injects a fault into every driver of one end.
    pub fn inject(&self, end: End, fault: DriverFault) {
        self.drivers[end as usize].iter().for_each(|driver| driver.inject(fault));
    }
}

impl<F: Fixture> Fixture for Wrapped<'_, F> {
    type Qp = Faulty<F::Qp>;
    type Cq = Faulty<F::Cq>;
    type Srq = Faulty<F::Srq>;
    type Memory = F::Memory;
    type Domain = Faulty<F::Domain>;

    fn rails(&self) -> usize {
        self.fixture.rails()
    }

    fn statuses(&self) -> Statuses {
        self.fixture.statuses()
    }

    fn create_cq(&self, end: End, rail: usize, capacity: u32) -> Self::Cq {
        self.driver(end, rail).completion_queue(self.fixture.create_cq(end, rail, capacity))
    }

    fn create_srq(&self, end: End, rail: usize, max_wr: u32) -> Self::Srq {
        self.driver(end, rail).receive_queue(self.fixture.create_srq(end, rail, max_wr), max_wr)
    }

    fn create_qp(
        &self,
        end: End,
        rail: usize,
        cq: &Self::Cq,
        srq: Option<&Self::Srq>,
        depth: u32,
    ) -> Self::Qp {
        let qp = self.fixture.create_qp(end, rail, cq.inner(), srq.map(Faulty::inner), depth);
        self.driver(end, rail).queue_pair(qp)
    }

    fn connect(&self, rail: usize, near: &Self::Qp, far: &Self::Qp, retries: Retries) {
        self.fixture.connect(rail, near.inner(), far.inner(), retries);
    }

    fn fail(&self, qp: &Self::Qp) {
        self.fixture.fail(qp.inner());
    }

    fn is_failed(&self, qp: &Self::Qp) -> bool {
        self.fixture.is_failed(qp.inner())
    }

    fn memory(&self, end: End, bytes: usize, access: AccessFlags) -> F::Memory {
        self.fixture.memory(end, bytes, access)
    }

    fn open(&self, end: End) -> Vec<Self::Domain> {
        let domains = self.fixture.open(end).into_iter().zip(&self.drivers[end as usize]);
        domains.map(|(domain, driver)| driver.domain(domain)).collect()
    }

    fn set_link(&self, rail: usize, up: bool) {
        self.fixture.set_link(rail, up);
    }
}
