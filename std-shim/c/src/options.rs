//! From the structures of callers to the builders of the library.

use crate::code::Code;
use crate::error::{Refusal, refuse};
use crate::types::{
    EndpointOptions, POLYRAIL_ENDPOINT_EVENTS, POLYRAIL_ENDPOINT_FLUSHES,
    POLYRAIL_ENDPOINT_LITTLE_ENDIAN_IMM, POLYRAIL_ENDPOINT_REPORT_WHEN_DONE,
    POLYRAIL_ENDPOINT_UNORDERED, POLYRAIL_NEVER, POLYRAIL_NO_RAIL_NEEDED, POLYRAIL_NO_RETRY,
    RailFailure, Scheme,
};
use polyrail::backend::{ConnectOptions, Mtu};
use polyrail::endpoint::EndpointBuilder;
use polyrail::heal::Healing;
use polyrail::p2p::P2pBuilder;
use polyrail::verbs::{ImmOrder, ReportOrder};
use polyrail::virtual_qp::{self, Config, PassThroughOrder};
use std::time::Duration;

/// Flags of connections for requests.
const REQUESTS: u32 = POLYRAIL_ENDPOINT_LITTLE_ENDIAN_IMM
    | POLYRAIL_ENDPOINT_REPORT_WHEN_DONE
    | POLYRAIL_ENDPOINT_UNORDERED
    | POLYRAIL_ENDPOINT_EVENTS;

/// Flags of connections for messages.
const MESSAGES: u32 = POLYRAIL_ENDPOINT_FLUSHES;

fn or<T: Default + PartialEq>(value: T, default: T) -> T {
    if value == T::default() { default } else { value }
}

/// A small number that an option has.
fn small(name: &str, value: u32, most: u32) -> Result<u8, Refusal> {
    match u8::try_from(value) {
        Ok(small) if value <= most => Ok(small),
        _ => refuse(Code::Argument, format_args!("{name} is {value}, but the limit is {most}")),
    }
}

fn check_flags(flags: u32, known: u32, what: &str) -> Result<(), Refusal> {
    match flags & !known {
        0 => Ok(()),
        unknown => {
            refuse(Code::Argument, format_args!("flags {unknown:#x} are not supported for {what}"))
        }
    }
}

/// Options that must be 0 here.
fn check_unused(fields: &[(&str, u32)], what: &str) -> Result<(), Refusal> {
    match fields.iter().find(|(_, value)| *value != 0) {
        None => Ok(()),
        Some((name, value)) => refuse(
            Code::Argument,
            format_args!("{name} is {value}, but is not supported for {what}"),
        ),
    }
}

/// Returns what the failure of a rail does.
pub(crate) fn rail_failure(options: &EndpointOptions) -> Result<virtual_qp::RailFailure, Refusal> {
    const FATAL: u32 = RailFailure::Fatal as u32;
    const REROUTE: u32 = RailFailure::Reroute as u32;
    match options.rail_failure {
        0 | FATAL => Ok(virtual_qp::RailFailure::Fatal),
        REROUTE => Ok(virtual_qp::RailFailure::Reroute),
        other => refuse(Code::Argument, format_args!("rail_failure is {other}")),
    }
}

fn min_rails(options: &EndpointOptions) -> Result<u8, Refusal> {
    match options.min_rails {
        0 => Ok(1),
        POLYRAIL_NO_RAIL_NEEDED => Ok(0),
        least => small("min_rails", least, 8),
    }
}

fn time(ms: u64, default: Option<Duration>) -> Option<Duration> {
    match ms {
        0 => default,
        POLYRAIL_NEVER => None,
        ms => Some(Duration::from_millis(ms)),
    }
}

fn healing(options: &EndpointOptions) -> Healing {
    let default = Healing::default();
    let interval = |ms, default| time(ms, Some(default)).unwrap_or(Duration::MAX);
    Healing {
        first_interval: interval(options.heal_first_ms, default.first_interval),
        longest_interval: interval(options.heal_longest_ms, default.longest_interval),
        stall_timeout: time(options.stall_timeout_ms, default.stall_timeout),
        rail_timeout: time(options.rail_timeout_ms, default.rail_timeout),
        fence_timeout: time(options.fence_timeout_ms, default.fence_timeout),
        ..default
    }
}

fn connect_options(options: &EndpointOptions) -> Result<ConnectOptions, Refusal> {
    let default = ConnectOptions::default();
    let path_mtu = match options.path_mtu {
        0 => default.path_mtu,
        bytes => match Mtu::from_bytes(bytes) {
            Some(mtu) => mtu,
            None => return refuse(Code::Argument, format_args!("path_mtu is {bytes}")),
        },
    };
    let retry_cnt = match options.retry_cnt {
        0 => default.retry_cnt,
        POLYRAIL_NO_RETRY => 0,
        retries => small("retry_cnt", retries, 7)?,
    };
    let flow_label = options.flow_label;
    if flow_label >= 1 << 20 {
        return refuse(Code::Argument, format_args!("flow_label is {flow_label:#x}"));
    }
    let Ok(pkey_index) = u16::try_from(options.pkey_index) else {
        return refuse(Code::Argument, format_args!("pkey_index is {}", options.pkey_index));
    };
    Ok(ConnectOptions {
        path_mtu,
        timeout: or(small("timeout", options.timeout, 31)?, default.timeout),
        retry_cnt,
        max_rd_atomic: or(
            small("max_rd_atomic", options.max_rd_atomic, 255)?,
            default.max_rd_atomic,
        ),
        pkey_index,
        service_level: small("service_level", options.service_level, 15)?,
        traffic_class: small("traffic_class", options.traffic_class, 255)?,
        flow_label,
        hop_limit: or(small("hop_limit", options.hop_limit, 255)?, default.hop_limit),
        ..default
    })
}

/// Returns the builder of connections for requests.
pub(crate) fn requests(options: &EndpointOptions) -> Result<EndpointBuilder, Refusal> {
    const WHAT: &str = "requests";
    const SPRAY: u32 = Scheme::Spray as u32;
    const DQPLB: u32 = Scheme::Dqplb as u32;
    check_flags(options.flags, REQUESTS, WHAT)?;
    let unused = [
        ("queue_pairs_per_rail", options.queue_pairs_per_rail),
        ("split_threshold", options.split_threshold),
    ];
    check_unused(&unused, WHAT)?;
    let has = |flag| options.flags & flag != 0;
    let default = Config::default();
    let config = Config {
        scheme: match options.scheme {
            0 | SPRAY => virtual_qp::Scheme::Spray,
            DQPLB => virtual_qp::Scheme::Dqplb,
            other => return refuse(Code::Argument, format_args!("scheme is {other}")),
        },
        max_msg_size: or(options.max_msg_size, default.max_msg_size),
        max_msgs_per_qp: or(options.max_msgs_per_qp, default.max_msgs_per_qp),
        rail_failure: rail_failure(options)?,
        min_rails: min_rails(options)?,
        imm_order: match has(POLYRAIL_ENDPOINT_LITTLE_ENDIAN_IMM) {
            true => ImmOrder::LittleEndian,
            false => ImmOrder::BigEndian,
        },
        report_order: match has(POLYRAIL_ENDPOINT_REPORT_WHEN_DONE) {
            true => ReportOrder::WhenDone,
            false => ReportOrder::InOrder,
        },
        pass_through: match has(POLYRAIL_ENDPOINT_UNORDERED) {
            true => PassThroughOrder::Unordered,
            false => PassThroughOrder::Ordered,
        },
        ..default
    };
    const FIRST_VECTOR: u32 = 0;
    let channel = has(POLYRAIL_ENDPOINT_EVENTS).then_some(FIRST_VECTOR);
    let builder = EndpointBuilder::new().config(config).healing(healing(options));
    let builder = builder.connect_options(connect_options(options)?).completion_channel(channel);
    const RAILS: u32 = 4;
    const INLINE: u32 = 64;
    let rails = or(options.rails, RAILS) as usize;
    Ok(builder.rails(rails).max_inline_data(or(options.max_inline_data, INLINE)))
}

/// Rails of connections for messages.
pub(crate) fn messages_rails(options: &EndpointOptions) -> u32 {
    const RAILS: u32 = 2;
    or(options.rails, RAILS)
}

/// Returns the builder of connections for messages.
pub(crate) fn messages(options: &EndpointOptions) -> Result<P2pBuilder, Refusal> {
    const WHAT: &str = "messages";
    if options.max_inline_data != 0 {
        let words =
            format!("max_inline_data is {}: messages are not inline", options.max_inline_data);
        return refuse(Code::Argument, words);
    }
    check_flags(options.flags, MESSAGES, WHAT)?;
    let unused = [
        ("scheme", options.scheme),
        ("max_msg_size", options.max_msg_size),
        ("max_msgs_per_qp", options.max_msgs_per_qp),
    ];
    check_unused(&unused, WHAT)?;
    const QUEUE_PAIRS: u32 = 1;
    const SPLIT: u32 = 64 << 10;
    let builder = P2pBuilder::new()
        .rails(messages_rails(options) as usize)
        .queue_pairs_per_rail(or(options.queue_pairs_per_rail, QUEUE_PAIRS) as usize)
        .split_threshold(or(options.split_threshold, SPLIT))
        .flushes(options.flags & POLYRAIL_ENDPOINT_FLUSHES != 0)
        .rail_failure(rail_failure(options)?)
        .min_rails(min_rails(options)?)
        .healing(healing(options));
    Ok(builder.connect_options(connect_options(options)?))
}

#[cfg(test)]
mod tests;
