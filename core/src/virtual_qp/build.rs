//! Builds a virtual queue pair, and refuses configurations that cannot work. It also decides which
//! keys of a request a rail uses: the keys of its device and of the peer's device it connects to.

use super::choose::Chooser;
use super::config::{BuildError, Config, FRAGMENT_ALIGN, FragmentSizeError, RailFailure};
use super::data_receives::DataReceives;
use super::error::Health;
use super::keys::{Devices, Place};
use super::list::usable;
use super::pass_through::PassThrough;
use super::qp::{Header, VirtualQp};
use super::scheme::dqplb::{PeerWindow, SequenceWindow};
use super::scheme::{Offers, SchemeState};
use super::slot::{Ahead, RecvSlot, Recvs, SendSlot, Sends, SlotState};
use crate::hardware::QueuePair;
use crate::rail::{MAX_RAILS, Rail, RailId, Reroute};
use arrayvec::ArrayVec;

/// The devices of the peer do not fit the rails; nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PairDevicesError {
    /// The number of devices is not the number of rails.
    #[error("{given} devices of the peer were given for {rails} rails")]
    Rails {
        /// Number of rails.
        rails: usize,
        /// Number of devices given.
        given: usize,
    },
    /// Unreported requests use the keys of the old pairs.
    #[error(
        "cannot change the peer's devices while requests are unreported: poll until all are reported"
    )]
    InUse,
}

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Builds one queue pair out of `rails`, with `notify` for the notifies of SPRAY.
    ///
    /// Connect rail i to the peer's rail i. Rail 0 also carries pass-through requests and data
    /// receives.
    ///
    /// # Errors
    ///
    /// See [`BuildError`]. The queue pairs are dropped.
    pub fn new(
        config: Config,
        rails: impl IntoIterator<Item = Q>,
        notify: Option<Q>,
    ) -> Result<Self, BuildError> {
        const { assert!(RAILS >= 1 && RAILS <= MAX_RAILS, "1 to 8 rails") };
        const { assert!(RAILS == 1 || WRS >= 2, "an atomic that waits takes two places") };
        // Built in place, field by field: the value has 55 KiB and more (benches/docs/figures.md),
        // and each move of it costs that much stack.
        let mut qp = Self::without_rails(config);
        for (number, rail) in rails.into_iter().enumerate() {
            let rail = Rail::new(rail, RailId::Data(number as u8), config.max_msgs_per_qp);
            qp.rails.try_push(rail).map_err(|_| BuildError::TooManyRails { max: RAILS })?;
        }
        let notify = notify.map(|qp| Rail::new(qp, RailId::Notify, config.max_msgs_per_qp));
        validate(&config, &qp.rails, notify.as_ref())?;
        for rail in &mut qp.rails {
            rail.is_standby = config.standby.contains(rail.id);
        }
        qp.scheme = SchemeState::new(config.scheme, notify, qp.window(), qp.rails.len());
        let limits = || qp.rails.iter().map(|rail| rail.qp.limits());
        // Any rail may get any fragment, so the least capable rail decides.
        let max_sge = limits().map(|limits| limits.max_send_sge).min();
        let max_recv_sge = limits().map(|limits| limits.max_recv_sge).next();
        qp.max_sge = usable(max_sge.unwrap_or_default());
        qp.max_recv_sge = usable(max_recv_sge.unwrap_or_default());
        qp.number_devices();
        qp.chooser = Chooser::new(&config, &mut qp.rails)?;
        // The chooser begins with all rails; standby rails are closed while a home rail works.
        (0..qp.rails.len()).for_each(|at| qp.update_availability(at));
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
            reroute: Reroute::new(config.rail_failure == RailFailure::Reroute, config.min_rails),
            being_taken_back: 0,
            has_taken_back: false,
            peer_cancel_version: 0,
            config,
        }
    }

    /// Over several rails: reduces the fragment size to `bytes`, the peer's fragment size, if that
    /// is below [`max_msg_size`](Config::max_msg_size) here. The peer's devices are not known to
    /// take longer messages. Rounds down to a multiple of [`FRAGMENT_ALIGN`]. Call it before
    /// anything is sent.
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
        // Requests in flight were cut with the old size, and are found again by it.
        if !self.sends.alive().is_empty() {
            return Err(FragmentSizeError::InUse);
        }
        self.config.max_msg_size = limit;
        self.chooser.set_fragment(limit);
        Ok(())
    }

    /// Returns the receive window and the receives of each rail, for this side's connection card. A
    /// DQPLB sender needs both.
    pub fn window(&self) -> PeerWindow {
        // The largest queue: a peer that counts too few unseen receives would overrun the window.
        let receives = self.rails.iter().map(|rail| rail.recvs.limit()).max();
        PeerWindow {
            window: SequenceWindow::<RAILS, DEPTH>::CAPACITY,
            receives_per_rail: receives.unwrap_or_default(),
        }
    }

    /// Sets which device of the peer each rail connects to: `peers[i]` is the index of the peer's
    /// device for rail i. It is needed only if a device here connects to several devices of the
    /// peer, for example because this side has fewer devices. Call it before anything is sent.
    ///
    /// From then on, requests have one set of keys for each connected pair of devices, in the order
    /// of the rails. With one device here and two there, a request has two sets for the same
    /// device; the first set has the rkey of the peer's device on rail 0. The notify queue pair
    /// uses the pair of rail 0.
    ///
    /// A queue pair that [replaces](Self::replace_rail) a rail connects to the same device of the
    /// peer if its device is paired with it, else to the first device that its device is paired
    /// with.
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

    /// Gives every rail the index of its device's keys. The index of rail 0 is 0.
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

/// Refuses configurations that cannot work.
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
    let rail_0 = RailId::Data(0);
    let is_rail = |id: &RailId| rails.iter().any(|rail| rail.id == *id);
    if let Some(rail) = { config.standby }.find(|id| *id == rail_0 || !is_rail(id)) {
        return Err(match rail {
            RailId::Data(0) => BuildError::StandbyRail0,
            _ => BuildError::StandbyRail { rail, rails: rails.len() },
        });
    }
    let several = rails.len() > 1;
    if notify.is_some() && !(several && config.scheme.uses_notify_qp()) {
        return Err(BuildError::UnexpectedNotify);
    }
    let reroutes = config.rail_failure == RailFailure::Reroute;
    // A single rail passes everything to its driver, so no limit of the engine applies
    // (architecture.md, "Routing over one rail and over several").
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
        // Completions are routed by device and number, so these must be unique.
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
    // A shared receive queue does not flush receives of one queue pair, so `arrived` would never be
    // final (messages.md, "Rails that fail").
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
