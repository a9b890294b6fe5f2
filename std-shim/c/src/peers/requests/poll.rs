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
use polyrail::verbs::WcOpcode;
use polyrail::virtual_cq::{Event, Polled, VirtualWc};
use polyrail::virtual_qp::{QpState, RailFailure};
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Waits are cut into pieces of so long, if there are links to look at between them, and if there are none.
const PIECE: Duration = Duration::from_millis(5);
const LONG_PIECE: Duration = Duration::from_millis(100);

/// What a completion's opcode is in C.
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

/// Of a request that failed, nothing accesses the memory here. What may change the peer's is a WRITE or an atomic, or
/// one of which a single rail does not say what it was.
#[cold]
fn what_failed(wc: &VirtualWc) -> Memory {
    match wc.opcode {
        WcOpcode::SEND | WcOpcode::RDMA_READ | WcOpcode::RECV | WcOpcode::RECV_RDMA_WITH_IMM => {
            Memory::Quiet
        }
        _ => Memory::RemoteMayChange,
    }
}

/// Where completions go.
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

    /// Those of nobody's are of peers that were removed. What finds no room comes first next time.
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

    /// What follows a poll.
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

    /// Of peers whose rails are rerouted it may be known that nothing changes the other end's memory any more.
    #[cold]
    fn settle(&mut self, common: &Common, room: &mut Room<'_>) {
        for place in &mut room.room[..room.count] {
            // SAFETY: as many were written.
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

    /// Peers that cannot go on without that queue are given up.
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
                // An event is told at once, but who does not take it gets completions all the same.
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
            // There is something; it is not time to wait.
            return self.poll(common, room);
        }
        let polled = set.poll_armed(|event| room.put(event, routes, backlog));
        self.polled(common, polled.map_err(|error| wait_refusal(&error))?, room)
    }

    /// Refuses to wait where nothing tells of completions, or where none could be stored: what came would be kept,
    /// and nothing would tell of it any more.
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

/// Has room for completions, and says how many came, whatever else happened.
///
/// # Safety
///
/// As of all arguments.
unsafe fn with_room(
    (completions, capacity): (*mut Completion, usize),
    count: *mut usize,
    poll: impl FnOnce(&mut Room<'_>) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    // SAFETY: the caller's promise.
    let count = unsafe { out(count, "count") }?.write(0);
    // SAFETY: the caller's promise.
    let mut room = Room::new(unsafe { out_list(completions, capacity, "completions") }?);
    let polled = poll(&mut room);
    *count = room.count;
    polled
}

/// Stores up to `capacity` requests that are done, of all peers, and in `count` how many; and drives everything that
/// waits for completions, and now and then links and healing. `count` counts also if a code is returned: of a
/// completion queue that broke, with peers that have failed with it. With a capacity of 0 no request is taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_poll(
    peers: *mut Peers,
    completions: *mut Completion,
    capacity: usize,
    count: *mut usize,
) -> Code {
    call(|| {
        let poll = |room: &mut Room<'_>| on_requests!(&mut *exclusive(peers)?, (common, requests) => requests.poll(common, room));
        // SAFETY: the caller's promise.
        unsafe { with_room((completions, capacity), count, poll) }
    })
}

/// The same, and waits up to `timeout_ms` for a completion, or an event to be taken; POLYRAIL_NEVER: for ever. With
/// POLYRAIL_ENDPOINT_EVENTS only, and room for one. Links and healing are driven meanwhile. While an event waits to be
/// taken, this does not.
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
        // SAFETY: the caller's promise.
        unsafe { with_room((completions, capacity), count, wait) }
    })
}

/// A file descriptor that can be read when there may be completions after polyrail_peers_poll_armed found none. It
/// stays this object's, and there is none before a peer was added. With POLYRAIL_ENDPOINT_EVENTS only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_fd(peers: *mut Peers, fd: *mut i32) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
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

/// polyrail_peers_poll, with room for one, and has the file descriptor tell of what comes after. If it stores none,
/// wait for that; but not for longer than links and healing can wait for polyrail_peers_drive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_poll_armed(
    peers: *mut Peers,
    completions: *mut Completion,
    capacity: usize,
    count: *mut usize,
) -> Code {
    call(|| {
        let poll = |room: &mut Room<'_>| on_requests!(&mut *exclusive(peers)?, (common, requests) => requests.poll_armed(common, room));
        // SAFETY: the caller's promise.
        unsafe { with_room((completions, capacity), count, poll) }
    })
}
