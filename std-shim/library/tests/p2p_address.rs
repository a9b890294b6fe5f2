//! Addresses of endpoints for messages that are not what they should be.

mod fixture;
mod messages;

use fixture::Host;
use messages::{Pair, Side};
use polyrail::nic::Fabric;
use polyrail::p2p::{End, P2pAddress, P2pBuilder, P2pConnectError, P2pEndpoint, connect_endpoints};

fn endpoint(fabric: &Fabric, name: &str, only: Option<End>) -> P2pEndpoint {
    P2pBuilder::new().only(only).build(&Host::new(fabric, name, 2, 64).all()).unwrap()
}

fn refusal(text: &str) -> String {
    P2pAddress::from_json(text.as_bytes()).unwrap_err().to_string()
}

#[test]
fn an_address_has_an_end() {
    for text in ["{}", r#"{"sending":[],"receiving":[]}"#] {
        assert!(refusal(text).contains("neither a sender nor a receiver"), "{}", refusal(text));
    }
    for text in ["[]", "null", r#"{"sender":null}"#, r#"{"sender":null,"receiver":null}"#] {
        refusal(text);
    }
}

/// Of an end that is not there, there are no queue pairs.
#[test]
fn queue_pairs_are_those_of_ends() {
    let fabric = Fabric::threaded();
    let both = endpoint(&fabric, "both", None).address();
    assert_eq!(P2pAddress::from_json(both.to_json().as_bytes()), Ok(both.clone()));
    let without_sender = P2pAddress { sender: None, ..both.clone() };
    let without_receiver = P2pAddress { receiver: None, ..both };
    for (stray, end, only) in
        [(&without_sender, "sender", End::Sender), (&without_receiver, "receiver", End::Receiver)]
    {
        let reason = refusal(&stray.to_json());
        assert!(reason.contains(&format!("queue pairs of a {end}, but no {end}")), "{reason}");
        // Nor are they taken of one that was never text.
        let mut peer = endpoint(&fabric, "peer", Some(only));
        let refused = peer.connect(stray);
        let missing = if only == End::Sender { End::Receiver } else { End::Sender };
        assert_eq!(refused, Err(P2pConnectError::QueuePairs { end: missing, here: 0, peer: 2 }));
    }
}

/// Of two cards either may be refused, and the right ones are taken then.
#[test]
fn a_card_that_is_refused_changes_nothing() {
    for wrong in [End::Sender, End::Receiver] {
        let fabric = Fabric::threaded();
        let mut near = Side::new(&fabric, "near", 2, 64, &P2pBuilder::new());
        let mut far = Side::new(&fabric, "far", 2, 64, &P2pBuilder::new());
        let mut bad = far.endpoint.address();
        let ports = match wrong {
            End::Sender => &mut bad.receiver.as_mut().unwrap().ports,
            End::Receiver => &mut bad.sender.as_mut().unwrap().ports,
        };
        ports.slots /= 2;
        let refused = near.endpoint.connect(&bad).unwrap_err();
        let P2pConnectError::Card { end, source } = refused else { panic!("{refused}") };
        assert!(end == wrong && source.to_string().contains("slots"), "{end}: {source}");
        connect_endpoints(&mut near.endpoint, &mut far.endpoint).unwrap();
        let mut pair = Pair { near, far };
        pair.exchange(64, 64);
        pair.turned().exchange(64, 64);
    }
}
