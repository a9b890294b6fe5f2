//! Every option arrives where it belongs, and alone changes something.

use super::*;
use crate::types::POLYRAIL_NO_RAIL_NEEDED;
use polyrail::virtual_qp::Scheme as EngineScheme;
use std::mem::zeroed;

type Change = fn(&mut EndpointOptions);

fn options(changes: &[Change]) -> EndpointOptions {
    // SAFETY: zeros are values of options.
    let mut options: EndpointOptions = unsafe { zeroed() };
    changes.iter().for_each(|change| change(&mut options));
    options
}

/// The options of both kinds of connections, each with a different value.
const OF_BOTH: &[Change] = &[
    |options| options.rails = 3,
    |options| options.rail_failure = RailFailure::Reroute as u32,
    |options| options.min_rails = 2,
    |options| options.path_mtu = 2048,
    |options| options.timeout = 13,
    |options| options.retry_cnt = 5,
    |options| options.max_rd_atomic = 7,
    |options| options.pkey_index = 300,
    |options| options.service_level = 9,
    |options| options.traffic_class = 106,
    |options| options.flow_label = 0xabcde,
    |options| options.hop_limit = 33,
    |options| options.heal_first_ms = 11,
    |options| options.heal_longest_ms = 1200,
    |options| options.stall_timeout_ms = 1300,
    |options| options.rail_timeout_ms = 1400,
    |options| options.fence_timeout_ms = 1500,
    |options| options.rail_weights = RailWeights::Rates as u32,
    |options| options.cancel_grace_us = 1600,
];

const OF_REQUESTS: &[Change] = &[
    |options| options.scheme = Scheme::Dqplb as u32,
    |options| options.max_msg_size = 4096,
    |options| options.max_msgs_per_qp = 17,
    |options| options.flags |= POLYRAIL_ENDPOINT_LITTLE_ENDIAN_IMM,
    |options| options.flags |= POLYRAIL_ENDPOINT_REPORT_WHEN_DONE,
    |options| options.flags |= POLYRAIL_ENDPOINT_UNORDERED,
    |options| options.flags |= POLYRAIL_ENDPOINT_EVENTS,
];

/// Cannot work together with rerouting.
const INLINE: Change = |options| options.max_inline_data = 100;

const OF_MESSAGES: &[Change] = &[
    |options| options.queue_pairs_per_rail = 4,
    |options| options.split_threshold = 12345,
    |options| options.flags |= POLYRAIL_ENDPOINT_FLUSHES,
];

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn healing_of_both() -> Healing {
    Healing {
        first_interval: ms(11),
        longest_interval: ms(1200),
        stall_timeout: Some(ms(1300)),
        rail_timeout: Some(ms(1400)),
        fence_timeout: Some(ms(1500)),
        ..Healing::default()
    }
}

fn connect_options_of_both() -> ConnectOptions {
    ConnectOptions {
        path_mtu: Mtu::from_bytes(2048).unwrap(),
        timeout: 13,
        retry_cnt: 5,
        max_rd_atomic: 7,
        pkey_index: 300,
        service_level: 9,
        traffic_class: 106,
        flow_label: 0xabcde,
        hop_limit: 33,
        ..ConnectOptions::default()
    }
}

/// Builders cannot be compared, but their debug output shows every field.
fn told<T: std::fmt::Debug>(built: Result<T, Refusal>) -> String {
    format!("{:?}", built.unwrap())
}

fn each_alone_changes_something(lists: &[&[Change]], told: fn(&EndpointOptions) -> String) {
    let mut all = vec![told(&options(&[]))];
    for change in lists.concat() {
        let now = told(&options(&[change]));
        assert!(!all.contains(&now), "two that are alike: {now}");
        all.push(now);
    }
}

#[test]
fn every_option_of_requests_arrives() {
    let expected = EndpointBuilder::new()
        .rails(3)
        .config(Config {
            scheme: EngineScheme::Dqplb,
            max_msg_size: 4096,
            max_msgs_per_qp: 17,
            rail_failure: virtual_qp::RailFailure::Reroute,
            min_rails: 2,
            imm_order: ImmOrder::LittleEndian,
            report_order: ReportOrder::WhenDone,
            pass_through: PassThroughOrder::Unordered,
            ..Config::default()
        })
        .rail_weights(endpoint::RailWeights::Rates)
        .healing(healing_of_both())
        .cancel_grace(Duration::from_micros(1600))
        .connect_options(connect_options_of_both())
        .completion_channel(Some(0));
    let changed = options(&[OF_BOTH, OF_REQUESTS].concat());
    assert_eq!(told(requests(&changed)), format!("{expected:?}"));
    let expected = EndpointBuilder::new().max_inline_data(100);
    assert_eq!(told(requests(&options(&[INLINE]))), format!("{expected:?}"));
    assert_eq!(told(requests(&options(&[]))), format!("{:?}", EndpointBuilder::new()));
    let lists = [OF_BOTH, OF_REQUESTS, &[INLINE]];
    each_alone_changes_something(&lists, |options| told(requests(options)));
}

#[test]
fn every_option_of_messages_arrives() {
    let expected = P2pBuilder::new()
        .rails(3)
        .queue_pairs_per_rail(4)
        .split_threshold(12345)
        .flushes(true)
        .rail_failure(virtual_qp::RailFailure::Reroute)
        .min_rails(2)
        .rail_weights(endpoint::RailWeights::Rates)
        .healing(healing_of_both())
        .cancel_grace(Duration::from_micros(1600))
        .connect_options(connect_options_of_both());
    let changed = options(&[OF_BOTH, OF_MESSAGES].concat());
    assert_eq!(told(messages(&changed)), format!("{expected:?}"));
    each_alone_changes_something(&[OF_BOTH, OF_MESSAGES], |options| told(messages(options)));
}

#[test]
fn numbers_that_mean_more_than_themselves() {
    assert_eq!(min_rails(&options(&[|o| o.min_rails = POLYRAIL_NO_RAIL_NEEDED])).unwrap(), 0);
    assert_eq!(min_rails(&options(&[])).unwrap(), 1);
    let none = options(&[|options| options.cancel_grace_us = POLYRAIL_NO_GRACE]);
    assert_eq!(cancel_grace(&none), Some(Duration::ZERO));
    let connect = connect_options(&options(&[|o| o.retry_cnt = POLYRAIL_NO_RETRY]));
    assert_eq!(connect.unwrap().retry_cnt, 0);
    let never = healing(&options(&[
        |o| o.heal_first_ms = POLYRAIL_NEVER,
        |o| o.heal_longest_ms = POLYRAIL_NEVER,
        |o| o.stall_timeout_ms = POLYRAIL_NEVER,
        |o| o.rail_timeout_ms = POLYRAIL_NEVER,
        |o| o.fence_timeout_ms = POLYRAIL_NEVER,
    ]));
    let expected = Healing {
        first_interval: Duration::MAX,
        longest_interval: Duration::MAX,
        stall_timeout: None,
        rail_timeout: None,
        fence_timeout: None,
        ..Healing::default()
    };
    assert_eq!(never, expected);
}

#[test]
fn rates_of_devices_arrive_in_their_order() {
    use polyrail::nic::{DeviceConfig, Fabric};
    let fabric = Fabric::threaded();
    let device = |name| fabric.create_device(DeviceConfig::named(name)).alloc_pd().unwrap();
    let devices = ["a", "b", "c"].map(device);
    let changed = options(&[|options| options.device_mbps[..3].copy_from_slice(&[7, 0, 9])]);
    let [a, b, c] = &devices;
    let expected = EndpointBuilder::new().device_mbps(a, 7).device_mbps(b, 0).device_mbps(c, 9);
    assert_eq!(told(requests_over(&changed, &devices)), format!("{expected:?}"));
    let expected = P2pBuilder::new().device_mbps(a, 7).device_mbps(b, 0).device_mbps(c, 9);
    assert_eq!(told(messages_over(&changed, &devices)), format!("{expected:?}"));
    let refused = requests_over(&changed, &devices[..2]).unwrap_err();
    assert!(format!("{refused:?}").contains("device_mbps[2] is 9"), "{refused:?}");
    let unknown = options(&[|options| options.rail_weights = 5]);
    assert!(messages(&unknown).is_err() && requests(&unknown).is_err());
}
