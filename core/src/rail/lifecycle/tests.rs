//! The table of what is heard, state by state, against a second writing of it.

use super::*;

extern crate std;
use std::vec::Vec;

const RAIL: RailId = RailId::Data(1);
const POSTED: u32 = 9;
const STATES: [RailState; 5] = [
    RailState::InService,
    RailState::Draining,
    RailState::Fenced,
    RailState::Down,
    RailState::Joining,
];
const TOLD: [ToldState; 3] = [ToldState::Failed, ToldState::Fenced, ToldState::Ready];

/// A rail of generation `generation` in each state that it can be in.
fn rails(generation: u16) -> Vec<Lifecycle> {
    let mut rails = Vec::new();
    for state in STATES {
        let noted: &[_] = match state {
            RailState::InService | RailState::Joining | RailState::Fenced => &[None],
            RailState::Draining => &[None, Some(3)],
            RailState::Down => &[Some(3)],
        };
        let ready: &[_] = if state == RailState::Down { &[false, true] } else { &[false] };
        for peer_arrived in noted {
            for peer_is_ready in ready {
                rails.push(Lifecycle {
                    state,
                    generation,
                    arrived: 7,
                    previous_arrived: 5,
                    peer_arrived: *peer_arrived,
                    peer_is_ready: *peer_is_ready,
                    has_failed: true,
                    dirty: false,
                });
            }
        }
    }
    rails
}

/// More than was posted, modulo 2^32: what is far more is less.
fn is_too_many(arrived: u32) -> bool {
    matches!(arrived.wrapping_sub(POSTED), 1..=0x7FFF_FFFF)
}

/// What the design's table says. `ahead` is how many generations the message is ahead. `None`: a
/// protocol error.
fn expected(before: &Lifecycle, news: &RailNews, ahead: i32) -> Option<(Heard, Lifecycle)> {
    use RailState::{Down, Draining, Fenced, InService, Joining};
    use ToldState as T;
    let mut after = *before;
    let mut heard = Heard::default();
    match (before.state, ahead, news.state) {
        (_, ..0, _)
        | (InService | Draining | Fenced | Down, 0, T::Ready)
        | (Draining | Fenced | Down, 0, T::Failed) => heard.ignored = true,
        (InService | Joining, 0, T::Failed) => {
            heard.stopped = true;
            after.state = Draining;
        }
        (_, 0, T::Fenced) => {
            if before.peer_arrived == Some(news.arrived) {
                heard.ignored = true;
                return Some((heard, after));
            }
            if before.peer_arrived.is_some() || is_too_many(news.arrived) {
                return None;
            }
            after.peer_arrived = Some(news.arrived);
            match before.state {
                InService | Joining => {
                    heard.stopped = true;
                    after.state = Draining;
                }
                Fenced => {
                    heard.fenced = Some(news.arrived);
                    after.state = Down;
                }
                Draining | Down => {}
            }
        }
        (Joining, 0, T::Ready) => {
            heard.returned = true;
            after.state = InService;
        }
        (Fenced | Down, 1, told) => {
            if before.state == Fenced {
                if is_too_many(news.previous_arrived) {
                    return None;
                }
                heard.fenced = Some(news.previous_arrived);
                after.state = Down;
                after.peer_arrived = heard.fenced;
            }
            if told == T::Ready {
                after.peer_is_ready = true;
                return Some((heard, after));
            }
            if told == T::Fenced && news.arrived > 0 {
                return None;
            }
            heard.adopted = true;
            after = Lifecycle {
                state: if told == T::Fenced { Down } else { Fenced },
                generation: before.generation.wrapping_add(1),
                arrived: 0,
                previous_arrived: before.arrived,
                peer_arrived: (told == T::Fenced).then_some(0),
                peer_is_ready: false,
                has_failed: true,
                dirty: true,
            };
        }
        (InService | Draining | Joining, 1, _) | (_, 2.., _) => return None,
    }
    Some((heard, after))
}

#[test]
fn every_message_in_every_state_is_as_the_table_says() {
    let mut checked = 0;
    for generation in [0, 1, 7, u16::MAX - 1, u16::MAX] {
        for before in rails(generation) {
            for ahead in [-300, -1, 0, 1, 2, 300] {
                for state in TOLD {
                    for arrived in [0, 3, POSTED, POSTED + 1, 1 << 31, u32::MAX] {
                        for previous_arrived in [0, POSTED, POSTED + 1] {
                            let told = generation.wrapping_add_signed(ahead as i16);
                            let news = RailNews {
                                rail: RAIL,
                                generation: told,
                                state,
                                arrived,
                                previous_arrived,
                            };
                            let mut after = before;
                            let heard = after.hear(&news, POSTED).ok();
                            let expected = expected(&before, &news, ahead);
                            assert_eq!(
                                heard.map(|heard| (heard, after)),
                                expected,
                                "{before:?} {news:?}"
                            );
                            checked += 1;
                        }
                    }
                }
            }
        }
    }
    assert_eq!(checked, 5 * 7 * 6 * 3 * 6 * 3);
}

/// Two ends, whoever notices first, and whatever is told late: both are in service again.
#[test]
fn two_ends_go_through_the_same_states() {
    let mut ends = [Lifecycle::NEW; 2];
    assert_eq!(ends[0].take_news(RAIL), None, "nothing failed");
    assert!(ends[0].fail() && !ends[0].fail());
    let news = ends[0].take_news(RAIL).unwrap();
    assert_eq!((news.state, news.generation), (ToldState::Failed, 0));
    assert!(ends[1].hear(&news, 4).unwrap().stopped);
    assert_eq!(ends[1].take_news(RAIL), None, "the other end knows");

    assert_eq!(ends[1].drained(3), None);
    let news = ends[1].take_news(RAIL).unwrap();
    assert_eq!((news.state, news.arrived), (ToldState::Fenced, 3));
    assert_eq!(ends[0].hear(&news, 5), Ok(Heard::default()), "kept until it is drained itself");
    assert_eq!(ends[0].drained(4), Some(3));
    assert_eq!(ends[0].state(), RailState::Down);
    let news = ends[0].take_news(RAIL).unwrap();
    assert_eq!(ends[1].hear(&news, 4).unwrap().fenced, Some(4));

    assert!(!ends[0].replaced());
    let news = ends[0].take_news(RAIL).unwrap();
    assert_eq!((news.state, news.generation, news.previous_arrived), (ToldState::Ready, 1, 4));
    assert_eq!(ends[1].hear(&news, 0), Ok(Heard::default()), "kept until it has one itself");
    assert!(ends[1].replaced(), "the peer is ready");
    let news = ends[1].take_news(RAIL).unwrap();
    assert!(ends[0].hear(&news, 0).unwrap().returned);
    assert!(ends.iter().all(|end| end.is_in_service() && end.generation() == 1));
}

/// The newest state gives way to no older one, and carries what the one before it would have said.
#[test]
fn what_was_not_sent_is_replaced() {
    let mut here = Lifecycle { peer_arrived: Some(0), ..Lifecycle::NEW };
    here.fail();
    here.drained(6);
    here.replaced();
    let news = here.take_news(RAIL).unwrap();
    assert_eq!((news.state, news.previous_arrived), (ToldState::Ready, 6));
    let mut there = Lifecycle::NEW;
    there.fail();
    there.drained(0);
    let heard = there.hear(&news, 8).unwrap();
    assert_eq!(heard.fenced, Some(6));
    assert!(there.replaced());
    here.tell_again();
    assert!(here.take_news(RAIL).is_some(), "in service again, and said again all the same");
}

#[test]
fn what_arrived_is_compared_modulo_its_cycle() {
    let news = |arrived| RailNews {
        rail: RAIL,
        generation: 0,
        state: ToldState::Fenced,
        arrived,
        previous_arrived: 0,
    };
    assert!(Lifecycle::NEW.clone().hear(&news(u32::MAX - 1), 2).is_ok());
    let too_many = ControlError::Arrived { rail: RAIL, arrived: 3, posted: 2 };
    assert_eq!(Lifecycle::NEW.clone().hear(&news(3), 2), Err(too_many));
}
