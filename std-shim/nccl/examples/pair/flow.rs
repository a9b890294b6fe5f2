//! Messages of all sizes in both directions at once, each checked completely, while links may fail.

use crate::end::{End, PATIENCE, WINDOW, fill};
use crate::table::{Pointer, REMOTE, Status};
use crate::talk::Talk;
use std::collections::VecDeque;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Sends and receives until `file` exists. No call may fail.
pub(crate) fn until(
    end: End,
    talk: &mut Talk,
    bytes: usize,
    file: &Path,
) -> Result<String, String> {
    let mut flow = Flow::new(end, talk.is_first(), bytes);
    flow.run(|| !file.exists()).map_err(Trouble::words)?;
    let received = flow.receives.done.to_string();
    // Neither end closes while the other one has requests in flight.
    let theirs = talk.swap(&received)?;
    flow.end.close()?;
    Ok(format!("{received} and {theirs} messages arrived as they were sent"))
}

/// Sends and receives until a call fails. Then every request must end in time.
pub(crate) fn ends_within(
    end: End,
    talk: &mut Talk,
    bytes: usize,
    time: Duration,
) -> Result<String, String> {
    let mut flow = Flow::new(end, talk.is_first(), bytes);
    let took = flow.fail(|| true)?;
    let theirs = talk.swap(&format!("{took:?}"))?;
    let closed = flow.close_within(took, time)?;
    Ok(format!("all failed within {took:?} and {theirs}, and was closed within {closed:?}"))
}

/// As [`ends_within`], after killing the second process while messages move in both directions.
pub(crate) fn outlives(
    end: End,
    talk: &mut Talk,
    bytes: usize,
    time: Duration,
) -> Result<String, String> {
    const MESSAGES: usize = 30;
    let mut flow = Flow::new(end, talk.is_first(), bytes);
    let (mut sent, mut killed) = (0, Ok(()));
    let failed = flow.fail(|| {
        sent += 1;
        if sent == MESSAGES {
            killed = talk.kill_other();
        }
        true
    });
    killed?;
    let took = failed?;
    let closed = flow.close_within(took, time)?;
    Ok(format!("one was killed: all failed within {took:?}, and was closed within {closed:?}"))
}

/// Why the exchange stopped.
enum Trouble {
    Call(&'static str, Status),
    Words(String),
}

impl Trouble {
    fn words(self) -> String {
        match self {
            Self::Call(what, status) => format!("{what}: {status}"),
            Self::Words(words) => words,
        }
    }
}

/// Requests in flight, oldest first.
#[derive(Default)]
struct Requests {
    under_way: VecDeque<Pointer>,
    done: usize,
}

impl Requests {
    /// The number of the next message.
    fn next(&self) -> usize {
        self.done + self.under_way.len()
    }
}

struct Flow {
    end: End,
    /// Length of the longest message in bytes.
    bytes: usize,
    /// Offsets of the numbers in outgoing and incoming messages, so that messages of the two ends
    /// differ.
    salts: [usize; 2],
    sends: Requests,
    receives: Requests,
    /// Number of messages whose contents were written to send memory.
    filled: usize,
    /// The expected contents of receive memory.
    expected: Vec<u8>,
    /// The first of the empty messages that end each direction: as many as can be in flight.
    last_sent: Option<usize>,
    last_received: Option<usize>,
    last_done: Instant,
}

impl Flow {
    fn new(end: End, is_first: bool, bytes: usize) -> Self {
        let expected = vec![0; WINDOW * bytes];
        let salts = if is_first { [0, 100] } else { [100, 0] };
        Self {
            end,
            bytes,
            salts,
            sends: Requests::default(),
            receives: Requests::default(),
            filled: 0,
            expected,
            last_sent: None,
            last_received: None,
            last_done: Instant::now(),
        }
    }

    /// Returns the length of a message: every third has the maximum, the others have all sizes.
    fn length(&self, number: usize) -> usize {
        if number.is_multiple_of(3) { self.bytes } else { 1 + number * 104_729 % self.bytes }
    }

    fn run(&mut self, mut goes_on: impl FnMut() -> bool) -> Result<(), Trouble> {
        let is_over = |last: Option<usize>, requests: &Requests| {
            last.is_some_and(|last| requests.done == last + WINDOW)
        };
        while !is_over(self.last_sent, &self.sends) || !is_over(self.last_received, &self.receives)
        {
            let sent = self.test_send()?;
            if sent && self.last_sent.is_none() && !goes_on() {
                self.last_sent = Some(self.sends.next());
            }
            let received = self.test_receive()?;
            self.post_sends()?;
            self.post_receives()?;
            if sent || received {
                self.last_done = Instant::now();
            } else if self.last_done.elapsed() < PATIENCE {
                thread::yield_now();
            } else {
                return Err(Trouble::Words(format!("no message for {PATIENCE:?}")));
            }
        }
        Ok(())
    }

    fn post_sends(&mut self) -> Result<(), Trouble> {
        while self.sends.under_way.len() < WINDOW {
            let number = self.sends.next();
            let at = number % WINDOW * self.bytes;
            let length = match self.last_sent {
                Some(last) if number == last + WINDOW => break,
                Some(_) => 0,
                None => self.length(number),
            };
            if self.filled == number && length > 0 {
                fill(&mut self.end.from[at..at + length], number + self.salts[0]);
                self.filled += 1;
            }
            let posted = self.end.isend(at, length);
            match posted.map_err(|status| Trouble::Call("isend", status))? {
                Some(request) => self.sends.under_way.push_back(request),
                None => break,
            }
        }
        Ok(())
    }

    fn post_receives(&mut self) -> Result<(), Trouble> {
        while self.receives.under_way.len() < WINDOW && self.last_received.is_none() {
            let at = self.receives.next() % WINDOW * self.bytes;
            let posted = self.end.irecv(at, self.bytes);
            match posted.map_err(|status| Trouble::Call("irecv", status))? {
                Some(request) => self.receives.under_way.push_back(request),
                None => break,
            }
        }
        Ok(())
    }

    /// Returns whether the oldest send completed now.
    fn test_send(&mut self) -> Result<bool, Trouble> {
        let Some(request) = self.sends.under_way.front() else { return Ok(false) };
        let tested = self.end.table.test(*request);
        if matches!(tested, Ok(None)) {
            return Ok(false);
        }
        self.sends.under_way.pop_front();
        tested.map_err(|status| Trouble::Call("a send", status))?;
        self.sends.done += 1;
        Ok(true)
    }

    /// Returns whether the oldest receive completed now, after checking its contents.
    fn test_receive(&mut self) -> Result<bool, Trouble> {
        let Some(request) = self.receives.under_way.front() else { return Ok(false) };
        let tested = self.end.table.test(*request);
        if matches!(tested, Ok(None)) {
            return Ok(false);
        }
        self.receives.under_way.pop_front();
        let sizes = tested.map_err(|status| Trouble::Call("a receive", status))?;
        let came = sizes.map_or(0, |sizes| sizes[0] as usize);
        let number = self.receives.done;
        self.receives.done += 1;
        if came == 0 && self.last_received.is_none() {
            self.last_received = Some(number);
        }
        let sent = if self.last_received.is_some() { 0 } else { self.length(number) };
        let wrong = |words| Err(Trouble::Words(format!("message {number}: {words}")));
        if came != sent {
            return wrong(format!("{came} bytes came of {sent}"));
        }
        let start = number % WINDOW * self.bytes;
        fill(&mut self.expected[start..start + sent], number + self.salts[1]);
        // The memory behind the message must be unchanged.
        let place = start..start + self.bytes;
        let (expected, there) = (&self.expected[place.clone()], &self.end.to[place]);
        if expected != there {
            let differs = expected.iter().zip(there).position(|(one, other)| one != other);
            return wrong(format!(
                "not what was sent, from byte {} of {sent} on",
                differs.unwrap_or(0)
            ));
        }
        Ok(true)
    }

    /// Continues until all requests have failed, and returns the time since the last message.
    fn fail(&mut self, goes_on: impl FnMut() -> bool) -> Result<Duration, String> {
        match self.run(goes_on) {
            Err(Trouble::Call(_, REMOTE)) => {}
            Err(trouble) => return Err(trouble.words()),
            Ok(()) => return Err("it came to an end, without a failure".into()),
        }
        self.expect_remote_errors()?;
        Ok(self.last_done.elapsed())
    }

    /// Closes both connections, and returns how long that took.
    fn close_within(self, took: Duration, time: Duration) -> Result<Duration, String> {
        let begin = Instant::now();
        self.end.close()?;
        let closed = begin.elapsed();
        if took.max(closed) > time {
            return Err(format!("after {took:?} all had failed, and {closed:?} later was closed"));
        }
        Ok(closed)
    }

    /// After the connections have failed: requests in flight end with ncclRemoteError or complete,
    /// and new requests are refused.
    fn expect_remote_errors(&mut self) -> Result<(), String> {
        let under_way = self.sends.under_way.drain(..).chain(self.receives.under_way.drain(..));
        for request in under_way.collect::<Vec<_>>() {
            await_remote_error("a request", || match self.end.table.test(request) {
                Ok(Some(_)) => Err(REMOTE),
                Ok(None) => Ok(()),
                Err(status) => Err(status),
            })?;
        }
        await_remote_error("isend", || self.end.isend(0, 1).map(drop))?;
        await_remote_error("irecv", || self.end.irecv(0, 1).map(drop))
    }
}

/// Calls `call` until it fails, which it must.
fn await_remote_error(
    what: &str,
    mut call: impl FnMut() -> Result<(), Status>,
) -> Result<(), String> {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        match call() {
            Ok(()) => thread::yield_now(),
            Err(REMOTE) => return Ok(()),
            Err(status) => return Err(format!("{what} ended with {status}, not {REMOTE}")),
        }
    }
    Err(format!("{what} did not fail within {PATIENCE:?}"))
}
