//! Messages of the p2p protocol. There is no baseline for them, so the floor is in its place.

use super::Row;
use crate::contender::{Contender, prepared};
use crate::message_rig::{Link, MessageRig};
use crate::null::{NullCq, NullQp, NullSrq};
use crate::workload::OUTSTANDING;
use crate::{engine, floor};
use std::hint::black_box;

/// What each row may cost: the sender and the receiver of a message, of its floor.
const LIMIT: f64 = 2.5;

const SMALL: u32 = 8;
const LARGE: u32 = 1 << 20;

pub(super) const SMALL_1: Row = Row {
    engine: || both_ends::<Engine>(1, SMALL),
    ..row("p2p_send_8", "1 rail, 8 bytes, irecv, isend, test of both", || {
        both_ends::<Floor>(1, SMALL)
    })
};

pub(super) const LARGE_2: Row = Row {
    engine: || both_ends::<Engine>(2, LARGE),
    ..row("p2p_send_1m_2", "2 rails, 1 MiB, irecv, isend, test of both", || {
        both_ends::<Floor>(2, LARGE)
    })
};

pub(super) const LARGE_4: Row = Row {
    engine: || both_ends::<Engine>(4, LARGE),
    ..row("p2p_send_1m_4", "4 rails, 1 MiB, irecv, isend, test of both", || {
        both_ends::<Floor>(4, LARGE)
    })
};

pub(super) const SENDER: Row = Row {
    engine: || sender::<Engine>(1, SMALL),
    ..row("p2p_sender", "1 rail, 8 bytes, isend, test", || sender::<Floor>(1, SMALL))
};

pub(super) const RECEIVER: Row = Row {
    engine: || receiver::<Engine>(1, SMALL),
    ..row("p2p_recv", "1 rail, 8 bytes, irecv, test", || receiver::<Floor>(1, SMALL))
};

/// A row with its floor in every place.
const fn row(name: &'static str, work: &'static str, floor: super::Make) -> Row {
    Row {
        name,
        work,
        operations: OUTSTANDING,
        floor,
        baseline: floor,
        engine: floor,
        instruction_limit: LIMIT,
        time_limit: None,
        baseline_limit: None,
    }
}

type Engine = engine::Messages<NullQp, NullCq, NullSrq>;
type Floor = floor::Messages<NullQp, NullCq, NullSrq>;

/// Both ends of a connection.
trait Ends: 'static {
    fn new(rig: MessageRig, length: u32) -> Self;
    fn receive(&mut self);
    fn send(&mut self);
}

impl Ends for Engine {
    fn new(rig: MessageRig, length: u32) -> Self {
        Self::new(rig, length)
    }

    fn receive(&mut self) {
        black_box(black_box(self).receive());
    }

    fn send(&mut self) {
        black_box(black_box(self).send());
    }
}

impl Ends for Floor {
    fn new(rig: MessageRig, length: u32) -> Self {
        Self::new(rig, length)
    }

    fn receive(&mut self) {
        black_box(black_box(self).receive());
    }

    fn send(&mut self) {
        black_box(black_box(self).send());
    }
}

/// Both ends after their first burst, which waits to be carried.
fn begun<E: Ends>(rails: u8, length: u32) -> (E, Link) {
    let (rig, link) = MessageRig::new(rails, length);
    let mut ends = E::new(rig, length);
    ends.receive();
    ends.send();
    (ends, link)
}

fn both_ends<E: Ends>(rails: u8, length: u32) -> Box<dyn Contender> {
    prepared(
        begun::<E>(rails, length),
        |(_, link)| link.carry(),
        |(ends, _)| {
            ends.receive();
            ends.send();
        },
    )
}

fn sender<E: Ends>(rails: u8, length: u32) -> Box<dyn Contender> {
    prepared(
        begun::<E>(rails, length),
        |(ends, link)| {
            link.carry();
            ends.receive();
        },
        |(ends, _)| ends.send(),
    )
}

fn receiver<E: Ends>(rails: u8, length: u32) -> Box<dyn Contender> {
    let mut is_first = true;
    prepared(
        begun::<E>(rails, length),
        move |(ends, link)| {
            // The first burst is sent already.
            if !std::mem::take(&mut is_first) {
                ends.send();
            }
            link.carry();
        },
        |(ends, _)| ends.receive(),
    )
}
