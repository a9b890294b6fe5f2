//! The thread that serves connections that NCCL calls rarely or not at all: it handles messages of
//! peers at once, lets peers resume broken links, and polls. It runs while there are connections.

use super::all::CONNECTIONS;
use super::connection::Connection;
use super::news::{self, News, Who};
use crate::guard::{Code, Refusal};
use crate::meet::door;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Time between rounds over all connections.
const PERIOD: Duration = Duration::from_millis(10);

/// Whether the thread runs.
static RUNS: Mutex<bool> = Mutex::new(false);

/// Registers the connection in this place with the thread, which is started if necessary. If this
/// host lacks something for that, such as a file descriptor, the call may be repeated.
pub(crate) fn register(place: u16) -> Result<(), Refusal> {
    let refused = |error: &dyn std::fmt::Display| {
        Refusal::new(
            Code::System,
            format!("cannot start the thread that serves connections: {error}"),
        )
    };
    {
        let mut slot = CONNECTIONS.at(place).ok();
        let Some(connection) = slot.as_mut().and_then(|slot| slot.value.as_mut()) else {
            return Ok(());
        };
        connection.watch(place).map_err(|error| refused(&error))?;
    }
    door::with_sockets(news::arm_door).map_err(|error| refused(&error))?;
    let mut runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
    if !*runs {
        let thread = thread::Builder::new().name("polyrail-care".into());
        thread.spawn(live).map_err(|error| refused(&error))?;
        *runs = true;
    }
    Ok(())
}

/// Unregisters a connection that was removed from the table of connections.
pub(crate) fn unregister(connection: &Connection) {
    connection.link_fd().into_iter().for_each(news::forget);
}

fn live() {
    let mut next = Instant::now() + PERIOD;
    let mut news = News::default();
    // Whether a sender may wait at a door.
    let mut is_called = true;
    loop {
        is_called |= hear(&mut news);
        if Instant::now() >= next {
            is_called = is_called && answer_doors();
            if !go_round() {
                return;
            }
            next = Instant::now() + PERIOD;
        }
    }
}

/// Waits briefly for events of links, lets the connections read their messages, and returns whether
/// a sender waits at a door.
fn hear(news: &mut News) -> bool {
    let Ok(ready) = news.wait(PERIOD) else {
        thread::sleep(PERIOD);
        return false;
    };
    let mut is_called = false;
    for who in ready {
        match who {
            Who::Link(place) => {
                _ = visit(place, |connection| {
                    connection.hear();
                    // A connection without a link receives nothing more.
                    connection.link_fd().into_iter().for_each(|link| news::arm(place, link));
                })
            }
            Who::Door => is_called = true,
        }
    }
    is_called
}

/// Accepts resumed links, and returns whether more may follow soon.
fn answer_doors() -> bool {
    let is_awaiting = door::answer();
    // A door that cannot be watched is checked in every round.
    door::with_sockets(news::arm_door).is_err() || is_awaiting
}

/// Calls `what` with the connection in this place. A panic poisons only that connection.
fn visit<T>(place: u16, what: impl FnOnce(&mut Connection) -> T) -> Option<T> {
    let visited = catch_unwind(AssertUnwindSafe(|| {
        let mut slot = CONNECTIONS.at(place).ok()?;
        slot.value.as_mut().map(what)
    }));
    visited.ok().flatten()
}

/// Serves each connection that no other thread has locked, and returns whether there are any.
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
    let mut runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
    *runs = CONNECTIONS.len() > 0;
    *runs
}
