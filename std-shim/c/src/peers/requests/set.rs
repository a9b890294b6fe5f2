//! Connections for requests, on one backend.

use crate::code::Code;
use crate::devices::fixed;
use crate::error::{Failure, Refusal};
use crate::events::{PeerEvent, rail_number};
use crate::link::{Message, NotConnected};
use crate::numbers::Numbers;
use crate::options::requests;
use crate::peers::common::Common;
use crate::peers::connections::{Connections, Standing, rail_state};
use crate::types::{Completion, EndpointOptions, POLYRAIL_RAIL_NOTIFY, RailInfo, RailState};
use polyrail::backend::Domain;
use polyrail::chain::Chain;
use polyrail::endpoint::{
    BuildError, ConnectError, EndpointBuilder, EndpointQp, EndpointSet, HealingMessage, RailReport,
};
use polyrail::link::{Reach, address_from_json, address_to_json};
use polyrail::virtual_qp::{QpState, RailFailure};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// Connections for requests, on one backend.
pub(crate) struct RequestsOn<D: Domain> {
    pub(super) set: EndpointSet<D::Qp, D::Cq>,
    pub(super) domains: Vec<D>,
    /// The options of peers that have none of their own.
    pub(super) builder: EndpointBuilder,
    /// The peer of each virtual queue pair, by the number that completions contain.
    pub(super) routes: Routes,
    /// Completions that found no room in the caller's array.
    pub(super) backlog: VecDeque<Completion>,
}

/// Returns the code of an endpoint that could not be built.
pub(in crate::peers) fn build_failure(error: &BuildError) -> Failure {
    let code = match error {
        BuildError::Device { .. } => Code::Device,
        BuildError::QueuePairs { .. } | BuildError::Cqs(_) => Code::TooMany,
        _ => Code::Argument,
    };
    Failure::of(code, error)
}

/// Returns the code of two ends that could not be connected.
fn not_connected(error: &ConnectError) -> NotConnected {
    let code = match error {
        ConnectError::Modify { .. } => Code::Device,
        _ => Code::Mismatch,
    };
    NotConnected { failure: Failure::of(code, error), may_pass: error.may_pass() }
}

fn not_there() -> Failure {
    Failure::new(Code::Peer, "the peer is not there any more")
}

fn rail_info(report: &RailReport) -> RailInfo {
    RailInfo {
        device: fixed(&report.device),
        // Every other rail has a number.
        rail: report.rail.parse().unwrap_or(POLYRAIL_RAIL_NOTIFY),
        state: rail_state(report.state) as u32,
        qp_num: report.qp_num,
        generation: report.generation.into(),
        bytes: report.bytes,
        requests: report.send_requests,
        doorbells: report.doorbells,
        completions: report.completions,
        errors: report.errors,
        failures: report.failures,
        posted_again: report.posted_again,
        reserved: [0; 2],
    }
}

impl<D: Domain> RequestsOn<D> {
    /// Returns a peer, if it exists.
    #[inline]
    pub(super) fn member(
        &mut self,
        common: &Common,
        peer: u64,
    ) -> Result<&mut EndpointQp<D::Qp>, Refusal> {
        let place = common.numbers.place(peer)?;
        Numbers::found(self.set.get_mut(place), peer)
    }

    fn qp(&mut self, place: usize) -> Result<&mut EndpointQp<D::Qp>, Failure> {
        self.set.get_mut(place).ok_or_else(not_there)
    }

    /// Removes the route and the kept completions of the peer in this place.
    pub(super) fn forget(&mut self, place: usize, peer: u64) {
        if let Some(qp) = self.set.get(place) {
            self.routes.remove(&qp.virtual_qp().virtual_qp_num());
        }
        self.backlog.retain(|completion| completion.peer != peer);
    }
}

impl<D: Domain> Connections for RequestsOn<D> {
    fn has(&self, place: usize) -> bool {
        self.set.get(place).is_some()
    }

    fn add(&mut self, options: Option<&EndpointOptions>) -> Result<usize, Refusal> {
        let builder = options.map_or(Ok(self.builder), requests)?;
        let domains: Vec<&D> = self.domains.iter().collect();
        let added = self.set.add(builder, &domains);
        Ok(added.map_err(|error| build_failure(&error))?)
    }

    fn welcome(&mut self, place: usize, peer: u64) {
        if let Some(qp) = self.set.get(place) {
            self.routes.insert(qp.virtual_qp().virtual_qp_num(), peer);
        }
    }

    fn fail(&mut self, place: usize) {
        if let Some(qp) = self.set.get_mut(place) {
            qp.fail();
        }
    }

    fn remove(&mut self, place: usize, peer: u64) -> Result<(), Refusal> {
        self.forget(place, peer);
        drop(self.set.remove(place));
        Ok(())
    }

    /// Returns true: no device accesses memory of a queue pair that is destroyed.
    fn close(&mut self) -> bool {
        true
    }

    fn card(&mut self, place: usize) -> Result<String, Failure> {
        Ok(address_to_json(&self.qp(place)?.address()))
    }

    fn connect(&mut self, place: usize, card: &[u8]) -> Result<(), Failure> {
        let address = address_from_json(card);
        let address = address.map_err(|error| Failure::of(Code::Protocol, &error))?;
        Ok(self.qp(place)?.connect(&address).map_err(|error| not_connected(&error))?)
    }

    fn reach(&mut self, place: usize) -> Result<Reach, Failure> {
        Ok(self.qp(place)?.address().into())
    }

    fn meet(&mut self, place: usize, theirs: &Reach) -> Result<bool, NotConnected> {
        let Some(address) = theirs.requests() else {
            return Err(
                Failure::new(Code::Mismatch, "the other side's peer is for messages").into()
            );
        };
        self.qp(place)?.try_connect(address).map_err(|error| not_connected(&error))
    }

    fn reroutes(&self, place: usize) -> bool {
        let qp = self.set.get(place);
        qp.is_some_and(|qp| qp.virtual_qp().config().rail_failure == RailFailure::Reroute)
    }

    fn next_message(&mut self, place: usize) -> Option<Message> {
        self.set.get(place)?.healing_link()?.next_message().map(Message::Heal)
    }

    fn take_message(&mut self, place: usize, message: &Message) -> Result<(), Refusal> {
        let link = self.set.get(place).and_then(EndpointQp::healing_link);
        let (Message::Heal(message), Some(link)) = (message, link) else { return Ok(()) };
        link.handle(*message).map_err(|_| Refusal::NotNow)
    }

    fn next_control(&mut self, place: usize) -> Option<String> {
        Some(self.set.get(place)?.healing_link()?.next_message()?.to_json())
    }

    fn control(&mut self, place: usize, text: &[u8]) -> Result<(), Refusal> {
        let message = HealingMessage::from_json(text);
        let message = message.map_err(|error| Failure::of(Code::Protocol, &error))?;
        self.take_message(place, &Message::Heal(message))
    }

    fn control_lost(&mut self, place: usize) {
        if let Some(link) = self.set.get(place).and_then(EndpointQp::healing_link) {
            link.restored();
        }
    }

    fn heal(&mut self) {
        self.set.heal();
    }

    fn next_rail_event(&mut self, place: usize) -> Option<PeerEvent> {
        let event = self.set.get_mut(place)?.take_rail_event()?;
        let rail = rail_number(event.event.rail);
        Some(PeerEvent::of_rail(rail, &event.event.kind, event.to_string()))
    }

    fn failure(&mut self, place: usize) -> Option<String> {
        let qp = self.set.get_mut(place).filter(|qp| qp.state() == QpState::Error)?;
        Some(Chain(&qp.failure()?).to_string())
    }

    fn standing(&self, place: usize) -> Standing {
        let qp = self.set.get(place);
        let rails = self.rails(place);
        let rails = rails.iter().filter(|rail| rail.rail != POLYRAIL_RAIL_NOTIFY);
        let in_service = |rail: &&RailInfo| rail.state == RailState::InService as u32;
        let first_error = qp.and_then(|qp| qp.first_error().map(|error| error.to_string()));
        Standing {
            rails: rails.clone().count() as u32,
            rails_in_service: rails.filter(in_service).count() as u32,
            is_degraded: qp.is_some_and(|qp| qp.state() == QpState::Degraded),
            unreported: qp.map_or(0, |qp| qp.unreported() as u32),
            first_error,
        }
    }

    fn rails(&self, place: usize) -> Vec<RailInfo> {
        let reports = self.set.get(place).map(|qp| qp.rail_reports()).unwrap_or_default();
        reports.iter().map(rail_info).collect()
    }
}

/// Peers by the numbers of virtual queue pairs.
pub(super) type Routes = HashMap<u32, u64, BuildHasherDefault<Spread>>;

/// Hashes numbers that this process counts itself, so the hash need not be unpredictable.
#[derive(Clone, Copy, Default)]
pub(super) struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32((*byte).into());
        }
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        /// 2^64 over the golden ratio: the high bits differ, too.
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(FACTOR);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
