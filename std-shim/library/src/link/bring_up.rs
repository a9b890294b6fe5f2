//! Connecting two endpoints after the exchange of hellos.

use super::end::Link;
use super::error::{HandshakeError, LinkError};
use super::hello::Hello;
use super::message::Message;
use super::purpose::Purpose;
use crate::backend::{Connect, Domain};
use crate::endpoint::{ConnectError, EndpointQp};
use crate::p2p::{P2pConnectError, P2pEndpoint};

/// Connects an endpoint that was never connected with the peer's, once both sides of the link have
/// sent their hello and received the other's.
///
/// The order is the only safe one: both addresses are checked; `post_receives` posts the receives
/// for the peer's first requests, while no queue pair can be reached; the queue pairs go to RTR and
/// RTS; this side reports that it is ready, and waits until the other side is. Afterwards requests
/// can be posted.
///
/// If ports are down, or have no path to the peer, an endpoint that re-routes begins with [fewer
/// rails](EndpointQp::connect). Otherwise attempts are repeated for up to the link's [message
/// timeout](super::Timeouts::message), which is also how long the other side waits.
///
/// # Errors
///
/// The two endpoints do not match (nothing was posted or changed); a queue pair refused;
/// `post_receives` failed; the peer gave up, has ended, or does not answer.
pub fn bring_up<Q, E, P>(
    endpoint: &mut EndpointQp<Q>,
    control: &mut Link<P>,
    peer: &Hello<P>,
    post_receives: impl FnOnce(&mut EndpointQp<Q>) -> Result<(), E>,
) -> Result<(), E>
where
    Q: Connect,
    E: From<ConnectError> + From<LinkError>,
    P: Purpose,
{
    get_ready(endpoint, control, peer, post_receives)?;
    Ok(control.expect_ready()?)
}

/// Connects an endpoint as [`bring_up`] does, but does not wait for the other side.
///
/// # Errors
///
/// As [`bring_up`].
pub fn get_ready<Q, E, P>(
    endpoint: &mut EndpointQp<Q>,
    control: &mut Link<P>,
    peer: &Hello<P>,
    post_receives: impl FnOnce(&mut EndpointQp<Q>) -> Result<(), E>,
) -> Result<(), E>
where
    Q: Connect,
    E: From<ConnectError> + From<LinkError>,
    P: Purpose,
{
    let address = peer.reach.requests().ok_or_else(|| other_kind("messages", "requests"))?;
    endpoint.connect_within(control.message_timeout(), address, post_receives)?;
    Ok(control.send(&Message::Ready {})?)
}

/// Connects a message endpoint that was never connected with the peer's, once both sides of the
/// link have sent their hello and received the other's.
///
/// Reports to the other side that this side is ready, and waits until both are. Afterwards buffers
/// can be offered. Ports that are down are treated as [`bring_up`] does.
///
/// The type of the error is named, unless it follows from the return type of a function of the
/// program: `?` converts errors, so that it does not follow.
///
/// ```no_run
/// # use polyrail::link::{Hello, Link, bring_up_p2p};
/// # use polyrail::p2p::P2pEndpoint;
/// # use std::error::Error;
/// # fn connect(
/// #     endpoint: &mut P2pEndpoint, link: &mut Link, peer: &Hello,
/// # ) -> Result<(), Box<dyn Error>> {
/// bring_up_p2p::<_, Box<dyn Error>, _>(endpoint, link, peer)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The two endpoints do not match (nothing was changed), or a queue pair refused; the peer gave up,
/// has ended, or does not answer.
pub fn bring_up_p2p<D, E, P>(
    endpoint: &mut P2pEndpoint<D>,
    control: &mut Link<P>,
    peer: &Hello<P>,
) -> Result<(), E>
where
    D: Domain,
    E: From<P2pConnectError> + From<LinkError>,
    P: Purpose,
{
    get_p2p_ready::<D, E, P>(endpoint, control, peer)?;
    Ok(control.expect_ready()?)
}

/// Connects an endpoint as [`bring_up_p2p`] does, but does not wait for the other side.
///
/// # Errors
///
/// As [`bring_up_p2p`].
pub fn get_p2p_ready<D, E, P>(
    endpoint: &mut P2pEndpoint<D>,
    control: &mut Link<P>,
    peer: &Hello<P>,
) -> Result<(), E>
where
    D: Domain,
    E: From<P2pConnectError> + From<LinkError>,
    P: Purpose,
{
    let address = peer.reach.messages().ok_or_else(|| other_kind("requests", "messages"))?;
    endpoint.connect_within(control.message_timeout(), address)?;
    Ok(control.send(&Message::Ready {})?)
}

fn other_kind(theirs: &'static str, ours: &'static str) -> LinkError {
    HandshakeError::Reach { theirs, ours }.into()
}
