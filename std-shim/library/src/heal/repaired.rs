//! What an end provides so that its rails are repaired.

use super::limits::{Passed, Waiting};
use super::message::{RailName, ReplacementAddress};
use super::rail_repair::{Carried, Proof};
use crate::backend::{
    Connect, ConnectOptions, Connecting, DeviceError, DeviceEvent, EventCursor, Port,
};
use crate::queue_pair::{Place, RailAddress};
use polyrail_core::virtual_qp::{ControlError, RailState};
use std::error::Error;
use std::fmt;
use std::time::{Duration, Instant};

/// What an endpoint with automatic repair detected about a rail before any of its requests failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Detected {
    /// Its port is down.
    PortDown,
    /// Its device failed or was removed.
    DeviceGone,
    /// It made no progress for this long, although the peer was not merely late: see
    /// [`stall_timeout`](super::Healing::stall_timeout).
    Silent(Duration),
    /// Its own device works again, so it is moved back from another device.
    Home,
    /// The peer connected no queue pair to its new one.
    NoOtherEnd,
    /// Its queue pair could not be connected: the first one (see
    /// [`connect`](crate::endpoint::EndpointQp::connect)), or a new one that the peer had connected
    /// already. `tracing` has the device's error.
    NotConnected,
    /// Over TCP: there was no connection to the peer's new queue pair within this time, so the rail
    /// has not returned. The other rails carry on, and attempts go on.
    NotReached(Duration),
    /// It was to be fenced so that requests can be taken back, and the peer has not answered for
    /// this long.
    NotFenced(Duration),
}

impl fmt::Display for Detected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PortDown => f.write_str("failed: its port is down"),
            Self::DeviceGone => f.write_str("failed: its device is gone"),
            Self::Silent(waited) => write!(f, "failed: no progress for {waited:?}"),
            Self::Home => f.write_str("goes back to its own device"),
            Self::NoOtherEnd => {
                f.write_str("failed: the peer connected no queue pair to the new one")
            }
            Self::NotConnected => f.write_str("failed: its queue pair could not be connected"),
            Self::NotReached(waited) => {
                write!(f, "failed: no connection to the peer's new queue pair within {waited:?}")
            }
            Self::NotFenced(waited) => {
                write!(f, "failed: the peer was asked to fence it, and did not for {waited:?}")
            }
        }
    }
}

/// An end whose rails a [`RepairStep`](super::RepairStep) repairs: a virtual queue pair, or both
/// directions of a message endpoint. A *rail* is one queue pair and its replacements. `RAILS`
/// limits their number.
pub(crate) trait Repaired<const RAILS: usize> {
    /// How messages name a rail.
    type Rail: RailName;
    type Qp: Connect;
    type Error: Error;

    /// The rails that an end can have, in the order of their indices.
    fn rails() -> impl Iterator<Item = Self::Rail>;

    /// The index of a rail, if an end can have it.
    fn index(rail: Self::Rail) -> Option<usize>;

    /// Converts the peer's name for a rail to the name here.
    fn named_by_peer(rail: Self::Rail) -> Self::Rail;

    /// Whether this end offers new queue pairs for the rail. The other end answers.
    fn offers(&self, rail: Self::Rail) -> bool;

    /// Whether its queue pairs were connected.
    fn is_connected(&self) -> bool;

    /// Whether all rails are in service, and no request is being taken back.
    fn is_whole(&self) -> bool;

    /// Whether it has failed for good.
    fn has_failed(&self) -> bool;

    /// The state of a rail, and the generation of its queue pair.
    fn state(&self, rail: Self::Rail) -> Option<(RailState, u16)>;

    /// Whether the rail is out of service on purpose, with which nothing is wrong.
    fn is_out_on_purpose(&self, _: Self::Rail) -> bool {
        false
    }

    fn carried(&self, rail: Self::Rail) -> Carried;

    /// Where the rail's queue pair is.
    fn place(&self, rail: Self::Rail) -> Option<Place>;

    /// Where its first queue pair was.
    fn home(&self, rail: Self::Rail) -> Option<Place>;

    /// Whether requests wait for this rail, so that its queue pair may be on another rail's device,
    /// too.
    fn can_move(&self, rail: Self::Rail) -> bool;

    /// Whether too few rails would be in service without this one.
    fn is_needed(&self, rail: Self::Rail) -> bool;

    /// Finds the rails whose oldest request is the same as at the last call.
    fn stalled(&mut self) -> [bool; RAILS];

    /// Whether what a rail has in flight can wait for the peer without limit. Then a rail that
    /// completes nothing is broken only if other rails complete requests or have none.
    fn peer_may_be_late(&self, rail: Self::Rail) -> bool;

    /// Whether this end would fail without this rail.
    fn fails_without(&self, rail: Self::Rail) -> bool;

    /// Whether requests that cannot wait for the peer are incomplete.
    fn has_requests_without_receive(&self) -> bool;

    /// What waits; `proof` returns what is known about a rail that is in service.
    fn waiting(&self, proof: impl Fn(Self::Rail) -> Proof) -> Waiting<RAILS>;

    /// Returns the engine's next control message.
    fn next_control(&mut self) -> Option<<Self::Rail as RailName>::Control>;

    /// Gives a control message of the peer to the engine.
    fn control(&mut self, message: <Self::Rail as RailName>::Control) -> Result<(), ControlError>;

    /// Has the engine send again what may have been lost.
    fn control_lost(&mut self);

    /// Fails the rail's queue pair, for the reason that was detected.
    fn fail_rail(&mut self, rail: Self::Rail, detected: Detected);

    /// Has the rails fenced that carry requests which are to be taken back, if they have waited for
    /// long enough.
    fn fence_cancelled(&mut self, _: Instant) {}

    /// The peer has not done its part of a fence on purpose for too long. If the rail at this place
    /// is in service, it fails, and the peer's report about it is awaited, as about any other. If
    /// it is out already and nothing waits for it, it counts as failed. Returns false if this end
    /// has to fail.
    fn end_fence_on_purpose(&mut self, _place: usize, _waited: Duration) -> bool {
        false
    }

    /// Notes why the peer will report that its new queue pair of the rail failed.
    fn note_detected(&mut self, rail: Self::Rail, detected: Detected);

    /// Fails the rails on a device that is gone, and stops waiting for their completions.
    fn device_gone(&mut self, device: usize);

    /// Stops waiting for the completions of rails whose devices are known to be gone.
    fn lose_gone_rails(&mut self);

    /// Fails this end, because a limit has passed.
    fn give_up(&mut self, passed: Passed);

    /// Takes note of the engine's rail events.
    fn log_rail_events(&mut self, now: Instant);

    /// The next event of a device.
    fn next_event(&self, device: usize, cursor: &mut EventCursor) -> Option<DeviceEvent>;

    /// The present attributes of a device's port.
    fn port(&self, device: usize, number: u8) -> Result<Port, DeviceError>;

    /// Measures how fast rails are, if their weights follow that.
    fn measure(&mut self, now: Instant);

    /// Whether the weights of rails follow the rates of a device's ports.
    fn follows_rates_of(&self, device: usize) -> bool;

    /// Reads the present rate of a device's port that may have changed, and lets the weights of
    /// rails follow, if they follow rates.
    fn read_rate(&mut self, device: usize, number: u8);

    /// Reads the present rate of a device's port, reports it, and lets the weights of rails follow.
    fn note_rate(&mut self, device: usize, number: u8);

    fn options(&self) -> ConnectOptions;

    /// Where the rail's queue pair may be, the best place first.
    fn candidates(&self, rail: Self::Rail) -> Vec<Place>;

    /// Where a queue pair that matches the peer's is to be created.
    fn place_for(&self, peer: &ReplacementAddress<Self::Rail>) -> Result<Place, Self::Error>;

    /// Begins to create a queue pair in INIT.
    fn make(&self, rail: Self::Rail, place: &Place) -> Connecting<(Self::Qp, Port)>;

    /// Whether the two queue pairs can be connected.
    fn check(
        &self,
        own: &ReplacementAddress<Self::Rail>,
        peer: &ReplacementAddress<Self::Rail>,
    ) -> Result<(), Self::Error>;

    /// Puts a connected queue pair in the rail's place, and destroys the old one.
    fn replace(
        &mut self,
        own: &ReplacementAddress<Self::Rail>,
        place: Place,
        queue_pair: Self::Qp,
        peer: &RailAddress,
    ) -> Result<(), Self::Error>;

    /// The error of a device that cannot create or connect a queue pair.
    fn device_error(&self, rail: Self::Rail, place: &Place, source: DeviceError) -> Self::Error;

    /// Reports a failed attempt.
    fn attempt_failed(&self, rail: Self::Rail, error: &dyn Error);
}
