//! Time limits of the repair of rails.

use std::time::Duration;

/// Time limits of the repair of rails that are re-routed, for endpoints
/// ([`EndpointBuilder::healing`](crate::endpoint::EndpointBuilder::healing)) and for messages
/// ([`P2pBuilder::healing`](crate::p2p::P2pBuilder::healing)): when a rail counts as broken, when a
/// new queue pair is tried for, and when requests or messages have waited for too long.
///
/// All durations are lower limits, because the clock is read in polls. If polls stop for a while,
/// at most an eighth of [`rail_timeout`](Self::rail_timeout) and
/// [`fence_timeout`](Self::fence_timeout) counts of that time. `None` means forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Healing {
    /// Interval between a failed attempt to create a new queue pair and the next attempt: 10 ms. It
    /// doubles with every further failure, and when a rail fails within `longest_interval` after
    /// its return. When a port comes up, the next attempt is immediate. Over TCP, an attempt fails
    /// also if there is no connection within 2 s, or 4 s and 8 s for later ones.
    pub first_interval: Duration,
    /// The longest interval: 5 s. Attempts never stop.
    pub longest_interval: Duration,
    /// How long rail 0 and the notify queue pair, which requests wait for, wait for their own
    /// device: 100 ms. Then their new queue pair may be made on the device of another rail. At
    /// once, if they came back to their own device and carried nothing of what was posted, because
    /// some devices connect and then carry nothing. Messages wait for no particular rail, so their
    /// queue pairs stay on their own devices.
    pub fallback_after: Duration,
    /// How long such a rail stays there once the port of its own device is up again: 1 s. Then it
    /// is moved back, by way of another failure. `None`: only when it fails next.
    pub home_after: Option<Duration>,
    /// How long a rail may complete nothing, with something in flight: 10 s. Then it counts as
    /// broken, though neither its driver nor its device reports that. If its oldest request takes a
    /// receive of the peer's (a SEND, a notification, a fragment of DQPLB), the peer may be late,
    /// so such a rail counts as broken only while other rails complete requests or have none. If
    /// the peer posts that receive after this time, its rail fails without need, and the request
    /// goes on to wait on a new queue pair: such a failure says nothing about the device. Then
    /// `rail_timeout` begins again, unless every other data rail is out of service, or came back
    /// before, lost everything, and has carried nothing since. If fewer than `min_rails` would be
    /// left, such a rail stays in service, until requests that need no receive are held up, too,
    /// and for `rail_timeout` nothing was acknowledged. Then it fails, and the endpoint with it.
    /// A flush that completes nothing for this time fails with
    /// [`CannotFlush`](crate::p2p::CallError::CannotFlush).
    pub stall_timeout: Option<Duration>,
    /// How long requests may wait while nothing that this end sends is acknowledged, and rails are
    /// out of service, or came back and had nothing acknowledged since: 60 s. Then the endpoint
    /// fails with [`EndpointError::NotHealed`](crate::endpoint::EndpointError::NotHealed). Requests
    /// in flight on a rail in service may take longer, because they may wait for the peer, unless
    /// the rail came back before, lost everything, and has carried nothing since. So a network that
    /// drops everything, although queue pairs connect, ends the endpoint after this time, but not
    /// before rails have failed twice. While all rails are in service and requests may wait for the
    /// peer, as between the first two failures, at most an eighth of this time counts.
    /// Messages fail with [`NotHealed`](crate::p2p::Failure::NotHealed) if no rail was in service
    /// for that long, or if rails came back and failed again without carrying any message. A
    /// message that `isend` refused because no rail is in service counts as one that waits, until a
    /// rail returns.
    pub rail_timeout: Option<Duration>,
    /// How long the peer may take to report what arrived on a rail that failed, while requests or
    /// messages wait: 60 s. Then the endpoint fails with
    /// [`EndpointError::NoFence`](crate::endpoint::EndpointError::NoFence), and messages with
    /// [`NotFenced`](crate::p2p::Failure::NotFenced). A rail that is to be fenced so that requests
    /// can be [taken back](crate::endpoint::EndpointQp::cancel) fails if the peer does not answer
    /// for that long, and this time begins again. `rail_timeout` does not count such fences.
    pub fence_timeout: Option<Duration>,
}

impl Default for Healing {
    fn default() -> Self {
        Self {
            first_interval: Duration::from_millis(10),
            longest_interval: Duration::from_secs(5),
            fallback_after: Duration::from_millis(100),
            home_after: Some(Duration::from_secs(1)),
            stall_timeout: Some(Duration::from_secs(10)),
            rail_timeout: Some(Duration::from_secs(60)),
            fence_timeout: Some(Duration::from_secs(60)),
        }
    }
}
