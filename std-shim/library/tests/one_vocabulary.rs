//! Endpoints for requests and endpoints for messages have one vocabulary: the same steps, by the
//! same names, compile and run on both.

use polyrail::heal::{Healing, MAX_HEALING_BYTES};
use polyrail::nic::{Device, DeviceConfig, Fabric, Fault, When};
use polyrail::virtual_qp::{QpState, RailEventKind, RailFailure};
use polyrail::{endpoint, p2p};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(600);

macro_rules! life {
    ($name:ident, $apart:ident, $kind:ident, $builder:ident, $rail:literal, $event:pat => $is:expr) => {
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
            let links: [$kind::HealingLink; 2] =
                [&near, &far].map(|end| end.healing_link().expect("its rails are re-routed"));
            for end in [&mut near, &mut far] {
                end.poll(16).check().unwrap();
                end.heal();
                assert!(end.take_rail_event().is_none(), "no rail failed");
                assert_eq!((end.state(), end.failure()), (QpState::Ready, None));
            }
            let text = concat!(r#"{"wanted":{"rail":""#, $rail, r#""}}"#);
            let wanted = $kind::HealingMessage::from_json(text.as_bytes()).unwrap();
            assert!(matches!(wanted, $kind::HealingMessage::Wanted { .. }));
            assert_eq!(wanted.to_json(), text);
            assert!(text.len() < MAX_HEALING_BYTES);
            links[0].handle(wanted).unwrap();
            near.fail();
            near.heal();
            far.heal();
            for end in [&mut near, &mut far] {
                assert_eq!(end.state(), QpState::Error);
                assert!(!end.failure().expect("it has failed").to_string().is_empty());
            }
            for mut end in [near, far] {
                end.give_up(Duration::from_secs(5));
            }
            links.iter().for_each($kind::HealingLink::restored);
            assert_eq!(links[0].next_message(), None);
        }

        /// As if the ends were in two processes: the test carries their repair messages.
        #[test]
        fn $apart() {
            let fabric = Fabric::threaded();
            let devices = ["here", "there"].map(|name| {
                [0, 1].map(|at| fabric.create_device(DeviceConfig::named(format!("{name}{at}"))))
            });
            let domains = devices.each_ref().map(|each| each.each_ref().map(Device::alloc_pd));
            let builder = $kind::$builder::new().rails(2).rail_failure(RailFailure::Reroute);
            let mut ends = domains.each_ref().map(|[first, second]| {
                let domains = [first.as_ref().unwrap(), second.as_ref().unwrap()];
                builder.build(&domains).unwrap()
            });
            let [near, far] = &mut ends;
            let (near_address, far_address) = (near.address(), far.address());
            near.connect(&far_address).unwrap();
            far.connect(&near_address).unwrap();
            let links = ends.each_ref().map(|end| end.healing_link().unwrap());
            for fault in [Fault::LinkDown, Fault::LinkUp] {
                devices[0][1].inject(When::Now, fault);
                let begin = Instant::now();
                let mut has_happened = [false; 2];
                while has_happened != [true; 2] {
                    assert!(begin.elapsed() < LONG, "{fault:?}: {has_happened:?}");
                    for (end, has_happened) in ends.iter_mut().zip(&mut has_happened) {
                        assert_eq!(end.poll(16).error, None);
                        assert_ne!(end.state(), QpState::Error);
                        while let Some($event) = end.take_rail_event() {
                            *has_happened |= match $is {
                                RailEventKind::Failed { .. } => fault == Fault::LinkDown,
                                RailEventKind::Fenced { .. } => false,
                                RailEventKind::Returned => fault == Fault::LinkUp,
                            };
                        }
                    }
                    for [from, to] in [[0, 1], [1, 0]] {
                        while let Some(message) = links[from].next_message() {
                            links[to].handle(message).unwrap();
                        }
                    }
                }
            }
        }
    };
}

life!(
    an_endpoint_for_requests,
    endpoints_for_requests_in_two_processes,
    endpoint,
    EndpointBuilder,
    "notify",
    event => event.event.kind
);
life!(
    an_endpoint_for_messages,
    endpoints_for_messages_in_two_processes,
    p2p,
    P2pBuilder,
    "receiver 3",
    (.., event) => event.kind
);
