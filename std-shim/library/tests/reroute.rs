//! Rails that fail while the others go on.

mod fixture;
mod rerouted;

use polyrail::endpoint::{Endpoint, EndpointBuilder, EndpointError};
use polyrail::nic::{Fault, When};
use polyrail::verbs::{SendFlags, SendWr, WcStatus};
use polyrail::virtual_qp::{
    ControlError, ControlMessage, PostSendError, QpState, RailId, RailNews, RailState, Scheme,
    ToldState,
};
use rerouted::{Ends, LENGTH, rerouted};

const SCHEMES: [Scheme; 2] = [Scheme::Spray, Scheme::Dqplb];

/// A link is cut in the middle of a message.
fn cut(ends: &Ends, device: usize, after_messages: usize) {
    let bytes = (after_messages * LENGTH / 2 + 1234) as u64;
    ends.near.devices[device].inject(When::AfterBytes(bytes), Fault::LinkDown);
}

#[test]
fn a_link_is_cut_and_every_byte_arrives_once() {
    for scheme in SCHEMES {
        for seed in 0..4 {
            let mut ends = Ends::new(seed, 4, &rerouted(scheme));
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
    let mut ends = Ends::new(5, 4, &rerouted(Scheme::Dqplb));
    cut(&ends, 2, 3);
    ends.go_on(|_| (), |ends| ends.near.events.len() == 2 && ends.far.events.len() == 2);
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
    ends.go_on(|_| (), |ends| ends.near.events.len() == 4 && ends.far.events.len() == 4);
    assert_eq!(ends.near.told()[2], "rail 1 (device near1) was given up here");
    assert_eq!(ends.far.told()[2], "rail 1 (device far1) failed at the peer");
    ends.finish(|_| ());
}

/// What request 0 of an end ends with, when it cannot go on.
fn end_of(endpoint: &mut Endpoint, ends: impl Fn()) -> EndpointError {
    for _ in 0..10_000 {
        ends();
        if let Some(wc) = endpoint.poll(16).completions.first() {
            return endpoint.explain(wc.status);
        }
    }
    panic!("nothing is reported")
}

fn tell(from: &mut Endpoint, to: &mut Endpoint) {
    while let Some(message) = from.next_control() {
        to.control(message).unwrap();
    }
}

/// Two ends of which each awaits a notification.
fn waiting(builder: &EndpointBuilder) -> Ends {
    Ends::new(3, 4, builder)
}

#[test]
fn too_few_rails_end_both_ends_and_each_knows_why() {
    let mut ends = waiting(&rerouted(Scheme::Spray).min_rails(3));
    let Ends { fabric, near, far, .. } = &mut ends;
    let step = || _ = fabric.step();
    assert!(near.endpoint.fail_rail(RailId::Data(3)));
    assert_eq!(near.endpoint.state(), QpState::Degraded);
    near.endpoint.fail_rail(RailId::Data(1));
    assert_eq!(near.endpoint.state(), QpState::Error);
    tell(&mut near.endpoint, &mut far.endpoint);
    assert_eq!(far.endpoint.state(), QpState::Error);
    let few = EndpointError::TooFewRails { in_service: 2, min_rails: 3, first: None };
    assert_eq!(end_of(&mut near.endpoint, step), few);
    assert_eq!(few.to_string(), "2 rails are in service, of 3 at least");
    assert_eq!(end_of(&mut far.endpoint, step), EndpointError::Peer);
}

#[test]
fn who_gives_up_tells_the_peer() {
    let mut ends = waiting(&rerouted(Scheme::Spray));
    let Ends { fabric, near, far, .. } = &mut ends;
    let step = || _ = fabric.step();
    near.endpoint.fail_all();
    tell(&mut near.endpoint, &mut far.endpoint);
    assert_eq!(end_of(&mut near.endpoint, step), EndpointError::GivenUp);
    assert_eq!(end_of(&mut far.endpoint, step), EndpointError::Peer);
    // Said again over a new way, and heard already.
    near.endpoint.control_lost();
    assert_eq!(near.endpoint.next_control(), Some(ControlMessage::Error));
    assert_eq!(far.endpoint.control(ControlMessage::Error), Ok(()));
}

#[test]
fn a_peer_that_tells_nonsense_ends_it() {
    let mut ends = waiting(&rerouted(Scheme::Spray));
    let Ends { fabric, near, .. } = &mut ends;
    let rail = RailId::Data(0);
    let state = ToldState::Fenced;
    let news = RailNews { rail, generation: 0, state, arrived: 77, previous_arrived: 0 };
    let refused = ControlError::Arrived { rail, arrived: 77, posted: 0 };
    assert_eq!(near.endpoint.control(ControlMessage::Rail(news)), Err(refused));
    let error = end_of(&mut near.endpoint, || _ = fabric.step());
    assert_eq!(error, EndpointError::Control(refused));
}

#[test]
fn rails_that_fail_for_good_have_nothing_to_tell() {
    let mut ends = waiting(&EndpointBuilder::new());
    let Ends { fabric, near, .. } = &mut ends;
    let message = ControlMessage::Error;
    assert_eq!(near.endpoint.control(message), Err(ControlError::NotRerouting));
    assert!(!near.endpoint.fail_rail(RailId::Notify));
    let EndpointError::Rail(error) = end_of(&mut near.endpoint, || _ = fabric.step()) else {
        panic!()
    };
    assert_eq!((error.error.rail, error.error.status), (RailId::Notify, WcStatus::WR_FLUSH_ERR));
    assert_eq!(near.endpoint.next_control(), None);
    assert_eq!(near.endpoint.take_rail_event(), None);
}

#[test]
fn inline_requests_are_refused_where_they_could_not_be_posted_again() {
    let mut ends = waiting(&rerouted(Scheme::Dqplb));
    let keys = ends.near.buffer.toward(&ends.far.buffer.remote()).unwrap();
    let local = ends.near.buffer.local(0, 8).unwrap();
    let write = SendWr::write(0, local, ends.far.buffer.addr(), &keys);
    let inline = SendWr { flags: write.flags | SendFlags::INLINE, ..write };
    let refused = ends.near.endpoint.post_send(&inline).unwrap_err();
    assert_eq!(refused, PostSendError::InlineRerouted);
}
