//! Connections for requests, on one backend.

use crate::code::Code;
use crate::devices::fixed;
use crate::error::{Failure, Refusal, refuse};
use crate::events::PeerEvent;
use crate::link::{Message, NotConnected};
use crate::numbers::Numbers;
use crate::options::{are_given, requests_over};
use crate::pairs::{Order, Pairs};
use crate::peers::common::Common;
use crate::peers::connections::{Connections, Standing, rail_state};
use crate::types::{Completion, EndpointOptions, POLYRAIL_RAIL_NOTIFY, RailInfo, RailState};
use polyrail::backend::Domain;
use polyrail::chain::Chain;
use polyrail::endpoint::{
    BuildError, ConnectError, EndpointBuilder, EndpointQp, EndpointSet, HealingMessage, RailReport,
};
use polyrail::link::{Reach, address_from_json, address_to_json};
use polyrail::metrics::ConnectionMetrics;
use polyrail::virtual_qp::{QpState, RailFailure, RailId};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// Connections for requests, on one backend.
pub(crate) struct RequestsOn<D: Domain> {
    pub(super) set: EndpointSet<D::Qp, D::Cq>,
    pub(super) domains: Vec<D>,
    /// The pairs of devices of each virtual queue pair, by place.
    pub(super) pairs: Vec<Pairs>,
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

/// Refuses options with which no peer can be added, such as more inline data than a device
/// supports: makes a virtual queue pair, and destroys it. A failure that may pass, such as that of
/// a port that is down, is left to the call that adds a peer.
fn try_out<D: Domain>(builder: &EndpointBuilder, domains: &[D]) -> Result<(), Refusal> {
    match builder.build(domains) {
        Err(BuildError::Device { source, .. }) if source.may_pass() => Ok(()),
        made => Ok(made.map(drop).map_err(|error| build_failure(&error))?),
    }
}

impl<D: Domain> RequestsOn<D> {
    /// Returns the builder of a peer, which may have options of its own.
    fn builder(&self, options: Option<&EndpointOptions>) -> Result<EndpointBuilder, Refusal> {
        options.map_or(Ok(self.builder), |options| requests_over(options, &self.domains))
    }

    pub(in crate::peers) fn new(
        domains: Vec<D>,
        options: &EndpointOptions,
    ) -> Result<Self, Refusal> {
        let builder = requests_over(options, &domains)?;
        if are_given(options) {
            try_out(&builder, &domains)?;
        }
        let nobody: [(EndpointBuilder, Vec<&D>); 0] = [];
        let set = EndpointSet::build(nobody).map_err(|error| build_failure(&error))?;
        let (routes, backlog) = (Routes::default(), VecDeque::new());
        Ok(Self { set, domains, pairs: Vec::new(), builder, routes, backlog })
    }

    pub(in crate::peers) fn replace(
        &mut self,
        common: &mut Common,
        peer: u64,
        options: Option<&EndpointOptions>,
    ) -> Result<u64, Refusal> {
        let builder = self.builder(options)?;
        let place = common.numbers.place(peer)?;
        common.publish_metrics(self, place);
        let old_number = self.set.get(place).map(|qp| qp.virtual_qp().virtual_qp_num());
        // The new peer usually meets the same other side, whose order is still right.
        let own = self.pairs.get(place).map(|pairs| pairs.own.clone()).unwrap_or_default();
        let domains: Vec<&D> = own.of(&self.domains).collect();
        let old = self.set.rebuild(place, builder, &domains);
        drop(old.map_err(|error| build_failure(&error))?);
        self.pairs[place].far = Order::default();
        if let Some(number) = old_number {
            self.routes.remove(&number);
        }
        self.backlog.retain(|completion| completion.peer != peer);
        common.forget(place, peer);
        Ok(common.welcome(self, place))
    }

    pub(in crate::peers) fn fail_rail(
        &mut self,
        common: &Common,
        peer: u64,
        rail: RailId,
    ) -> Result<(), Refusal> {
        let qp = self.member(common, peer)?;
        if qp.virtual_qp().physical(rail).is_none() {
            return refuse(Code::Argument, format_args!("the peer has no {rail}"));
        }
        qp.fail_rail(rail);
        Ok(())
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

    fn add(
        &mut self,
        options: Option<&EndpointOptions>,
        toward: Option<&Reach>,
    ) -> Result<usize, Refusal> {
        let builder = self.builder(options)?;
        let order = toward.map(|peer| Order::toward(&self.domains, peer));
        let own = order.transpose()?.unwrap_or_default();
        let domains: Vec<&D> = own.of(&self.domains).collect();
        let added = self.set.add(builder, &domains);
        let place = added.map_err(|error| build_failure(&error))?;
        if self.pairs.len() <= place {
            self.pairs.resize_with(place + 1, Pairs::default);
        }
        self.pairs[place] = Pairs { own, far: Order::default() };
        Ok(place)
    }

    fn devices(&self, place: usize) -> &[u8] {
        self.pairs.get(place).map_or(&[], |pairs| pairs.own.positions())
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

    fn meet(&mut self, place: usize, theirs: &Reach, devices: &[u8]) -> Result<bool, NotConnected> {
        let Some(address) = theirs.requests() else {
            return Err(
                Failure::new(Code::Mismatch, "the other side's peer is for messages").into()
            );
        };
        let connected = self.qp(place)?.try_connect(address);
        let is_connected = connected.map_err(|error| not_connected(&error))?;
        if let Some(pairs) = self.pairs.get_mut(place) {
            pairs.far = Order::new(devices.iter().copied());
        }
        Ok(is_connected)
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

    fn metrics(&self) -> Vec<ConnectionMetrics> {
        self.set.metrics()
    }

    fn metrics_of(&self, place: usize) -> Option<ConnectionMetrics> {
        self.set.get(place).map(EndpointQp::metrics)
    }

    fn next_rail_event(&mut self, place: usize) -> Option<PeerEvent> {
        let event = self.set.get_mut(place)?.take_rail_event()?;
        Some(PeerEvent::of_rail(&event.event, event.to_string()))
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
        Standing {
            rails: rails.clone().count() as u32,
            rails_in_service: rails.filter(in_service).count() as u32,
            is_degraded: qp.is_some_and(|qp| qp.state() == QpState::Degraded),
            unreported: qp.map_or(0, |qp| qp.unreported() as u32),
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
