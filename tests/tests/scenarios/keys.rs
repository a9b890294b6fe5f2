//! Which keys of a request a rail uses: the keys of its device and of the peer's device that it
//! meets. `core/docs/architecture.md`, "The life of a request"; `core/docs/reference.md`, defect
//! 15.

use super::reroute::{RAIL_0, RAIL_1, fenced, ready};
use polyrail_core::verbs::{DeviceId, DeviceKeys, LocalPart, Opcode, RecvWr, SendWr, WcOpcode};
use polyrail_core::virtual_qp::{Config, PostRecvError, PostSendError, RailId};
use polyrail_tests::rig::{self, KEYS, Rig, Setup, done, keys_on, local, ok};
use polyrail_tests::scripted::{LIMITS, Nic, QpHandle};

/// Keys on a device, those of the peer's device `peer`. The local one is the same for all.
const fn key(device: u32, peer: u32) -> DeviceKeys {
    let DeviceKeys { lkey, rkey, .. } = keys_on(device);
    DeviceKeys { device: DeviceId(device), lkey, rkey: rkey + 0x10 * peer }
}

/// Rails on these devices, each of which meets one of the peer's.
fn paired(setup: Setup, devices: &[usize], peers: &[u8]) -> Rig {
    let count = devices.iter().max().map_or(1, |most| most + 1);
    let setup = Setup { rail_devices: devices.to_vec(), devices: count, ..setup };
    let mut rig = setup.fragment(128).rig();
    rig.qp.pair_devices(peers).unwrap();
    rig
}

/// The keys that a rail uses next.
fn used(rail: &QpHandle) -> (u32, u32) {
    let sends = rail.sends();
    let last = sends.last().expect("something was posted");
    (last.sge.lkey(), last.rkey)
}

fn same_as(key: DeviceKeys) -> (u32, u32) {
    (key.lkey, key.rkey)
}

/// Posts one request of as many fragments as there are rails in every way there is. Each rail must
/// use the keys that belong to it.
fn check_keys(rig: &mut Rig, keys: &[DeviceKeys], expected: &[DeviceKeys]) {
    let length = 128 * expected.len() as u32;
    let wr = SendWr { keys, ..rig::write(1, length) };
    let parts = [LocalPart { local: local(length), keys }];
    let ways: [&dyn Fn(&mut Rig); 3] = [
        &|rig| rig.qp.post_send(&wr).unwrap(),
        &|rig| rig.qp.post_many(&[wr, wr]).unwrap(),
        &|rig| rig.qp.post_list(&wr, &parts).unwrap(),
    ];
    for (way, post) in ways.iter().enumerate() {
        post(rig);
        let used: Vec<_> = rig.rails.iter().map(used).collect();
        let expected: Vec<_> = expected.iter().map(|key| same_as(*key)).collect();
        assert_eq!(used, expected, "way {way}, {keys:?}");
        rig.run_dry();
    }
}

#[test]
fn keys_of_one_device_that_meets_two_go_in_their_order_wherever_they_stand() {
    let (a, b, other) = (key(0, 0), key(0, 1), key(7, 0));
    for setup in [Setup::spray(2), Setup::spray(2).reroute()] {
        let mut rig = paired(setup, &[0, 0], &[0, 1]);
        for keys in [[a, b, other], [other, a, b], [a, other, b]] {
            check_keys(&mut rig, &keys, &[a, b]);
        }
        let missing = PostSendError::MissingKeys { device: DeviceId(0) };
        for keys in [[other, b], [a, other]] {
            let wr = SendWr { keys: &keys, ..rig::write(1, 8) };
            assert_eq!(rig.qp.post_send(&wr), Err(missing), "{keys:?}");
        }
    }
    let (c, d) = (key(1, 0), key(1, 1));
    let mut rig = paired(Setup::spray(4), &[1, 0, 0, 1], &[0, 0, 1, 1]);
    for keys in [[c, a, b, d], [a, b, c, d], [c, d, a, b], [a, c, d, b]] {
        check_keys(&mut rig, &keys, &[c, a, b, d]);
    }
}

#[test]
fn keys_of_devices_that_meet_one_each_may_stand_in_any_order() {
    let (a, b) = (key(0, 0), key(1, 1));
    let mut rig = paired(Setup::spray(2), &[0, 1], &[0, 1]);
    for keys in [[a, b], [b, a]] {
        check_keys(&mut rig, &keys, &[a, b]);
    }
}

/// A rail is down at both ends; a queue pair on this device takes its place.
fn replace(rig: &mut Rig, rail: RailId, generation: u16, device: usize) -> QpHandle {
    rig.qp.fail_rail(rail);
    rig.poll();
    rig.qp.control(fenced(rail, generation, 0)).unwrap();
    let number = 80 + 2 * u32::from(generation) + u32::from(rail == RAIL_1);
    let (queue_pair, handle) = rig.nic.qp(number, &rig.cqs[device], LIMITS);
    let replaced = rig.qp.replace_rail(&mut rig.cq, 0, rail, generation + 1, queue_pair);
    assert!(replaced.is_ok(), "{:?}", replaced.err().map(|rejected| rejected.error));
    ready(rig, rail, generation + 1);
    let RailId::Data(at) = rail else { panic!("a data rail") };
    rig.rails[usize::from(at)] = handle.clone();
    handle
}

/// Its device has two pairs of keys: it still needs those of the peer's device that it meets.
#[test]
fn a_queue_pair_in_the_place_of_another_uses_the_keys_of_the_same_peer() {
    let (a, b) = (key(0, 0), key(0, 1));
    let mut rig = paired(Setup::spray(2).reroute(), &[0, 0], &[0, 1]);
    replace(&mut rig, RAIL_1, 0, 0);
    check_keys(&mut rig, &[a, b], &[a, b]);
    // On another device and back, as far as that meets the same device of the peer.
    let (c, d) = (key(1, 0), key(1, 1));
    let mut rig = paired(Setup::spray(4).reroute(), &[0, 0, 1, 1], &[0, 1, 0, 1]);
    let all = [a, b, c, d];
    replace(&mut rig, RAIL_1, 0, 1);
    check_keys(&mut rig, &all, &[a, d, c, d]);
    replace(&mut rig, RAIL_1, 1, 0);
    check_keys(&mut rig, &all, &[a, b, c, d]);
    // Its new device meets the other device of the peer only: so does the rail, until it comes
    // back.
    let mut rig = paired(Setup::spray(3).reroute(), &[0, 0, 1], &[0, 1, 0]);
    let all = [a, b, c];
    replace(&mut rig, RAIL_1, 0, 1);
    check_keys(&mut rig, &all, &[a, c, c]);
    replace(&mut rig, RAIL_1, 1, 0);
    check_keys(&mut rig, &all, &[a, b, c]);
}

/// Devices are paired when the peer is known, which receives need not wait for.
#[test]
fn receives_that_were_posted_before_devices_were_paired_keep_their_keys() {
    let setup = Setup { rail_devices: vec![0, 0, 1], devices: 2, ..Setup::spray(3).reroute() };
    let mut setup = setup.fragment(128);
    setup.limits.max_recv_sge = 2;
    let mut rig: Rig = setup.rig();
    rig.qp.post_recv(&RecvWr::data(1, local(64), &KEYS)).unwrap();
    let part = LocalPart { local: local(64), keys: &KEYS };
    rig.qp.post_recv_list(2, &[part; 2]).unwrap();
    rig.qp.pair_devices(&[0, 1, 0]).unwrap();
    rig.rails[0].flush();
    rig.poll();
    rig.qp.control(fenced(RAIL_0, 0, 0)).unwrap();
    let limits = rig.rails[0].limits();
    let (queue_pair, handle) = rig.nic.qp(80, &rig.cqs[1], limits);
    let replaced = rig.qp.replace_rail(&mut rig.cq, 0, RAIL_0, 1, queue_pair);
    assert!(replaced.is_ok());
    let buffers: Vec<_> = handle.recvs().iter().map(|recv| handle.recv_buffers(recv)).collect();
    let lkeys: Vec<Vec<_>> =
        buffers.iter().map(|list| list.iter().map(|sge| sge.lkey()).collect()).collect();
    let on_device_1 = keys_on(1).lkey;
    assert_eq!(lkeys, [vec![on_device_1], vec![on_device_1; 2]]);
    handle.deliver_send(8, None);
    handle.deliver_send(8, None);
    assert_eq!(rig.poll_ids(), ok(&[1, 2]));
}

/// With re-routing a SEND is remembered for every device that rail 0 may come back on, whether it
/// has one buffer or a list of them.
#[test]
fn a_list_of_a_send_needs_keys_for_every_device_that_rail_0_may_move_to() {
    let setup = Setup {
        limits: polyrail_core::hardware::QpLimits { max_send_sge: 4, ..LIMITS },
        ..Setup::spray(2)
    };
    let mut rig = setup.devices(2).reroute().rig();
    let here = LocalPart { local: local(8), keys: &KEYS[..1] };
    let everywhere = LocalPart { local: local(8), keys: &KEYS };
    let send = rig::send(1, 0);
    let refused = rig.qp.post_list(&send, &[everywhere, here]);
    let error = PostSendError::BufferKeys { buffer: 1, device: DeviceId(1) };
    assert_eq!(refused, Err(error));
    rig.qp.post_list(&send, &[everywhere; 2]).unwrap();
    rig.rails[0].flush();
    assert_eq!(rig.poll(), []);
    rig.qp.control(fenced(RAIL_0, 0, 0)).unwrap();
    let limits = rig.rails[0].limits();
    let (queue_pair, handle) = rig.nic.qp(80, &rig.cqs[1], limits);
    assert!(rig.qp.replace_rail(&mut rig.cq, 0, RAIL_0, 1, queue_pair).is_ok());
    ready(&mut rig, RAIL_0, 1);
    let lkeys: Vec<_> = handle.buffers(&handle.sends()[0]).iter().map(|sge| sge.lkey()).collect();
    assert_eq!(lkeys, [keys_on(1).lkey; 2]);
}

/// Of the device that it moved to, it uses the keys for the peer's device that rail 0 meets, for
/// requests that were posted before as for those after.
#[test]
fn a_notify_queue_pair_in_the_place_of_another_uses_the_keys_of_the_same_peer() {
    let keys = [key(0, 0), key(1, 1), key(1, 0)];
    let mut rig = paired(Setup::spray(3).reroute(), &[0, 1, 1], &[0, 1, 0]);
    let wr = |id| SendWr { keys: &keys, ..rig::write_imm(id, 256, 7) };
    rig.qp.post_send(&wr(1)).unwrap();
    rig.qp.fail_rail(RailId::Notify);
    rig.poll();
    rig.qp.control(fenced(RailId::Notify, 0, 0)).unwrap();
    let (queue_pair, notify) = rig.nic.qp(80, &rig.cqs[1], LIMITS);
    let replaced = rig.qp.replace_rail(&mut rig.cq, 0, RailId::Notify, 1, queue_pair);
    assert!(replaced.is_ok(), "{:?}", replaced.err().map(|rejected| rejected.error));
    ready(&mut rig, RailId::Notify, 1);
    rig.qp.post_send(&wr(2)).unwrap();
    rig.rails.iter().for_each(QpHandle::complete_all);
    rig.poll();
    let rkeys: Vec<_> = notify.sends().iter().map(|send| send.rkey).collect();
    assert_eq!(rkeys, [key(1, 0).rkey; 2]);
}

/// The notify queue pair goes with rail 0, though it was built on another device.
#[test]
fn a_notify_queue_pair_on_another_device_than_rail_0_uses_the_keys_of_the_same_peer() {
    let keys = [key(1, 1), key(0, 0), key(0, 1)];
    let mut rig = paired(Setup::spray(3), &[1, 0, 0], &[1, 0, 1]);
    rig.qp.post_send(&SendWr { keys: &keys, ..rig::write_imm(1, 256, 7) }).unwrap();
    rig.rails.iter().for_each(QpHandle::complete_all);
    rig.poll();
    let rkeys: Vec<_> = rig.notify().sends().iter().map(|send| send.rkey).collect();
    assert_eq!(rkeys, [key(0, 1).rkey]);
}

/// Defect 15: checked before anything changes; the next post works.
#[test]
fn defect_15_missing_keys_are_refused_before_anything_changes() {
    let mut rig = Setup::spray(2).devices(2).fragment(128).rig();
    let missing = |device| Err(PostSendError::MissingKeys { device: DeviceId(device) });
    for opcode in [Opcode::RdmaWrite, Opcode::RdmaWriteWithImm, Opcode::RdmaRead] {
        let wr = SendWr { opcode, keys: &KEYS[..1], ..rig::write(1, 128) };
        assert_eq!(rig.qp.post_send(&wr), missing(1));
    }
    for wr in [rig::send(1, 8), rig::fetch_add(1)] {
        assert_eq!(rig.qp.post_send(&SendWr { keys: &KEYS[1..], ..wr }), missing(0));
    }
    let recv = RecvWr::data(1, local(8), &KEYS[1..]);
    let missing = PostRecvError::MissingKeys { device: DeviceId(0) };
    assert_eq!(rig.qp.post_recv(&recv), Err(missing));
    assert_eq!((rig.qp.unreported_sends(), rig.qp.unreported_recvs()), (0, 0));
    assert!(rig.rails.iter().all(|rail| rail.sends().is_empty() && rail.recvs().is_empty()));
    rig.post([rig::write(2, 256)]);
    assert_eq!(rig.run_dry(), [done(2, WcOpcode::RDMA_WRITE, 256)]);
}

/// Defect 15: the notify queue pair's device counts as well.
#[test]
fn defect_15_missing_keys_of_the_notify_device_are_refused() {
    let nic = Nic::new();
    let cqs = [nic.cq(0, 256), nic.cq(1, 256)];
    let rails = [nic.qp(10, &cqs[0], LIMITS).0, nic.qp(11, &cqs[0], LIMITS).0];
    let notify = nic.qp(20, &cqs[1], LIMITS).0;
    let mut qp = <rig::TestQp>::new(Config::default(), rails, Some(notify)).unwrap();
    let wr = SendWr { keys: &KEYS[..1], ..rig::write_imm(1, 128, 1) };
    assert_eq!(qp.post_send(&wr), Err(PostSendError::MissingKeys { device: DeviceId(1) }));
    let plain = SendWr { keys: &KEYS[..1], ..rig::write(1, 128) };
    assert_eq!(qp.post_send(&plain), Ok(()), "a plain WRITE needs no notify");
}
