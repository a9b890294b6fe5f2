//! What two sides meet for, and how it travels.

use super::file_name::FileName;
use super::outcome::{Back, JobOutcome, Sum};
use super::plan::{CopyPlan, MAX_CHUNK, MAX_WINDOW};
use super::workload::{
    ATOMIC_SIZE, MAX_IN_FLIGHT, MAX_INLINE, MAX_MESSAGE_SIZE, Operation, Workload,
};
use polyrail::exchange::{self, HandshakeError, Place, Purpose};
use serde::Serialize;

/// A control channel between the two sides of a job.
pub type Control = exchange::Control<Job>;

/// What the sides of a job tell each other.
pub type Message = exchange::Message<Job>;

/// Where a side of a job can be reached. For a copy, the buffer takes chunks at the receiver, and
/// credits at the sender.
pub type Hello = exchange::Hello<Job>;

/// What comes in from the other side of a job.
pub type Incoming = exchange::Incoming<Job>;

/// What a connection is for: [`Purpose`] has how it travels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Job {
    /// Copy a file to the other side.
    Copy(CopyJob),
    /// Measure requests.
    Perf(Workload),
}

/// A file to be copied to the other side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CopyJob {
    /// In which pieces.
    pub plan: CopyPlan,
    /// The sender's name for the copy; a receiver may choose another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<FileName>,
    /// Permissions of the sender's file, 0 to 0o777: those of the copy, before the receiver's umask, if it
    /// replaces no other file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<u16>,
    /// Whether the copy may replace a file of its name; a receiver may be stricter.
    pub overwrite: bool,
}

impl CopyJob {
    /// A file in these pieces, named and placed as the receiver likes.
    pub const fn new(plan: CopyPlan) -> Self {
        Self { plan, name: None, mode: None, overwrite: true }
    }
}

impl Job {
    /// Returns its name on the wire.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Copy(_) => "copy",
            Self::Perf(_) => "perf",
        }
    }
}

impl Purpose for Job {
    type Outcome = JobOutcome;

    fn read(place: &Place<'_>) -> Result<Self, HandshakeError> {
        let (name, inner) =
            place.variant(&["copy", "perf"], "an object with one field, the purpose")?;
        if name == "perf" {
            return Ok(Self::Perf(workload(&inner)?));
        }
        copy(&inner).map(Self::Copy)
    }

    fn read_outcome(place: &Place<'_>) -> Result<JobOutcome, HandshakeError> {
        let (name, inner) =
            place.variant(&["copy", "perf"], "an object with one field, the purpose")?;
        if name == "copy" {
            return Ok(JobOutcome::Copy(sum(&inner)?));
        }
        let fields = inner.object(&["requests", "back"])?;
        let requests = fields.field("requests")?.number(0, u64::MAX)?;
        let back = fields.optional("back").map(|place| back(&place)).transpose()?;
        Ok(JobOutcome::Perf { requests, back })
    }
}

fn copy(place: &Place<'_>) -> Result<CopyJob, HandshakeError> {
    let fields = place.object(&["plan", "name", "mode", "overwrite"])?;
    Ok(CopyJob {
        plan: plan(&fields.field("plan")?)?,
        name: fields.optional("name").map(|place| file_name(&place)).transpose()?,
        mode: fields.optional("mode").map(|place| permissions(&place)).transpose()?,
        overwrite: fields.field("overwrite")?.flag()?,
    })
}

/// Permissions: what `chmod` takes, without set-user-ID and the like.
fn permissions(place: &Place<'_>) -> Result<u16, HandshakeError> {
    Ok(place.number(0, 0o777)? as u16)
}

fn workload(place: &Place<'_>) -> Result<Workload, HandshakeError> {
    let fields = place.object(&[
        "operation",
        "messageSize",
        "window",
        "answered",
        "bidirectional",
        "inline",
    ])?;
    let named = fields.field("operation")?;
    let operation = Operation::from_name(named.text()?).ok_or_else(|| named.wrong(OPERATIONS))?;
    let answered = fields.field("answered")?;
    let is_answered = answered.flag()?;
    if is_answered && operation.fetches() {
        return Err(answered.wrong("false, of what is a round trip by itself"));
    }
    let bidirectional = fields.field("bidirectional")?;
    let is_bidirectional = bidirectional.flag()?;
    if is_bidirectional && is_answered {
        return Err(bidirectional.wrong("false, of what is answered"));
    }
    let sizes = match operation.is_atomic() {
        true => (ATOMIC_SIZE, ATOMIC_SIZE),
        false => (1, MAX_MESSAGE_SIZE),
    };
    let size = fields.field("messageSize")?.number(sizes.0.into(), sizes.1.into())?;
    Ok(Workload {
        operation,
        answered: is_answered,
        bidirectional: is_bidirectional,
        message_size: size as u32,
        window: fields.field("window")?.number(1, MAX_IN_FLIGHT.into())? as u32,
        inline: fields.field("inline")?.number(0, MAX_INLINE.into())? as u32,
    })
}

/// The names of all operations, for errors.
const OPERATIONS: &str =
    "\"write\", \"write-imm\", \"read\", \"send\", \"p2p\", \"fetch-add\" or \"compare-swap\"";

fn back(place: &Place<'_>) -> Result<Back, HandshakeError> {
    let fields = place.object(&["posted", "completed", "nanoseconds"])?;
    let posted = fields.field("posted")?.number(0, u64::MAX)?;
    let completed = fields.field("completed")?.number(0, posted)?;
    // A rate is computed from it.
    let nanoseconds = fields.field("nanoseconds")?.number(1, u64::MAX)?;
    Ok(Back { posted, completed, nanoseconds })
}

fn plan(place: &Place<'_>) -> Result<CopyPlan, HandshakeError> {
    /// Size of the longest file in bytes: offsets are signed.
    const MAX_TOTAL: u64 = i64::MAX as u64;
    let fields = place.object(&["total", "chunk", "window"])?;
    Ok(CopyPlan {
        total: fields.field("total")?.number(0, MAX_TOTAL)?,
        chunk: fields.field("chunk")?.number(1, MAX_CHUNK.into())? as u32,
        window: fields.field("window")?.number(1, MAX_WINDOW.into())? as u32,
    })
}

fn file_name(place: &Place<'_>) -> Result<FileName, HandshakeError> {
    FileName::new(place.text()?)
        .ok_or_else(|| place.wrong("a file's name, without a path and not hidden"))
}

fn sum(place: &Place<'_>) -> Result<Sum, HandshakeError> {
    let fields = place.object(&["bytes", "crc32"])?;
    let crc32 = fields.field("crc32")?.number(0, u32::MAX.into())? as u32;
    Ok(Sum { bytes: fields.field("bytes")?.number(0, u64::MAX)?, crc32 })
}
