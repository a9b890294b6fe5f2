//! The thread that sees to connections which NCCL does not call: what their peers say is heard at once, and somebody
//! polls. It lives as long as there are any.

use super::all::CONNECTIONS;
use super::connection::Connection;
use crate::guard::{Code, Refusal};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How often it looks.
const PERIOD: Duration = Duration::from_millis(10);

/// A link that has news is looked at once, and again only when it is armed anew: nothing that is left of a connection
/// which has panicked, or was closed while a forked process has its link too, keeps the thread busy.
const NEWS: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ONESHOT);

/// Links with news that are taken at a time.
const EVENTS: usize = 64;

/// Whether it lives.
static LIVES: Mutex<bool> = Mutex::new(false);

/// What links tell that they have news.
static LINKS: OnceLock<OwnedFd> = OnceLock::new();

fn links() -> Result<&'static OwnedFd, Errno> {
    if let Some(links) = LINKS.get() {
        return Ok(links);
    }
    let links = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    Ok(LINKS.get_or_init(|| links))
}

/// From now on it sees to the connection in this place.
pub(crate) fn entrust(place: u16) -> Result<(), Refusal> {
    let refused = |error: &dyn std::fmt::Display| {
        Refusal::new(Code::System, format!("the thread that sees to connections: {error}"))
    };
    {
        let slot = CONNECTIONS.at(place);
        let Some(connection) = slot.as_ref().ok().and_then(|slot| slot.value.as_ref()) else {
            return Ok(());
        };
        let links = links().map_err(|error| refused(&error))?;
        epoll::add(links, connection.link_fd(), told(place), NEWS)
            .map_err(|error| refused(&error))?;
    }
    let mut lives = LIVES.lock().unwrap_or_else(PoisonError::into_inner);
    if !*lives {
        let thread = thread::Builder::new().name("polyrail-care".into());
        thread.spawn(live).map_err(|error| refused(&error))?;
        *lives = true;
    }
    Ok(())
}

/// What the link of the connection in this place tells.
const fn told(place: u16) -> epoll::EventData {
    epoll::EventData::new_u64(place as u64)
}

/// It does not see to this connection any more, which nobody finds now.
pub(crate) fn dismiss(connection: &Connection) {
    if let Some(links) = LINKS.get() {
        // If it is not there, it has no news.
        _ = epoll::delete(links, connection.link_fd());
    }
}

fn live() {
    let mut next = Instant::now() + PERIOD;
    let mut events = Vec::with_capacity(EVENTS);
    loop {
        hear(&mut events);
        if Instant::now() >= next {
            if !go_round() {
                return;
            }
            next = Instant::now() + PERIOD;
        }
    }
}

/// Waits for news, but not for long, and lets connections hear them.
fn hear(events: &mut Vec<epoll::Event>) {
    events.clear();
    let timeout = Timespec { tv_sec: 0, tv_nsec: PERIOD.as_nanos() as i64 };
    let came = match links() {
        Ok(links) => epoll::wait(links, spare_capacity(events), Some(&timeout)),
        Err(error) => Err(error),
    };
    if came.is_err() {
        thread::sleep(PERIOD);
    }
    for event in events.iter() {
        let place = event.data.u64() as u16;
        visit(place, |connection| {
            connection.hear();
            if !connection.has_ended()
                && let Ok(links) = links()
            {
                // If it is not there, the event was an older one's, and it will be added.
                _ = epoll::modify(links, connection.link_fd(), told(place), NEWS);
            }
        });
    }
}

/// A panic poisons the connection, and nothing else.
fn visit(place: u16, what: impl FnOnce(&mut Connection)) {
    _ = catch_unwind(AssertUnwindSafe(|| {
        if let Ok(mut slot) = CONNECTIONS.at(place)
            && let Some(connection) = &mut slot.value
        {
            what(connection);
        }
    }));
}

/// Visits connections that nobody else has now, and returns whether there are any.
fn go_round() -> bool {
    for place in 0..CONNECTIONS.bound() {
        _ = catch_unwind(|| {
            if let Some(mut slot) = CONNECTIONS.try_at(place as u16)
                && let Some(connection) = &mut slot.value
            {
                connection.care();
            }
        });
    }
    let mut lives = LIVES.lock().unwrap_or_else(PoisonError::into_inner);
    *lives = CONNECTIONS.len() > 0;
    *lives
}
