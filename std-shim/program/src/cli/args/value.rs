//! Values on the command line, and their limits.

use clap::ValueEnum;
use clap::builder::{PathBufValueParser, TypedValueParser};
use polyrail::backend::Mtu;
use polyrail::endpoint::RailWeights;
use polyrail::virtual_qp::{FRAGMENT_ALIGN, RailFailure, Scheme};
use polyrail_program::devices::Backend;
use polyrail_program::perf::{self, MAX_IN_FLIGHT, MAX_INLINE, Operation};
use polyrail_program::size::parse_size;
use polyrail_program::time::parse_time;
use polyrail_program::transfer::MAX_WINDOW;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

/// Shortest interval between two samples.
const MIN_INTERVAL: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum SchemeName {
    /// Plain writes, then one notification on a separate queue pair.
    Spray,
    /// Every fragment is a write with immediate that carries its sequence number.
    Dqplb,
}

impl From<SchemeName> for Scheme {
    fn from(name: SchemeName) -> Self {
        match name {
            SchemeName::Spray => Self::Spray,
            SchemeName::Dqplb => Self::Dqplb,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum BackendName {
    /// RDMA devices.
    Verbs,
    /// Network interfaces, over TCP.
    Tcp,
}

impl From<BackendName> for Backend {
    fn from(name: BackendName) -> Self {
        match name {
            BackendName::Verbs => Self::Verbs,
            BackendName::Tcp => Self::Tcp,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum FailureName {
    /// Send over the other rails, and repair the failed one.
    Reroute,
    /// Stop with an error.
    Fatal,
}

impl From<FailureName> for RailFailure {
    fn from(name: FailureName) -> Self {
        match name {
            FailureName::Reroute => Self::Reroute,
            FailureName::Fatal => Self::Fatal,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum WeightsName {
    /// By the rates of the ports, if these are known and differ; else equal.
    Auto,
    /// Rails take turns, so each carries the same.
    Equal,
    /// By the rates of the ports: the rail that would finish first comes next. If a rate is unknown,
    /// all count as equal.
    Rates,
    /// By measured rates: the bytes that a rail completes in the time in which it has requests in
    /// flight. Only if rails are rerouted.
    Measured,
}

impl From<WeightsName> for RailWeights {
    fn from(name: WeightsName) -> Self {
        match name {
            WeightsName::Auto => Self::Auto,
            WeightsName::Equal => Self::Equal,
            WeightsName::Rates => Self::Rates,
            WeightsName::Measured => Self::Measured,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum OperationName {
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate: the receiver is notified.
    WriteImm,
    /// RDMA READ.
    Read,
    /// SEND into receives that the peer posted.
    Send,
    /// Message into a buffer that the peer offered (isend, irecv).
    P2p,
    /// Atomic: add to 8 bytes, and fetch their old value; over rail 0.
    FetchAdd,
    /// Atomic: replace 8 bytes if they equal an expected value, and fetch their old value; over
    /// rail 0.
    CompareSwap,
}

impl From<OperationName> for Operation {
    fn from(name: OperationName) -> Self {
        match name {
            OperationName::Write => Self::Write,
            OperationName::WriteImm => Self::WriteImm,
            OperationName::Read => Self::Read,
            OperationName::Send => Self::Send,
            OperationName::P2p => Self::P2p,
            OperationName::FetchAdd => Self::FetchAdd,
            OperationName::CompareSwap => Self::CompareSwap,
        }
    }
}

/// Sizes of requests, in bytes, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Sizes(pub(in crate::cli) Vec<u32>);

pub(super) fn sizes(text: &str) -> Result<Sizes, String> {
    let size = |text: &str| match parse_size(text) {
        Ok(0) => Err("a request needs at least 1 byte".to_owned()),
        Ok(bytes) if bytes > perf::MAX_MESSAGE_SIZE.into() => {
            Err(format!("{text:?} is more than 256M, the limit of perf"))
        }
        Ok(bytes) => Ok(bytes as u32),
        Err(error) => Err(error.to_string()),
    };
    let Some((first, last)) = text.split_once("..") else {
        return text.split(',').map(size).collect::<Result<_, _>>().map(Sizes);
    };
    let first = size(first)?;
    let last = size(last)?;
    if first > last {
        return Err(format!(
            "the range {text:?} begins above its end: write the smaller size first"
        ));
    }
    let sizes = std::iter::successors(Some(first), |bytes| bytes.checked_mul(2));
    Ok(Sizes(sizes.take_while(|bytes| *bytes <= last).collect()))
}

pub(super) fn rails(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(rails @ 1..=8) => Ok(rails),
        _ => Err("must be a number from 1 to 8".into()),
    }
}

pub(super) fn window(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(window) if window >= 1 && window <= u64::from(MAX_WINDOW) => Ok(window),
        _ => Err(format!("must be a number from 1 to {MAX_WINDOW}")),
    }
}

/// Parses the window of a measurement; the lower limit over several rails is checked later.
pub(super) fn deep_window(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(window) if (1..=MAX_IN_FLIGHT).contains(&window) => Ok(window),
        _ => Err(format!("must be a number from 1 to {MAX_IN_FLIGHT}")),
    }
}

pub(super) fn inline(text: &str) -> Result<u32, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    match u32::try_from(bytes) {
        Ok(bytes) if bytes <= MAX_INLINE => Ok(bytes),
        _ => Err(format!("must be at most {MAX_INLINE} bytes: no device sends more inline")),
    }
}

pub(super) fn mtu(text: &str) -> Result<Mtu, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    let mtu = u32::try_from(bytes).ok().and_then(Mtu::from_bytes);
    mtu.ok_or_else(|| "must be 256, 512, 1024, 2048 or 4096".into())
}

pub(super) fn fragment(text: &str) -> Result<u32, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    match u32::try_from(bytes) {
        Ok(bytes @ 1..=0x4000_0000) if bytes.is_multiple_of(FRAGMENT_ALIGN) => Ok(bytes),
        _ => Err(format!("must be a positive multiple of {FRAGMENT_ALIGN}, at most 1G")),
    }
}

pub(super) fn message(text: &str) -> Result<u64, String> {
    match parse_size(text).map_err(|error| error.to_string())? {
        bytes @ 1..=0x4000_0000 => Ok(bytes),
        _ => Err("must be from 1 byte to 1G".into()),
    }
}

pub(super) fn memory(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

pub(super) fn rate(text: &str) -> Result<NonZeroU64, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    NonZeroU64::new(bytes).ok_or_else(|| "must be at least 1 byte per second".into())
}

/// Parses a time: seconds, or a number with a unit.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    const DAY: Duration = Duration::from_secs(86_400);
    let duration = if text.ends_with('s') {
        Some(parse_time(text).map_err(|error| error.to_string())?)
    } else {
        let seconds: f64 = text.parse().map_err(|_| {
            format!("{text:?} is neither a number of seconds nor a time such as 1.5s or 200ms")
        })?;
        Duration::try_from_secs_f64(seconds).ok()
    };
    let in_range = duration.filter(|duration| *duration > Duration::ZERO && *duration <= DAY);
    in_range.ok_or_else(|| "must be more than 0 and at most 86400 seconds (a day)".into())
}

/// Returns a parser of the path of a picture. A path without a suffix, such as /dev/stdout, is one.
pub(super) fn picture() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path.extension() {
        Some(suffix) if !suffix.eq_ignore_ascii_case("svg") => {
            Err("the picture is SVG: choose a name that ends with .svg")
        }
        _ => Ok(path),
    })
}

/// Parses the time between two samples.
pub(super) fn interval(text: &str) -> Result<Duration, String> {
    match seconds(text)? {
        interval if interval >= MIN_INTERVAL => Ok(interval),
        _ => Err("must be at least 1ms: the clock is read that often".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_have_the_librarys_names() {
        for (name, weights) in RailWeights::NAMES {
            let parsed = WeightsName::from_str(name, false).map(RailWeights::from);
            assert_eq!(parsed, Ok(weights), "{name}");
        }
        assert_eq!(WeightsName::value_variants().len(), RailWeights::NAMES.len());
    }

    #[test]
    fn ranges_double() {
        assert_eq!(sizes("4K..20K"), Ok(Sizes(vec![4096, 8192, 16384])));
        assert_eq!(sizes("1,127,64K"), Ok(Sizes(vec![1, 127, 65536])));
        assert!(sizes("1M..4K").is_err() && sizes("0").is_err() && sizes("1G").is_err());
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        assert!(rails("0").is_err() && rails("9").is_err() && rails("x").is_err());
        assert!(fragment("100").is_err() && fragment("0").is_err() && fragment("8G").is_err());
        assert!(rate("0").is_err() && rate("fast").is_err());
        assert_eq!(rate("1G"), Ok(NonZeroU64::new(1 << 30).unwrap()));
        assert!(window("0").is_err() && window("129").is_err());
        assert!(deep_window("0").is_err() && deep_window("16385").is_err());
        assert_eq!((deep_window("16384"), inline("4K")), (Ok(16_384), Ok(4096)));
        assert!(inline("4097").is_err() && inline("-1").is_err());
        assert_eq!((mtu("1K"), mtu("4096")), (Ok(Mtu::Mtu1024), Ok(Mtu::Mtu4096)));
        assert!(mtu("1500").is_err() && mtu("8K").is_err() && mtu("0").is_err());
        assert!(seconds("0").is_err() && seconds("nan").is_err() && seconds("1e9").is_err());
        assert!(seconds("0s").is_err() && seconds("-1s").is_err() && seconds("1h").is_err());
        for text in ["0.5", "0.5s", "500ms", "500000us"] {
            assert_eq!(seconds(text), Ok(Duration::from_millis(500)), "{text}");
        }
        assert!(interval("999us").is_err() && interval("1ms") == Ok(Duration::from_millis(1)));
    }
}
