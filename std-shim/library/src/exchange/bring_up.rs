//! From two hellos to two endpoints that can talk.

use super::control::Control;
use super::error::ControlError;
use super::hello::Hello;
use super::message::Message;
use super::purpose::Purpose;
use crate::backend::Connect;
use crate::endpoint::{ConnectError, EndpointQp};

/// Connects an endpoint with the peer's, once both have said hello, in the only order that is safe:
/// both agree; `post_receives` posts what the peer's first requests will meet, while no queue pair can
/// be reached; the queue pairs go to RTR and RTS; this side tells the other that it is ready, and waits
/// until the other one is. Afterwards requests can be posted.
///
/// # Errors
///
/// The two endpoints do not match (nothing was posted or moved); a queue pair refused; `post_receives`
/// failed; the other side gave up, is gone, or does not answer.
pub fn bring_up<Q, E, P>(
    endpoint: &mut EndpointQp<Q>,
    control: &mut Control<P>,
    peer: &Hello<P>,
    post_receives: impl FnOnce(&mut EndpointQp<Q>) -> Result<(), E>,
) -> Result<(), E>
where
    Q: Connect,
    E: From<ConnectError> + From<ControlError>,
    P: Purpose,
{
    get_ready(endpoint, control, peer, post_receives)?;
    Ok(control.expect_ready()?)
}

/// [`bring_up`] without the wait for the other side.
///
/// # Errors
///
/// As [`bring_up`].
pub fn get_ready<Q, E, P>(
    endpoint: &mut EndpointQp<Q>,
    control: &mut Control<P>,
    peer: &Hello<P>,
    post_receives: impl FnOnce(&mut EndpointQp<Q>) -> Result<(), E>,
) -> Result<(), E>
where
    Q: Connect,
    E: From<ConnectError> + From<ControlError>,
    P: Purpose,
{
    endpoint.connect_after(&peer.endpoint, post_receives)?;
    Ok(control.send(&Message::Ready {})?)
}
