//! Endpoints for requests and endpoints for messages have one vocabulary: the same steps, by the
//! same names, compile and run on both.

use polyrail::heal::{Healing, MAX_HEALING_BYTES};
use polyrail::nic::{DeviceConfig, Fabric};
use polyrail::virtual_qp::RailFailure;
use polyrail::{endpoint, p2p};
use std::time::Duration;

macro_rules! life {
    ($name:ident, $kind:ident, $builder:ident, $rail:literal) => {
        #[test]
        fn $name() {
            let fabric = Fabric::threaded();
            let device = |name| fabric.create_device(DeviceConfig::named(name)).alloc_pd().unwrap();
            let (here, there) = (device("here"), device("there"));
            let builder = $kind::$builder::new()
                .rails(2)
                .rail_failure(RailFailure::Reroute)
                .min_rails(1)
                .healing(Healing::default());
            let mut near = builder.build(&[&here]).unwrap();
            let mut far = builder.build(&[&there]).unwrap();
            $kind::connect_endpoints(&mut near, &mut far).unwrap();
            for end in [&mut near, &mut far] {
                _ = end.poll(16);
                end.heal();
                assert!(end.take_rail_event().is_none(), "no rail failed");
            }
            let text = concat!(r#"{"wanted":{"rail":""#, $rail, r#""}}"#);
            let wanted = $kind::HealingMessage::from_json(text.as_bytes()).unwrap();
            assert!(matches!(wanted, $kind::HealingMessage::Wanted { .. }));
            assert_eq!(wanted.to_json(), text);
            assert!(text.len() < MAX_HEALING_BYTES);
            near.fail();
            for mut end in [near, far] {
                end.give_up(Duration::from_secs(5));
            }
        }
    };
}

life!(an_endpoint_for_requests, endpoint, EndpointBuilder, "notify");
life!(an_endpoint_for_messages, p2p, P2pBuilder, "receiver 3");
