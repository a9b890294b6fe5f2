//! Kinds of requests over endpoints: signals, requests that are reported when they are done,
//! several at once.

mod fixture;

use fixture::pair::{BYTES, pair, poll_both};
use polyrail::endpoint::{Endpoint, EndpointBuilder, connect_endpoints};
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{DeviceConfig, DeviceLimits, Fabric};
use polyrail::verbs::{AccessFlags, LocalBuffer, LocalPart, RecvWr, ReportOrder, SendWr, WcStatus};
use polyrail::virtual_qp::{PostSendError, RailId, Scheme};

/// Each signal arrives when the payload that was posted before it is there.
#[test]
fn signals_arrive_behind_the_payload_before_them() {
    for scheme in [Scheme::Spray, Scheme::Dqplb] {
        for rails in [1, 4] {
            let builder = EndpointBuilder::new().rails(rails).scheme(scheme);
            let (mut a, mut b) = pair(2, &builder);
            let payload = vec![0xA5; BYTES];
            a.buffer.write_at(0, &payload).unwrap();
            for id in [1, 2] {
                b.endpoint.post_recv(&RecvWr::notification(id)).unwrap();
            }
            a.write_to(&b, 3, BYTES as u32);
            a.endpoint.post_send(&SendWr::signal(4, 40)).unwrap();
            a.endpoint.post_send(&SendWr::signal(5, 50)).unwrap();
            let received = poll_both(&mut a, &mut b, (0, 1)).1;
            assert_eq!((received[0].wr_id, received[0].status), (1, WcStatus::SUCCESS));
            assert!(b.bytes() == payload, "{scheme:?}, {rails} rails");
            let mut imms: Vec<_> = received.iter().map(|wc| wc.imm).collect();
            while imms.len() < 2 {
                imms.extend(poll_both(&mut a, &mut b, (0, 1)).1.iter().map(|wc| wc.imm));
            }
            let arrive = scheme == Scheme::Spray || rails == 1;
            let expected = if arrive { [Some(40), Some(50)] } else { [None; 2] };
            assert_eq!(imms, expected, "{scheme:?}, {rails} rails");
        }
    }
}

/// A long request in front, short ones behind it: all are reported, in whatever order they end.
#[test]
fn requests_that_are_reported_when_they_are_done_are_reported_once() {
    for builder in [
        EndpointBuilder::new().report_order(ReportOrder::WhenDone),
        EndpointBuilder::new().report_order(ReportOrder::WhenDone).scheme(Scheme::Dqplb),
    ] {
        let (mut a, mut b) = pair(2, &builder);
        let keys = a.buffer.toward(&b.buffer.remote()).unwrap();
        let long = a.buffer.local(0, BYTES as u32).unwrap();
        a.endpoint.post_send(&SendWr::write(0, long, b.buffer.addr(), &keys)).unwrap();
        let short = a.buffer.local(0, 64).unwrap();
        for id in 1..16 {
            a.endpoint.post_send(&SendWr::read(id, short, b.buffer.addr(), &keys)).unwrap();
        }
        let mut ids: Vec<u64> = Vec::new();
        while ids.len() < 16 {
            ids.extend(poll_both(&mut a, &mut b, (1, 0)).0.iter().map(|wc| wc.wr_id));
        }
        ids.sort_unstable();
        assert_eq!(ids, (0..16).collect::<Vec<_>>());
        assert_eq!(a.endpoint.virtual_qp().unreported_sends(), 0);
    }
}

#[test]
fn several_requests_are_posted_with_one_call_and_few_doorbells() {
    for rails in [1, 4] {
        let (mut a, mut b) = pair(2, &EndpointBuilder::new().rails(rails));
        let keys = a.buffer.toward(&b.buffer.remote()).unwrap();
        let bytes: Vec<u8> = (0..4096).map(|at| at as u8).collect();
        a.buffer.write_at(0, &bytes).unwrap();
        let wrs: Vec<_> = (0..64)
            .map(|id| {
                let local = a.buffer.local(id * 64, 64).unwrap();
                SendWr::write(id as u64, local, b.buffer.addr() + id as u64 * 64, &keys)
            })
            .collect();
        a.endpoint.post_many(&wrs).unwrap();
        let rung = |at| a.endpoint.virtual_qp().counters(RailId::Data(at)).unwrap().doorbells;
        assert_eq!((0..rails as u8).map(rung).sum::<u64>(), rails as u64);
        let mut ids = Vec::new();
        while ids.len() < 64 {
            ids.extend(poll_both(&mut a, &mut b, (1, 0)).0.iter().map(|wc| wc.wr_id));
        }
        assert_eq!(ids, (0..64).collect::<Vec<_>>());
        assert_eq!(b.bytes()[..4096], bytes);
    }
}

/// What a device takes is asked of it, and what an owner asks for is what the device is asked for
/// at most.
#[test]
fn a_send_has_as_many_buffers_as_were_asked_for_and_the_device_takes() {
    for (asked, device_takes, granted) in [(None, 30, 4), (None, 2, 2), (Some(16), 30, 16)] {
        let limits = DeviceLimits { max_sge: device_takes, ..DeviceLimits::default() };
        let config = |name| DeviceConfig { limits, ..DeviceConfig::named(name) };
        let fabric = Fabric::threaded();
        let [here, there] =
            ["here", "there"].map(|name| fabric.create_device(config(name)).alloc_pd().unwrap());
        let builder = EndpointBuilder::new();
        let builder = asked.map_or(builder, |asked| builder.max_sge(asked));
        let mut a: Endpoint = builder.build(&[&here]).unwrap();
        let mut b: Endpoint = builder.build(&[&there]).unwrap();
        connect_endpoints(&mut a, &mut b).unwrap();
        let from = RegisteredBuffer::new(BYTES, AccessFlags::LOCAL_WRITE, &[&here]).unwrap();
        let into = RegisteredBuffer::new(BYTES, AccessFlags::LOCAL_WRITE, &[&there]).unwrap();
        let bytes: Vec<u8> = (0..granted as usize * 10).map(|at| at as u8).collect();
        let (from_keys, into_keys) = (from.local_keys(), into.local_keys());
        // Backwards, with gaps.
        let place = |at: usize| (granted as usize - at) * 100;
        for (at, part) in bytes.chunks(10).enumerate() {
            from.write_at(place(at), part).unwrap();
        }
        let parts = |count: u32| {
            let local = |at: u32| from.local(place(at as usize % granted as usize), 10).unwrap();
            let part = |at| LocalPart { local: local(at), keys: &from_keys };
            (0..count).map(part).collect::<Vec<_>>()
        };
        let send = SendWr::send(7, LocalBuffer::EMPTY, &[]);
        let (count, max) = (granted as usize + 1, granted as usize);
        let too_many = Err(PostSendError::TooManyBuffers { count, max });
        assert_eq!(a.post_list(&send, &parts(granted + 1)), too_many);
        let half = bytes.len() as u32 / 2;
        let landing = [0, BYTES / 2]
            .map(|at| LocalPart { local: into.local(at, half).unwrap(), keys: &into_keys });
        b.post_recv_list(3, &landing).unwrap();
        a.post_list(&send, &parts(granted)).unwrap();
        let mut arrived = Vec::new();
        while arrived.is_empty() {
            assert_eq!(a.poll_with(1, |_| ()).error, None);
            arrived.extend(b.poll(1).completions);
        }
        assert_eq!((arrived[0].wr_id, arrived[0].byte_len), (3, 2 * half));
        let mut read = vec![0; bytes.len()];
        let (first, second) = read.split_at_mut(half as usize);
        into.read_at(0, first).unwrap();
        into.read_at(BYTES / 2, second).unwrap();
        assert_eq!(read, bytes);
        let elsewhere = LocalPart { keys: &into_keys, ..parts(1)[0] };
        let refused = a.post_list(&send, &[parts(1)[0], elsewhere]).unwrap_err();
        let named = "buffer 1 of the list has no keys for device";
        assert!(refused.to_string().starts_with(named), "{refused}");
    }
}
