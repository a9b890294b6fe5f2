//! Connecting to addresses that do not answer: the kernel searches for a path for about a second.

use crate::fixture::Rails;
use polyrail::endpoint::{Address, ConnectError, Endpoint, EndpointBuilder};
use polyrail::place::Near;
use polyrail::rdma::{CompletionQueue, OpenOptions, QueuePair, VerbsDomain, open_devices};
use polyrail::virtual_qp::QpState;
use polyrail_tests::behaviours::LIMIT;
use std::thread;
use std::time::{Duration, Instant};

/// The address of a port that is made from its IPv4 address.
const OVER_IPV4: OpenOptions = OpenOptions { gid_index: Some(1), near: Near::Nothing };

fn endpoint(end: &str) -> Endpoint<QueuePair, CompletionQueue> {
    let names = [0, 1].map(|rail| format!("rxe{end}{rail}").parse().unwrap());
    let domains = open_devices(&names, &OVER_IPV4).unwrap();
    let domains: Vec<&VerbsDomain> = domains.iter().collect();
    EndpointBuilder::new().rails(2).build(&domains).unwrap()
}

pub(super) fn a_search_for_a_path_holds_nobody_up(_: &Rails) {
    let [mut near, mut far] = ["A", "B"].map(endpoint);
    let mut lost = far.address();
    for address in lost.rails.iter_mut().chain(&mut lost.notify) {
        // No host of the network has it.
        address.gid.0[15] = 77;
    }
    let begin = Instant::now();
    assert_eq!(near.try_connect(&lost), Ok(false));
    let first = begin.elapsed();
    let error = ended(&mut near, &lost);
    let search = begin.elapsed();
    assert!(error.may_pass() && first < search / 2, "{first:?} of {search:?}: {error}");
    // What was not connected in vain can still be.
    near.connect(&far.address()).unwrap();
    far.connect(&near.address()).unwrap();
    assert_eq!((near.state(), far.state()), (QpState::Ready, QpState::Ready));
    let begin = Instant::now();
    let [mut gone, mut failed] = ["A", "A"].map(endpoint);
    assert_eq!([&mut gone, &mut failed].map(|end| end.try_connect(&lost)), [Ok(false), Ok(false)]);
    drop(gone);
    failed.fail();
    assert!(begin.elapsed() < search, "{:?} of {search:?}", begin.elapsed());
    let error = ended(&mut failed, &lost);
    assert!(!error.may_pass(), "{error}");
}

/// Why an endpoint cannot be connected.
fn ended(end: &mut Endpoint<QueuePair, CompletionQueue>, peer: &Address) -> ConnectError {
    let begin = Instant::now();
    loop {
        match end.try_connect(peer) {
            Ok(false) => thread::sleep(Duration::from_millis(1)),
            ended => return ended.unwrap_err(),
        }
        assert!(begin.elapsed() < LIMIT);
    }
}
