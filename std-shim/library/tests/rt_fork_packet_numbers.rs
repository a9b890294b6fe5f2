//! A fork of a process starts its connections with other packet sequence numbers than its parent.

#[path = "../../process/tests/in_fork/mod.rs"]
mod in_fork;

use in_fork::in_fork;
use polyrail::endpoint::{Endpoint, EndpointBuilder};
use polyrail::nic::{DeviceConfig, Fabric};
use polyrail::p2p::{P2pBuilder, P2pEndpoint};
use std::fs;

/// The numbers of endpoints of both kinds that are built now, on a fabric of this process.
fn drawn() -> String {
    let fabric = Fabric::threaded();
    let domain = fabric.create_device(DeviceConfig::named("nic")).alloc_pd().unwrap();
    // Numbers have 24 bits, so a few of them are not the same by chance.
    let numbers: Vec<_> = (0..4)
        .flat_map(|_| {
            let requests: Endpoint = EndpointBuilder::new().build(&[&domain]).unwrap();
            let messages: P2pEndpoint<_> = P2pBuilder::new().build(&[&domain]).unwrap();
            [requests.address().rails[0].psn, messages.address().sending[0].address.psn]
        })
        .collect();
    format!("{numbers:x?}")
}

#[test]
fn a_child_draws_other_packet_sequence_numbers() {
    let before = drawn();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("drawn");
    in_fork(|| fs::write(&path, drawn()).unwrap());
    let (child, parent) = (fs::read_to_string(&path).unwrap(), drawn());
    assert!(child != parent && before != parent, "{before} {child} {parent}");
}
