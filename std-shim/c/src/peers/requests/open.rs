//! Creating and replacing peers for requests, and failing a rail of a peer.

use super::set::{RequestsOn, Routes, build_failure};
use crate::arguments::out;
use crate::call::call;
use crate::code::Code;
use crate::domain::{Devices, devices};
use crate::error::{Refusal, refuse};
use crate::options::requests;
use crate::peers::common::Common;
use crate::peers::members::given;
use crate::peers::object::{AnyPeers, AnySet, on_requests};
use crate::sized::read;
use crate::stack::on_a_deep_one;
use crate::table::{self, WORDS, exclusive};
use crate::types::{Domain, EndpointOptions, POLYRAIL_RAIL_NOTIFY, Peers};
use polyrail::backend;
use polyrail::endpoint::{EndpointBuilder, EndpointSet};
use polyrail::virtual_qp::RailId;
use std::collections::VecDeque;
use std::sync::atomic::AtomicPtr;

impl<D: backend::Domain> RequestsOn<D> {
    fn new(domains: Vec<D>, builder: EndpointBuilder) -> Result<Self, Refusal> {
        let nobody: [(EndpointBuilder, Vec<&D>); 0] = [];
        let set = EndpointSet::build(nobody).map_err(|error| build_failure(&error))?;
        let (routes, backlog) = (Routes::default(), VecDeque::new());
        Ok(Self { set, domains, builder, routes, backlog })
    }

    fn replace(
        &mut self,
        common: &mut Common,
        peer: u64,
        options: Option<&EndpointOptions>,
    ) -> Result<u64, Refusal> {
        let builder = options.map_or(Ok(self.builder), requests)?;
        let place = common.numbers.place(peer)?;
        let old_number = self.set.get(place).map(|qp| qp.virtual_qp().virtual_qp_num());
        let domains: Vec<&D> = self.domains.iter().collect();
        let old = self.set.rebuild(place, builder, &domains);
        drop(old.map_err(|error| build_failure(&error))?);
        if let Some(number) = old_number {
            self.routes.remove(&number);
        }
        self.backlog.retain(|completion| completion.peer != peer);
        common.forget(place, peer);
        Ok(common.welcome(self, place))
    }

    fn fail_rail(&mut self, common: &Common, peer: u64, rail: RailId) -> Result<(), Refusal> {
        let qp = self.member(common, peer)?;
        if qp.virtual_qp().physical(rail).is_none() {
            return refuse(Code::Argument, format_args!("the peer has no {rail}"));
        }
        qp.fail_rail(rail);
        Ok(())
    }
}

/// Creates a polling object for connections for requests over the devices of a domain, without
/// peers. `options`, which may be NULL, apply to peers that are added without options of their own.
/// The object has room for 6144 queue pairs, which is enough for 1228 peers of 4 rails.
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
        let builder = requests(&unsafe { read(options) }?)?;
        let devices = devices(domain)?;
        let made = on_a_deep_one(|| {
            let set = match devices {
                Devices::Software(domains) => {
                    AnySet::SoftwareRequests(RequestsOn::new(domains.to_vec(), builder)?)
                }
                #[cfg(feature = "verbs")]
                Devices::Verbs(domains) => {
                    AnySet::VerbsRequests(RequestsOn::new(domains.to_vec(), builder)?)
                }
                #[cfg(feature = "tcp")]
                Devices::Tcp(domains) => {
                    AnySet::TcpRequests(RequestsOn::new(domains.to_vec(), builder)?)
                }
            };
            // As an `AtomicPtr`, because raw pointers cannot be sent between threads.
            table::insert(AnyPeers::new(set), &[0; WORDS]).map(AtomicPtr::new)
        });
        place.write(made?.into_inner());
        Ok(())
    })
}

/// Removes a peer for requests, failed or not, and adds a new peer in its place, which is not
/// connected. The numbers of the two peers have the same lowest 16 bits. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_replace(
    peers: *mut Peers,
    peer: u64,
    options: *const EndpointOptions,
    new_peer: *mut u64,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let place = unsafe { out(new_peer, "new_peer") }?;
        // SAFETY: guaranteed by the caller.
        let options = unsafe { given(options) }?;
        let new_peer = on_requests!(&mut *exclusive(peers)?, (common, requests) => {
            on_a_deep_one(|| requests.replace(common, peer, options.as_ref()))
        });
        place.write(new_peer?);
        Ok(())
    })
}

/// Fails one rail of a peer for requests, for example before its device is removed. `rail` may be
/// POLYRAIL_RAIL_NOTIFY. With rerouting, other rails take over.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_peers_fail_rail(peers: *mut Peers, peer: u64, rail: u32) -> Code {
    call(|| {
        let rail = match (rail, u8::try_from(rail)) {
            (POLYRAIL_RAIL_NOTIFY, _) => RailId::Notify,
            (_, Ok(number)) => RailId::Data(number),
            _ => return refuse(Code::Argument, format_args!("there is no rail {rail}")),
        };
        on_requests!(&mut *exclusive(peers)?, (common, requests) => {
            requests.fail_rail(common, peer, rail)
        })
    })
}
