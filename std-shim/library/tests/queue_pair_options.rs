//! What programs ask of queue pairs and paths, and devices may not have: bytes inline, packets of
//! exactly one size, long queues.

use polyrail::backend::{ConnectOptions, DeviceError, Mtu};
use polyrail::chain::Chain;
use polyrail::endpoint::{
    BuildError, ConnectError, DEPTH, Endpoint, EndpointBuilder, connect_endpoints,
};
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{DeviceConfig, DeviceLimits, Fabric, ProtectionDomain};
use polyrail::verbs::{AccessFlags, SendFlags, SendWr, WcStatus};

fn domain(fabric: &Fabric, config: DeviceConfig) -> ProtectionDomain {
    fabric.create_device(config).alloc_pd().unwrap()
}

fn with_mtu(fabric: &Fabric, name: &str, mtu: Mtu) -> ProtectionDomain {
    domain(fabric, DeviceConfig { mtu, ..DeviceConfig::named(name) })
}

#[test]
fn bytes_inline_are_refused_where_a_device_has_less_and_nothing_else_is_blamed_on_them() {
    let fabric = Fabric::threaded();
    let of = |limits| domain(&fabric, DeviceConfig { limits, ..DeviceConfig::named("small") });
    let small = of(DeviceLimits { max_inline_data: 128, ..DeviceLimits::default() });
    for rails in [1, 4] {
        let builder = EndpointBuilder::new().rails(rails);
        builder.max_inline_data(128).build(&[&small]).unwrap();
        let error = builder.max_inline_data(129).build(&[&small]).unwrap_err();
        let BuildError::Device { source: DeviceError::InlineData { asked: 129, .. }, .. } = error
        else {
            panic!("{error:?}")
        };
        let said = Chain(&error).to_string();
        assert!(
            said.starts_with(
                "device small: 129 bytes of inline data exceed what the device supports: "
            ),
            "{said}"
        );
    }
    let gone = of(DeviceLimits::default());
    gone.device().inject(polyrail::nic::When::Now, polyrail::nic::Fault::DeviceGone);
    let error = EndpointBuilder::new().build(&[&gone]).unwrap_err();
    assert!(!Chain(&error).to_string().contains("inline"), "{}", Chain(&error));
}

#[test]
fn packets_of_exactly_one_size_need_both_ports() {
    let fabric = Fabric::threaded();
    let [long, short] = [("long", Mtu::Mtu4096), ("short", Mtu::Mtu1024)]
        .map(|(name, mtu)| with_mtu(&fabric, name, mtu));
    let exactly = |mtu| ConnectOptions::default().with_path_mtu(mtu);
    for rails in [1, 4] {
        let builder = EndpointBuilder::new().rails(rails);
        let exact = |mtu| builder.connect_options(exactly(mtu));
        // The port here.
        let error = exact(Mtu::Mtu2048).build(&[&short]).unwrap_err();
        assert_eq!(
            Chain(&error).to_string(),
            "device short: port 1 supports an MTU of at most 1024 bytes, not 2048"
        );
        // The one there, at the end that asks, whichever connects first.
        for asks_first in [true, false] {
            let mut near = exact(Mtu::Mtu2048).build(&[&long]).unwrap();
            let mut far = builder.build(&[&short]).unwrap();
            let error = match asks_first {
                true => connect_endpoints(&mut near, &mut far),
                false => connect_endpoints(&mut far, &mut near),
            }
            .unwrap_err();
            let is_peer = |error: &ConnectError| {
                Chain(error)
                    .to_string()
                    .ends_with("the peer's port supports an MTU of at most 1024 bytes, not 2048")
            };
            assert!(is_peer(&error), "{}", Chain(&error));
        }
        // Both have it, or are not asked for exactly it.
        for (options, mtu) in [
            (exactly(Mtu::Mtu1024), 1024),
            (exactly(Mtu::Mtu256), 256),
            (ConnectOptions::default(), 1024),
        ] {
            let mut near = builder.connect_options(options).build(&[&long]).unwrap();
            let mut far = builder.build(&[&short]).unwrap();
            connect_endpoints(&mut near, &mut far).unwrap();
            let smallest = near.address().rails[0].mtu.min(far.address().rails[0].mtu);
            assert_eq!(smallest.bytes(), mtu);
        }
    }
}

#[test]
fn a_single_rail_holds_as_many_requests_as_it_is_asked_to() {
    const REQUESTS: u64 = 1000;
    let fabric = Fabric::threaded();
    let [here, there] = ["here", "there"].map(|name| domain(&fabric, DeviceConfig::named(name)));
    let builder = EndpointBuilder::new().rails(1);
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let [from, to] =
        [&here, &there].map(|domain| RegisteredBuffer::new(64, access, &[domain]).unwrap());
    let keys = from.toward(&to.remote()).unwrap();
    let accepted = |builder: EndpointBuilder| {
        let mut near: Endpoint = builder.build(&[&here]).unwrap();
        let mut far = builder.build(&[&there]).unwrap();
        connect_endpoints(&mut near, &mut far).unwrap();
        // Nobody polls meanwhile: as many as the queue holds, complete or not.
        let wr = |request| {
            SendWr::write(request, from.local(0, 64).unwrap(), to.addr(), &keys)
                .with_flags(SendFlags::SIGNALED)
        };
        let posted = (0..REQUESTS).take_while(|request| near.post_send(&wr(*request)).is_ok());
        let posted = posted.count() as u64;
        let mut done = 0;
        while done < posted {
            for wc in near.poll(64).completions {
                assert_eq!((wc.status, wc.wr_id), (WcStatus::SUCCESS, done));
                done += 1;
            }
        }
        posted
    };
    assert_eq!(accepted(builder.queue_depth(REQUESTS as u32)), REQUESTS);
    assert!(accepted(builder) < 2 * DEPTH as u64);
}

#[test]
fn a_queue_that_is_too_long_is_refused() {
    let fabric = Fabric::threaded();
    let limits = DeviceLimits { max_qp_wr: 1000, ..DeviceLimits::default() };
    let short = domain(&fabric, DeviceConfig { limits, ..DeviceConfig::named("short") });
    let build =
        |rails, depth| EndpointBuilder::new().rails(rails).queue_depth(depth).build(&[&short]);
    build(1, 512).unwrap();
    let said = |rails, depth| Chain(&build(rails, depth).unwrap_err()).to_string();
    assert_eq!(
        said(1, 513),
        "the queue depth is 513, but device short allows at most 512 with 1 rail"
    );
    build(2, DEPTH as u32).unwrap();
    assert_eq!(
        said(2, 129),
        "the queue depth is 129, but device short allows at most 128 with 2 rails"
    );
}
