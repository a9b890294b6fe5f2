//! The devices with which a side reaches a server.

use super::choice::DeviceChoice;
use super::error::DevicesError;
use super::interfaces::{self, route};
use super::opened::{NotUsed, OpenedDevices, open_verbs};
use super::pairing::{Met, reaching};
use crate::session::{Asked, Backend, PeerTimeouts, ServerAddress, ask};
use polyrail::chain::Chain;
use polyrail::tcp::{DeviceOptions, open_devices};

/// Devices with which a side reaches a server.
#[derive(Debug)]
pub struct Reached {
    /// The devices.
    pub devices: OpenedDevices,
    /// Why they are network interfaces, if the user did not choose that.
    pub why_tcp: Option<String>,
}

/// Opens the devices that were chosen. If the choice leaves anything open, asks the server for its
/// devices: without a backend, uses RDMA devices if both sides have active ones, otherwise network
/// interfaces; without the names of network interfaces, uses those that share a network with the
/// server's. Calls `not_used` with the name of each device that was not named and is left out for
/// an unexpected reason, and the reason.
///
/// # Errors
///
/// See [`DevicesError`].
pub fn reach(
    server: &ServerAddress,
    choice: &DeviceChoice,
    timeouts: &PeerTimeouts,
    mut not_used: impl FnMut(&str, &dyn std::error::Error),
) -> Result<Reached, DevicesError> {
    let not_used: &mut NotUsed<'_> = &mut not_used;
    let chosen = |devices| Reached { devices, why_tcp: None };
    match choice.backend()? {
        Some(Backend::Verbs) => open_verbs(choice, not_used).map(chosen),
        Some(Backend::Tcp) if !choice.devices.is_empty() => {
            let opened = open_devices(choice.tcp_names(), &choice.tcp_options())?;
            Ok(chosen(OpenedDevices::Tcp(opened)))
        }
        Some(Backend::Tcp) => {
            let asked = asked(server, timeouts)?;
            if asked.offer.tcp.is_empty() {
                return Err(DevicesError::NotOffered { asked: Backend::Tcp });
            }
            open_reaching(&asked, &choice.tcp_options()).map(chosen)
        }
        None => {
            let verbs = open_verbs(choice, not_used);
            let asked = asked(server, timeouts)?;
            let why_not = match verbs {
                Ok(devices) if asked.offer.verbs => return Ok(chosen(devices)),
                Ok(_) => DevicesError::NotOffered { asked: Backend::Verbs },
                Err(why_not) => why_not,
            };
            if asked.offer.tcp.is_empty() {
                return Err(match asked.offer.verbs {
                    true => DevicesError::OnlyOther {
                        offered: Backend::Verbs,
                        source: Box::new(why_not),
                    },
                    false => DevicesError::NotOffered { asked: Backend::Tcp },
                });
            }
            let why_tcp = Some(Chain(&why_not).to_string());
            let devices = open_reaching(&asked, &choice.tcp_options())?;
            Ok(Reached { devices, why_tcp })
        }
    }
}

fn asked(server: &ServerAddress, timeouts: &PeerTimeouts) -> Result<Asked, DevicesError> {
    let address = || server.address.clone();
    ask(server, timeouts).map_err(|source| DevicesError::Ask { address: address(), source })
}

/// Opens the network interfaces that lead to those of the server.
fn open_reaching(asked: &Asked, options: &DeviceOptions) -> Result<OpenedDevices, DevicesError> {
    let Asked { offer, own, peer } = asked;
    let usable = interfaces::usable()?;
    let met = Met { own: *own, peer: *peer };
    let reaching = reaching(&usable, &offer.tcp, met, route);
    if reaching.is_empty() {
        let theirs = offer.tcp.iter().flatten().map(ToString::to_string).collect();
        return Err(DevicesError::NoInterface { theirs });
    }
    let open = reaching.iter().map(|own| interfaces::open(own, &usable, options));
    Ok(OpenedDevices::Tcp(open.collect::<Result<_, _>>()?))
}
