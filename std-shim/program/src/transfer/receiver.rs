//! The receiver: writes chunks from its ring to the file, and returns credits.

use super::error::{Reported, TransferError};
use super::sender::{CREDIT_BYTES, CREDIT_SLOTS};
use super::side::{self, Side};
use crate::job::{CopyPlan, Hello, JobOutcome, Link, Message, Sum};
use crate::session::{Environment, SessionError, expect_asker};
use polyrail::backend::Domain;
use polyrail::endpoint::RailReport;
use polyrail::memory::{RegisteredBuffer, RemoteBuffer};
use polyrail::verbs::{AccessFlags, DeviceKeys, SendWr};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Receives the file of this plan from the other side into `file`, and counts the bytes in
/// `written`.
pub(super) fn receive_file<D: Domain>(
    environment: Environment<'_, D>,
    mut control: Link,
    plan: CopyPlan,
    file: &File,
    written: &AtomicU64,
) -> Result<(Sum, Vec<RailReport>), TransferError> {
    let peer = expect_asker(&mut control)?;
    let incoming = IncomingFile { plan, file, written, path: None, complete: || Ok(()) };
    receive_from(environment, control, &peer, incoming)
}

/// The file to write to.
#[derive(Debug)]
pub(super) struct IncomingFile<'a, F> {
    /// The plan of the sender's job.
    pub(super) plan: CopyPlan,
    pub(super) file: &'a File,
    /// The file's path, for the report of a failure to the other side.
    pub(super) path: Option<&'a Path>,
    /// Counts the bytes.
    pub(super) written: &'a AtomicU64,
    /// Called when all bytes are written and their checksum is correct, before the sender is
    /// informed.
    pub(super) complete: F,
}

/// Receives a file as [`receive_file`] does, from a sender whose hello has arrived.
pub(super) fn receive_from<D: Domain>(
    environment: Environment<'_, D>,
    control: Link,
    peer: &Hello,
    incoming: IncomingFile<'_, impl FnOnce() -> Result<(), TransferError> + Send>,
) -> Result<(Sum, Vec<RailReport>), TransferError> {
    let mut side = Side::new(environment, control)?;
    let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let buffers = side.buffers(
        (incoming.plan.ring_bytes(), writable),
        (CREDIT_SLOTS * CREDIT_BYTES, AccessFlags::empty()),
    )?;
    let path = incoming.path;
    let result = run(&mut side, peer, incoming, &buffers.ring, &buffers.credits)
        .map_err(|failure| side.defer_to_sender(failure));
    let failure = result.as_ref().err().map(|error| Reported { error, path });
    side.conclude(failure.as_ref());
    result
}

fn run<D: Domain>(
    side: &mut Side<'_, D>,
    peer: &Hello,
    incoming: IncomingFile<'_, impl FnOnce() -> Result<(), TransferError> + Send>,
    ring: &RegisteredBuffer<D::Region>,
    credits: &RegisteredBuffer<D::Region>,
) -> Result<(Sum, Vec<RailReport>), TransferError> {
    let IncomingFile { plan, file, written, complete, .. } = incoming;
    side.tell(&Message::Hello(side.hello(ring)))?;
    side.meet(peer, plan.window)?;
    let keys = credits.toward(&peer.buffer)?;
    let crc = crc32fast::Hasher::new();
    let mut receiver =
        FileReceiver { plan, file, ring, credits, keys, peer: &peer.buffer, crc, taken: 0 };
    side.awaits("the next chunk of the file");
    while receiver.taken < plan.chunks() || side.traffic.reported < plan.chunks() {
        let progress = receiver.advance(side, written)? | side.poll()?;
        if side.traffic.arrived > plan.chunks().min(side.traffic.posted + u64::from(plan.window)) {
            let what = "it sent a chunk although no slot was free";
            return Err(SessionError::Protocol(what.into()).into());
        }
        side.rest(progress)?;
    }
    let received = Sum { bytes: written.load(Ordering::Relaxed), crc32: receiver.crc.finalize() };
    let sent = side.expect_sum("the sender's checksum")?;
    if received != sent {
        side.tell(&Message::Done(JobOutcome::Copy(received)))?;
        return Err(TransferError::Checksum { sent, received });
    }
    side.keeping_company(complete)??;
    side.report(JobOutcome::Copy(received))?;
    Ok((received, side.rail_reports()))
}

struct FileReceiver<'a, R> {
    plan: CopyPlan,
    file: &'a File,
    ring: &'a RegisteredBuffer<R>,
    credits: &'a RegisteredBuffer<R>,
    keys: Vec<DeviceKeys>,
    peer: &'a RemoteBuffer,
    crc: crc32fast::Hasher,
    /// Chunks that were written to the file: as many as credits were posted, or one more.
    taken: u64,
}

impl<R> FileReceiver<'_, R> {
    /// Writes the next chunk to the file, if one has arrived, and posts its credit, if there is
    /// room.
    fn advance<D: Domain>(
        &mut self,
        side: &mut Side<'_, D>,
        written: &AtomicU64,
    ) -> Result<bool, TransferError> {
        if self.taken == side.traffic.posted && self.taken < side.traffic.arrived {
            self.take(side, self.taken, written)?;
            self.taken += 1;
        }
        Ok(side.traffic.posted < self.taken && self.post_credit(side, side.traffic.posted)?)
    }

    fn take<D: Domain>(
        &mut self,
        side: &mut Side<'_, D>,
        chunk: u64,
        written: &AtomicU64,
    ) -> Result<(), TransferError> {
        let position = self.plan.position(chunk);
        let length = self.plan.length(chunk);
        let slot = self.plan.slot(chunk);
        for (start, piece) in side::pieces(length) {
            side::checksum(&mut self.crc, self.ring, slot + start as usize, piece)?;
            let mut done = start as usize;
            let end = (start + piece) as usize;
            while done < end {
                let at = position + done as u64;
                match self.ring.write_to_file(slot + done, end - done, self.file, at) {
                    Ok(0) => {
                        let source = std::io::ErrorKind::WriteZero.into();
                        return Err(TransferError::Write { position, length, source });
                    }
                    Ok(bytes) => done += bytes,
                    Err(source) => return Err(TransferError::Write { position, length, source }),
                }
            }
            written.fetch_add(piece.into(), Ordering::Relaxed);
            side.keep_company()?;
        }
        Ok(())
    }

    /// Posts a credit: a notification whose payload is the number of credits so far.
    fn post_credit<D: Domain>(
        &self,
        side: &mut Side<'_, D>,
        chunk: u64,
    ) -> Result<bool, TransferError> {
        let slot = (chunk % CREDIT_SLOTS as u64) as usize * CREDIT_BYTES;
        let length = CREDIT_BYTES as u32;
        self.credits.write_at(slot, &(chunk + 1).to_be_bytes())?;
        let local = self.credits.local(slot, length)?;
        let remote = self.peer.at(slot, length)?;
        side.post(&SendWr::write_with_imm(chunk, local, remote, chunk as u32, &self.keys))
    }
}
