//! Events: links that have something to read, and doors at which a sender waits.

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

/// A link with something to read is reported once, and again only after it is armed again. So a
/// link does not keep the thread busy if its connection panicked, or was closed while a forked
/// process still has the link.
const NEWS: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ONESHOT);

/// The event data of doors, which is not the place of any connection.
const DOOR: u64 = u64::MAX;

/// Maximum events per wait.
const EVENTS: usize = 64;

/// The epoll instance that watches links and doors.
static LINKS: OnceLock<OwnedFd> = OnceLock::new();

fn links() -> Result<&'static OwnedFd, Errno> {
    if let Some(links) = LINKS.get() {
        return Ok(links);
    }
    let links = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    Ok(LINKS.get_or_init(|| links))
}

const fn data(place: u16) -> epoll::EventData {
    epoll::EventData::new_u64(place as u64)
}

/// Watches the new link of the connection in this place. May be repeated.
pub(super) fn watch(place: u16, link: BorrowedFd<'_>) -> Result<(), Errno> {
    add(link, data(place))
}

fn add(socket: BorrowedFd<'_>, data: epoll::EventData) -> Result<(), Errno> {
    let links = links()?;
    match epoll::add(links, socket, data, NEWS) {
        Err(Errno::EXIST) => epoll::modify(links, socket, data, NEWS),
        added => added,
    }
}

/// Arms the link again after its messages were read.
pub(super) fn arm(place: u16, link: BorrowedFd<'_>) {
    if let Ok(links) = links() {
        // If this fails, the event was for an earlier link; the new link will be added.
        _ = epoll::modify(links, link, data(place), NEWS);
    }
}

/// Arms a door, so that it is reported once.
pub(super) fn arm_door(door: BorrowedFd<'_>) -> Result<(), Errno> {
    add(door, epoll::EventData::new_u64(DOOR))
}

/// Stops watching a link.
pub(super) fn forget(link: BorrowedFd<'_>) {
    if let Some(links) = LINKS.get() {
        // An error means that it is not watched.
        _ = epoll::delete(links, link);
    }
}

/// The source of an event.
#[derive(Clone, Copy, Debug)]
pub(super) enum Who {
    /// The link of the connection in this place.
    Link(u16),
    Door,
}

/// A buffer of events.
#[derive(Default)]
pub(super) struct News(Vec<epoll::Event>);

impl News {
    /// Waits for events for up to `at_most`.
    pub(super) fn wait(&mut self, at_most: Duration) -> Result<impl Iterator<Item = Who>, Errno> {
        let Self(events) = self;
        events.clear();
        events.reserve(EVENTS);
        let timeout =
            Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: at_most.subsec_nanos().into() };
        epoll::wait(links()?, spare_capacity(events), Some(&timeout))?;
        Ok(events.iter().map(|event| match event.data.u64() {
            DOOR => Who::Door,
            place => Who::Link(place as u16),
        }))
    }
}
