//! Rails that fail while the others go on.

mod fixture;
mod rerouted;

use polyrail::endpoint::{Endpoint, EndpointBuilder, EndpointError, HealingMessage};
use polyrail::nic::{Fabric, Fault, When};
use polyrail::verbs::{SendFlags, SendWr, WcStatus};
use polyrail::virtual_qp::{
    ControlError, ControlMessage, PostSendError, QpState, RailId, RailReport, RailState,
    ReportedState, Scheme,
};
use rerouted::{Ends, LENGTH, healed};

const SCHEMES: [Scheme; 2] = [Scheme::Spray, Scheme::Dqplb];

/// A link is cut in the middle of a message.
fn cut(ends: &Ends, device: usize, after_messages: usize) {
    let bytes = (after_messages * LENGTH / 2 + 1234) as u64;
    ends.near.devices[device].inject(When::Bytes(bytes), Fault::LinkDown);
}

#[test]
fn a_link_is_cut_and_every_byte_arrives_once() {
    for scheme in SCHEMES {
        for seed in 0..4 {
            let mut ends = Ends::new(seed, 4, &healed(scheme));
            cut(&ends, 2, seed as usize);
            ends.finish(|_| ());
            for end in [&ends.near, &ends.far] {
                assert_eq!(end.endpoint.state(), QpState::Degraded);
                assert_eq!(end.state(RailId::Data(2)), RailState::Down, "{scheme:?} {seed}");
                assert_eq!(end.generation(RailId::Data(2)), 0);
            }
        }
    }
}

#[test]
fn what_happened_is_told_with_names() {
    let mut ends = Ends::new(5, 4, &healed(Scheme::Dqplb));
    // No port goes down, so that the failed request is the first to show it. Then the rail stays
    // out of service.
    let bytes = When::Bytes(3 * LENGTH as u64);
    ends.far.devices[2].inject(bytes, Fault::LoseAcks(true));
    let cut = |ends: &mut Ends| {
        if !ends.near.events.is_empty() || !ends.far.events.is_empty() {
            ends.near.devices[2].inject(When::Now, Fault::LinkDown);
        }
    };
    ends.go_on(cut, |ends| ends.near.events.len() == 2 && ends.far.events.len() == 2);
    let mut noticed = 0;
    for (name, events) in [("near", ends.near.told()), ("far", ends.far.told())] {
        let own = format!("rail 2 (device {name}2, queue pair 17) failed: RETRY_EXC_ERR: ");
        let heard = format!("rail 2 (device {name}2) failed at the peer");
        assert!(events[0].starts_with(&own) || events[0] == heard, "{events:?}");
        noticed += usize::from(events[0] != heard);
        let drained = format!("rail 2 (device {name}2) is drained after ");
        assert!(events[1].starts_with(&drained), "{events:?}");
        assert!(events[1].ends_with(" are posted again"), "{events:?}");
    }
    assert!(noticed > 0);
    let report = &ends.near.endpoint.rail_reports()[2];
    assert_eq!((report.state, report.generation), (RailState::Down, 0));
    let shown = report.to_string();
    assert!(shown.starts_with("rail 2 (device near2, queue pair 17): down; "), "{shown}");
    // The owner's word, and nobody else's.
    assert!(ends.near.endpoint.fail_rail(RailId::Data(1)));
    assert!(!ends.near.endpoint.fail_rail(RailId::Data(1)));
    ends.go_on(|_| (), |ends| ends.near.events.len() >= 4 && ends.far.events.len() >= 4);
    assert_eq!(ends.near.told()[2], "rail 1 (device near1) was given up here");
    assert_eq!(ends.far.told()[2], "rail 1 (device far1) failed at the peer");
    ends.finish(|_| ());
}

/// What the next request of an end ends with, when it cannot go on; both are polled.
fn end_of(fabric: &Fabric, endpoint: &mut Endpoint, peer: &mut Endpoint) -> EndpointError {
    for _ in 0..10_000 {
        fabric.step();
        _ = peer.poll(0);
        if let Some(wc) = endpoint.poll(16).completions.first() {
            return endpoint.explain(wc.status);
        }
    }
    panic!("nothing is reported")
}

/// Two ends of which each awaits a notification.
fn waiting(builder: &EndpointBuilder) -> Ends {
    Ends::new(3, 4, builder)
}

#[test]
fn too_few_rails_end_both_ends_and_each_knows_why() {
    let mut ends = waiting(&healed(Scheme::Spray).min_rails(3));
    let Ends { fabric, near, far, .. } = &mut ends;
    let (near, far) = (&mut near.endpoint, &mut far.endpoint);
    assert!(near.fail_rail(RailId::Data(3)));
    assert_eq!(near.state(), QpState::Degraded);
    near.fail_rail(RailId::Data(1));
    assert_eq!(near.state(), QpState::Error);
    let few = EndpointError::TooFewRails { in_service: 2, min_rails: 3, first: None };
    assert_eq!(end_of(fabric, near, far), few);
    assert_eq!(few.to_string(), "only 2 rails are in service, but min_rails is 3");
    assert_eq!(end_of(fabric, far, near), EndpointError::Peer);
}

#[test]
fn both_ends_know_why_when_one_gives_up() {
    let mut ends = waiting(&healed(Scheme::Spray));
    let Ends { fabric, near, far, .. } = &mut ends;
    let (near, far) = (&mut near.endpoint, &mut far.endpoint);
    near.fail();
    assert_eq!(end_of(fabric, near, far), EndpointError::GivenUp);
    assert_eq!(end_of(fabric, far, near), EndpointError::Peer);
}

#[test]
fn a_peer_that_claims_too_much_ends_the_endpoint() {
    let mut ends = Ends::apart(Fabric::deterministic(3), 4, &healed(Scheme::Spray));
    let Ends { fabric, near, far, .. } = &mut ends;
    let rail = RailId::Data(0);
    let state = ReportedState::Fenced;
    let news = RailReport {
        rail,
        generation: 0,
        state,
        arrived: 77,
        previous_arrived: 0,
        on_purpose: false,
    };
    let link = near.endpoint.healing_link().unwrap();
    link.handle(HealingMessage::Control(ControlMessage::Rail(news))).unwrap();
    let refused = ControlError::Arrived { rail, arrived: 77, posted: 0 };
    let error = end_of(fabric, &mut near.endpoint, &mut far.endpoint);
    assert_eq!(error, EndpointError::Control(refused));
}

#[test]
fn rails_that_fail_for_good_are_not_repaired() {
    let mut ends = waiting(&EndpointBuilder::new());
    let Ends { fabric, near, far, .. } = &mut ends;
    let (near, far) = (&mut near.endpoint, &mut far.endpoint);
    assert!(near.healing_link().is_none());
    assert!(!near.fail_rail(RailId::Notify));
    let EndpointError::Rail(error) = end_of(fabric, near, far) else { panic!() };
    assert_eq!((error.error.rail, error.error.status), (RailId::Notify, WcStatus::WR_FLUSH_ERR));
    assert_eq!(near.take_rail_event(), None);
}

#[test]
fn inline_requests_are_refused_where_they_could_not_be_posted_again() {
    let mut ends = waiting(&healed(Scheme::Dqplb));
    let keys = ends.near.buffer.toward(&ends.far.buffer.remote()).unwrap();
    let local = ends.near.buffer.local(0, 8).unwrap();
    let write = SendWr::write(0, local, ends.far.buffer.addr(), &keys);
    let inline = SendWr { flags: write.flags | SendFlags::INLINE, ..write };
    let refused = ends.near.endpoint.post_send(&inline).unwrap_err();
    assert_eq!(refused, PostSendError::InlineRerouted);
}
