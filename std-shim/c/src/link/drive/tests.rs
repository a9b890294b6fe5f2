//! Peers that send more than is read at once.

use super::*;
use crate::link::meeting::{Meeting, OurHello};
use polyrail::endpoint::{Endpoint, EndpointBuilder};
use polyrail::link::{HexBytes, Reach};
use polyrail::nic::{DeviceConfig, Fabric};

/// Counts the messages of the other side.
#[derive(Default)]
struct Counts {
    heard: usize,
}

impl Meets for Counts {
    fn reach(&mut self) -> Result<Reach, Failure> {
        unreachable!("they have met")
    }

    fn connect(&mut self, _: &Reach) -> Result<(), Failure> {
        unreachable!("they have met")
    }

    fn next_control(&mut self) -> Option<Message> {
        None
    }

    fn hear(&mut self, _: &Message) -> Result<(), Refusal> {
        self.heard += 1;
        Ok(())
    }

    fn control_lost(&mut self) {}
}

#[test]
fn a_peer_that_floods_its_link_is_read_a_limited_number_of_messages_at_once() {
    const SENT: usize = 3 * AT_ONCE;
    let device = Fabric::threaded().create_device(DeviceConfig::named("a"));
    let domain = device.alloc_pd().unwrap();
    let endpoint: Endpoint = EndpointBuilder::new().build(&[&domain]).unwrap();
    let purpose = Meeting { hello: HexBytes(Vec::new()) };
    let reach = endpoint.address().into();
    let (control, mut flooding) = OurLink::pair().unwrap();
    let hello = OurHello::without_memory(reach, Some(purpose), None);
    let flood = std::iter::repeat_n(Message::Alive {}, SENT);
    for message in [Message::Hello(hello), Message::Ready {}].into_iter().chain(flood) {
        flooding.send(&message).unwrap();
    }
    let mut met = control;
    assert!(matches!(met.try_recv(), Ok(Some(Message::Hello(_)))));
    assert!(matches!(met.try_recv(), Ok(Some(Message::Ready {}))));
    let since = Instant::now();
    let link = PeerLink { stage: Stage::Met(met), hello: Vec::new(), since, unhandled: None };
    let (mut link, mut peer, mut events) = (Some(link), Counts::default(), EventQueue::default());
    for calls in 1..=SENT / AT_ONCE {
        drive(&mut link, (1, &mut peer), &mut events);
        assert!(link.is_some());
        assert_eq!(peer.heard, calls * AT_ONCE);
    }
}
