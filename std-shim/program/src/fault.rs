//! Injected faults, as they are written on the command line: what happens to the device of a rail,
//! when, and for how long. Only software NICs can inject faults.

use crate::size::{SizeError, parse_size};
use crate::time::{TimeError, parse_time};
use polyrail::nic::Fault;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Delay of completions on a slow device: hundreds of times the duration of a request, but less
/// than the timeout after which a rail counts as failed.
pub const SLOW: Duration = Duration::from_millis(20);

/// One of the two sides of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The side that sends.
    Near,
    /// The side that receives.
    Far,
}

/// When a fault begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// Once the device has carried this many payload bytes: of all its rails, in both directions.
    Bytes(u64),
    /// At this time after data began to move.
    Time(Duration),
}

/// What a fault does to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// Its link goes down: requests are retried, and fail with RETRY_EXC_ERR.
    Cut,
    /// It stops answering. Its requests never complete, not even with an error, as with some
    /// drivers.
    Silent,
    /// It drops the packets that arrive, although its port stays up, as when a firewall filters
    /// them: requests to it do not arrive, its own are not acknowledged, and all of them fail with
    /// RETRY_EXC_ERR. New queue pairs connect.
    Drop,
    /// Its completions are late by [`SLOW`].
    Slow,
    /// It has an internal error. Requests are carried out but reported as failed: its own with
    /// GENERAL_ERR, those of its peers with REM_OP_ERR.
    Corrupt,
    /// It is removed permanently.
    Gone,
}

impl Harm {
    const ALL: [(&'static str, Self); 6] = [
        ("cut", Self::Cut),
        ("silent", Self::Silent),
        ("drop", Self::Drop),
        ("slow", Self::Slow),
        ("corrupt", Self::Corrupt),
        ("gone", Self::Gone),
    ];

    fn name(self) -> &'static str {
        let mut all = Self::ALL.into_iter();
        all.find_map(|(name, harm)| (harm == self).then_some(name)).unwrap_or_default()
    }

    /// Returns the fault of the device that begins it.
    pub(crate) const fn inflicted(self) -> Fault {
        match self {
            Self::Cut => Fault::LinkDown,
            Self::Silent => Fault::Silent(true),
            Self::Drop => Fault::DropArriving(true),
            Self::Slow => Fault::DelayCompletions(SLOW),
            Self::Corrupt => Fault::FailRequests(true),
            Self::Gone => Fault::DeviceGone,
        }
    }

    /// Returns the fault of the device that ends it, if it can end.
    pub(crate) const fn undone(self) -> Option<Fault> {
        match self {
            Self::Cut => Some(Fault::LinkUp),
            Self::Silent => Some(Fault::Silent(false)),
            Self::Drop => Some(Fault::DropArriving(false)),
            Self::Slow => Some(Fault::DelayCompletions(Duration::ZERO)),
            Self::Corrupt => Some(Fault::FailRequests(false)),
            Self::Gone => None,
        }
    }

    /// Returns the text that reports its begin.
    pub(crate) const fn began(self) -> &'static str {
        match self {
            Self::Cut => "link cut",
            Self::Silent => "stopped answering",
            Self::Drop => "drops what arrives",
            Self::Slow => "completions 20 ms late",
            Self::Corrupt => "requests fail",
            Self::Gone => "device removed",
        }
    }

    /// Returns the text that reports its end.
    pub(crate) const fn ended(self) -> &'static str {
        match self {
            Self::Cut => "link up again",
            Self::Silent => "answers again",
            Self::Drop => "takes what arrives again",
            Self::Slow => "completions in time again",
            Self::Corrupt => "requests succeed again",
            Self::Gone => "device present again",
        }
    }
}

/// An injected fault, written as `[SIDE.]RAIL:WHEN[:HOW[:FOR]]`.
///
/// ```
/// # use polyrail_program::fault::{Begin, Harm, RailFault, Side};
/// let fault: RailFault = "far.2:200ms:silent".parse()?;
/// assert_eq!((fault.side, fault.rail, fault.harm), (Side::Far, 2, Harm::Silent));
/// let fault: RailFault = "2:1M".parse()?;
/// assert_eq!((fault.begin, fault.harm, fault.lasting), (Begin::Bytes(1 << 20), Harm::Cut, None));
/// # Ok::<(), polyrail_program::fault::FaultError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailFault {
    /// The side whose device fails. Without `SIDE`, the side that sends.
    pub side: Side,
    /// The rail whose device is affected; rails that share the device are affected, too.
    pub rail: usize,
    /// When it begins.
    pub begin: Begin,
    /// What happens to the device; by default its link is cut.
    pub harm: Harm,
    /// How long it lasts; `None`: until the end.
    pub lasting: Option<Duration>,
}

/// Writes the fault in full, without relying on defaults.
///
/// ```
/// # use polyrail_program::fault::RailFault;
/// let fault: RailFault = "2:1M".parse()?;
/// assert_eq!(fault.to_string(), "near.2:1048576:cut");
/// # Ok::<(), polyrail_program::fault::FaultError>(())
/// ```
impl fmt::Display for RailFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { side, rail, begin, harm, lasting } = *self;
        let side = match side {
            Side::Near => "near",
            Side::Far => "far",
        };
        write!(f, "{side}.{rail}:")?;
        match begin {
            Begin::Bytes(bytes) => write!(f, "{bytes}:")?,
            Begin::Time(time) => write!(f, "{}s:", time.as_secs_f64())?,
        }
        f.write_str(harm.name())?;
        lasting.map_or(Ok(()), |lasting| write!(f, ":{}s", lasting.as_secs_f64()))
    }
}

/// A text that is not a valid fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultError {
    /// Too few or too many parts.
    #[error("{0:?} is not [SIDE.]RAIL:WHEN[:HOW[:FOR]], such as 2:1M or far.2:200ms:silent:1s")]
    Shape(String),
    /// An unknown side.
    #[error("{0:?} is not a side: use near (the sender) or far")]
    Side(String),
    /// A rail that is not a number.
    #[error("{0:?} is not the number of a rail")]
    Rail(String),
    /// Bytes out of range.
    #[error("invalid WHEN: {0}")]
    Bytes(SizeError),
    /// A time out of range.
    #[error("invalid WHEN: {0}")]
    Time(TimeError),
    /// An unknown kind of fault.
    #[error("{0:?} is not a kind of fault: use cut, silent, drop, slow, corrupt or gone")]
    Harm(String),
    /// Its duration is not a time.
    #[error("invalid FOR: {0}")]
    Lasting(TimeError),
    /// Its duration is zero.
    #[error("invalid FOR: {0:?} must be more than 0")]
    Momentary(String),
    /// A removed device that is to come back.
    #[error("{0:?}: `gone` is permanent, so it takes no FOR")]
    Gone(String),
}

impl FromStr for RailFault {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let parts: Vec<&str> = text.split(':').collect();
        let (place, begin, harm, lasting) = match parts[..] {
            [place, begin] => (place, begin, "cut", None),
            [place, begin, harm] => (place, begin, harm, None),
            [place, begin, harm, lasting] => (place, begin, harm, Some(lasting)),
            _ => return Err(FaultError::Shape(text.to_owned())),
        };
        let (side, rail) = place.split_once('.').unwrap_or(("near", place));
        let fault = Self {
            side: parse_side(side)?,
            rail: rail.parse().map_err(|_| FaultError::Rail(rail.to_owned()))?,
            begin: parse_begin(begin)?,
            harm: parse_harm(harm)?,
            lasting: lasting.map(parse_lasting).transpose()?,
        };
        if fault.lasting.is_some() && fault.harm.undone().is_none() {
            return Err(FaultError::Gone(text.to_owned()));
        }
        Ok(fault)
    }
}

fn parse_side(text: &str) -> Result<Side, FaultError> {
    match text {
        "near" => Ok(Side::Near),
        "far" => Ok(Side::Far),
        _ => Err(FaultError::Side(text.to_owned())),
    }
}

/// Parses WHEN: a time if it ends with `s`, as all units of time and no unit of size do, else a
/// size.
fn parse_begin(text: &str) -> Result<Begin, FaultError> {
    if text.ends_with('s') {
        return parse_time(text).map(Begin::Time).map_err(FaultError::Time);
    }
    parse_size(text).map(Begin::Bytes).map_err(FaultError::Bytes)
}

fn parse_harm(text: &str) -> Result<Harm, FaultError> {
    let known = Harm::ALL.into_iter().find(|(name, _)| *name == text);
    known.map(|(_, harm)| harm).ok_or_else(|| FaultError::Harm(text.to_owned()))
}

fn parse_lasting(text: &str) -> Result<Duration, FaultError> {
    match parse_time(text).map_err(FaultError::Lasting)? {
        Duration::ZERO => Err(FaultError::Momentary(text.to_owned())),
        lasting => Ok(lasting),
    }
}

/// A fault on a rail that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a fault on rail {rail}, but rails are numbered 0 to {last}")]
pub struct UnknownRail {
    /// The rail.
    pub rail: usize,
    /// The last rail.
    pub last: usize,
}

/// Checks that all faults are on rails that exist.
pub(crate) fn check_rails(faults: &[RailFault], rails: usize) -> Result<(), UnknownRail> {
    let last = rails.saturating_sub(1);
    match faults.iter().find(|fault| fault.rail > last) {
        Some(&RailFault { rail, .. }) => Err(UnknownRail { rail, last }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUT: RailFault = RailFault {
        side: Side::Near,
        rail: 2,
        begin: Begin::Bytes(1 << 20),
        harm: Harm::Cut,
        lasting: None,
    };

    #[test]
    fn faults_are_parsed_and_written() {
        let begin = Begin::Time(Duration::from_millis(200));
        let lasting = Some(Duration::from_secs(1));
        let far = RailFault { side: Side::Far, begin, lasting, ..CUT };
        for (text, fault) in [
            ("2:1M", CUT),
            ("near.2:1M", CUT),
            ("2:1M:cut", CUT),
            ("2:1M:silent", RailFault { harm: Harm::Silent, ..CUT }),
            (
                "0:0:silent",
                RailFault { rail: 0, begin: Begin::Bytes(0), harm: Harm::Silent, ..CUT },
            ),
            ("far.2:200ms:cut:1s", far),
            ("far.2:200ms:silent:1s", RailFault { harm: Harm::Silent, ..far }),
            ("far.2:0.2s:slow:1000ms", RailFault { harm: Harm::Slow, ..far }),
            ("far.2:200ms:corrupt:1s", RailFault { harm: Harm::Corrupt, ..far }),
            ("far.2:200ms:gone", RailFault { harm: Harm::Gone, lasting: None, ..far }),
        ] {
            assert_eq!(text.parse(), Ok(fault), "{text}");
            assert_eq!(fault.to_string().parse(), Ok(fault), "{fault}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, words) in [
            ("", "\"\" is not [SIDE.]RAIL:WHEN"),
            ("2", "\"2\" is not [SIDE.]RAIL:WHEN"),
            ("2:1M:cut:1s:x", "is not [SIDE.]RAIL:WHEN"),
            (":1M", "\"\" is not the number of a rail"),
            ("-1:1M", "\"-1\" is not the number of a rail"),
            ("x:1M", "\"x\" is not the number of a rail"),
            ("far.:1M", "\"\" is not the number of a rail"),
            ("left.2:1M", "\"left\" is not a side"),
            (".2:1M", "\"\" is not a side"),
            ("2:", "invalid WHEN: \"\" is not a size"),
            ("1:x", "invalid WHEN: \"x\" is not a size"),
            ("1:-1s", "invalid WHEN: \"-1s\" is not a time"),
            ("1:1:loud", "\"loud\" is not a kind of fault: use cut, silent"),
            ("1:1:", "\"\" is not a kind of fault"),
            ("1:1:cut:1M", "invalid FOR: \"1M\" is not a time"),
            ("1:1:cut:", "invalid FOR: \"\" is not a time"),
            ("1:1:cut:0ms", "invalid FOR: \"0ms\" must be more than 0"),
            ("1:1:gone:1s", "\"1:1:gone:1s\": `gone` is permanent"),
        ] {
            let error = text.parse::<RailFault>().unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn rails_must_exist() {
        assert_eq!(check_rails(&[CUT], 3), Ok(()));
        assert_eq!(check_rails(&[CUT], 2), Err(UnknownRail { rail: 2, last: 1 }));
    }
}
