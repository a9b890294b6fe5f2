//! Jobs, and their encoding in messages.

use super::file_name::FileName;
use super::outcome::{Back, JobOutcome, Sum, TreeSum};
use super::plan::{CopyPlan, MAX_CHUNK, MAX_WINDOW, MIN_TREE_CHUNK, TreePlan};
use super::workload::{
    ATOMIC_SIZE, MAX_IN_FLIGHT, MAX_INLINE, MAX_MESSAGE_SIZE, Operation, Workload,
};
use polyrail::link::{self, HandshakeError, Place, Purpose};
use serde::Serialize;

/// A control channel between the two sides of a job.
pub type Link = link::Link<Job>;

/// A message between the two sides of a job.
pub type Message = link::Message<Job>;

/// The hello of a side: the addresses of its endpoint and its buffer. In a copy, the buffer of the
/// receiver is for chunks, that of the sender for credits.
pub type Hello = link::Hello<Job>;

/// What arrives from the other side of a job.
pub type Incoming = link::Incoming<Job>;

/// The purpose of a connection; [`Purpose`] decodes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Job {
    /// Copy a file to the other side.
    Copy(CopyJob),
    /// Copy directories, or several files, to the other side.
    Tree(TreeJob),
    /// Copy a file or directory from the other side.
    Pull(PullJob),
    /// Measure requests.
    Perf(Workload),
}

/// A file to be copied to the other side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CopyJob {
    /// The size of the file, and its chunks.
    pub plan: CopyPlan,
    /// Name of the copy that the sender proposes; used if the receiver writes into a directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<FileName>,
    /// Permissions of the sender's file, 0 to 0o777. If the copy replaces no file, it gets these,
    /// limited by the receiver's umask.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<u16>,
    /// Whether the copy may replace a file of its name; the receiver may also forbid it.
    pub overwrite: bool,
}

/// Directories and files to be copied to the other side, which follow over the rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TreeJob {
    /// The chunks.
    pub plan: TreePlan,
    /// Whether files may be replaced; the receiver may also forbid it.
    pub overwrite: bool,
}

/// A file or directory to be copied from the other side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PullJob {
    /// The chunks.
    pub plan: TreePlan,
    /// Path in the directory that the other side serves, with `/` between names.
    pub path: String,
}

impl CopyJob {
    /// Makes a job without a proposed name or permissions.
    pub const fn new(plan: CopyPlan) -> Self {
        Self { plan, name: None, mode: None, overwrite: true }
    }
}

impl Job {
    /// Returns the name of the job in messages.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Copy(_) => "copy",
            Self::Tree(_) => "tree",
            Self::Pull(_) => "pull",
            Self::Perf(_) => "perf",
        }
    }
}

impl Purpose for Job {
    type Outcome = JobOutcome;

    fn read(place: &Place<'_>) -> Result<Self, HandshakeError> {
        let known = ["copy", "tree", "pull", "perf"];
        let (name, inner) = place.variant(&known, "an object with one field, the purpose")?;
        match name {
            "copy" => copy(&inner).map(Self::Copy),
            "tree" => tree(&inner).map(Self::Tree),
            "pull" => pull(&inner).map(Self::Pull),
            _ => workload(&inner).map(Self::Perf),
        }
    }

    fn read_outcome(place: &Place<'_>) -> Result<JobOutcome, HandshakeError> {
        let (name, inner) =
            place.variant(&["copy", "tree", "perf"], "an object with one field, the purpose")?;
        match name {
            "copy" => return Ok(JobOutcome::Copy(sum(&inner)?)),
            "tree" => return Ok(JobOutcome::Tree(tree_sum(&inner)?)),
            _ => {}
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

fn tree(place: &Place<'_>) -> Result<TreeJob, HandshakeError> {
    let fields = place.object(&["plan", "overwrite"])?;
    let plan = tree_plan(&fields.field("plan")?)?;
    Ok(TreeJob { plan, overwrite: fields.field("overwrite")?.flag()? })
}

fn pull(place: &Place<'_>) -> Result<PullJob, HandshakeError> {
    let fields = place.object(&["plan", "path"])?;
    let plan = tree_plan(&fields.field("plan")?)?;
    Ok(PullJob { plan, path: fields.field("path")?.text()?.to_owned() })
}

fn tree_plan(place: &Place<'_>) -> Result<TreePlan, HandshakeError> {
    let fields = place.object(&["chunk", "window"])?;
    let chunk = fields.field("chunk")?.number(MIN_TREE_CHUNK.into(), MAX_CHUNK.into())?;
    let window = fields.field("window")?.number(1, MAX_WINDOW.into())?;
    Ok(TreePlan { chunk: chunk as u32, window: window as u32 })
}

fn tree_sum(place: &Place<'_>) -> Result<TreeSum, HandshakeError> {
    let fields = place.object(&["files", "unchanged", "bytes", "skipped"])?;
    let number = |name| fields.field(name)?.number(0, u64::MAX);
    Ok(TreeSum {
        files: number("files")?,
        unchanged: number("unchanged")?,
        bytes: number("bytes")?,
        skipped: number("skipped")?,
    })
}

/// Reads permissions, without set-user-ID, set-group-ID and sticky bits.
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
        return Err(answered.wrong("false for an operation that is a round trip by itself"));
    }
    let bidirectional = fields.field("bidirectional")?;
    let is_bidirectional = bidirectional.flag()?;
    if is_bidirectional && is_answered {
        return Err(bidirectional.wrong("false if requests are answered"));
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

/// The names of all operations, for error messages.
const OPERATIONS: &str =
    "\"write\", \"write-imm\", \"read\", \"send\", \"p2p\", \"fetch-add\" or \"compare-swap\"";

fn back(place: &Place<'_>) -> Result<Back, HandshakeError> {
    let fields = place.object(&["posted", "completed", "nanoseconds"])?;
    let posted = fields.field("posted")?.number(0, u64::MAX)?;
    let completed = fields.field("completed")?.number(0, posted)?;
    // Not 0: a rate is divided by it.
    let nanoseconds = fields.field("nanoseconds")?.number(1, u64::MAX)?;
    Ok(Back { posted, completed, nanoseconds })
}

fn plan(place: &Place<'_>) -> Result<CopyPlan, HandshakeError> {
    /// Size of the longest file in bytes: offsets in files are signed 64-bit numbers.
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
        .ok_or_else(|| place.wrong("the name of a file, without a path and not hidden"))
}

fn sum(place: &Place<'_>) -> Result<Sum, HandshakeError> {
    let fields = place.object(&["bytes", "crc32"])?;
    let crc32 = fields.field("crc32")?.number(0, u32::MAX.into())? as u32;
    Ok(Sum { bytes: fields.field("bytes")?.number(0, u64::MAX)?, crc32 })
}
