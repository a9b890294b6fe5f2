//! Endpoints of both ends, with memory, for what is above queue pairs.

use super::{ALL_ACCESS, End, Fixture};
use polyrail::backend::Domain;
use polyrail::endpoint::{Endpoint, EndpointBuilder, EndpointSet, connect_endpoints};
use polyrail::memory::RegisteredBuffer;
use polyrail_core::verbs::{DeviceKeys, LocalBuffer, SendWr, WcStatus};
use polyrail_core::virtual_cq::VirtualWc;

/// Bytes of each end's memory.
const BYTES: u32 = 4096;

pub(super) type Qp<F> = <<F as Fixture>::Domain as Domain>::Qp;
pub(super) type Cq<F> = <<F as Fixture>::Domain as Domain>::Cq;
pub(super) type EndpointOf<F> = Endpoint<Qp<F>, Cq<F>>;
pub(super) type SetOf<F> = EndpointSet<Qp<F>, Cq<F>>;

/// The devices of one end, opened, and its memory.
pub(super) struct Host<F: Fixture> {
    domains: Vec<F::Domain>,
    memory: RegisteredBuffer<<F::Domain as Domain>::Region>,
}

/// A request's buffers.
#[derive(Clone)]
pub(super) struct Route {
    from: LocalBuffer,
    to: u64,
    keys: Vec<DeviceKeys>,
}

impl Route {
    /// Writes, and notifies the peer.
    pub(super) fn notify(&self, wr_id: u64) -> SendWr<'_> {
        SendWr::write_with_imm(wr_id, self.from, self.to, 3, &self.keys)
    }
}

impl<F: Fixture> Host<F> {
    pub(super) fn new(fixture: &F, end: End) -> Self {
        let domains = fixture.open(end);
        let all: Vec<&F::Domain> = domains.iter().collect();
        let memory = RegisteredBuffer::new(BYTES as usize, ALL_ACCESS, &all).expect("memory");
        Self { domains, memory }
    }

    pub(super) fn domains(&self) -> Vec<&F::Domain> {
        self.domains.iter().collect()
    }

    pub(super) fn endpoint(&self, builder: EndpointBuilder) -> EndpointOf<F> {
        builder.build(&self.domains()).expect("an endpoint")
    }

    pub(super) fn set(&self, builder: EndpointBuilder, members: usize) -> SetOf<F> {
        let members = (0..members).map(|_| (builder, self.domains()));
        EndpointSet::build(members).expect("a set")
    }

    pub(super) fn route(&self, to: &Self) -> Route {
        let keys = self.memory.toward(&to.memory.remote()).expect("the same rails");
        let from = self.memory.local(0, BYTES).expect("all of it");
        Route { from, to: to.memory.addr(), keys: keys.to_vec() }
    }
}

/// Both hosts.
pub(super) fn hosts<F: Fixture>(fixture: &F) -> [Host<F>; 2] {
    [End::Near, End::Far].map(|end| Host::new(fixture, end))
}

/// Connects the members of two sets with this number.
pub(super) fn connect<F: Fixture>([near, far]: &mut [SetOf<F>; 2], number: usize) {
    let [near, far] = [near, far].map(|set| set.get_mut(number).expect("it is there"));
    connect_endpoints(near, far).expect("ends that reach each other");
}

/// The fields of a completion that are compared.
pub(super) fn ended(completion: VirtualWc) -> (u64, WcStatus) {
    (completion.wr_id, completion.status)
}
