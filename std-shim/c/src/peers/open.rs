//! Opening objects, and adding peers.

use super::messages::set::MessagesOn;
use super::object::{AnyPeers, AnySet};
use super::requests::set::RequestsOn;
use crate::arguments::out;
use crate::call::call;
use crate::code::Code;
use crate::domain::{Devices, devices};
use crate::error::{Refusal, refuse};
use crate::link::reach_of_accepted;
use crate::sized::{given, read};
use crate::stack::on_a_deep_one;
use crate::table::{self, WORDS, exclusive};
use crate::types::{Domain, EndpointOptions, Link, Peers};
use polyrail::link::Reach;
use std::sync::atomic::AtomicPtr;

impl AnyPeers {
    fn add(
        &mut self,
        options: Option<&EndpointOptions>,
        toward: Option<&Reach>,
    ) -> Result<u64, Refusal> {
        let Self { common, set } = self;
        let set = set.connections();
        let place = set.add(options, toward)?;
        Ok(common.welcome(set, place))
    }
}

/// Creates a polling object for connections for requests over the devices of a domain, without
/// peers. `options`, which may be NULL, apply to peers that are added without options of their own.
/// Options with which no peer can be added on these devices are refused. The object has room for
/// 6144 queue pairs, which is enough for 1228 peers of 4 rails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_open(
    domain: *mut Domain,
    options: *const EndpointOptions,
    peers: *mut *mut Peers,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let place = unsafe { out(peers, "peers") }?;
        // SAFETY: guaranteed by the caller.
        let options = unsafe { read(options) }?;
        let devices = devices(domain)?;
        let made = on_a_deep_one(|| {
            let set = match devices {
                Devices::Software(domains) => {
                    AnySet::SoftwareRequests(RequestsOn::new(domains.to_vec(), &options)?)
                }
                #[cfg(feature = "verbs")]
                Devices::Verbs(domains) => {
                    AnySet::VerbsRequests(RequestsOn::new(domains.to_vec(), &options)?)
                }
                #[cfg(feature = "tcp")]
                Devices::Tcp(domains) => {
                    AnySet::TcpRequests(RequestsOn::new(domains.to_vec(), &options)?)
                }
            };
            // As an `AtomicPtr`, because raw pointers cannot be sent between threads.
            table::insert(AnyPeers::new(set), &[0; WORDS]).map(AtomicPtr::new)
        });
        place.write(made?.into_inner());
        Ok(())
    })
}

/// Creates a polling object for connections for messages over the devices of a domain, without
/// peers. `options`, which may be NULL, apply to all its peers. Options with which no peer can be
/// added on these devices are refused. At most `most` peers can exist at a time. Each needs 512
/// places in the devices' shared receive queues, so small queues limit the number further. Beyond
/// either limit polyrail_peers_add returns POLYRAIL_CODE_TOO_MANY.
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

/// Adds a peer, and stores its number, which is never used again in this object. The lowest 16 bits
/// of the number are a small index, counted from 0, which differs from the indices of all other
/// present peers. If `options` is NULL, the options apply that the object was opened with; for
/// messages it must be NULL. Other peers keep working meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_add(
    peers: *mut Peers,
    options: *const EndpointOptions,
    peer: *mut u64,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let place = unsafe { out(peer, "peer") }?;
        // SAFETY: guaranteed by the caller.
        let options = unsafe { given(options) }?;
        let peers = &mut *exclusive(peers)?;
        place.write(on_a_deep_one(|| peers.add(options.as_ref(), None))?);
        Ok(())
    })
}

/// Adds a peer as polyrail_peers_add does, for the other side of a link that a listener accepted.
/// Its rails use the devices of the domain in the order of the other side's devices, so that both
/// ends of a rail are in one network: hosts may list their interfaces in different orders. If no
/// device is in a network of the other side's, the order is that of the domain; so it is if rails
/// cannot use the devices in pairs in turn, which is a line of the log, with the reason.
/// Messages also keep the order of the domain if some of its devices have no counterpart, or more
/// rails than others.
/// POLYRAIL_CODE_MISMATCH: no device here can reach one of the other side's; the message names
/// both. The link stays the caller's; pass it to polyrail_peers_meet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_add_toward(
    peers: *mut Peers,
    options: *const EndpointOptions,
    link: *mut Link,
    peer: *mut u64,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let place = unsafe { out(peer, "peer") }?;
        // SAFETY: guaranteed by the caller.
        let options = unsafe { given(options) }?;
        let peers = &mut *exclusive(peers)?;
        let toward = reach_of_accepted(link)?;
        place.write(on_a_deep_one(|| peers.add(options.as_ref(), Some(&toward)))?);
        Ok(())
    })
}
