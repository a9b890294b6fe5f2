//! How endpoints heal.

use std::time::Duration;

/// How an endpoint whose rails are re-routed heals by itself: how it learns that a rail is out of order, when
/// it tries to bring one back, and when it gives up. Chosen with
/// [`EndpointBuilder::healing`](crate::endpoint::EndpointBuilder::healing).
///
/// All durations are lower limits: an endpoint looks at the clock when it is polled, and of a time in which it was
/// not, an eighth of the last two limits counts at most. `None` means forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Healing {
    /// How long after a new queue pair could not be made the next one is tried: 10 ms. Doubled with every
    /// failure in a row, and when a rail fails within the longest interval after its return. A port that comes
    /// up again is tried at once.
    pub first_interval: Duration,
    /// The longest such interval: 5 s. It is tried forever.
    pub longest_interval: Duration,
    /// How long rail 0 and the notify queue pair, which requests wait for, wait for their own device: 100 ms.
    /// Then their new queue pair may be made on the device of another rail. At once, if they came back to their own
    /// and carried nothing of what was posted: some devices take connections, and no more.
    pub fallback_after: Duration,
    /// How long such a rail stays there once the port of its own device is up again: 1 s. Then it is moved home, by
    /// way of another failure. `None`: only when it fails next.
    pub home_after: Option<Duration>,
    /// How long a rail may make no headway, with something in flight, while others do or have nothing to do: 10 s.
    /// Then it is taken for broken, though neither its driver nor its device says so. A SEND or a
    /// notification whose peer posts its receive later than that costs its rail a useless failure, and nothing else.
    pub stall_timeout: Option<Duration>,
    /// How long requests may wait, without any headway, for rails that are out of service: 60 s. Then the
    /// endpoint fails with [`EndpointError::NotHealed`](crate::endpoint::EndpointError::NotHealed). While
    /// requests are in flight on other rails, it is the peer that they wait for, as long as it takes. An end of a
    /// [`P2pEndpoint`](crate::p2p::P2pEndpoint) fails with [`NotHealed`](crate::p2p::Failure::NotHealed) when for so long
    /// all that it has heard of its messages is that rails failed with them, though rails came back.
    pub rail_timeout: Option<Duration>,
    /// How long the peer may take to tell what arrived on a rail that failed, while requests wait: 60 s. Then
    /// the endpoint fails with [`EndpointError::NoFence`](crate::endpoint::EndpointError::NoFence).
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
