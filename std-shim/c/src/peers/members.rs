//! How peers come and go.

use super::object::{AnyPeers, PeersOn, Routes, on_backend};
use crate::arguments::out;
use crate::call::call;
use crate::code::Code;
use crate::domain::{Devices, devices};
use crate::error::{Failure, Refusal, refuse};
use crate::kept::Kept;
use crate::news::News;
use crate::numbers::Numbers;
use crate::options::requests;
use crate::pace::Pace;
use crate::sized::read;
use crate::stack::on_a_deep_one;
use crate::table::{self, WORDS, exclusive};
use crate::types::{Domain, EndpointOptions, POLYRAIL_RAIL_NOTIFY, Peers};
use polyrail::backend;
use polyrail::endpoint::{BuildError, EndpointBuilder, EndpointSet};
use polyrail::virtual_qp::RailId;
use std::collections::VecDeque;
use std::sync::atomic::AtomicPtr;

/// The code of what cannot be made.
pub(crate) fn build_failure(error: &BuildError) -> Failure {
    let code = match error {
        BuildError::Device { .. } => Code::Device,
        BuildError::QueuePairs { .. } | BuildError::Cqs(_) => Code::TooMany,
        _ => Code::Argument,
    };
    Failure::of(code, error)
}

impl<D: backend::Domain> PeersOn<D> {
    fn new(domains: Vec<D>, builder: EndpointBuilder) -> Result<Self, Refusal> {
        let nobody: [(EndpointBuilder, Vec<&D>); 0] = [];
        let set = EndpointSet::build(nobody).map_err(|error| build_failure(&error))?;
        Ok(Self {
            set,
            domains,
            builder,
            numbers: Numbers::default(),
            routes: Routes::default(),
            kept: Vec::new(),
            news: News::default(),
            backlog: VecDeque::new(),
            pace: Pace::default(),
        })
    }

    fn add(&mut self, builder: EndpointBuilder) -> Result<u64, Refusal> {
        let domains: Vec<&D> = self.domains.iter().collect();
        let added = self.set.add(builder, &domains);
        let place = added.map_err(|error| build_failure(&error))?;
        Ok(self.welcome(place))
    }

    /// A new peer is in this place.
    fn welcome(&mut self, place: usize) -> u64 {
        let peer = self.numbers.add(place);
        Kept::welcome(&mut self.kept, place);
        if let Some(qp) = self.set.get(place) {
            self.routes.insert(qp.virtual_qp().virtual_qp_num(), peer);
        }
        peer
    }

    /// Nothing is told of the peer in this place any more.
    fn forget(&mut self, place: usize, peer: u64) {
        if let Some(qp) = self.set.get(place) {
            self.routes.remove(&qp.virtual_qp().virtual_qp_num());
        }
        self.kept[place].end_link();
        self.numbers.remove(place);
        self.forget_news(peer);
    }

    fn forget_news(&mut self, peer: u64) {
        self.news.forget(peer);
        self.backlog.retain(|completion| completion.peer != peer);
    }

    fn remove(&mut self, peer: u64) -> Result<(), Refusal> {
        let (place, _) = self.member(peer)?;
        self.forget(place, peer);
        drop(self.set.remove(place));
        Ok(())
    }

    fn replace(&mut self, peer: u64, builder: EndpointBuilder) -> Result<u64, Refusal> {
        let place = self.numbers.place(peer)?;
        let old_number = self.set.get(place).map(|qp| qp.virtual_qp().virtual_qp_num());
        let domains: Vec<&D> = self.domains.iter().collect();
        let old = self.set.rebuild(place, builder, &domains);
        drop(old.map_err(|error| build_failure(&error))?);
        if let Some(number) = old_number {
            self.routes.remove(&number);
        }
        self.kept[place].end_link();
        self.forget_news(peer);
        Ok(self.welcome(place))
    }

    fn fail(&mut self, peer: u64) -> Result<(), Refusal> {
        self.member(peer)?.1.fail_all();
        Ok(())
    }

    fn fail_rail(&mut self, peer: u64, rail: RailId) -> Result<(), Refusal> {
        let (_, qp) = self.member(peer)?;
        if qp.virtual_qp().physical(rail).is_none() {
            return refuse(Code::Argument, format_args!("the peer has no {rail}"));
        }
        qp.fail_rail(rail);
        Ok(())
    }

    /// Ends all links, so that the other sides know.
    fn close(mut self) {
        self.kept.iter_mut().for_each(Kept::end_link);
    }
}

/// # Safety
///
/// As of all arguments.
unsafe fn chosen(
    options: *const EndpointOptions,
    default: EndpointBuilder,
) -> Result<EndpointBuilder, Refusal> {
    if options.is_null() {
        return Ok(default);
    }
    // SAFETY: the caller's promise.
    requests(&unsafe { read(options) }?)
}

/// Makes a polling object for connections for requests over the devices of a domain, without peers yet. `options`,
/// which may be NULL, are those of its peers, unless they have their own. It has room for 6144 queue pairs: 1228 peers
/// of 4 rails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_open(
    domain: *mut Domain,
    options: *const EndpointOptions,
    peers: *mut *mut Peers,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(peers, "peers") }?;
        // SAFETY: the caller's promise.
        let builder = requests(&unsafe { read(options) }?)?;
        let devices = devices(domain)?;
        let made = on_a_deep_one(|| {
            let any = match devices {
                Devices::Software(domains) => {
                    AnyPeers::Software(PeersOn::new(domains.to_vec(), builder)?)
                }
                #[cfg(feature = "verbs")]
                Devices::Verbs(domains) => {
                    AnyPeers::Verbs(PeersOn::new(domains.to_vec(), builder)?)
                }
            };
            // A handle goes from thread to thread.
            table::insert(any, &[0; WORDS]).map(AtomicPtr::new)
        });
        place.write(made?.into_inner());
        Ok(())
    })
}

/// Closes it with all its peers and their links. Nothing is reported any more, and no device accesses memory of
/// requests any more.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_peers_close(peers: *mut Peers) -> Code {
    call(|| {
        on_backend!(*table::remove(peers)?, peers => peers.close());
        Ok(())
    })
}

/// Adds a peer, and stores its number, which no other ever has in this object. Its lowest 16 bits are those of no
/// other at the same time, and are counted from 0 on. `options` may be NULL: those of polyrail_peers_open. The others
/// go on meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_add(
    peers: *mut Peers,
    options: *const EndpointOptions,
    peer: *mut u64,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(peer, "peer") }?;
        on_backend!(&mut *exclusive(peers)?, peers => {
            // SAFETY: the caller's promise.
            let builder = unsafe { chosen(options, peers.builder) }?;
            place.write(on_a_deep_one(|| peers.add(builder))?);
        });
        Ok(())
    })
}

/// Gives a connection up: what was posted comes back, as flushed or as it ended, in the next polls.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_peers_fail(peers: *mut Peers, peer: u64) -> Code {
    call(|| on_backend!(&mut *exclusive(peers)?, peers => peers.fail(peer)))
}

/// Removes a peer, and its link. What was not reported never is, and no device accesses memory of its requests any
/// more; who wants the reports calls polyrail_peers_fail before, and polls until they are there: over several rails until
/// `unreported` of polyrail_peers_info is 0, over a single one until there are as many as were posted.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_peers_remove(peers: *mut Peers, peer: u64) -> Code {
    call(|| on_backend!(&mut *exclusive(peers)?, peers => peers.remove(peer)))
}

/// Removes a peer, whose connection has failed or not, and adds another one in its place, not connected yet, with the
/// same lowest 16 bits of its number. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_replace(
    peers: *mut Peers,
    peer: u64,
    options: *const EndpointOptions,
    new_peer: *mut u64,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(new_peer, "new_peer") }?;
        on_backend!(&mut *exclusive(peers)?, peers => {
            // SAFETY: the caller's promise.
            let builder = unsafe { chosen(options, peers.builder) }?;
            place.write(on_a_deep_one(|| peers.replace(peer, builder))?);
        });
        Ok(())
    })
}

/// Fails one rail, such as one whose device is to be taken away; POLYRAIL_RAIL_NOTIFY. With rerouting others take
/// over.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_peers_fail_rail(peers: *mut Peers, peer: u64, rail: u32) -> Code {
    call(|| {
        let rail = match (rail, u8::try_from(rail)) {
            (POLYRAIL_RAIL_NOTIFY, _) => RailId::Notify,
            (_, Ok(number)) => RailId::Data(number),
            _ => return refuse(Code::Argument, format_args!("there is no rail {rail}")),
        };
        on_backend!(&mut *exclusive(peers)?, peers => peers.fail_rail(peer, rail))
    })
}
