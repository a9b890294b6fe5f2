//! A buffer that moves between two ends, over four rails of two NICs each; one rail fails on the
//! way, and comes back.
//!
//! ```sh
//! cargo run --release --example buffer
//! ```

use polyrail::endpoint::{Endpoint, EndpointBuilder, connect_endpoints};
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{DeviceConfig, Fabric, ProtectionDomain};
use polyrail::verbs::{AccessFlags, RecvWr, SendWr};
use polyrail::virtual_cq::VirtualWc;
use polyrail::virtual_qp::{RailFailure, RailId};
use std::error::Error;
use std::time::Instant;

/// Bytes of the buffer, and of the pieces that are on the way at a time.
const LENGTH: u32 = 64 << 20;
const PIECE: u32 = 2 << 20;
const WINDOW: u64 = 16;

/// Takes what came, if none of it failed.
fn polled(endpoint: &mut Endpoint) -> Result<Vec<VirtualWc>, Box<dyn Error>> {
    let batch = endpoint.poll(16);
    if let Some(error) = batch.error {
        return Err(endpoint.queue_error(error).into());
    }
    match batch.completions.iter().find(|done| !done.status.is_success()) {
        Some(failed) => Err(endpoint.explain(failed.status).into()),
        None => Ok(batch.completions),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let fabric = Fabric::threaded();
    let nics = |names: [&str; 2]| -> Result<Vec<ProtectionDomain>, _> {
        names
            .iter()
            .map(|name| fabric.create_device(DeviceConfig::named(*name)).alloc_pd())
            .collect()
    };
    let (here, there) = (nics(["here0", "here1"])?, nics(["there0", "there1"])?);
    let (here, there): (Vec<_>, Vec<_>) = (here.iter().collect(), there.iter().collect());
    let builder = EndpointBuilder::new().rails(4).rail_failure(RailFailure::Reroute);
    let mut sender = builder.build(&here)?;
    let mut receiver = builder.build(&there)?;
    connect_endpoints(&mut sender, &mut receiver)?;

    let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let from = RegisteredBuffer::new(LENGTH as usize, AccessFlags::empty(), &here)?;
    let to = RegisteredBuffer::new(LENGTH as usize, writable, &there)?;
    let bytes: Vec<u8> = (0..LENGTH).map(|at| (at % 251) as u8).collect();
    from.write_at(0, &bytes)?;
    let keys = from.toward(&to.remote())?;

    let pieces = u64::from(LENGTH / PIECE);
    let (mut posted, mut sent, mut arrived) = (0, 0, 0);
    for piece in 0..WINDOW {
        receiver.post_recv(&RecvWr::notification(piece))?;
    }
    let begin = Instant::now();
    while sent < pieces || arrived < pieces {
        if posted < pieces && posted < arrived + WINDOW {
            let at = posted * u64::from(PIECE);
            let local = from.local(at as usize, PIECE)?;
            sender.post_send(&SendWr::write_with_imm(
                posted,
                local,
                to.addr() + at,
                posted as u32,
                &keys,
            ))?;
            posted += 1;
            if posted == pieces / 2 {
                sender.fail_rail(RailId::Data(2)); // as a link would, or a driver, or a device
            }
        }
        sent += polled(&mut sender)?.len() as u64;
        for told in polled(&mut receiver)? {
            // In posting order, whatever rails did.
            assert_eq!(told.imm, Some(arrived as u32));
            arrived += 1;
            receiver.post_recv(&RecvWr::notification(told.wr_id + WINDOW))?;
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    let mut copy = vec![0; LENGTH as usize];
    to.read_at(0, &mut copy)?;
    assert!(copy == bytes, "all bytes are there, and at their places");
    println!("{pieces} pieces, {:.2} GB/s", f64::from(LENGTH) / seconds / 1e9);
    while let Some(event) = sender.take_rail_event() {
        println!("{event}");
    }
    Ok(())
}
