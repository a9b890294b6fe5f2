//! Making a virtual queue pair: what cannot work is refused here. Which keys of a request a rail needs is
//! decided here too: those of its device, and of the peer's device that it meets.

use super::choose::Chooser;
use super::config::{BuildError, Config, FRAGMENT_ALIGN, FragmentSizeError, RailFailure};
use super::data_receives::DataReceives;
use super::error::Health;
use super::list::usable;
use super::pass_through::PassThrough;
use super::qp::{Header, VirtualQp};
use super::reroute::Reroute;
use super::scheme::dqplb::{PeerWindow, SequenceWindow};
use super::scheme::{Offers, SchemeState};
use super::slot::{Ahead, Devices, Place, RecvSlot, Recvs, SendSlot, Sends, SlotState};
use crate::hardware::QueuePair;
use crate::rail::{MAX_RAILS, Rail, RailId};
use arrayvec::ArrayVec;

/// The rails do not meet the peer's devices as they were said to; nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PairDevicesError {
    /// Every rail meets one device.
    #[error("{given} devices of the peer for {rails} rails")]
    Rails {
        /// Rails there are.
        rails: usize,
        /// Devices given.
        given: usize,
    },
    /// Requests that were posted before have found their keys.
    #[error("there are requests that were posted before the devices were paired")]
    InUse,
}

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Makes one queue pair out of `rails`, with `notify` for SPRAY's notifies.
    ///
    /// The i-th rail is to be connected to the peer's i-th. Rail 0 also carries pass-through
    /// requests and data receives.
    ///
    /// # Errors
    ///
    /// What cannot work is refused here rather than in the middle of traffic; the queue pairs
    /// are dropped.
    pub fn new(
        config: Config,
        rails: impl IntoIterator<Item = Q>,
        notify: Option<Q>,
    ) -> Result<Self, BuildError> {
        const { assert!(RAILS >= 1 && RAILS <= MAX_RAILS, "1 to 8 rails") };
        // In place, piece by piece: the whole can be large, and each move of it costs stack.
        let mut qp = Self::without_rails(config);
        for (number, rail) in rails.into_iter().enumerate() {
            let rail = Rail::new(rail, RailId::Data(number as u8), config.max_msgs_per_qp);
            qp.rails.try_push(rail).map_err(|_| BuildError::TooManyRails { max: RAILS })?;
        }
        let notify = notify.map(|qp| Rail::new(qp, RailId::Notify, config.max_msgs_per_qp));
        validate(&config, &qp.rails, notify.as_ref())?;
        qp.scheme = SchemeState::new(config.scheme, notify, qp.window(), qp.rails.len());
        let limits = || qp.rails.iter().map(|rail| rail.qp.limits());
        let max_sge = limits().map(|limits| limits.max_send_sge).min();
        let max_recv_sge = limits().map(|limits| limits.max_recv_sge).next();
        qp.max_sge = usable(max_sge.unwrap_or_default());
        qp.max_recv_sge = usable(max_recv_sge.unwrap_or_default());
        qp.number_devices();
        qp.chooser = Chooser::new(&config, &mut qp.rails)?;
        Ok(qp)
    }

    fn without_rails(config: Config) -> Self {
        let Config { virtual_qp_num, imm_order, .. } = config;
        let first_state = SlotState::reported(config.report_order);
        Self {
            header: Header { virtual_qp_num, imm_order, first_state },
            rails: ArrayVec::new(),
            health: Health::GOOD,
            chooser: Chooser::EMPTY,
            sends: Sends::new(SendSlot::BLANK),
            recvs: Recvs::new(RecvSlot::new(0)),
            pass_through: PassThrough::new(config.pass_through),
            offers: Offers::NONE,
            ahead: Ahead::new(virtual_qp_num, config.report_order),
            parts: 0,
            max_sge: 1,
            max_recv_sge: 1,
            recvs_first: false,
            devices: Devices::NONE,
            scheme: SchemeState::NONE,
            data_receives: DataReceives::NONE,
            reroute: Reroute::new(config.rail_failure),
            config,
        }
    }

    /// Over several rails: makes fragments no longer than the peer's, if those are shorter than
    /// [`max_msg_size`](Config::max_msg_size) here: that is as long as its devices are known to take. Rounds down to a
    /// multiple of [`FRAGMENT_ALIGN`]. To be called before anything is sent.
    ///
    /// # Errors
    ///
    /// Nothing changed: see [`FragmentSizeError`].
    pub fn limit_max_msg_size(&mut self, bytes: u32) -> Result<(), FragmentSizeError> {
        if !self.is_multi() || bytes >= self.config.max_msg_size {
            return Ok(());
        }
        let limit = bytes / FRAGMENT_ALIGN * FRAGMENT_ALIGN;
        if limit == 0 {
            return Err(FragmentSizeError::TooShort { bytes });
        }
        if !self.sends.alive().is_empty() {
            return Err(FragmentSizeError::InUse);
        }
        self.config.max_msg_size = limit;
        self.chooser.set_fragment(limit);
        Ok(())
    }

    /// What this side's connection card tells a DQPLB sender.
    pub fn window(&self) -> PeerWindow {
        let receives = self.rails.iter().map(|rail| rail.recvs.limit()).max();
        PeerWindow {
            window: SequenceWindow::<RAILS, DEPTH>::CAPACITY,
            receives_per_rail: receives.unwrap_or_default(),
        }
    }

    /// Tells which device of the peer each rail meets: `peers` has the place of one for each rail. To be
    /// called before anything is sent, if a device here meets several of the peer's, as when this side has
    /// fewer; otherwise there is no need to.
    ///
    /// From then on requests carry one set of keys for each pair of devices that meet, in the order of the
    /// rails: with one device here and two there, two sets for the same device, the first with the rkey of
    /// the peer's device that rail 0 meets. The notify queue pair goes with rail 0.
    ///
    /// A queue pair that [takes a rail's place](Self::replace_rail) meets the same device of the peer, if its own
    /// device meets that; if not, the first one that this does meet.
    ///
    /// # Errors
    ///
    /// Nothing changed: see [`PairDevicesError`].
    pub fn pair_devices(&mut self, peers: &[u8]) -> Result<(), PairDevicesError> {
        let rails = self.rails.len();
        if peers.len() != rails {
            return Err(PairDevicesError::Rails { rails, given: peers.len() });
        }
        if self.sends.alive().next().is_some() {
            return Err(PairDevicesError::InUse);
        }
        self.number_pairs(peers);
        Ok(())
    }

    /// Gives every rail the place of its device's keys. Rail 0's is 0.
    fn number_devices(&mut self) {
        self.number_pairs(&[0; MAX_RAILS]);
    }

    fn number_pairs(&mut self, peers: &[u8]) {
        let before = core::mem::replace(&mut self.devices, Devices::NONE);
        for (at, (rail, peer)) in self.rails.iter_mut().zip(peers).enumerate() {
            rail.keys_at = self.devices.add(rail.device, *peer) as u8;
            self.devices.peer_of_rail[at] = *peer;
        }
        if let Some(notify) = self.scheme.notify_mut() {
            notify.keys_at = self.devices.place_of(notify.id, notify.device) as u8;
        }
        let place_before = |place: &Place| before.position(place.device(), None);
        let places = self.devices.places.iter().map(place_before);
        self.data_receives.renumber(&places.collect::<ArrayVec<_, RAILS>>());
    }
}

/// What cannot work is refused before there is traffic.
fn validate<Q: QueuePair, const DEPTH: usize>(
    config: &Config,
    rails: &[Rail<Q, DEPTH>],
    notify: Option<&Rail<Q, DEPTH>>,
) -> Result<(), BuildError> {
    let bytes = config.max_msg_size;
    if bytes == 0 || !bytes.is_multiple_of(FRAGMENT_ALIGN) {
        return Err(BuildError::MaxMsgSize { bytes });
    }
    if rails.is_empty() {
        return Err(BuildError::NoRails);
    }
    let several = rails.len() > 1;
    if notify.is_some() && !(several && config.scheme.uses_notify_qp()) {
        return Err(BuildError::UnexpectedNotify);
    }
    let reroutes = config.rail_failure == RailFailure::Reroute;
    // A single rail is its driver's.
    if !several {
        return if reroutes { Err(BuildError::NothingToRerouteTo) } else { Ok(()) };
    }
    let min_rails = config.min_rails;
    if reroutes && usize::from(min_rails) > rails.len() {
        return Err(BuildError::MinRails { min_rails, rails: rails.len() });
    }
    if config.max_msgs_per_qp == 0 {
        return Err(BuildError::NoMessages);
    }
    for (at, rail) in rails.iter().chain(notify).enumerate() {
        let same = |other: &Rail<Q, DEPTH>| other.is_at(rail.device, rail.qp_num);
        if rails.iter().take(at).any(same) {
            return Err(BuildError::Duplicate { device: rail.device, qp_num: rail.qp_num });
        }
        validate_rail(config, rail)?;
    }
    Ok(())
}

fn validate_rail<Q: QueuePair, const DEPTH: usize>(
    config: &Config,
    rail: &Rail<Q, DEPTH>,
) -> Result<(), BuildError> {
    let qp_num = rail.qp_num;
    if rail.sends.limit() == 0 {
        return Err(BuildError::NoRoom { qp_num, send: true });
    }
    if config.scheme.receives_on_rails() && rail.recvs.limit() == 0 {
        return Err(BuildError::NoRoom { qp_num, send: false });
    }
    if config.rail_failure == RailFailure::Reroute && rail.recvs.limit() == 0 {
        return Err(BuildError::SharedReceives { qp_num });
    }
    let limit = rail.qp.limits().max_msg_size;
    match rail.id {
        RailId::Data(rail) if limit < config.max_msg_size => {
            Err(BuildError::RailMsgSize { rail, bytes: config.max_msg_size, limit })
        }
        RailId::Data(_) | RailId::Notify => Ok(()),
    }
}
