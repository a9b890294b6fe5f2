//! The sender of directories: offers files, and fills chunks with those that the other side
//! requires.

use super::record::{CHUNK_HEADER, DATA_HEADER, END_BYTES, Entry, MAX_RECORD_BYTES, Record};
use super::stream::{
    CREDIT_SLOTS, CREDIT_STRIDE, MAX_OFFERS, Meter, Opening, SideEnd, TreeError, answers,
    credit_slot, tree_sum,
};
use super::walk::{Step, Walk};
use crate::job::{JobOutcome, Link, Message, TreePlan, TreeSum};
use crate::session::{Environment, SessionError};
use crate::transfer::error::{CopyError, CopyRole, TransferError};
use crate::transfer::side::{self, Side};
use crate::transfer::source::Source;
use polyrail::backend::Domain;
use polyrail::memory::RemoteBuffer;
use polyrail::memory::{OutOfRange, RegisteredBuffer};
use polyrail::verbs::{AccessFlags, DeviceKeys, SendWr};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

/// Limit of files and directories that were found and are not sent yet.
const MAX_AHEAD: usize = 4 * MAX_OFFERS;

/// Sends what `walk` finds to the other side.
pub(super) fn send_tree<D: Domain>(
    environment: Environment<'_, D>,
    control: Link,
    opening: Opening<'_>,
    plan: TreePlan,
    walk: &mut Walk,
    meter: Meter<'_>,
) -> Result<SideEnd, TreeError> {
    let mut side = Side::new(environment, control)?;
    let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let buffers = side.buffers(
        (plan.ring_bytes(), AccessFlags::empty()),
        (CREDIT_SLOTS * CREDIT_STRIDE, writable),
    )?;
    let result = run(&mut side, opening, plan, walk, meter, (&buffers.ring, &buffers.credits));
    side.conclude(result.as_ref().err());
    result
}

fn run<D: Domain>(
    side: &mut Side<'_, D>,
    opening: Opening<'_>,
    plan: TreePlan,
    walk: &mut Walk,
    meter: Meter<'_>,
    (ring, credits): (&RegisteredBuffer<D::Region>, &RegisteredBuffer<D::Region>),
) -> Result<SideEnd, TreeError> {
    let peer = opening.meet(side, credits, plan.window)?;
    let keys = ring.toward(&peer.buffer)?;
    side.awaits("the receiver's credits for the chunks that were sent");
    let mut sender = TreeSender {
        plan,
        ring,
        keys,
        peer: &peer.buffer,
        walk,
        meter,
        ahead: VecDeque::new(),
        answers: VecDeque::new(),
        file: None,
        in_flight: VecDeque::new(),
        credited: 0,
        loaded: 0,
        used: 0,
        is_walked: false,
        is_finished: false,
        sum: TreeSum::default(),
    };
    while !sender.is_finished
        || sender.credited < sender.loaded
        || side.traffic.reported < sender.loaded
    {
        let progress = sender.advance(side)? | side.poll()?;
        if side.traffic.arrived > side.traffic.posted {
            let what = "it sent a credit for a chunk that was not sent";
            return Err(SessionError::Protocol(what.into()).into());
        }
        sender.take_credits(side.traffic.arrived, credits)?;
        side.rest(progress)?;
    }
    let chunks = sender.loaded;
    let sent = TreeSum { skipped: sender.walk.skipped, ..sender.sum };
    side.tell(&Message::Done(JobOutcome::Tree(sent)))?;
    let outcome = side.expect_outcome("the receiver's confirmation that all files are complete")?;
    let received = tree_sum(outcome)?;
    if received != sent {
        return Err(TransferError::Counts { sent, received }.into());
    }
    Ok(SideEnd { sum: sent, rails: side.rail_reports(), chunks })
}

/// What was found and is not sent yet.
enum Ahead {
    /// A file that was offered.
    File(Entry, PathBuf),
    /// The end of a directory.
    Leave(Entry),
}

/// A file that is being sent.
struct OpenFile {
    source: Source,
    path: PathBuf,
    size: u64,
    /// Offset of the next byte to read, and the end of the data there, before the next hole.
    at: u64,
    data_end: u64,
    crc: crc32fast::Hasher,
}

/// A chunk that was loaded, and whose credit has not arrived.
struct InFlight {
    /// Files that it offers.
    offers: usize,
    /// Bytes of files that are sent with it, and of holes before them.
    bytes: u64,
}

struct TreeSender<'a, R> {
    plan: TreePlan,
    ring: &'a RegisteredBuffer<R>,
    keys: Vec<DeviceKeys>,
    peer: &'a RemoteBuffer,
    walk: &'a mut Walk,
    meter: Meter<'a>,
    ahead: VecDeque<Ahead>,
    /// Answers to the offers of the first files in `ahead`.
    answers: VecDeque<bool>,
    file: Option<OpenFile>,
    in_flight: VecDeque<InFlight>,
    /// Chunks whose credits were read.
    credited: u64,
    /// Chunks that were loaded: as many as were posted, or one more; and bytes of the last.
    loaded: u64,
    used: usize,
    is_walked: bool,
    is_finished: bool,
    sum: TreeSum,
}

/// A chunk that is being filled.
struct Chunk {
    /// Where it is in the ring, its length, and the bytes that are used.
    slot: usize,
    length: usize,
    used: usize,
    load: InFlight,
}

impl Chunk {
    const fn room(&self) -> usize {
        self.length - self.used
    }

    fn push<R>(&mut self, ring: &RegisteredBuffer<R>, record: &Record) -> Result<(), OutOfRange> {
        let bytes = record.encode();
        ring.write_at(self.slot + self.used, &bytes)?;
        self.used += bytes.len();
        Ok(())
    }
}

impl<R> TreeSender<'_, R> {
    /// Fills the next chunk if its slot is free, and posts it if there is room.
    fn advance<D: Domain>(&mut self, side: &mut Side<'_, D>) -> Result<bool, TreeError> {
        let free = self.credited.min(side.traffic.reported) + u64::from(self.plan.window);
        if self.loaded == side.traffic.posted && self.loaded < free && !self.is_finished {
            self.load(side)?;
        }
        if side.traffic.posted == self.loaded {
            return Ok(false);
        }
        let slot = self.plan.slot(side.traffic.posted);
        let local = self.ring.local(slot, self.used as u32)?;
        let remote = self.peer.at(slot, self.used as u32)?;
        let chunk = side.traffic.posted;
        Ok(side.post(&SendWr::write_with_imm(chunk, local, remote, chunk as u32, &self.keys))?)
    }

    /// Reads the answers in the credits that have arrived.
    fn take_credits(
        &mut self,
        arrived: u64,
        credits: &RegisteredBuffer<R>,
    ) -> Result<(), OutOfRange> {
        while self.credited < arrived
            && let Some(InFlight { offers, bytes }) = self.in_flight.pop_front()
        {
            self.answers.extend(answers(credits, credit_slot(self.credited), offers)?);
            self.meter.done(bytes);
            self.credited += 1;
        }
        Ok(())
    }

    /// Fills the next chunk with what can be sent now, if there is anything.
    fn load<D: Domain>(&mut self, side: &mut Side<'_, D>) -> Result<(), TreeError> {
        let mut chunk = Chunk {
            slot: self.plan.slot(self.loaded),
            length: self.plan.chunk as usize,
            used: CHUNK_HEADER,
            load: InFlight { offers: 0, bytes: 0 },
        };
        self.offer(side, &mut chunk)?;
        while self.send_next(&mut chunk)? {
            side.keep_company()?;
        }
        if chunk.used == CHUNK_HEADER {
            return Ok(());
        }
        let length = (chunk.used - CHUNK_HEADER) as u32;
        self.ring.write_at(chunk.slot, &length.to_be_bytes())?;
        self.in_flight.push_back(chunk.load);
        self.used = chunk.used;
        self.loaded += 1;
        Ok(())
    }

    /// Offers the next files, so that their answers arrive before what was offered earlier is sent.
    fn offer<D: Domain>(
        &mut self,
        side: &mut Side<'_, D>,
        chunk: &mut Chunk,
    ) -> Result<(), TreeError> {
        while !self.is_walked
            && self.ahead.len() < MAX_AHEAD
            && chunk.load.offers < MAX_OFFERS
            && chunk.room() >= MAX_RECORD_BYTES
        {
            match self.walk.next(|| side.keep_company().map_err(TreeError::from))? {
                None => self.is_walked = true,
                Some(Step::Enter(entry)) => chunk.push(self.ring, &Record::Enter(entry))?,
                Some(Step::Leave(entry)) => self.ahead.push_back(Ahead::Leave(entry)),
                Some(Step::File(entry, from)) => {
                    self.meter.expect(entry.size);
                    chunk.push(self.ring, &Record::Offer(entry.clone()))?;
                    chunk.load.offers += 1;
                    self.ahead.push_back(Ahead::File(entry, from));
                }
            }
        }
        Ok(())
    }

    /// Adds the next part of what was found to the chunk. Returns whether there may be more.
    fn send_next(&mut self, chunk: &mut Chunk) -> Result<bool, TreeError> {
        if let Some(mut file) = self.file.take() {
            let (complete, more) = self.send_data(&mut file, chunk)?;
            if !complete {
                self.file = Some(file);
            }
            return Ok(more);
        }
        if chunk.room() < MAX_RECORD_BYTES {
            return Ok(false);
        }
        match self.ahead.front() {
            None => {
                if self.is_walked {
                    chunk.push(self.ring, &Record::Finish)?;
                    self.is_finished = true;
                }
                return Ok(false);
            }
            Some(Ahead::File(..)) => match self.answers.pop_front() {
                None => return Ok(false),
                Some(false) => {
                    if let Some(Ahead::File(entry, _)) = self.ahead.pop_front() {
                        self.meter.done(entry.size);
                        self.sum.unchanged += 1;
                    }
                    return Ok(true);
                }
                Some(true) => {}
            },
            Some(Ahead::Leave(_)) => {}
        }
        match self.ahead.pop_front() {
            Some(Ahead::File(entry, path)) => {
                let source = Source::open_as(&path, self.walk.follows())?;
                // The file may have changed since it was offered.
                let entry = Entry::new(entry.path, source.metadata());
                let size = entry.size;
                chunk.push(self.ring, &Record::File(entry))?;
                let crc = crc32fast::Hasher::new();
                self.file = Some(OpenFile { source, path, size, at: 0, data_end: 0, crc });
            }
            Some(Ahead::Leave(entry)) => chunk.push(self.ring, &Record::Leave(entry))?,
            None => {}
        }
        Ok(true)
    }

    /// Adds data of a file to the chunk, and its end. Returns whether the file is complete, and
    /// whether the chunk may have room for more.
    fn send_data(
        &mut self,
        file: &mut OpenFile,
        chunk: &mut Chunk,
    ) -> Result<(bool, bool), TreeError> {
        if file.at >= file.data_end && file.at < file.size {
            let before = file.at;
            (file.at, file.data_end) = file.source.data_from(file.at, file.size);
            chunk.load.bytes += file.at - before;
        }
        if file.at >= file.size {
            if chunk.room() < END_BYTES {
                return Ok((false, false));
            }
            let named = |error| reading(&file.path, error);
            file.source.check_end(file.size).map_err(named)?;
            let crc32 = std::mem::take(&mut file.crc).finalize();
            chunk.push(self.ring, &Record::End { crc32 })?;
            self.sum.files += 1;
            return Ok((true, true));
        }
        let Some(room) = chunk.room().checked_sub(DATA_HEADER).filter(|room| *room > 0) else {
            return Ok((false, false));
        };
        let length = (file.data_end - file.at).min(room as u64).min(side::PIECE.into()) as u32;
        chunk.push(self.ring, &Record::Data { offset: file.at, length })?;
        self.read(file, chunk.slot + chunk.used, length)?;
        side::checksum(&mut file.crc, self.ring, chunk.slot + chunk.used, length)?;
        chunk.used += length as usize;
        chunk.load.bytes += u64::from(length);
        file.at += u64::from(length);
        self.sum.bytes += u64::from(length);
        Ok((false, true))
    }

    fn read(&self, file: &OpenFile, at: usize, length: u32) -> Result<(), CopyError> {
        let mut done = 0;
        while done < length as usize {
            let position = file.at + done as u64;
            let left = length as usize - done;
            let error =
                match self.ring.read_from_file(at + done, left, file.source.file(), position) {
                    Ok(0) => TransferError::Shrunk { found: position, expected: file.size },
                    Ok(bytes) => {
                        done += bytes;
                        continue;
                    }
                    Err(source) => TransferError::Read { position, length, source },
                };
            return Err(reading(&file.path, error));
        }
        Ok(())
    }
}

/// Names the source in an error about it.
fn reading(path: &Path, error: TransferError) -> CopyError {
    CopyError::of_side(CopyRole::Sender, error, path, Path::new(""))
}
