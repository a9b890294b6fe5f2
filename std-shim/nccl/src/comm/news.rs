//! Which links have something to read, and at which doors there are senders.

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

/// A link with news is reported once, and again only after it was armed again: a connection that has
/// panicked, or was closed while a forked process has its socket, too, keeps no thread busy.
const NEWS: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ONESHOT);

/// The number of doors in events. Connections have their places, which are smaller.
const DOOR: u64 = u64::MAX;

/// Links with news that are taken at a time.
const EVENTS: usize = 64;

/// The set of links and doors that are watched.
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

/// The link of the connection in this place is new.
pub(super) fn watch(place: u16, link: BorrowedFd<'_>) -> Result<(), Errno> {
    epoll::add(links()?, link, data(place), NEWS)
}

/// Reports the next news of a link, once its messages were taken.
pub(super) fn arm(place: u16, link: BorrowedFd<'_>) {
    if let Ok(links) = links() {
        // If it is not there, the news were an older one's, and it will be added.
        _ = epoll::modify(links, link, data(place), NEWS);
    }
}

/// Reports the next sender at a door.
pub(super) fn arm_door(door: BorrowedFd<'_>) -> Result<(), Errno> {
    let (links, data) = (links()?, epoll::EventData::new_u64(DOOR));
    match epoll::modify(links, door, data, NEWS) {
        // It is a new one.
        Err(Errno::NOENT) => epoll::add(links, door, data, NEWS),
        armed => armed,
    }
}

/// It is not of interest any more.
pub(super) fn forget(link: BorrowedFd<'_>) {
    if let Some(links) = LINKS.get() {
        // If it is not there, it has no news.
        _ = epoll::delete(links, link);
    }
}

/// Who has news.
#[derive(Clone, Copy, Debug)]
pub(super) enum Who {
    /// The link of the connection in this place.
    Link(u16),
    Door,
}

/// Those that have news, as soon as there are any.
#[derive(Default)]
pub(super) struct News(Vec<epoll::Event>);

impl News {
    /// Waits for so long at most.
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
