//! What can happen, what becomes of requests, and which promises can be broken.

use std::fmt;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It is complete, as if nobody had wanted it back.
    Delivered,
    /// All of it is written, and the peer is not notified.
    WrittenUnnotified,
    /// These fragments, a bit each, may have been written, and no others.
    PerhapsWritten(u8),
    /// The peer cannot be asked.
    Unknown,
}

/// A step of one end, the network or the application. Queue pairs are numbered: the rails, then that
/// of notifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The next fragment, or number without data, is posted.
    Post(usize),
    /// The peer executes the oldest request that it has not.
    Execute(usize),
    /// What the peer executed is acknowledged, and polled here.
    Acknowledge(usize),
    /// A queue pair fails here.
    FailHere(usize),
    /// A queue pair fails at the peer.
    FailThere(usize),
    /// This end learns that the peer's queue pair failed.
    NoticeHere(usize),
    /// The peer learns that this end's queue pair failed.
    NoticeThere(usize),
    /// The peer's report of what has arrived is received, and a new queue pair is in service.
    Fence(usize),
    /// The application wants a request back.
    Cancel(usize),
    /// A queue pair that carries such a request is put into the error state.
    FenceOnPurpose(usize),
    /// The link between the two ends is lost for good.
    LoseLink,
    /// The time for a fence of such a request is over.
    GiveUp(usize),
}

impl Step {
    /// Whether it happens some day, unless another step makes it impossible.
    pub fn is_certain(self) -> bool {
        !matches!(self, Self::FailHere(_) | Self::FailThere(_) | Self::Cancel(_) | Self::LoseLink)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Post(qp) => write!(f, "post on queue pair {qp}"),
            Self::Execute(qp) => write!(f, "the peer executes a request of queue pair {qp}"),
            Self::Acknowledge(qp) => write!(f, "poll queue pair {qp}"),
            Self::FailHere(qp) => write!(f, "queue pair {qp} fails here"),
            Self::FailThere(qp) => write!(f, "queue pair {qp} fails at the peer"),
            Self::NoticeHere(qp) => write!(f, "this end stops queue pair {qp}, too"),
            Self::NoticeThere(qp) => write!(f, "the peer stops queue pair {qp}, too"),
            Self::Fence(qp) => write!(f, "queue pair {qp} is fenced and replaced"),
            Self::Cancel(request) => write!(f, "request {request} is wanted back"),
            Self::FenceOnPurpose(qp) => write!(f, "queue pair {qp} is fenced on purpose"),
            Self::LoseLink => write!(f, "the link is lost"),
            Self::GiveUp(request) => write!(f, "request {request} is given up"),
        }
    }
}

/// A promise to the application of either end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Promise {
    /// No byte of a request changes after its report or notification.
    NoLateWrite,
    /// No number arrives twice.
    Once,
    /// A request is notified once, after its data, and in posting order.
    NotifiedInTurn,
    /// A request that is reported as taken back is never notified.
    TakenBackSilently,
    /// A report is true.
    TrueReport,
    /// Each request is reported.
    Reported,
}

/// A broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A fragment was written after the report or the notification of its request.
    #[error("request {0} was written after its end")]
    LateWrite(usize),
    /// The peer got a number twice.
    #[error("number {0} arrived twice")]
    Twice(u8),
    /// A request was notified before its data was there, twice, or after a later one.
    #[error("request {0} was notified early, twice or too late")]
    Notification(usize),
    /// A request was notified that was reported as taken back.
    #[error("request {0} was notified, but reported as taken back")]
    NotifiedThoughTakenBack(usize),
    /// The report of a request is not what happened.
    #[error("request {0} was reported as {1:?}, which is not so")]
    FalseReport(usize, Outcome),
    /// Nothing can happen any more, and a request is not reported.
    #[error("request {0} is never reported")]
    Stuck(usize),
}

impl Fault {
    /// Returns the promise that is broken.
    pub const fn promise(&self) -> Promise {
        match self {
            Self::LateWrite(_) => Promise::NoLateWrite,
            Self::Twice(_) => Promise::Once,
            Self::Notification(_) => Promise::NotifiedInTurn,
            Self::NotifiedThoughTakenBack(_) => Promise::TakenBackSilently,
            Self::FalseReport(..) => Promise::TrueReport,
            Self::Stuck(_) => Promise::Reported,
        }
    }
}
