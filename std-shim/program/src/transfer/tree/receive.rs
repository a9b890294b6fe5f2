//! The receiver of directories: answers offers, and writes files.

use super::record::{CHUNK_HEADER, Entry, Malformed, Reader, Record};
use super::stream::{
    CREDIT_SLOTS, CREDIT_STRIDE, MAX_OFFERS, Meter, Opening, SideEnd, TreeError, credit,
    credit_slot, tree_sum,
};
use super::target::Target;
use crate::job::{JobOutcome, Link, Message, Sum, TreePlan, TreeSum};
use crate::session::{Environment, SessionError};
use crate::transfer::destination::Destination;
use crate::transfer::error::{CopyError, CopyRole, TransferError};
use crate::transfer::side::{self, Side};
use polyrail::backend::Domain;
use polyrail::memory::RegisteredBuffer;
use polyrail::memory::RemoteBuffer;
use polyrail::verbs::{AccessFlags, DeviceKeys, SendWr};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Receives directories from the other side into `target`.
pub(super) fn receive_tree<D: Domain>(
    environment: Environment<'_, D>,
    control: Link,
    opening: Opening<'_>,
    plan: TreePlan,
    target: Target,
    meter: Meter<'_>,
) -> Result<SideEnd, TreeError> {
    let mut side = Side::new(environment, control)?;
    let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let buffers = side.buffers(
        (plan.ring_bytes(), writable),
        (CREDIT_SLOTS * CREDIT_STRIDE, AccessFlags::empty()),
    )?;
    let result = run(&mut side, opening, plan, target, meter, (&buffers.ring, &buffers.credits));
    let result = result.map_err(|failure| match failure {
        TreeError::Transfer(error) => TreeError::Transfer(side.defer_to_sender(error)),
        failure => failure,
    });
    side.conclude(result.as_ref().err());
    result
}

fn run<D: Domain>(
    side: &mut Side<'_, D>,
    opening: Opening<'_>,
    plan: TreePlan,
    target: Target,
    meter: Meter<'_>,
    (ring, credits): (&RegisteredBuffer<D::Region>, &RegisteredBuffer<D::Region>),
) -> Result<SideEnd, TreeError> {
    let peer = opening.meet(side, ring, plan.window)?;
    let keys = credits.toward(&peer.buffer)?;
    let mut receiver = TreeReceiver {
        plan,
        ring,
        credits,
        keys,
        peer: &peer.buffer,
        target,
        meter,
        file: None,
        taken: 0,
        credit: Vec::new(),
        is_finished: false,
        sum: TreeSum::default(),
    };
    side.awaits("the next chunk of the files");
    while !receiver.is_finished || side.traffic.reported < receiver.taken {
        let progress = receiver.advance(side)? | side.poll()?;
        if side.traffic.arrived > side.traffic.posted + u64::from(plan.window) {
            let what = "it sent a chunk although no slot was free";
            return Err(SessionError::Protocol(what.into()).into());
        }
        side.rest(progress)?;
    }
    let chunks = receiver.taken;
    let outcome = side.expect_outcome("the sender's counts of files and bytes")?;
    let sent = tree_sum(outcome)?;
    let received = TreeSum { skipped: sent.skipped, ..receiver.sum };
    if received != sent {
        side.tell(&Message::Done(JobOutcome::Tree(received)))?;
        return Err(TransferError::Counts { sent, received }.into());
    }
    side.report(JobOutcome::Tree(received))?;
    Ok(SideEnd { sum: received, rails: side.rail_reports(), chunks })
}

/// A file that is being written.
struct OpenFile {
    entry: Entry,
    path: PathBuf,
    target: Destination,
    /// End of the data so far.
    at: u64,
    /// Bytes of data so far, without holes.
    bytes: u64,
    crc: crc32fast::Hasher,
}

struct TreeReceiver<'a, R> {
    plan: TreePlan,
    ring: &'a RegisteredBuffer<R>,
    credits: &'a RegisteredBuffer<R>,
    keys: Vec<DeviceKeys>,
    peer: &'a RemoteBuffer,
    target: Target,
    meter: Meter<'a>,
    file: Option<OpenFile>,
    /// Chunks whose records were handled: as many as credits were posted, or one more; and the last
    /// credit.
    taken: u64,
    credit: Vec<u8>,
    is_finished: bool,
    sum: TreeSum,
}

impl<R> TreeReceiver<'_, R> {
    /// Handles the next chunk, if one has arrived, and posts its credit, if there is room.
    fn advance<D: Domain>(&mut self, side: &mut Side<'_, D>) -> Result<bool, TreeError> {
        if self.taken == side.traffic.posted && self.taken < side.traffic.arrived {
            let wanted = self.take(side)?;
            self.taken += 1;
            self.credit = credit(self.taken, &wanted);
        }
        if side.traffic.posted == self.taken {
            return Ok(false);
        }
        let chunk = side.traffic.posted;
        let slot = credit_slot(chunk);
        let length = self.credit.len() as u32;
        self.credits.write_at(slot, &self.credit)?;
        let local = self.credits.local(slot, length)?;
        let remote = self.peer.at(slot, length)?;
        Ok(side.post(&SendWr::write_with_imm(chunk, local, remote, chunk as u32, &self.keys))?)
    }

    /// Handles the records of the next chunk, and returns the answers to its offers.
    fn take<D: Domain>(&mut self, side: &mut Side<'_, D>) -> Result<Vec<bool>, TreeError> {
        let slot = self.plan.slot(self.taken);
        let mut length = [0; CHUNK_HEADER];
        self.ring.read_at(slot, &mut length)?;
        let length = u32::from_be_bytes(length) as usize;
        if length > self.plan.chunk as usize - CHUNK_HEADER {
            return Err(broken("it sent a chunk of directories that is longer than agreed"));
        }
        let ring = self.ring;
        let at = slot + CHUNK_HEADER;
        let mut records =
            Reader { at, end: at + length, read: |at, bytes: &mut [u8]| ring.read_at(at, bytes) };
        let mut wanted = Vec::new();
        while let Some(record) = records.next().map_err(malformed)? {
            if self.is_finished {
                return Err(broken("it sent a record of directories after the last one"));
            }
            match record {
                Record::Data { offset, length } => {
                    self.write(side, records.at - length as usize, offset, length)?;
                }
                Record::End { crc32 } => self.end(side, crc32)?,
                // Offers run ahead of the data, so they also come while a file is being sent.
                Record::Enter(entry) if self.target.rules.sync => {
                    side.keeping_company(|| self.target.enter(&entry))??;
                }
                Record::Enter(entry) => self.target.enter(&entry)?,
                Record::Offer(_) if wanted.len() == MAX_OFFERS => {
                    return Err(broken("it offered too many files at a time"));
                }
                Record::Offer(entry) => {
                    self.meter.expect(entry.size);
                    let wants = if self.target.rules.sync {
                        // A file that is there already is flushed.
                        side.keeping_company(|| self.target.wants(&entry))??
                    } else {
                        self.target.wants(&entry)?
                    };
                    if !wants {
                        self.meter.done(entry.size);
                        self.sum.unchanged += 1;
                    }
                    wanted.push(wants);
                }
                _ if self.file.is_some() => {
                    return Err(broken("it began something before a file was complete"));
                }
                Record::Leave(entry) if self.target.rules.sync => {
                    side.keeping_company(|| self.target.leave(&entry))??;
                }
                Record::Leave(entry) => self.target.leave(&entry)?,
                Record::File(entry) => self.begin(entry)?,
                Record::Finish => self.is_finished = true,
            }
            side.keep_company()?;
        }
        Ok(wanted)
    }

    fn begin(&mut self, entry: Entry) -> Result<(), CopyError> {
        let (path, target) = self.target.begin(&entry)?;
        let crc = crc32fast::Hasher::new();
        self.file = Some(OpenFile { entry, path, target, at: 0, bytes: 0, crc });
        Ok(())
    }

    fn write<D: Domain>(
        &mut self,
        side: &mut Side<'_, D>,
        slot: usize,
        offset: u64,
        length: u32,
    ) -> Result<(), TreeError> {
        let Some(file) = &mut self.file else {
            return Err(broken("it sent data before the file that they are of"));
        };
        let end = offset.checked_add(length.into()).filter(|end| *end <= file.entry.size);
        let Some(end) = end.filter(|_| offset >= file.at) else {
            return Err(broken("it sent data that are not within their file, or not in order"));
        };
        for (start, piece) in side::pieces(length) {
            side::checksum(&mut file.crc, self.ring, slot + start as usize, piece)?;
            let mut done = start as usize;
            while done < (start + piece) as usize {
                let position = offset + done as u64;
                let left = (start + piece) as usize - done;
                let to = file.target.file();
                let written = self.ring.write_to_file(slot + done, left, to, position);
                done += match written {
                    Ok(0) => Err(std::io::ErrorKind::WriteZero.into()),
                    written => written,
                }
                .map_err(|source| {
                    let position = offset;
                    writing(&file.path, TransferError::Write { position, length, source })
                })?;
            }
            side.keep_company()?;
        }
        self.meter.done(end - file.at);
        file.at = end;
        file.bytes += u64::from(length);
        Ok(())
    }

    /// Gives a complete file its name.
    fn end<D: Domain>(&mut self, side: &mut Side<'_, D>, crc32: u32) -> Result<(), TreeError> {
        let Some(OpenFile { entry, path, target, at, bytes, crc }) = self.file.take() else {
            return Err(broken("it completed a file that it did not begin"));
        };
        let sent = Sum { bytes, crc32 };
        let received = Sum { bytes, crc32: crc.finalize() };
        if received != sent {
            let error = TransferError::Checksum { sent, received };
            return Err(CopyError::of_file(entry.path.as_path(), CopyRole::Receiver, error).into());
        }
        let (directory, sync) = (&self.target, self.target.rules.sync);
        let finish = || -> std::io::Result<()> {
            let file: &File = target.file();
            directory.complete(file, &entry, at)?;
            target.finish(sync)
        };
        // A flush takes long, and so does a long file without one: NFS writes all of it that is not
        // written yet when its time is set, and a file system without links (FUSE) copies it. For a
        // short file, a thread would cost more than that.
        let is_long = sync || entry.size > side::PIECE.into();
        let finished = if is_long { side.keeping_company(finish)? } else { finish() };
        finished.map_err(|error| writing(&path, TransferError::Finish(error)))?;
        self.meter.done(entry.size - at);
        self.sum.files += 1;
        self.sum.bytes += bytes;
        Ok(())
    }
}

/// Names the destination in an error about it.
fn writing(path: &Path, error: TransferError) -> CopyError {
    CopyError::of_side(CopyRole::Receiver, error, Path::new(""), path)
}

fn broken(what: &str) -> TreeError {
    SessionError::Protocol(what.into()).into()
}

fn malformed(error: Malformed) -> TreeError {
    broken(&format!("it sent a record that cannot be read: {error}"))
}
