//! Creating peers for messages.

use super::set::{MessagesOn, build_failure};
use super::under_way::UnderWay;
use crate::arguments::out;
use crate::call::call;
use crate::code::Code;
use crate::domain::{Devices, devices};
use crate::error::{Refusal, refuse};
use crate::options::{messages, messages_rails, rail_failure};
use crate::peers::object::{AnyPeers, AnySet};
use crate::sized::read;
use crate::stack::on_a_deep_one;
use crate::table::{self, WORDS};
use crate::types::{Domain, EndpointOptions, Peers};
use polyrail::backend;
use polyrail::p2p::P2pEndpointSet;
use polyrail::virtual_qp::RailFailure;
use std::sync::atomic::AtomicPtr;

impl<D: backend::Domain> MessagesOn<D> {
    fn new(domains: &[D], options: &EndpointOptions, most: u16) -> Result<Self, Refusal> {
        let builder = messages(options)?;
        let domains: Vec<&D> = domains.iter().collect();
        let set = P2pEndpointSet::build(&builder, &domains, most);
        Ok(Self {
            set: Box::new(set.map_err(|error| build_failure(&error))?),
            reroutes: rail_failure(options)? == RailFailure::Reroute,
            rails: messages_rails(options),
            under_way: UnderWay::default(),
        })
    }
}

/// Creates a polling object for connections for messages over the devices of a domain, without
/// peers. `options`, which may be NULL, apply to all its peers. At most `most` peers can exist at a
/// time. Each needs 512 places in the devices' shared receive queues, so small queues limit the
/// number further. Beyond either limit polyrail_peers_add returns POLYRAIL_CODE_TOO_MANY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_messages_open(
    domain: *mut Domain,
    options: *const EndpointOptions,
    most: u32,
    peers: *mut *mut Peers,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let place = unsafe { out(peers, "peers") }?;
        // SAFETY: guaranteed by the caller.
        let options = unsafe { read(options) }?;
        let most = match u16::try_from(most) {
            Ok(most @ 1..) => most,
            _ => return refuse(Code::Argument, format_args!("most is {most}: 1 to 65535 peers")),
        };
        let devices = devices(domain)?;
        let made = on_a_deep_one(|| {
            let set = match devices {
                Devices::Software(domains) => {
                    AnySet::SoftwareMessages(MessagesOn::new(&domains, &options, most)?)
                }
                #[cfg(feature = "verbs")]
                Devices::Verbs(domains) => {
                    AnySet::VerbsMessages(MessagesOn::new(&domains, &options, most)?)
                }
                #[cfg(feature = "tcp")]
                Devices::Tcp(domains) => {
                    AnySet::TcpMessages(MessagesOn::new(&domains, &options, most)?)
                }
            };
            // As an `AtomicPtr`, because raw pointers cannot be sent between threads.
            table::insert(AnyPeers::new(set), &[0; WORDS]).map(AtomicPtr::new)
        });
        place.write(made?.into_inner());
        Ok(())
    })
}
