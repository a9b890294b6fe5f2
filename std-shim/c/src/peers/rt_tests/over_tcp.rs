//! Devices over TCP whose links fail and come back.

use super::*;
use crate::domain::polyrail_domain_devices;
use crate::region::{polyrail_region_close, polyrail_remote_close};
use crate::types::{Completion, DeviceInfo, Opcode, Region, Remote, Request};
use std::ffi::CStr;

const REQUESTS: usize = 64;

const BYTES: usize = 64 << 10;

const RAILS: u32 = 4;

pub(super) fn open_tcp(devices: &CStr) -> (*mut Domain, *mut Peers) {
    let mut domain = ptr::null_mut();
    // SAFETY: zeros are values of options, and all pointers are to what they should be.
    unsafe {
        let options = DomainOptions {
            size: size_of::<DomainOptions>() as u32,
            backend: Backend::Tcp as u32,
            devices: devices.as_ptr(),
            ..zeroed()
        };
        ok(polyrail_domain_open(&raw const options, &raw mut domain));
    }
    (domain, open_peers(domain, For::Requests))
}

fn set_link(domain: *mut Domain, up: bool) {
    let Ok(Devices::Tcp(devices)) = devices(domain) else { panic!("devices over TCP") };
    devices[0].device().set_link(up);
}

/// Returns the number of active ports of the first device.
fn ports(domain: *mut Domain) -> u32 {
    let mut count = 0;
    // SAFETY: zeros are a value of the structure, and all pointers are to what they should be.
    unsafe {
        let mut infos: [DeviceInfo; 2] = zeroed();
        ok(polyrail_domain_devices(domain, infos.as_mut_ptr(), infos.len(), &raw mut count));
        assert_eq!(count, 2);
        infos[0].ports
    }
}

fn rails_in_service(peers: *mut Peers, peer: u64) -> u32 {
    // SAFETY: zeros are a value of the structure, and the pointer is to it.
    unsafe {
        let mut info = PeerInfo { size: size_of::<PeerInfo>() as u32, ..zeroed() };
        ok(polyrail_peers_info(peers, peer, &raw mut info));
        info.rails_in_service
    }
}

/// Writes everything, and calls `after` with the number of reported requests after each poll.
fn write(
    [near, far]: [*mut Peers; 2],
    peer: u64,
    region: *mut Region,
    remote: *mut Remote,
    mut after: impl FnMut(usize),
) {
    let (mut posted, mut reported) = (0, 0);
    while reported < REQUESTS {
        // SAFETY: zeros are values of the structures, and all pointers are to what they should be.
        unsafe {
            if posted < REQUESTS {
                let offset = (posted * BYTES) as u64;
                let request = Request {
                    id: posted as u64,
                    opcode: Opcode::Write as u32,
                    region,
                    offset,
                    length: BYTES as u32,
                    remote,
                    remote_offset: offset,
                    ..zeroed()
                };
                match polyrail_peers_post(near, peer, &raw const request) {
                    Code::NotNow => {}
                    code => {
                        ok(code);
                        posted += 1;
                    }
                }
            }
            let (mut done, mut count): (Completion, _) = (zeroed(), 0);
            ok(polyrail_peers_poll(near, &raw mut done, 1, &raw mut count));
            if count == 1 {
                assert_eq!((done.id, done.status), (reported as u64, 0));
                reported += 1;
            }
            ok(polyrail_peers_poll(far, ptr::null_mut(), 0, &raw mut count));
        }
        after(reported);
    }
}

#[test]
fn requests_go_on_without_a_device_whose_link_is_down_and_its_rails_return() {
    on_a_deep_stack(take_a_link_down);
}

fn take_a_link_down() {
    const MESSAGE_MS: u32 = 60_000;
    let ends = [open_tcp(c"127.77.1.1,tcp:127.77.1.2"), open_tcp(c"127.77.2.1,127.77.2.2")];
    let both = ends.map(|(_, peers)| peers);
    let [near, far] = both.map(|peers| (peers, add(peers)));
    begin_to_meet([near, far], MESSAGE_MS);
    for end in [near, far] {
        let (kind, words) = next_event(both, end);
        assert_eq!(kind, EventKind::Connected as u32, "{words}");
    }
    let mut from: Vec<u8> = (0..REQUESTS * BYTES).map(|at| (at / 7) as u8).collect();
    let mut to = vec![0; REQUESTS * BYTES];
    let [region, target] = [register(ends[0].0, &mut from), register(ends[1].0, &mut to)];
    let remote = import(target);

    assert_eq!(ports(ends[0].0), 1);
    let mut is_down = false;
    write(both, near.1, region, remote, |reported| {
        if !is_down && reported >= REQUESTS / 4 {
            set_link(ends[0].0, false);
            is_down = true;
        }
    });
    assert_eq!(ports(ends[0].0), 0);
    let (kind, words) = next_event(both, near);
    assert_eq!(kind, EventKind::RailFailed as u32, "{words}");
    assert!(words.contains("tcp:127.77.1.1"), "{words}");
    write(both, near.1, region, remote, |_| {});
    set_link(ends[0].0, true);
    while both.iter().zip([near.1, far.1]).any(|(&of, peer)| rails_in_service(of, peer) < RAILS) {
        both.iter().for_each(|peers| ok(polyrail_peers_drive(*peers)));
    }
    write(both, near.1, region, remote, |_| {});
    while next_event(both, near).0 != EventKind::RailReturned as u32 {}

    ok(polyrail_remote_close(remote));
    for ((domain, peers), region) in ends.into_iter().zip([region, target]) {
        ok(polyrail_peers_close(peers));
        ok(polyrail_region_close(region));
        ok(polyrail_domain_close(domain));
    }
    assert!(from == to);
}
