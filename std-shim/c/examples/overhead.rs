//! Posts and polls through the C functions or the Rust library beneath them, to measure in
//! instructions what the C functions add. `tests/overhead.sh` counts.
//!
//! `overhead c|rust TIMES`

use polyrail::endpoint::{EndpointBuilder, EndpointSet, connect_endpoints};
use polyrail::memory::{RegisteredBuffer, keys_toward};
use polyrail::nic::{DeviceConfig, Fabric};
use polyrail::verbs::{AccessFlags, DeviceKeys, SendWr};
use polyrail_c::*;
use std::error::Error;
use std::ffi::c_void;
use std::mem::{MaybeUninit, zeroed};
use std::ptr;

const BYTES: u32 = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let by = arguments.next();
    let times: u64 = arguments.next().ok_or("how many times?")?.parse()?;
    match by.as_deref() {
        Some("rust") => by_rust(times),
        Some("c") => {
            by_c(times);
            Ok(())
        }
        _ => Err("overhead c|rust TIMES".into()),
    }
}

fn by_rust(times: u64) -> Result<(), Box<dyn Error>> {
    let fabric = Fabric::threaded();
    let domain = fabric.create_device(DeviceConfig::named("soft0")).alloc_pd()?;
    let builder = EndpointBuilder::new();
    let mut near = EndpointSet::build([(builder, [&domain])])?;
    let mut far = EndpointSet::build([(builder, [&domain])])?;
    let (one, other) = (near.get_mut(0).ok_or("one")?, far.get_mut(0).ok_or("one")?);
    connect_endpoints(one, other)?;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let buffer = RegisteredBuffer::new(4096, access, &[&domain])?;
    let remote = buffer.remote();
    for id in 0..times {
        // As every caller has to, somewhere.
        let mut keys = [DeviceKeys { device: domain.device().id(), lkey: 0, rkey: 0 }; 1];
        keys.iter_mut()
            .zip(keys_toward(buffer.keys(), &remote.rkeys))
            .for_each(|(to, key)| *to = key);
        let wr = SendWr::write(id, buffer.local(0, BYTES)?, remote.at(1024, BYTES)?, &keys);
        near.get_mut(0).ok_or("one")?.post_send(&wr)?;
        let mut done = 0;
        while done == 0 {
            let polled = near.poll_with(4, |event| done += u64::from(event.completion().is_some()));
            assert_eq!(polled.error, None);
        }
    }
    Ok(())
}

fn ok(code: Code) {
    assert_eq!(code, Code::Ok);
}

fn by_c(times: u64) {
    // SAFETY: all pointers are valid for their types, and the memory is freed after its region is
    // closed.
    unsafe {
        let options = DomainOptions {
            size: size_of::<DomainOptions>() as u32,
            backend: Backend::Software as u32,
            ..zeroed()
        };
        let (mut domain, mut near, mut far) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        ok(polyrail_domain_open(&raw const options, &raw mut domain));
        ok(polyrail_peers_open(domain, ptr::null(), &raw mut near));
        ok(polyrail_peers_open(domain, ptr::null(), &raw mut far));
        let (mut one, mut other) = (0, 0);
        ok(polyrail_peers_add(near, ptr::null(), &raw mut one));
        ok(polyrail_peers_add(far, ptr::null(), &raw mut other));
        let card = |peers, peer| {
            let mut card = vec![0u8; POLYRAIL_CARD_BYTES];
            let mut length = 0;
            ok(polyrail_peers_card(
                peers,
                peer,
                card.as_mut_ptr().cast(),
                card.len(),
                &raw mut length,
            ));
            card.truncate(length);
            card
        };
        let (mine, theirs) = (card(near, one), card(far, other));
        ok(polyrail_peers_connect(near, one, theirs.as_ptr().cast(), theirs.len()));
        ok(polyrail_peers_connect(far, other, mine.as_ptr().cast(), mine.len()));
        let mut memory = vec![0u8; 4096];
        let start = memory.as_mut_ptr().cast::<c_void>();
        let access = POLYRAIL_ACCESS_LOCAL_WRITE | POLYRAIL_ACCESS_REMOTE_WRITE;
        let (mut region, mut remote) = (ptr::null_mut(), ptr::null_mut());
        ok(polyrail_region_register(domain, start, memory.len(), access, &raw mut region));
        let mut bytes = [0u8; POLYRAIL_REMOTE_BYTES];
        let mut length = 0;
        ok(polyrail_region_export(region, bytes.as_mut_ptr().cast(), bytes.len(), &raw mut length));
        ok(polyrail_remote_import(bytes.as_ptr().cast(), length, &raw mut remote));
        let mut done = [const { MaybeUninit::<Completion>::uninit() }; 4];
        for id in 0..times {
            let request = Request {
                id,
                opcode: Opcode::Write as u32,
                region,
                length: BYTES,
                remote,
                remote_offset: 1024,
                ..zeroed()
            };
            ok(polyrail_peers_post(near, one, &raw const request));
            let mut count = 0;
            while count == 0 {
                ok(polyrail_peers_poll(near, done.as_mut_ptr().cast(), done.len(), &raw mut count));
            }
        }
        ok(polyrail_peers_close(near));
        ok(polyrail_peers_close(far));
        ok(polyrail_region_close(region));
        ok(polyrail_remote_close(remote));
        ok(polyrail_domain_close(domain));
    }
}
