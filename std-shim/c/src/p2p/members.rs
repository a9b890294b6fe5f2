//! How peers for messages come and go.

use super::object::{AnyP2p, P2pOn, on_backend};
use super::requests::Requests;
use crate::arguments::out;
use crate::call::call;
use crate::code::Code;
use crate::domain::{Devices, devices};
use crate::error::{Failure, Refusal, refuse};
use crate::kept::Kept;
use crate::news::News;
use crate::numbers::Numbers;
use crate::options::{messages, messages_rails};
use crate::pace::Pace;
use crate::sized::read;
use crate::stack::on_a_deep_one;
use crate::table::{self, WORDS, exclusive};
use crate::types::{Domain, EndpointOptions, P2p};
use polyrail::backend;
use polyrail::p2p::{P2pBuildError, P2pEndpointSet, P2pRemoveError};
use std::sync::atomic::AtomicPtr;
use std::time::{Duration, Instant};

/// How long closing waits for devices.
const PATIENCE: Duration = Duration::from_secs(10);

/// Completions of one poll while closing.
const BUDGET: usize = 64;

fn build_failure(error: &P2pBuildError) -> Failure {
    let code = match error {
        P2pBuildError::Rails(error) => return crate::peers::build_failure(error),
        P2pBuildError::Members { .. }
        | P2pBuildError::Keys(_)
        | P2pBuildError::Attach(_)
        | P2pBuildError::Pool(_) => Code::TooMany,
        P2pBuildError::Memory(_) => Code::Device,
        _ => Code::Argument,
    };
    Failure::of(code, error)
}

impl<D: backend::Domain> P2pOn<D> {
    fn new(domains: &[D], options: &EndpointOptions, most: u16) -> Result<Self, Refusal> {
        let builder = messages(options)?;
        let domains: Vec<&D> = domains.iter().collect();
        let set = P2pEndpointSet::build(&builder, &domains, most);
        Ok(Self {
            set: Box::new(set.map_err(|error| build_failure(&error))?),
            reroutes: crate::options::reroutes(options)?,
            rails: messages_rails(options),
            numbers: Numbers::default(),
            kept: Vec::new(),
            requests: Requests::default(),
            news: News::default(),
            pace: Pace::default(),
        })
    }

    fn add(&mut self) -> Result<u64, Refusal> {
        let place = self.set.add().map_err(|error| build_failure(&error))?;
        Kept::welcome(&mut self.kept, place);
        Ok(self.numbers.add(place))
    }

    fn fail(&mut self, peer: u64) -> Result<(), Refusal> {
        self.member(peer)?.1.fail();
        Ok(())
    }

    fn remove(&mut self, peer: u64) -> Result<(), Refusal> {
        let (place, member) = self.member(peer)?;
        member.fail();
        match self.set.remove(place) {
            Ok(()) => {}
            Err(P2pRemoveError::NotDrained { .. }) => return Err(Refusal::NotNow),
            Err(error) => return Err(Failure::of(Code::Peer, &error).into()),
        }
        self.kept[place].end_link();
        self.numbers.remove(place);
        self.news.forget(peer);
        self.requests.forget_of(peer);
        Ok(())
    }

    /// Whether there are peers that go on without a completion queue that broke: others take over for its rails.
    pub(super) fn survives(&self) -> bool {
        let works = |place: usize| {
            let member = self.set.member(place);
            member.is_some_and(|member| member.send_failure().is_none())
        };
        self.reroutes && self.numbers.all().any(|(place, _)| works(place))
    }

    /// Ends all links and messages; whether no device accesses memory of messages any more.
    fn end(&mut self) -> bool {
        self.kept.iter_mut().for_each(Kept::end_link);
        let numbers: Vec<usize> = self.set.numbers().collect();
        for place in &numbers {
            if let Some(member) = self.set.member_mut(*place) {
                member.fail();
            }
        }
        let begin = Instant::now();
        let is_drained = |set: &super::object::Set<D>| {
            numbers.iter().all(|place| set.member(*place).is_none_or(|member| member.is_drained()))
        };
        while !is_drained(&self.set) {
            if self.set.poll(BUDGET).is_err() || begin.elapsed() >= PATIENCE {
                return is_drained(&self.set);
            }
        }
        true
    }
}

/// Makes a polling object for connections for messages over the devices of a domain, without peers yet. `options`,
/// which may be NULL, are those of its peers, of which there are `most` at a time, or as many as have 512 places each in
/// the devices' shared receive queues, if that is fewer: then polyrail_p2p_add returns POLYRAIL_CODE_TOO_MANY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_p2p_open(
    domain: *mut Domain,
    options: *const EndpointOptions,
    most: u32,
    p2p: *mut *mut P2p,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(p2p, "p2p") }?;
        // SAFETY: the caller's promise.
        let options = unsafe { read(options) }?;
        let most = match u16::try_from(most) {
            Ok(most @ 1..) => most,
            _ => return refuse(Code::Argument, format_args!("most is {most}: 1 to 65535 peers")),
        };
        let devices = devices(domain)?;
        let made = on_a_deep_one(|| {
            let any = match devices {
                Devices::Software(domains) => {
                    AnyP2p::Software(P2pOn::new(&domains, &options, most)?)
                }
                #[cfg(feature = "verbs")]
                Devices::Verbs(domains) => AnyP2p::Verbs(P2pOn::new(&domains, &options, most)?),
            };
            // A handle goes from thread to thread.
            table::insert(any, &[0; WORDS]).map(AtomicPtr::new)
        });
        place.write(made?.into_inner());
        Ok(())
    })
}

/// Closes it with all its peers and their links, and waits until no device accesses memory of messages any more. If
/// that takes more than 10 seconds, POLYRAIL_CODE_STILL_ACCESSED is returned: the memory stays registered, and is not
/// the caller's again.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_p2p_close(p2p: *mut P2p) -> Code {
    call(|| {
        let mut removed = table::remove(p2p)?;
        if on_backend!(&mut *removed, p2p => p2p.end()) {
            return Ok(());
        }
        // Its queue pairs would be destroyed, but its devices do not answer.
        std::mem::forget(removed);
        refuse(Code::StillAccessed, "messages did not end, though they were given up")
    })
}

/// Adds a peer, and stores its number, which no other ever has in this object. Its lowest 16 bits are those of no
/// other at the same time, and are counted from 0 on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_p2p_add(p2p: *mut P2p, peer: *mut u64) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(peer, "peer") }?;
        place.write(on_backend!(&mut *exclusive(p2p)?, p2p => on_a_deep_one(|| p2p.add())?));
        Ok(())
    })
}

/// Gives a connection up: its requests fail, as soon as no device accesses their memory any more.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_p2p_fail(p2p: *mut P2p, peer: u64) -> Code {
    call(|| on_backend!(&mut *exclusive(p2p)?, p2p => p2p.fail(peer)))
}

/// Gives a connection up, and removes the peer when no device accesses memory of its messages any more;
/// POLYRAIL_CODE_NOT_NOW: poll, and call again. Afterwards its requests are no more.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_p2p_remove(p2p: *mut P2p, peer: u64) -> Code {
    call(|| on_backend!(&mut *exclusive(p2p)?, p2p => on_a_deep_one(|| p2p.remove(peer))))
}
