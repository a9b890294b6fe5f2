//! The thread that sees to connections which NCCL does not call: what their peers say is heard at once, peers whose
//! link broke find them again, and somebody polls. It lives as long as there are any.

use super::all::CONNECTIONS;
use super::connection::Connection;
use super::news::{self, News, Who};
use crate::guard::{Code, Refusal};
use crate::meet::door;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How often it looks.
const PERIOD: Duration = Duration::from_millis(10);

/// Whether it lives.
static LIVES: Mutex<bool> = Mutex::new(false);

/// From now on it sees to the connection in this place.
pub(crate) fn entrust(place: u16) -> Result<(), Refusal> {
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

/// It does not see to this connection any more, which nobody finds now.
pub(crate) fn dismiss(connection: &Connection) {
    connection.link_fd().into_iter().for_each(news::forget);
}

fn live() {
    let mut next = Instant::now() + PERIOD;
    let mut news = News::default();
    // Whether somebody may be at a door.
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

/// Waits for news, but not for long, lets connections hear them, and returns whether somebody is at a door.
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
                    // Without a link there is nothing more to hear.
                    connection.link_fd().into_iter().for_each(|link| news::arm(place, link));
                })
            }
            Who::Door => is_called = true,
        }
    }
    is_called
}

/// Takes links that were made anew, and returns whether there may be more soon.
fn answer_doors() -> bool {
    let is_awaiting = door::answer();
    // If it cannot be told of, it is looked at all the time.
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
