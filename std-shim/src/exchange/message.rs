//! What one side tells the other, as plain data and as the bytes that travel.

use super::field::Place;
use super::{
    HEADER_BYTES, HandshakeError, MAGIC, MAX_MESSAGE_BYTES, MAX_NAME_BYTES, MAX_REASON_BYTES,
    VERSION,
};
use crate::RemoteBuffer;
use crate::backend::Mtu;
use crate::card::ConnectionCard;
use crate::endpoint::{Address, MAX_DEVICES, RailAddress};
use crate::json::Value;
use crate::perf::{self, Operation, Workload};
use crate::printable;
use crate::session::SessionError;
use crate::transfer::{self, MAX_CHUNK, Plan};
use polyrail_core::virtual_qp::{MAX_RAILS, Scheme};
use serde::Serialize;
use std::fmt;

/// What one side tells the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Message {
    /// Who I am; the first message either way.
    Hello(Hello),
    /// My receives are posted and my queue pairs are connected.
    Ready {},
    /// I have nothing to say, but I am still there.
    Alive {},
    /// All of it moved, as far as I am concerned.
    Done(Outcome),
    /// I cannot go on.
    Failed {
        /// Why.
        reason: Reason,
    },
}

/// Where a side can be reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Hello {
    /// Its endpoint.
    pub endpoint: Address,
    /// The buffer that the other side's requests go to: of a copy, chunks to the receiver, credits to
    /// the sender.
    pub buffer: RemoteBuffer,
    /// What the connection is for, if this side is the one that asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub purpose: Option<Purpose>,
}

/// What a connection is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Purpose {
    /// A file is to be moved to the other side.
    Copy {
        /// In which pieces.
        plan: Plan,
        /// The name that the sender would give the copy; a receiver may have its own idea.
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<FileName>,
    },
    /// Requests are to be measured.
    Perf(Workload),
}

impl Purpose {
    /// Its name on the wire.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Copy { .. } => "copy",
            Self::Perf(_) => "perf",
        }
    }
}

/// A file's name: no path, and nothing that would be hidden or means a directory. At most 255 bytes,
/// as file systems have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileName(String);

impl FileName {
    /// The name, if it is one.
    pub fn new(name: &str) -> Option<Self> {
        let plain = !name.contains(|c: char| c == '/' || c.is_control());
        let fits = (1..=MAX_NAME_BYTES).contains(&name.len());
        (plain && fits && !name.starts_with('.')).then(|| Self(name.to_owned()))
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a side did, in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// What it saw of the file.
    Copy(Sum),
    /// What it saw of the requests that were measured.
    Perf {
        /// Requests that it posted and saw complete; at the far end, requests that arrived, which are
        /// 0 of an operation that it does not notice.
        requests: u64,
    },
}

impl Outcome {
    /// What it saw of a file.
    pub(crate) fn sum(self) -> Result<Sum, SessionError> {
        match self {
            Self::Copy(sum) => Ok(sum),
            Self::Perf { .. } => Err(SessionError::other_outcome()),
        }
    }

    /// What it saw of the requests that were measured.
    pub(crate) fn requests(self) -> Result<u64, SessionError> {
        match self {
            Self::Perf { requests } => Ok(requests),
            Self::Copy(_) => Err(SessionError::other_outcome()),
        }
    }
}

/// What a side saw of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sum {
    /// Bytes.
    pub bytes: u64,
    /// CRC-32 (IEEE 802.3) of them, as `crc32(1)` and gzip compute it.
    pub crc32: u32,
}

/// Why a side gave up, for people. No longer than [`MAX_REASON_BYTES`], and safe to print.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reason(String);

impl Reason {
    /// What `why` says, cut off if it is long; what is not [printable](printable::is_printable) is replaced.
    pub fn new(why: impl fmt::Display) -> Self {
        let mut text = printable::replaced(&why.to_string());
        text.truncate(text.floor_char_boundary(MAX_REASON_BYTES));
        Self(text)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Message {
    /// Its name on the wire.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Hello(_) => "hello",
            Self::Ready {} => "ready",
            Self::Alive {} => "alive",
            Self::Done(_) => "done",
            Self::Failed { .. } => "failed",
        }
    }

    /// The bytes that travel: header and JSON.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        // Numbers and strings into memory: there is nothing that could fail.
        _ = serde_json::to_writer(&mut bytes, self);
        let length = (bytes.len() - HEADER_BYTES) as u32;
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&VERSION.to_be_bytes());
        bytes[8..12].copy_from_slice(&length.to_be_bytes());
        bytes
    }

    /// Reads the message at the beginning of `bytes`, and says how many bytes it took; `None` if
    /// it is not all there yet. What is wrong is said as soon as it can be known.
    ///
    /// # Errors
    ///
    /// See [`HandshakeError`].
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, HandshakeError> {
        let start = &bytes[..bytes.len().min(MAGIC.len())];
        if !MAGIC.starts_with(start) {
            return Err(HandshakeError::not_polyrail(bytes));
        }
        let number = |at: usize| bytes.get(at..)?.first_chunk().map(|n| u32::from_be_bytes(*n));
        if let Some(peer) = number(4).filter(|version| *version != VERSION) {
            return Err(HandshakeError::Version { peer });
        }
        let Some(length) = number(8) else { return Ok(None) };
        if length > MAX_MESSAGE_BYTES {
            return Err(HandshakeError::TooLong { length });
        }
        let end = HEADER_BYTES + length as usize;
        match bytes.get(HEADER_BYTES..end) {
            Some(body) => Ok(Some((Self::from_json(body)?, end))),
            None => Ok(None),
        }
    }

    /// Reads the part of a message that follows its header.
    ///
    /// # Errors
    ///
    /// See [`HandshakeError`].
    pub fn from_json(body: &[u8]) -> Result<Self, HandshakeError> {
        let value: Value = serde_json::from_slice(body)
            .map_err(|error| HandshakeError::NotJson { reason: error.to_string() })?;
        let place = Place::root(&value);
        let known = ["hello", "ready", "alive", "done", "failed"];
        let (name, inner) = place.variant(&known, "an object with one field, the message")?;
        match name {
            "hello" => Ok(Self::Hello(hello(&inner)?)),
            "ready" => inner.object(&[]).map(|_| Self::Ready {}),
            "alive" => inner.object(&[]).map(|_| Self::Alive {}),
            "done" => Ok(Self::Done(outcome(&inner)?)),
            _ => Ok(Self::Failed { reason: reason(&inner)? }),
        }
    }
}

fn hello(place: &Place<'_>) -> Result<Hello, HandshakeError> {
    let fields = place.object(&["endpoint", "buffer", "purpose"])?;
    Ok(Hello {
        endpoint: address(&fields.field("endpoint")?)?,
        buffer: buffer(&fields.field("buffer")?)?,
        purpose: fields.optional("purpose").map(|place| purpose(&place)).transpose()?,
    })
}

fn purpose(place: &Place<'_>) -> Result<Purpose, HandshakeError> {
    let (name, inner) =
        place.variant(&["copy", "perf"], "an object with one field, the purpose")?;
    if name == "perf" {
        return Ok(Purpose::Perf(workload(&inner)?));
    }
    let fields = inner.object(&["plan", "name"])?;
    Ok(Purpose::Copy {
        plan: plan(&fields.field("plan")?)?,
        name: fields.optional("name").map(|place| file_name(&place)).transpose()?,
    })
}

fn workload(place: &Place<'_>) -> Result<Workload, HandshakeError> {
    let fields = place.object(&["operation", "messageSize", "window"])?;
    let (operation, max) = (fields.field("operation")?, perf::MAX_MESSAGE_SIZE);
    Ok(Workload {
        operation: Operation::from_name(operation.text()?)
            .ok_or_else(|| operation.wrong("\"write\", \"write-imm\", \"read\" or \"send\""))?,
        message_size: fields.field("messageSize")?.number(1, max.into())? as u32,
        window: fields.field("window")?.number(1, perf::MAX_WINDOW.into())? as u32,
    })
}

fn address(place: &Place<'_>) -> Result<Address, HandshakeError> {
    /// Bytes of the longest message of a reliable connection (InfiniBand, volume 1, 9.7.7).
    const MAX_MSG_SIZE: u64 = 1 << 31;
    let fields = place.object(&["card", "scheme", "maxMsgSize", "rails", "notify"])?;
    let (card, rails) = (fields.field("card")?, fields.field("rails")?.list(1, MAX_RAILS)?);
    let scheme = fields.field("scheme")?;
    Ok(Address {
        card: ConnectionCard::from_value(card.value())
            .map_err(|source| HandshakeError::Card { at: card.path(), source })?,
        scheme: match scheme.text()? {
            "spray" => Scheme::Spray,
            "dqplb" => Scheme::Dqplb,
            _ => return Err(scheme.wrong("\"spray\" or \"dqplb\"")),
        },
        max_msg_size: fields.field("maxMsgSize")?.number(1, MAX_MSG_SIZE)? as u32,
        rails: rails.iter().map(rail).collect::<Result<_, _>>()?,
        notify: fields.optional("notify").map(|place| rail(&place)).transpose()?,
    })
}

fn rail(place: &Place<'_>) -> Result<RailAddress, HandshakeError> {
    let fields = place.object(&["device", "gid", "lid", "mtu", "psn", "rdAtomic"])?;
    let (gid, mtu) = (fields.field("gid")?, fields.field("mtu")?);
    let bytes = mtu.number(0, u32::MAX.into())? as u32;
    Ok(RailAddress {
        device: fields.field("device")?.number(0, MAX_DEVICES as u64 - 1)? as u8,
        gid: gid.text()?.parse().map_err(|_| gid.wrong("an IPv6 address"))?,
        lid: fields.field("lid")?.number(0, u16::MAX.into())? as u16,
        mtu: Mtu::from_bytes(bytes).ok_or_else(|| mtu.wrong("256, 512, 1024, 2048 or 4096"))?,
        psn: fields.field("psn")?.number(0, 0x00ff_ffff)? as u32,
        rd_atomic: fields.field("rdAtomic")?.number(0, u8::MAX.into())? as u8,
    })
}

fn buffer(place: &Place<'_>) -> Result<RemoteBuffer, HandshakeError> {
    let fields = place.object(&["addr", "length", "rkeys"])?;
    let rkeys = fields.field("rkeys")?.list(1, MAX_DEVICES)?;
    let rkey = |place: &Place<'_>| Ok(place.number(0, u32::MAX.into())? as u32);
    let addr = fields.field("addr")?.number(0, u64::MAX - 1)?;
    Ok(RemoteBuffer {
        addr,
        // It does not wrap around the end of the address space.
        length: fields.field("length")?.number(1, u64::MAX - addr)?,
        rkeys: rkeys.iter().map(rkey).collect::<Result<_, HandshakeError>>()?,
    })
}

fn plan(place: &Place<'_>) -> Result<Plan, HandshakeError> {
    /// Bytes of the longest file: offsets are signed.
    const MAX_TOTAL: u64 = i64::MAX as u64;
    let fields = place.object(&["total", "chunk", "window"])?;
    Ok(Plan {
        total: fields.field("total")?.number(0, MAX_TOTAL)?,
        chunk: fields.field("chunk")?.number(1, MAX_CHUNK.into())? as u32,
        window: fields.field("window")?.number(1, transfer::MAX_WINDOW.into())? as u32,
    })
}

fn file_name(place: &Place<'_>) -> Result<FileName, HandshakeError> {
    FileName::new(place.text()?)
        .ok_or_else(|| place.wrong("a file's name, without a path and not hidden"))
}

fn outcome(place: &Place<'_>) -> Result<Outcome, HandshakeError> {
    let (name, inner) =
        place.variant(&["copy", "perf"], "an object with one field, the purpose")?;
    if name == "copy" {
        return Ok(Outcome::Copy(sum(&inner)?));
    }
    let requests = inner.object(&["requests"])?.field("requests")?.number(0, u64::MAX)?;
    Ok(Outcome::Perf { requests })
}

fn sum(place: &Place<'_>) -> Result<Sum, HandshakeError> {
    let fields = place.object(&["bytes", "crc32"])?;
    let crc32 = fields.field("crc32")?.number(0, u32::MAX.into())? as u32;
    Ok(Sum { bytes: fields.field("bytes")?.number(0, u64::MAX)?, crc32 })
}

fn reason(place: &Place<'_>) -> Result<Reason, HandshakeError> {
    let place = place.object(&["reason"])?.field("reason")?;
    let text = place.text()?;
    place.check_length(text.len(), 0, MAX_REASON_BYTES)?;
    Ok(Reason::new(text))
}
