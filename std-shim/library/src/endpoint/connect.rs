//! Connects two endpoints.

use super::address::Address;
use super::ends::RailMismatch;
use super::qp::EndpointQp;
use crate::backend::{Connect, Connecting, DeviceError, Gid};
use crate::card::ConnectionCard;
use crate::heal::{Detected, HealingLink};
use crate::queue_pair::{Joined, Place, RailAddress, join, retry};
use crate::trace;
use polyrail_core::hardware::QueuePair;
use polyrail_core::verbs::ImmOrder;
use polyrail_core::virtual_qp::{
    CANCEL_VERSION, FragmentSizeError, PairDevicesError, PeerWindowError, RailFailure, RailId,
    Scheme,
};
use std::time::Duration;

/// Two endpoints do not match, or a queue pair refused. Queue pairs that changed state keep it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The i-th rail connects to the peer's i-th rail, so both ends need the same number.
    #[error(
        "{local} rails here, {peer} rails and {addresses} addresses at the peer: both ends need the same number"
    )]
    Rails {
        /// Rails here.
        local: usize,
        /// Rails on the peer's card.
        peer: usize,
        /// Number of addresses that the peer sent.
        addresses: usize,
    },
    /// The two ends notify receivers in different ways.
    #[error("scheme {here:?} here, {peer:?} at the peer")]
    Scheme {
        /// The scheme here.
        here: Scheme,
        /// The peer's.
        peer: Scheme,
    },
    /// This end does not support fragments as short as the peer's.
    #[error(transparent)]
    FragmentSize(#[from] FragmentSizeError),
    /// The byte orders of immediates differ, so numbers would not arrive as sent. If the peer's
    /// card does not contain the order, it is assumed to be this end's.
    #[error("the byte order of immediates is {here} here, {peer} at the peer")]
    ImmOrder {
        /// The order here.
        here: ImmOrder,
        /// The peer's.
        peer: ImmOrder,
    },
    /// Only one end re-routes requests, so it would wait for messages that the other never sends.
    #[error(
        "a rail that fails is {} here, {} at the peer",
        fate(*here),
        fate(*peer)
    )]
    RailFailure {
        /// The option here.
        here: RailFailure,
        /// The option of the peer.
        peer: RailFailure,
    },
    /// The address is that of this endpoint itself. Repair needs two different ends.
    #[error("the peer's address is that of this endpoint: queue pair {qp_num} at {gid}")]
    Itself {
        /// Number of the first rail's queue pair.
        qp_num: u32,
        /// GID of its port.
        gid: Gid,
    },
    /// SPRAY over several rails needs a notify queue pair at both ends, and the peer has none, or
    /// did not send its address.
    #[error("the peer has no notify queue pair, which SPRAY over several rails needs")]
    NoNotify,
    /// The queue pairs of a rail are on devices or ports that do not match.
    #[error(transparent)]
    Ends(#[from] RailMismatch),
    /// Requests were posted before the devices of the two ends were paired.
    #[error(transparent)]
    Devices(#[from] PairDevicesError),
    /// DQPLB does not fit the peer's receive window.
    #[error(transparent)]
    PeerWindow(#[from] PeerWindowError),
    /// A queue pair could not change its state.
    #[error("{rail} (device {device})")]
    Modify {
        /// The rail.
        rail: RailId,
        /// Its device's name.
        device: String,
        /// The device's error.
        source: DeviceError,
    },
}

impl ConnectError {
    /// Whether the same call may succeed later, because a port is down, no path to the peer is
    /// found, or the system can start no thread that connects a queue pair.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Modify { source, .. } if source.may_pass())
    }
}

/// What becomes of a rail that fails.
fn fate(rail_failure: RailFailure) -> &'static str {
    if rail_failure == RailFailure::Reroute { "re-routed" } else { "fatal" }
}

impl<Q> EndpointQp<Q>
where
    Q: Connect,
{
    /// Returns the connection card: the numbers of the queue pairs, the byte order of immediates,
    /// the option for failures of rails, whether requests can be taken back, and for DQPLB the
    /// receive window.
    pub fn card(&self) -> ConnectionCard {
        let dqplb = self.qp.is_multi() && self.qp.config().scheme == Scheme::Dqplb;
        ConnectionCard {
            qp_nums: self.qp.rails().map(QueuePair::qp_num).collect(),
            notify_qp_num: self.notify_qp().map_or(0, QueuePair::qp_num),
            window: dqplb.then(|| self.qp.window()),
            imm_order: Some(self.qp.config().imm_order),
            rail_failure: self.qp.config().rail_failure,
            cancel_version: if self.reroutes() { CANCEL_VERSION } else { 0 },
        }
    }

    /// Returns the address of this endpoint. Send it to the peer, which passes it to
    /// [`connect`](Self::connect).
    pub fn address(&self) -> Address {
        let config = self.qp.config();
        let rails = self.qp.rails().len();
        let address = |(qp, place): (&Q, &Place)| self.rail_address(qp, place);
        let notify = self.places.get(rails).or(self.idle_place());
        Address {
            card: self.card(),
            scheme: config.scheme,
            max_msg_size: config.max_msg_size,
            rails: self.qp.rails().zip(&self.places[..rails]).map(address).collect(),
            notify: self.notify_qp().zip(notify).map(address),
        }
    }

    /// Where an unused notify queue pair is: with the first rail.
    fn idle_place(&self) -> Option<&Place> {
        self.places.first().filter(|_| self.idle_notify.is_some())
    }

    pub(super) fn rail_address(&self, qp: &Q, Place { device, port }: &Place) -> RailAddress {
        RailAddress::new(qp, (*device, port), self.psn, &self.options)
    }

    /// Connects an endpoint that was never connected, and to which no request was posted, with the
    /// endpoint whose [`address`](Self::address) is `peer`, and which connects to this one.
    ///
    /// The [builders](super::EndpointBuilder) need the same `rails`, `scheme`, `imm_order` and
    /// `rail_failure`. The ends may have different numbers of devices, which rails use in turn. If
    /// the numbers differ, each rail stays on its devices, whatever fails. If the lengths of
    /// fragments differ, both ends use the smaller one.
    ///
    /// Both ends must have returned from this call before either posts: a request to a queue pair
    /// that is not ready is retried only a few times. Use [`connect_after`](Self::connect_after) to
    /// post receives for the peer's first requests.
    ///
    /// The call waits while devices connect queue pairs: over RoCE the kernel searches for paths to
    /// the peer, for about a second if there is none. [`try_connect`](Self::try_connect) does not
    /// wait.
    ///
    /// If rails are [re-routed](RailFailure::Reroute), an endpoint may begin with fewer rails:
    /// those whose ports are down, or have no path to the peer, count as failed, and are
    /// [repaired](crate::heal::Healing) later. [`min_rails`](super::EndpointBuilder::min_rails)
    /// have to be connected. The two ends may lack different rails, and neither end uses a rail
    /// that the other one lacks: if fewer than `min_rails` are left, both endpoints fail. With
    /// `min_rails` 0 they wait until rails are repaired.
    ///
    /// # Errors
    ///
    /// The two ends do not match (nothing changed), or a queue pair refused. If the error [may
    /// pass](ConnectError::may_pass), the same call may be repeated, and connects the rest.
    pub fn connect(&mut self, peer: &Address) -> Result<(), ConnectError> {
        self.connect_after(peer, |_| Ok(()))
    }

    /// Connects as [`connect`](Self::connect) does. `post_receives` is called once the two ends are
    /// known to match, and before the peer can reach any queue pair (INIT), to post the receives
    /// for the peer's first requests. It is not called again if the call is repeated after an error
    /// that [may pass](ConnectError::may_pass).
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect); or the error of `post_receives`, in which case no queue pair
    /// changed.
    pub fn connect_after<E: From<ConnectError>>(
        &mut self,
        peer: &Address,
        post_receives: impl FnOnce(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        self.connect_within(Duration::ZERO, peer, post_receives)
    }

    /// Connects as [`connect_after`](Self::connect_after) does. Repeats attempts for up to `limit`,
    /// while their errors may pass.
    pub(crate) fn connect_within<E: From<ConnectError>>(
        &mut self,
        limit: Duration,
        peer: &Address,
        post_receives: impl FnOnce(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        let qp = self.qp.virtual_qp_num();
        let rails = self.qp.rails().len();
        let connected: Result<bool, E> = trace::connect(qp, rails, || {
            self.begin_to_connect(peer, post_receives)?;
            let connected = retry(limit, ConnectError::may_pass, || {
                while !self.connect_rails(peer)? {
                    self.joined.wait();
                }
                Ok(())
            });
            connected.inspect_err(|error| trace::not_connected(qp, error))?;
            Ok(true)
        });
        connected.map(|_| ())
    }

    /// Connects as [`connect`](Self::connect) does, but does not wait while the device connects
    /// queue pairs: over RoCE the kernel searches for a path to the peer for about a second.
    /// Returns whether the endpoint is connected; if not, call again with the same address. For
    /// programs that serve several peers with one thread.
    ///
    /// The queue pairs are connected on other threads, at most
    /// [`MOST_ASIDE`](crate::backend::MOST_ASIDE) at a time in a process. Those between different
    /// ports are connected at the same time.
    ///
    /// Post the receives for the peer's first requests before the first call: the peer may reach
    /// queue pairs before this returns `true`.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect). If the error [may pass](ConnectError::may_pass), the next
    /// call begins another attempt; [`next_attempt`](crate::link::next_attempt) says when.
    pub fn try_connect(&mut self, peer: &Address) -> Result<bool, ConnectError> {
        if self.joined.continues(peer) && self.joined.has_to_wait() {
            return Ok(false);
        }
        let qp = self.qp.virtual_qp_num();
        let rails = self.qp.rails().len();
        trace::connect(qp, rails, || {
            self.begin_to_connect(peer, |_| Ok::<(), ConnectError>(()))?;
            self.connect_rails(peer).inspect_err(|error| trace::not_connected(qp, error))
        })
    }

    fn begin_to_connect<E: From<ConnectError>>(
        &mut self,
        peer: &Address,
        post_receives: impl FnOnce(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.joined.continues(peer) {
            return Ok(());
        }
        let qp = self.qp.virtual_qp_num();
        self.agree(peer).inspect_err(|error| trace::not_connected(qp, error))?;
        post_receives(self)?;
        self.joined.begin(peer);
        Ok(())
    }

    /// Continues to connect the rails that are not connected yet. Begins with fewer if that is
    /// possible. Returns whether the endpoint is connected, or rails are still being connected.
    fn connect_rails(&mut self, peer: &Address) -> Result<bool, ConnectError> {
        let places: Vec<Place> = self.places.iter().chain(self.idle_place()).copied().collect();
        let theirs: Vec<_> = peer.queue_pairs().zip(&places).collect();
        let ports = theirs.iter().map(|((rail, _, address), place)| (*rail, *place, address.gid));
        let mut joined = std::mem::replace(&mut self.joined, Joined::new());
        let join = |rail: RailId| {
            let found = theirs.iter().find(|((of, ..), _)| *of == rail);
            found.map_or(Connecting::done(Ok(())), |((_, qp_num, address), place)| {
                self.connect_rail(rail, place, *qp_num, address)
            })
        };
        let refused = joined.join(ports, self.healer.is_some(), join);
        let can_miss = |rail| self.can_miss(rail);
        let is_enough = |joined: &_| self.is_enough(joined);
        let missing = refused.map(|refused| joined.begin_without(refused, can_miss, is_enough));
        self.joined = joined;
        let Some(missing) = missing else { return Ok(false) };
        for (rail, source) in missing.map_err(|(rail, source)| self.not_joined(rail, source))? {
            let error = self.not_joined(rail, source);
            trace::no_new_queue_pair(self.qp.virtual_qp_num(), rail, &error);
            if self.fail_rail(rail) {
                self.log.note_detected(rail, Detected::NotConnected);
            }
        }
        Ok(true)
    }

    fn not_joined(&self, rail: RailId, source: DeviceError) -> ConnectError {
        ConnectError::Modify { rail, device: self.device_of(rail), source }
    }

    /// Whether a queue pair that was refused can be repaired later, or is never used.
    fn can_miss(&self, rail: RailId) -> bool {
        let is_idle = rail == RailId::Notify && self.idle_notify.is_some();
        self.healer.is_some() && (self.qp.rail_state(rail).is_some() || is_idle)
    }

    /// Whether enough rails are connected.
    fn is_enough(&self, joined: &Joined<RailId, Address>) -> bool {
        let rails = joined.count(|rail| matches!(rail, RailId::Data(_)));
        rails >= usize::from(self.qp.config().min_rails)
    }

    /// Checks that the two sides agree on everything that must be the same, and that DQPLB can run
    /// in the peer's window.
    fn agree(&mut self, peer: &Address) -> Result<(), ConnectError> {
        let own = self.address();
        let rails = peer.card.qp_nums.len();
        let addresses = peer.rails.len();
        if own.rails.len() != rails || rails != addresses {
            return Err(ConnectError::Rails { local: own.rails.len(), peer: rails, addresses });
        }
        if own.scheme != peer.scheme {
            return Err(ConnectError::Scheme { here: own.scheme, peer: peer.scheme });
        }
        let here = self.qp.config().imm_order;
        if let Some(peer) = peer.card.imm_order.filter(|peer| *peer != here) {
            return Err(ConnectError::ImmOrder { here, peer });
        }
        let here = own.card.rail_failure;
        let there = peer.card.rail_failure;
        if here != there {
            return Err(ConnectError::RailFailure { here, peer: there });
        }
        if self.healer.is_some() {
            let first @ (qp_num, gid, _) = own.first();
            if first == peer.first() {
                return Err(ConnectError::Itself { qp_num, gid });
            }
            self.offers = first < peer.first();
        }
        // A notify queue pair that is not needed, such as the reference's, may be there or not.
        let needed = self.places.len();
        if peer.queue_pairs().count() < needed {
            return Err(ConnectError::NoNotify);
        }
        self.far_devices = self.far_devices_of(peer);
        let in_use = own.queue_pairs().take(needed);
        for ((rail, _, own), (_, _, peer)) in in_use.zip(peer.queue_pairs()) {
            self.check_ends(rail, own, peer)?;
        }
        if self.qp.is_multi() && own.scheme == Scheme::Dqplb {
            self.qp.set_peer_window(peer.card.peer_window())?;
        }
        self.qp.set_peer_cancel_version(peer.card.cancel_version);
        // Each before what would stay if it were refused: the next peer's window replaces this one,
        // and once fragments could be made shorter nothing was posted yet, so that devices can be
        // paired.
        self.qp.limit_max_msg_size(peer.max_msg_size)?;
        if !self.far_devices.is_empty() {
            self.qp.pair_devices(&self.far_devices[..rails])?;
        }
        Ok(())
    }

    /// Which of the peer's devices each queue pair meets, if it has another number of them: rails
    /// take them in turn, and the notify queue pair is with the first rail.
    fn far_devices_of(&self, peer: &Address) -> Vec<u8> {
        let devices = peer
            .rails
            .iter()
            .map(|rail| rail.device)
            .max()
            .map_or(0, |last| last.saturating_add(1));
        if usize::from(devices) == self.devices.len() {
            return Vec::new();
        }
        let rails = peer.rails.len() as u8;
        let far = |at: u8| if at < rails { at % devices } else { 0 };
        (0..=rails).map(far).collect()
    }

    /// Begins to move a queue pair from INIT to RTS, with what both ends can do.
    fn connect_rail(
        &self,
        rail: RailId,
        place: &Place,
        qp_num: u32,
        peer: &RailAddress,
    ) -> Connecting<()> {
        let Some(qp) = self.physical(rail) else { return Connecting::done(Ok(())) };
        let own = self.rail_address(qp, place);
        join((qp, &place.port, &own), qp_num, peer, &self.options)
    }
}

/// Connects two endpoints of one process, or virtual queue pairs of sets, that were never
/// connected, and whose builders have the same `rails`, `scheme`, `imm_order` and `rail_failure`.
///
/// If both ends [repair](crate::heal::Healing) their rails automatically, they exchange their
/// repair messages directly, and the application carries none.
///
/// # Errors
///
/// As [`EndpointQp::connect`].
pub fn connect_endpoints<Q>(
    a: &mut EndpointQp<Q>,
    b: &mut EndpointQp<Q>,
) -> Result<(), ConnectError>
where
    Q: Connect,
{
    let address_a = a.address();
    let address_b = b.address();
    a.connect(&address_b)?;
    b.connect(&address_a)?;
    if let (Some(a), Some(b)) = (&mut a.healer, &mut b.healer) {
        let (link_a, link_b) = HealingLink::pair();
        a.set_link(link_a);
        b.set_link(link_b);
    }
    Ok(())
}
