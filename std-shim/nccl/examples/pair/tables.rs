//! All versions of the function table: properties of devices, and receives of several buffers.

use crate::end::{End, NEWEST, fill, load, logger, until};
use crate::options::Options;
use crate::table::{Logger, Pointer, Properties, Status, Table};
use crate::talk::Talk;
use std::collections::VecDeque;
use std::ffi::c_int;

/// All versions, newest first, in the order in which NCCL looks for them.
const VERSIONS: [u32; 5] = [NEWEST, 11, 10, 9, 8];

/// The first version that can merge devices.
const MERGES: u32 = 9;

/// The first version whose properties name the rail of a device, and its plane.
const RAIL_IDS: u32 = 12;

/// Tags of the buffers of a receive.
const TAGS: [c_int; 8] = [7, -1, 0, c_int::MAX, 3, c_int::MIN, 2, 1000];

/// Lengths of messages: empty, short, and long enough for several rails.
const LENGTHS: [usize; 5] = [0, 1, 100, 5000, 100_000];

/// Distance between buffers in bytes.
const ROOM: usize = 100_064;

/// The initial contents of buffers.
const UNTOUCHED: u8 = 0xa5;

/// Receives that are posted before the first message is sent.
const AHEAD: usize = 3;

/// Returns a line for each device, and for these NICs merged, after checking that all versions
/// agree.
pub(crate) fn describe(plugin: &str, nics: &[c_int]) -> Result<String, String> {
    // Oldest first, because merged devices of later versions remain.
    let found = VERSIONS.into_iter().rev().map(|version| {
        let found = properties(&load(plugin, version)?, nics);
        Ok((version, found.map_err(|status| format!("version {version}: {status}"))?))
    });
    let mut found = found.collect::<Result<Vec<_>, String>>()?;
    let (_, newest) = found.pop().unwrap_or_default();
    for (version, found) in found {
        let mut expected = newest.clone();
        if version < MERGES {
            expected.pop();
            expected.iter_mut().for_each(|device| device.parts.clear());
        }
        if version < RAIL_IDS {
            expected.iter_mut().for_each(|device| device.rail_ids = [-1; 2]);
        }
        if found != expected {
            return Err(format!("version {version} has {found:?}, not {expected:?}"));
        }
    }
    Ok(newest.iter().map(words).collect::<Vec<_>>().join("\n"))
}

/// Returns the properties of all NICs, and of these NICs merged if the version can merge.
fn properties(table: &Table, nics: &[c_int]) -> Result<Vec<Properties>, Status> {
    let context = table.init(logger as Logger, -1)?;
    if table.version >= MERGES {
        table.make_v_device(nics)?;
    }
    let found = (0..table.devices()?).map(|device| table.properties(device)).collect();
    match table.finalize(context) {
        0 => found,
        status => Err(status),
    }
}

fn words(device: &Properties) -> String {
    let Properties { name, pci_path, guid, speed, parts, .. } = device;
    let Properties { ptr_support, reg_is_global, force_flush, port, latency, .. } = device;
    let Properties { max_comms, max_recvs, net_device_type, max_p2p_bytes, .. } = device;
    format!(
        "{name} guid {guid:016x} speed {speed} of {parts:?} pci {pci_path:?} port {port} latency {latency} \
         memory {ptr_support} global {reg_is_global} flush {force_flush} comms {max_comms} recvs {max_recvs} \
         type {net_device_type} longest {max_p2p_bytes}"
    )
}

/// Sends this many messages by each version in both directions, each to a receive of one to eight
/// buffers.
pub(crate) fn run(options: &Options, talk: &mut Talk, messages: usize) -> Result<String, String> {
    for version in VERSIONS {
        let table = load(&options.plugin, version)?;
        let devices = if version < MERGES { 1 } else { options.devices };
        exchange(table, devices, talk, messages)
            .map_err(|why| format!("version {version}: {why}"))?;
    }
    Ok(format!("{messages} messages each way by each of versions {VERSIONS:?}: as they were sent"))
}

fn exchange(table: Table, devices: c_int, talk: &mut Talk, messages: usize) -> Result<(), String> {
    let mut end = End::of(table, devices, (AHEAD + 1) * TAGS.len() * ROOM, talk)?;
    // Different numbers for each end, so that their messages differ.
    let (ours, theirs) = if talk.is_first() { (0, 100) } else { (100, 0) };
    let mut offered = VecDeque::new();
    for number in 0..messages + AHEAD {
        if number < messages {
            offered.push_back(offer(&mut end, number)?);
        }
        let Some(number) = number.checked_sub(AHEAD) else { continue };
        send(&mut end, number, ours)?;
        if let Some(receive) = offered.pop_front() {
            check(&end, number, theirs, receive)?;
        }
    }
    // Neither end closes while the other one has requests in flight.
    talk.swap("")?;
    end.close()
}

/// A part of a message, in one buffer.
struct Part {
    tag: c_int,
    /// Offset in the memory of either end.
    at: usize,
    /// Length of the sent data.
    length: usize,
    /// Capacity of the buffer.
    holds: usize,
    /// The byte value of the data.
    seed: usize,
}

/// Returns all parts of a message of the end with this salt.
fn parts(number: usize, salt: usize) -> Vec<Part> {
    let part = |part: usize| {
        let length = LENGTHS[(number + 3 * part) % LENGTHS.len()];
        Part {
            tag: TAGS[part],
            at: (number % (AHEAD + 1) * TAGS.len() + part) * ROOM,
            length,
            holds: length + 8 * part,
            seed: number * TAGS.len() + part + salt,
        }
    };
    (0..=number % TAGS.len()).map(part).collect()
}

fn offer(end: &mut End, number: usize) -> Result<Pointer, String> {
    let parts = parts(number, 0);
    parts.iter().for_each(|part| end.to[part.at..part.at + ROOM].fill(UNTOUCHED));
    let buffers: Vec<_> = parts.iter().map(|part| (part.at, part.holds, part.tag)).collect();
    until("irecv", || end.irecv_of(&buffers))
}

/// Sends to all buffers of a receive, in a different order than they were posted.
fn send(end: &mut End, number: usize, salt: usize) -> Result<(), String> {
    let mut parts = parts(number, salt);
    parts.reverse();
    let count = parts.len();
    parts.rotate_left(number % count);
    let mut sends = Vec::new();
    for part in &parts {
        fill(&mut end.from[part.at..part.at + part.length], part.seed);
        sends.push(until("isend", || end.isend_tagged(part.at, part.length, part.tag))?);
    }
    for (request, part) in sends.into_iter().zip(&parts) {
        let sizes = until("a send", || end.table.test(request))?;
        if sizes[0] as usize != part.length {
            return Err(format!("message {number}: {} bytes went, not {}", sizes[0], part.length));
        }
    }
    Ok(())
}

/// Waits for a message, and checks that each buffer contains what was sent to it, and nothing after
/// it.
fn check(end: &End, number: usize, salt: usize, receive: Pointer) -> Result<(), String> {
    let sizes = until("a receive", || end.table.test(receive))?;
    for (part, came) in parts(number, salt).iter().zip(sizes) {
        let mut expected = vec![UNTOUCHED; ROOM];
        fill(&mut expected[..part.length], part.seed);
        if came as usize != part.length || end.to[part.at..part.at + ROOM] != expected {
            let Part { tag, length, .. } = part;
            return Err(format!(
                "message {number}, tag {tag}: {came} bytes of {length}, or others"
            ));
        }
    }
    Ok(())
}
