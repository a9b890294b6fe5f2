//! The sender: reads chunks of the file into its ring, posts them, and waits for credits.

use super::error::TransferError;
use super::side::{self, Side};
use super::source::Source;
use crate::job::{CopyJob, CopyPlan, Job, JobOutcome, Link, Message, Sum};
use crate::session::{Environment, SessionError};
use polyrail::backend::Domain;
use polyrail::endpoint::RailReport;
use polyrail::memory::{RegisteredBuffer, RemoteBuffer};
use polyrail::verbs::{AccessFlags, DeviceKeys, SendWr};
use std::sync::atomic::{AtomicU64, Ordering};

/// Size of a credit in bytes.
pub(super) const CREDIT_BYTES: usize = 8;
/// Number of credits in the sender's buffer: as many as can be in flight, since a virtual queue
/// pair tracks 256 requests.
pub(super) const CREDIT_SLOTS: usize = 256;

/// A file to send.
#[derive(Debug)]
pub(super) struct Parcel<'a> {
    pub(super) source: &'a Source,
    /// The job to request from the receiver.
    pub(super) job: CopyJob,
}

/// Sends a file to the other side, and counts in `taken` the bytes that the other side has
/// received.
pub(super) fn send_file<D: Domain>(
    environment: Environment<'_, D>,
    control: Link,
    parcel: Parcel<'_>,
    taken: &AtomicU64,
) -> Result<(Sum, Vec<RailReport>), TransferError> {
    let mut side = Side::new(environment, control)?;
    let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let buffers = side.buffers(
        (parcel.job.plan.ring_bytes(), AccessFlags::empty()),
        (CREDIT_SLOTS * CREDIT_BYTES, writable),
    )?;
    let result = run(&mut side, parcel, taken, &buffers.ring, &buffers.credits);
    side.conclude(result.as_ref().err());
    result
}

fn run<D: Domain>(
    side: &mut Side<'_, D>,
    Parcel { source, job }: Parcel<'_>,
    taken: &AtomicU64,
    ring: &RegisteredBuffer<D::Region>,
    credits: &RegisteredBuffer<D::Region>,
) -> Result<(Sum, Vec<RailReport>), TransferError> {
    let mut hello = side.hello(credits);
    let plan = job.plan;
    hello.purpose = Some(Job::Copy(job));
    side.tell(&Message::Hello(hello))?;
    let peer = side.expect_hello()?;
    if let Some(purpose) = &peer.purpose {
        return Err(SessionError::both_ask(purpose).into());
    }
    side.meet(&peer, plan.window)?;
    let keys = ring.toward(&peer.buffer)?;
    let crc = crc32fast::Hasher::new();
    let peer = &peer.buffer;
    side.awaits("the receiver's credits for the chunks that were sent");
    let mut sender = FileSender { plan, source, ring, keys, peer, crc, loaded: 0 };
    while side.traffic.arrived < plan.chunks() || side.traffic.reported < plan.chunks() {
        let progress = sender.advance(side)? | side.poll()?;
        if side.traffic.arrived > side.traffic.posted {
            let what = "it sent a credit for a chunk that was not sent";
            return Err(SessionError::Protocol(what.into()).into());
        }
        taken.store(plan.position(side.traffic.arrived).min(plan.total), Ordering::Relaxed);
        side.rest(progress)?;
    }
    source.check_end(plan.total)?;
    let sent = Sum { bytes: plan.total, crc32: sender.crc.finalize() };
    side.tell(&Message::Done(JobOutcome::Copy(sent)))?;
    let received = side.expect_sum("the receiver's confirmation that the file is complete")?;
    if received != sent {
        return Err(TransferError::Checksum { sent, received });
    }
    Ok((sent, side.rail_reports()))
}

struct FileSender<'a, R> {
    plan: CopyPlan,
    source: &'a Source,
    ring: &'a RegisteredBuffer<R>,
    keys: Vec<DeviceKeys>,
    peer: &'a RemoteBuffer,
    crc: crc32fast::Hasher,
    /// Chunks that were read into the ring: as many as were posted, or one more.
    loaded: u64,
}

impl<R> FileSender<'_, R> {
    /// Reads the next chunk if its slot is free, and posts it if there is room. Only one chunk, so
    /// that completions are polled between chunks.
    fn advance<D: Domain>(&mut self, side: &mut Side<'_, D>) -> Result<bool, TransferError> {
        let free = side.traffic.arrived.min(side.traffic.reported) + u64::from(self.plan.window);
        if self.loaded == side.traffic.posted && self.loaded < self.plan.chunks().min(free) {
            self.load(side, self.loaded)?;
            self.loaded += 1;
        }
        Ok(side.traffic.posted < self.loaded && self.post(side, side.traffic.posted)?)
    }

    fn load<D: Domain>(&mut self, side: &mut Side<'_, D>, chunk: u64) -> Result<(), TransferError> {
        let position = self.plan.position(chunk);
        let length = self.plan.length(chunk);
        let slot = self.plan.slot(chunk);
        for (start, piece) in side::pieces(length) {
            let mut done = start as usize;
            let end = (start + piece) as usize;
            while done < end {
                let at = position + done as u64;
                match self.ring.read_from_file(slot + done, end - done, self.source.file(), at) {
                    Ok(0) => {
                        let expected = self.plan.total;
                        return Err(TransferError::Shrunk { found: at, expected });
                    }
                    Ok(bytes) => done += bytes,
                    Err(source) => return Err(TransferError::Read { position, length, source }),
                }
            }
            side::checksum(&mut self.crc, self.ring, slot + start as usize, piece)?;
            side.keep_company()?;
        }
        Ok(())
    }

    fn post<D: Domain>(&self, side: &mut Side<'_, D>, chunk: u64) -> Result<bool, TransferError> {
        let slot = self.plan.slot(chunk);
        let length = self.plan.length(chunk);
        let local = self.ring.local(slot, length)?;
        let remote = self.peer.at(slot, length)?;
        side.post(&SendWr::write_with_imm(chunk, local, remote, chunk as u32, &self.keys))
    }
}
