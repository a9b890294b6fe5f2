//! The thread for connections that NCCL does not call: it takes messages of their peers at once, lets
//! peers resume their links, and polls. It lives as long as there are connections.

use super::all::CONNECTIONS;
use super::connection::Connection;
use super::news::{self, News, Who};
use crate::guard::{Code, Refusal};
use crate::meet::door;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How often the thread visits all connections.
const PERIOD: Duration = Duration::from_millis(10);

/// Whether the thread lives.
static LIVES: Mutex<bool> = Mutex::new(false);

/// Has the thread care for the connection in this place from now on.
pub(crate) fn register(place: u16) -> Result<(), Refusal> {
    let refused = |error: &dyn std::fmt::Display| {
        Refusal::new(Code::System, format!("the thread that sees to connections: {error}"))
    };
    {
        let mut slot = CONNECTIONS.at(place).ok();
        let Some(connection) = slot.as_mut().and_then(|slot| slot.value.as_mut()) else {
            return Ok(());
        };
        connection.watch(place).map_err(|error| refused(&error))?;
    }
    door::with_sockets(news::arm_door).map_err(|error| refused(&error))?;
    let mut lives = LIVES.lock().unwrap_or_else(PoisonError::into_inner);
    if !*lives {
        let thread = thread::Builder::new().name("polyrail-care".into());
        thread.spawn(live).map_err(|error| refused(&error))?;
        *lives = true;
    }
    Ok(())
}

/// Ends the thread's care for a connection that was taken out of its place.
pub(crate) fn unregister(connection: &Connection) {
    connection.link_fd().into_iter().for_each(news::forget);
}

fn live() {
    let mut next = Instant::now() + PERIOD;
    let mut news = News::default();
    // Whether a sender may be at a door.
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

/// Waits for news for a period at most, has connections take their messages, and returns whether a
/// sender is at a door.
fn hear(news: &mut News) -> bool {
    let Ok(told) = news.wait(PERIOD) else {
        thread::sleep(PERIOD);
        return false;
    };
    let mut is_called = false;
    for who in told {
        match who {
            Who::Link(place) => {
                _ = visit(place, |connection| {
                    connection.hear();
                    // Without a stream there is nothing more to take.
                    connection.link_fd().into_iter().for_each(|link| news::arm(place, link));
                })
            }
            Who::Door => is_called = true,
        }
    }
    is_called
}

/// Resumes links, and returns whether there may be more soon.
fn answer_doors() -> bool {
    let is_awaiting = door::answer();
    // A door that cannot be watched is looked at in every period.
    door::with_sockets(news::arm_door).is_err() || is_awaiting
}

/// A panic poisons the connection, and nothing else.
fn visit<T>(place: u16, what: impl FnOnce(&mut Connection) -> T) -> Option<T> {
    let visited = catch_unwind(AssertUnwindSafe(|| {
        let mut slot = CONNECTIONS.at(place).ok()?;
        slot.value.as_mut().map(what)
    }));
    visited.ok().flatten()
}

/// Visits connections that no call has locked, and returns whether there are any.
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
