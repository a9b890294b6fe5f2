//! From the structures of callers to the builders of the library.

use crate::code::Code;
use crate::error::{Refusal, refuse};
use crate::types::{
    EndpointOptions, POLYRAIL_ENDPOINT_EVENTS, POLYRAIL_ENDPOINT_FLUSHES,
    POLYRAIL_ENDPOINT_LITTLE_ENDIAN_IMM, POLYRAIL_ENDPOINT_REPORT_WHEN_DONE,
    POLYRAIL_ENDPOINT_UNORDERED, POLYRAIL_NEVER, POLYRAIL_NO_GRACE, POLYRAIL_NO_RAIL_NEEDED,
    POLYRAIL_NO_RETRY, RailFailure, RailWeights, Scheme,
};
use polyrail::backend::{ConnectOptions, Domain, Mtu};
use polyrail::endpoint::{self, EndpointBuilder};
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

/// Whether the caller chose options: those that stand for NULL have size 0.
pub(crate) const fn are_given(options: &EndpointOptions) -> bool {
    options.size != 0
}

/// Returns what the failure of a rail does.
pub(crate) fn rail_failure(options: &EndpointOptions) -> Result<virtual_qp::RailFailure, Refusal> {
    const FATAL: u32 = RailFailure::Fatal as u32;
    const REROUTE: u32 = RailFailure::Reroute as u32;
    match options.rail_failure {
        0 | FATAL => Ok(virtual_qp::RailFailure::Fatal),
        REROUTE => Ok(virtual_qp::RailFailure::Reroute),
        other => refuse(
            Code::Argument,
            format_args!("rail_failure is {other}, which is no polyrail_rail_failure"),
        ),
    }
}

/// Returns what decides how much each rail carries.
fn rail_weights(options: &EndpointOptions) -> Result<endpoint::RailWeights, Refusal> {
    const AUTO: u32 = RailWeights::Auto as u32;
    const EQUAL: u32 = RailWeights::Equal as u32;
    const RATES: u32 = RailWeights::Rates as u32;
    const MEASURED: u32 = RailWeights::Measured as u32;
    match options.rail_weights {
        0 | AUTO => Ok(endpoint::RailWeights::Auto),
        EQUAL => Ok(endpoint::RailWeights::Equal),
        RATES => Ok(endpoint::RailWeights::Rates),
        MEASURED => Ok(endpoint::RailWeights::Measured),
        other => refuse(
            Code::Argument,
            format_args!("rail_weights is {other}, which is no polyrail_rail_weights"),
        ),
    }
}

/// Returns how long what is in flight of a request that is taken back is awaited, if that is given.
fn cancel_grace(options: &EndpointOptions) -> Option<Duration> {
    match options.cancel_grace_us {
        0 => None,
        POLYRAIL_NO_GRACE => Some(Duration::ZERO),
        us => Some(Duration::from_micros(us.into())),
    }
}

/// Returns the devices whose rates the caller gave, with the rates.
fn rates<'d, D: Domain>(
    options: &EndpointOptions,
    devices: &'d [D],
) -> Result<impl Iterator<Item = (&'d D, u32)> + use<'d, D>, Refusal> {
    let rates = options.device_mbps;
    let count = devices.len();
    if let Some((position, mbps)) = (0..).zip(rates).skip(count).find(|(_, mbps)| *mbps > 0) {
        let position: u32 = position;
        let words =
            format!("device_mbps[{position}] is {mbps}, but the domain has {count} devices");
        return refuse(Code::Argument, words);
    }
    Ok(devices.iter().zip(rates))
}

/// Returns the builder of connections for requests over these devices.
pub(crate) fn requests_over<D: Domain>(
    options: &EndpointOptions,
    devices: &[D],
) -> Result<EndpointBuilder, Refusal> {
    let rate = |builder: EndpointBuilder, (device, mbps)| builder.device_mbps(device, mbps);
    Ok(rates(options, devices)?.fold(requests(options)?, rate))
}

/// Returns the builder of connections for messages over these devices.
pub(crate) fn messages_over<D: Domain>(
    options: &EndpointOptions,
    devices: &[D],
) -> Result<P2pBuilder, Refusal> {
    let rate = |builder: P2pBuilder, (device, mbps)| builder.device_mbps(device, mbps);
    Ok(rates(options, devices)?.fold(messages(options)?, rate))
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
            None => {
                return refuse(
                    Code::Argument,
                    format_args!("path_mtu is {bytes}, but must be 256, 512, 1024, 2048 or 4096"),
                );
            }
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

/// Returns the builder of connections for requests, with the rates that devices report.
fn requests(options: &EndpointOptions) -> Result<EndpointBuilder, Refusal> {
    const WHAT: &str = "requests";
    const SPRAY: u32 = Scheme::Spray as u32;
    const DQPLB: u32 = Scheme::Dqplb as u32;
    check_flags(options.flags, REQUESTS, WHAT)?;
    let unused = [
        ("queue_pairs_per_rail", options.queue_pairs_per_rail),
        ("split_threshold", options.split_threshold),
    ];
    check_unused(&unused, WHAT)?;
    let rail_failure = rail_failure(options)?;
    // The engine refuses each inline request if rails are rerouted: its bytes could not be posted
    // again on another rail, because the caller may change them after the post.
    if rail_failure == virtual_qp::RailFailure::Reroute && options.max_inline_data != 0 {
        let words = format!(
            "max_inline_data is {}, but no request can be inline if rails are rerouted",
            options.max_inline_data
        );
        return refuse(Code::Argument, words);
    }
    let has = |flag| options.flags & flag != 0;
    let default = Config::default();
    let config = Config {
        scheme: match options.scheme {
            0 | SPRAY => virtual_qp::Scheme::Spray,
            DQPLB => virtual_qp::Scheme::Dqplb,
            other => {
                return refuse(
                    Code::Argument,
                    format_args!("scheme is {other}, which is no polyrail_scheme"),
                );
            }
        },
        max_msg_size: or(options.max_msg_size, default.max_msg_size),
        max_msgs_per_qp: or(options.max_msgs_per_qp, default.max_msgs_per_qp),
        rail_failure,
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
    let builder = builder.rail_weights(rail_weights(options)?);
    let builder = builder.connect_options(connect_options(options)?).completion_channel(channel);
    let builder = match cancel_grace(options) {
        Some(grace) => builder.cancel_grace(grace),
        None => builder,
    };
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

/// Returns the builder of connections for messages, with the rates that devices report.
fn messages(options: &EndpointOptions) -> Result<P2pBuilder, Refusal> {
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
        .rail_weights(rail_weights(options)?)
        .min_rails(min_rails(options)?)
        .healing(healing(options));
    let builder = builder.connect_options(connect_options(options)?);
    Ok(match cancel_grace(options) {
        Some(grace) => builder.cancel_grace(grace),
        None => builder,
    })
}

#[cfg(test)]
mod tests;
