//! Polling, and waiting.

use super::set::{RequestsOn, Routes};
use crate::arguments::{out, out_list};
use crate::call::call;
use crate::code::Code;
use crate::error::{Failure, Refusal, refuse};
use crate::peers::common::Common;
use crate::peers::object::on_requests;
use crate::table::exclusive;
use crate::types::{
    Completion, Memory, Opcode, POLYRAIL_COMPLETION_IMM, POLYRAIL_COMPLETION_RECEIVE,
    POLYRAIL_NEVER, Peers,
};
use polyrail::backend::Domain;
use polyrail::endpoint::WaitError;
use polyrail::hardware::CqError;
use polyrail::verbs::{WcOpcode, WcStatus};
use polyrail::virtual_cq::{Event, Polled, VirtualWc};
use polyrail::virtual_qp::{QpState, RailFailure};
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Maximum length of one sleep while waiting, with links to drive in between and without.
const PIECE: Duration = Duration::from_millis(5);
const LONG_PIECE: Duration = Duration::from_millis(100);

/// Converts a completion's opcode to its C value.
#[inline]
fn opcode(opcode: WcOpcode) -> Opcode {
    match opcode {
        WcOpcode::RDMA_READ => Opcode::Read,
        WcOpcode::SEND | WcOpcode::RECV => Opcode::Send,
        WcOpcode::COMP_SWAP => Opcode::CompareSwap,
        WcOpcode::FETCH_ADD => Opcode::FetchAdd,
        _ => Opcode::Write,
    }
}

#[inline]
fn completion(wc: &VirtualWc, peer: u64) -> Completion {
    let received = if wc.opcode != WcOpcode::UNKNOWN && wc.opcode.is_recv() {
        POLYRAIL_COMPLETION_RECEIVE
    } else {
        0
    };
    Completion {
        id: wc.wr_id,
        peer,
        status: wc.status.0,
        opcode: opcode(wc.opcode) as u32,
        bytes: wc.byte_len,
        imm: wc.imm.unwrap_or_default(),
        flags: received | wc.imm.map_or(0, |_| POLYRAIL_COMPLETION_IMM),
        memory: if wc.status.is_success() { Memory::Done } else { what_failed(wc) } as u32,
        reserved: [0; 2],
    }
}

/// Returns which memory a failed request may still access. Local memory is not accessed any more.
/// Remote memory may still be changed by a WRITE, by an atomic, and by a request whose opcode a
/// single rail does not report.
#[cold]
fn what_failed(wc: &VirtualWc) -> Memory {
    // A request that was taken back is reported once nothing of it can be executed any more.
    if wc.status == WcStatus::CANCELLED {
        return Memory::Quiet;
    }
    match wc.opcode {
        WcOpcode::SEND | WcOpcode::RDMA_READ | WcOpcode::RECV | WcOpcode::RECV_RDMA_WITH_IMM => {
            Memory::Quiet
        }
        _ => Memory::RemoteMayChange,
    }
}

/// The caller's room for completions.
struct Room<'a> {
    room: &'a mut [MaybeUninit<Completion>],
    count: usize,
    any_failed: bool,
}

impl<'a> Room<'a> {
    fn new(room: &'a mut [MaybeUninit<Completion>]) -> Self {
        Self { room, count: 0, any_failed: false }
    }

    #[inline]
    fn left(&self) -> usize {
        self.room.len() - self.count
    }

    /// Stores a completion, or keeps it for the next poll if there is no room. Completions without
    /// a route belong to removed peers, and are dropped.
    #[inline]
    fn put(&mut self, event: Event, routes: &Routes, backlog: &mut VecDeque<Completion>) {
        let Event::Completion(wc) = event else { return };
        let Some(peer) = routes.get(&wc.qp_num) else { return };
        let completion = completion(&wc, *peer);
        match self.room.get_mut(self.count) {
            Some(place) => {
                place.write(completion);
                self.count += 1;
                self.any_failed |= !wc.status.is_success();
            }
            None => backlog.push_back(completion),
        }
    }

    #[cold]
    fn take(&mut self, backlog: &mut VecDeque<Completion>) {
        while self.left() > 0
            && let Some(completion) = backlog.pop_front()
        {
            self.any_failed |= completion.status != 0;
            self.room[self.count].write(completion);
            self.count += 1;
        }
    }
}

fn wait_refusal(error: &WaitError) -> Refusal {
    match error {
        WaitError::NoChannel => Failure::of(Code::State, error).into(),
        _ => Failure::of(Code::Device, error).into(),
    }
}

impl<D: Domain> RequestsOn<D> {
    #[inline]
    fn poll(&mut self, common: &mut Common, room: &mut Room<'_>) -> Result<(), Refusal> {
        let Self { set, routes, backlog, .. } = self;
        if !backlog.is_empty() {
            room.take(backlog);
        }
        let polled = set.poll_with(room.left(), |event| room.put(event, routes, backlog));
        self.polled(common, polled, room)
    }

    /// Finishes a poll: settles failed requests, drives links and repairs, and handles the error.
    #[inline]
    fn polled(
        &mut self,
        common: &mut Common,
        polled: Polled,
        room: &mut Room<'_>,
    ) -> Result<(), Refusal> {
        if room.any_failed {
            self.settle(common, room);
        }
        common.drive_sometimes(self);
        polled.error.map_or(Ok(()), |error| self.queue_broke(error))
    }

    /// Updates the `memory` of failed requests: if a peer's rails are rerouted and all are fenced,
    /// nothing changes the other end's memory any more.
    #[cold]
    fn settle(&mut self, common: &Common, room: &mut Room<'_>) {
        for place in &mut room.room[..room.count] {
            // SAFETY: the first `count` were written.
            let completion = unsafe { place.assume_init_mut() };
            if completion.memory != Memory::RemoteMayChange as u32 {
                continue;
            }
            let Ok(place) = common.numbers.place(completion.peer) else { continue };
            let Some(qp) = self.set.get(place) else { continue };
            let qp = qp.virtual_qp();
            if qp.config().rail_failure == RailFailure::Reroute && qp.unfenced().is_empty() {
                completion.memory = Memory::Quiet as u32;
            }
        }
    }

    /// Fails the peers that cannot continue without the completion queue.
    #[cold]
    fn queue_broke(&mut self, error: CqError) -> Result<(), Refusal> {
        let mut lost = None;
        for qp in self.set.qps_mut() {
            if !qp.survives(&error) {
                if qp.state() != QpState::Error {
                    qp.fail();
                }
                lost = Some(qp.queue_error(error));
            }
        }
        lost.map_or(Ok(()), |error| Err(Failure::of(Code::Device, &error).into()))
    }

    fn wait(
        &mut self,
        common: &mut Common,
        room: &mut Room<'_>,
        timeout_ms: u64,
    ) -> Result<(), Refusal> {
        self.check_channel(room)?;
        let timeout = (timeout_ms != POLYRAIL_NEVER).then(|| Duration::from_millis(timeout_ms));
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let has_links = common.states.iter().any(|peer| peer.link.is_some());
        let longest = if has_links { PIECE } else { LONG_PIECE };
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let Self { set, routes, backlog, .. } = self;
            room.take(backlog);
            if room.count == 0 {
                let piece = left.map_or(longest, |left| left.min(longest));
                // A waiting event ends the wait at once; completions are still polled, for callers
                // that leave events untaken.
                let piece = if common.events.is_empty() { piece } else { Duration::ZERO };
                let polled = set.wait(Some(piece), |event| room.put(event, routes, backlog));
                let polled = polled.map_err(|error| wait_refusal(&error))?;
                common.drive(self);
                self.polled(common, polled, room)?;
            }
            if room.count > 0
                || !common.events.is_empty()
                || left.is_some_and(|left| left.is_zero())
            {
                return Ok(());
            }
        }
    }

    fn poll_armed(&mut self, common: &mut Common, room: &mut Room<'_>) -> Result<(), Refusal> {
        self.check_channel(room)?;
        let Self { set, routes, backlog, .. } = self;
        room.take(backlog);
        if room.count > 0 {
            // The caller will not wait, so nothing needs to be armed.
            return self.poll(common, room);
        }
        let polled = set.poll_armed(|event| room.put(event, routes, backlog));
        self.polled(common, polled.map_err(|error| wait_refusal(&error))?, room)
    }

    /// Refuses to wait without a completion channel, or without room for a completion: completions
    /// would be kept, and the channel would not report them again.
    fn check_channel(&self, room: &Room<'_>) -> Result<(), Refusal> {
        if room.room.is_empty() {
            return refuse(Code::Argument, "a wait for completions needs room for one");
        }
        match self.set.completion_fd() {
            Some(_) => Ok(()),
            None => refuse(Code::State, NO_CHANNEL),
        }
    }
}

const NO_CHANNEL: &str =
    "there is nothing to wait for: no peer was added with POLYRAIL_ENDPOINT_EVENTS";

/// Runs a poll with the caller's room, and stores the number of completions even if the poll fails.
///
/// # Safety
///
/// As for all arguments, the pointers are valid for their types.
unsafe fn with_room(
    (completions, capacity): (*mut Completion, usize),
    count: *mut usize,
    poll: impl FnOnce(&mut Room<'_>) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    // SAFETY: guaranteed by the caller.
    let count = unsafe { out(count, "count") }?.write(0);
    // SAFETY: guaranteed by the caller.
    let mut room = Room::new(unsafe { out_list(completions, capacity, "completions") }?);
    let polled = poll(&mut room);
    *count = room.count;
    polled
}

/// Stores up to `capacity` completions of all peers, and in `count` their number. Drives everything
/// that waits for completions; some polls also drive links and repair rails. A loop that sleeps
/// between its polls calls polyrail_peers_drive in each turn. `count` is valid even if the returned
/// code reports that a completion queue broke and that peers failed with it. With a capacity of 0,
/// no completion is taken. Peers for requests only: POLYRAIL_CODE_KIND for messages, which
/// polyrail_messages_poll polls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_poll(
    peers: *mut Peers,
    completions: *mut Completion,
    capacity: usize,
    count: *mut usize,
) -> Code {
    call(|| {
        let poll = |room: &mut Room<'_>| on_requests!(&mut *exclusive(peers)?, (common, requests) => requests.poll(common, room));
        // SAFETY: guaranteed by the caller.
        unsafe { with_room((completions, capacity), count, poll) }
    })
}

/// Polls as polyrail_peers_poll does, and waits up to `timeout_ms`, or without a limit if that is
/// POLYRAIL_NEVER, until there is a completion or an event. Requires POLYRAIL_ENDPOINT_EVENTS, and
/// a capacity of at least 1. Drives links and repairs rails meanwhile. Does not wait while there is
/// an event that was not taken. Peers for requests only: POLYRAIL_CODE_KIND for messages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_wait(
    peers: *mut Peers,
    completions: *mut Completion,
    capacity: usize,
    count: *mut usize,
    timeout_ms: u64,
) -> Code {
    call(|| {
        let wait = |room: &mut Room<'_>| on_requests!(&mut *exclusive(peers)?, (common, requests) => requests.wait(common, room, timeout_ms));
        // SAFETY: guaranteed by the caller.
        unsafe { with_room((completions, capacity), count, wait) }
    })
}

/// Stores a file descriptor that becomes readable when there may be completions after
/// polyrail_peers_poll_armed stored none. It belongs to the object, exists once a peer was added,
/// and is the same from then on; only wait for it, do not read from it. Links, events and listeners
/// do not make it readable: polyrail_peers_poll_armed says how long to wait. Requires
/// POLYRAIL_ENDPOINT_EVENTS. Peers for requests only: POLYRAIL_CODE_KIND for messages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_fd(peers: *mut Peers, fd: *mut i32) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let place = unsafe { out(fd, "fd") }?;
        on_requests!(&mut *exclusive(peers)?, (_common, requests) => match requests.set.completion_fd() {
            Some(fd) => {
                place.write(fd.as_raw_fd());
                Ok(())
            }
            None => refuse(Code::State, NO_CHANNEL),
        })
    })
}

/// Polls as polyrail_peers_poll does, and arms the file descriptor for later completions. Requires
/// a capacity of at least 1. If no completion is stored, the caller may wait for the file
/// descriptor, but not longer than links and repairs may wait for polyrail_peers_drive: one second,
/// or less if messages of polyrail_peers_say and peers that connect are not to wait that long.
/// Peers for requests only: POLYRAIL_CODE_KIND for messages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_poll_armed(
    peers: *mut Peers,
    completions: *mut Completion,
    capacity: usize,
    count: *mut usize,
) -> Code {
    call(|| {
        let poll = |room: &mut Room<'_>| on_requests!(&mut *exclusive(peers)?, (common, requests) => requests.poll_armed(common, room));
        // SAFETY: guaranteed by the caller.
        unsafe { with_room((completions, capacity), count, poll) }
    })
}
