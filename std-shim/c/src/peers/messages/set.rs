//! Connections for messages, on one backend.

use super::under_way::UnderWay;
use crate::code::Code;
use crate::devices::fixed;
use crate::error::{Failure, Refusal, refuse};
use crate::events::PeerEvent;
use crate::link::{Message, NotConnected, RAILS};
use crate::numbers::Numbers;
use crate::options::{are_given, messages_over, messages_rails, rail_failure};
use crate::pairs::Order;
use crate::peers::common::Common;
use crate::peers::connections::{Connections, Standing, rail_state};
use crate::types::{EndpointOptions, RailInfo, RailState};
use polyrail::backend::Domain;
use polyrail::chain::Chain;
use polyrail::endpoint::BuildError;
use polyrail::hardware::QueuePair;
use polyrail::link::{HexBytes, Reach};
use polyrail::metrics::ConnectionMetrics;
use polyrail::p2p::{
    End, HealingMessage, P2pAddress, P2pBuildError, P2pBuilder, P2pConnectError, P2pEndpointSet,
    P2pMember, P2pRemoveError,
};
use polyrail::virtual_qp::{self, QpState, RailCounters, RailFailure};
use std::time::{Duration, Instant};

/// Places in the routing table. Three quarters can be used, which is enough for 1536 peers of two
/// rails.
const ROUTES: usize = 8192;

/// How long closing waits for devices.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum completions of one poll while closing.
const BUDGET: usize = 64;

/// Connections for messages, on one backend.
pub(crate) struct MessagesOn<D: Domain> {
    pub(super) set: Box<P2pEndpointSet<D, ROUTES>>,
    /// The devices that have rails.
    domains: Vec<D>,
    pub(super) reroutes: bool,
    pub(super) rails: u32,
    pub(super) under_way: UnderWay,
}

/// Returns the code of an endpoint that could not be built.
pub(super) fn build_failure(error: &P2pBuildError) -> Failure {
    let code = match error {
        P2pBuildError::Rails(error) => return crate::peers::requests::set::build_failure(error),
        P2pBuildError::Members { .. }
        | P2pBuildError::Keys(_)
        | P2pBuildError::Attach(_)
        | P2pBuildError::Pool { .. } => Code::TooMany,
        P2pBuildError::Memory(_) => Code::Device,
        _ => Code::Argument,
    };
    Failure::of(code, error)
}

/// Returns the code of two ends that could not be connected.
fn not_connected(error: &P2pConnectError) -> NotConnected {
    let code = match error {
        P2pConnectError::Modify { .. } => Code::Device,
        _ => Code::Mismatch,
    };
    NotConnected { failure: Failure::of(code, error), may_pass: error.may_pass() }
}

fn not_there() -> Failure {
    Failure::new(Code::Peer, "the peer is not there any more")
}

/// Returns the state and generation of the queue pair with this index, of the sending and of the
/// receiving end.
fn states<D: Domain>(member: &P2pMember<D>, at: usize) -> [(RailState, u16); 2] {
    let sends = member.queue_pair_state(End::Sender, at);
    let receives = member.queue_pair_state(End::Receiver, at);
    // Without rerouting, a rail is in service until the connection has failed.
    let known = |state: Option<(virtual_qp::RailState, u16)>| {
        state.map_or((RailState::InService, 0), |(state, of)| (rail_state(state), of))
    };
    [known(sends), known(receives)]
}

/// Refuses options with which no peer can be added, such as fewer rails than have to be in service:
/// makes an endpoint, and destroys it. A failure that may pass, such as that of a port that is
/// down, is left to the call that adds a peer.
fn try_out<D: Domain>(builder: &P2pBuilder, domains: &[D]) -> Result<(), Refusal> {
    match builder.build(domains) {
        Err(P2pBuildError::Rails(BuildError::Device { source, .. })) if source.may_pass() => Ok(()),
        made => Ok(made.map(drop).map_err(|error| build_failure(&error))?),
    }
}

impl<D: Domain> MessagesOn<D> {
    pub(in crate::peers) fn new(
        domains: &[D],
        options: &EndpointOptions,
        most: u16,
    ) -> Result<Self, Refusal> {
        let builder = messages_over(options, domains)?;
        if are_given(options) {
            try_out(&builder, domains)?;
        }
        let set = P2pEndpointSet::build(&builder, domains, most);
        let rails = messages_rails(options);
        Ok(Self {
            set: Box::new(set.map_err(|error| build_failure(&error))?),
            domains: domains.iter().take(rails as usize).cloned().collect(),
            reroutes: rail_failure(options)? == RailFailure::Reroute,
            rails,
            under_way: UnderWay::default(),
        })
    }

    /// Returns a peer, if it exists.
    #[inline]
    pub(super) fn member(
        &mut self,
        common: &Common,
        peer: u64,
    ) -> Result<&mut P2pMember<D>, Refusal> {
        let place = common.numbers.place(peer)?;
        Numbers::found(self.set.get_mut(place), peer)
    }

    fn at(&mut self, place: usize) -> Result<&mut P2pMember<D>, Failure> {
        self.set.get_mut(place).ok_or_else(not_there)
    }

    /// Counts the rails in service: those with a queue pair that is in service at both ends.
    fn rails_in_service(&self, member: &P2pMember<D>) -> u32 {
        let each = member.queue_pairs(End::Sender).count();
        let works =
            |at: usize| states(member, at).iter().all(|(state, _)| *state == RailState::InService);
        let step = self.rails as usize;
        let in_service = |rail: &u32| (*rail as usize..each).step_by(step).any(works);
        (0..self.rails).filter(in_service).count() as u32
    }

    /// Whether any peer survives a broken completion queue, because other rails take over.
    pub(super) fn survives(&self, common: &Common) -> bool {
        let works = |place: usize| {
            let member = self.set.get(place);
            member.is_some_and(|member| member.state() != QpState::Error)
        };
        self.reroutes && common.numbers.all().any(|(place, _)| works(place))
    }
}

impl<D: Domain> Connections for MessagesOn<D> {
    fn has(&self, place: usize) -> bool {
        self.set.get(place).is_some()
    }

    fn add(
        &mut self,
        options: Option<&EndpointOptions>,
        toward: Option<&Reach>,
    ) -> Result<usize, Refusal> {
        if options.is_some() {
            return refuse(Code::Argument, "peers for messages have no options of their own");
        }
        let order = toward.map(|peer| Order::toward(&self.domains, peer));
        let order = order.transpose()?.unwrap_or_default();
        let order: Vec<usize> = order.positions().iter().map(|at| usize::from(*at)).collect();
        let added = match order.is_empty() {
            true => self.set.add(),
            false => self.set.add_in_order(&order),
        };
        Ok(added.map_err(|error| build_failure(&error))?)
    }

    /// Returns nothing: the keys of messages travel with each buffer.
    fn devices(&self, _: usize) -> &[u8] {
        &[]
    }

    /// Does nothing, because completions do not name peers.
    fn welcome(&mut self, _: usize, _: u64) {}

    fn fail(&mut self, place: usize) {
        if let Some(member) = self.set.get_mut(place) {
            member.fail();
        }
    }

    fn remove(&mut self, place: usize, peer: u64) -> Result<(), Refusal> {
        self.fail(place);
        match self.set.remove(place) {
            Ok(()) => {
                self.under_way.forget_of(peer);
                Ok(())
            }
            Err(P2pRemoveError::NotDrained { .. }) => Err(Refusal::NotNow),
            Err(error) => Err(Failure::of(Code::Peer, &error).into()),
        }
    }

    fn close(&mut self) -> bool {
        let numbers: Vec<usize> = self.set.numbers().collect();
        numbers.iter().for_each(|place| self.fail(*place));
        let begin = Instant::now();
        let is_drained = |set: &P2pEndpointSet<D, ROUTES>| {
            numbers.iter().all(|place| set.get(*place).is_none_or(|member| member.is_drained()))
        };
        while !is_drained(&self.set) {
            if self.set.poll(BUDGET).error.is_some() || begin.elapsed() >= CLOSE_TIMEOUT {
                return is_drained(&self.set);
            }
        }
        true
    }

    fn card(&mut self, place: usize) -> Result<String, Failure> {
        Ok(self.at(place)?.address().to_json())
    }

    fn connect(&mut self, place: usize, card: &[u8]) -> Result<(), Failure> {
        let address = P2pAddress::from_json(card);
        let address = address.map_err(|error| Failure::of(Code::Protocol, &error))?;
        Ok(self.at(place)?.connect(&address).map_err(|error| not_connected(&error))?)
    }

    fn reach(&mut self, place: usize) -> Result<Reach, Failure> {
        Ok(self.at(place)?.address().into())
    }

    fn meet(&mut self, place: usize, theirs: &Reach, _: &[u8]) -> Result<bool, NotConnected> {
        let Some(address) = theirs.messages() else {
            return Err(
                Failure::new(Code::Mismatch, "the other side's peer is for requests").into()
            );
        };
        self.at(place)?.try_connect(address).map_err(|error| not_connected(&error))
    }

    fn reroutes(&self, _: usize) -> bool {
        self.reroutes
    }

    fn next_message(&mut self, place: usize) -> Option<Message> {
        let note = [&[RAILS], self.next_control(place)?.as_bytes()].concat();
        Some(Message::Note { bytes: HexBytes(note) })
    }

    fn take_message(&mut self, place: usize, message: &Message) -> Result<(), Refusal> {
        match message {
            Message::Note { bytes } if bytes.0.first() == Some(&RAILS) => {
                self.control(place, &bytes.0[1..])
            }
            _ => Ok(()),
        }
    }

    fn next_control(&mut self, place: usize) -> Option<String> {
        Some(self.set.get(place)?.healing_link()?.next_message()?.to_json())
    }

    fn control(&mut self, place: usize, text: &[u8]) -> Result<(), Refusal> {
        let message = HealingMessage::from_json(text);
        let message = message.map_err(|error| Failure::of(Code::Protocol, &error))?;
        let link = self.set.get(place).and_then(P2pMember::healing_link);
        link.map_or(Ok(()), |link| link.handle(message).map_err(|_| Refusal::NotNow))
    }

    fn control_lost(&mut self, place: usize) {
        if let Some(link) = self.set.get(place).and_then(P2pMember::healing_link) {
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
        self.set.get(place).map(P2pMember::metrics)
    }

    fn next_rail_event(&mut self, place: usize) -> Option<PeerEvent> {
        let (end, _, event) = self.set.get_mut(place)?.take_named_rail_event()?;
        let end = match end {
            End::Sender => "sends",
            End::Receiver => "receives",
        };
        Some(PeerEvent::of_rail(&event.event, format!("the end that {end}: {event}")))
    }

    fn failure(&mut self, place: usize) -> Option<String> {
        let member = self.set.get(place)?;
        Some(Chain(&member.failure()?).to_string())
    }

    fn standing(&self, place: usize) -> Standing {
        let member = self.set.get(place);
        let rails_in_service = member.map_or(0, |member| self.rails_in_service(member));
        let (sent, received) = member.map_or((0, 0), P2pMember::unfinished);
        Standing {
            rails: self.rails,
            rails_in_service,
            is_degraded: rails_in_service < self.rails,
            unreported: (sent + received) as u32,
        }
    }

    fn rails(&self, place: usize) -> Vec<RailInfo> {
        let Some(member) = self.set.get(place) else { return Vec::new() };
        let numbers = |end| member.queue_pairs(end).map(QueuePair::qp_num);
        let each = numbers(End::Sender).count();
        let numbers = numbers(End::Sender).chain(numbers(End::Receiver));
        let info = |((at, qp_num), counters): ((usize, u32), RailCounters)| {
            let place = at % each;
            let (state, generation) = states(member, place)[at / each];
            let RailCounters { bytes, send_requests, doorbells, completions, errors } = counters;
            RailInfo {
                device: fixed(member.device_of(place).unwrap_or_default()),
                rail: place as u32 % self.rails,
                state: state as u32,
                qp_num,
                generation: generation.into(),
                bytes,
                requests: send_requests,
                doorbells,
                completions,
                errors,
                failures: 0,
                posted_again: 0,
                reserved: [0; 2],
            }
        };
        numbers.enumerate().zip(member.counters()).map(info).collect()
    }
}
