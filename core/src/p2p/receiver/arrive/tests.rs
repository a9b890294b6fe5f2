use super::*;
use crate::p2p::record::RecordError;

const SLOT: u8 = 9;

fn waiting(capacities: &[u32]) -> Slot {
    let mut slot = Slot::BLANK;
    for (entry, length) in slot.entries.iter_mut().zip(capacities) {
        entry.length = *length;
    }
    slot.hold(1, capacities.len() as u8);
    slot.wait(0);
    slot
}

fn arrival(rail: u8, mask: u8, told: Told, bytes: u32) -> Arrival {
    let immediate = Immediate { slot: SLOT, mask: Mask::from_bits(mask), told };
    Arrival { immediate, rail, own: Mask::of(rail), carrier: 1 << rail, bytes }
}

fn record(sizes: &[u32]) -> [AtomicU64; MAX_BUFFERS] {
    let words = [const { AtomicU64::new(0) }; MAX_BUFFERS];
    record::poison(&words);
    record::store(&words, sizes.iter().copied());
    words
}

/// Takes these immediates, after which the receive is complete, and finishes it.
fn sizes(
    slot: &mut Slot,
    arrivals: &[Arrival],
    written: &[u32],
) -> Result<[u32; 2], ProtocolError> {
    for (at, arrival) in arrivals.iter().enumerate() {
        assert_eq!(slot.note(arrival)?, at + 1 == arrivals.len());
        assert_eq!(slot.is_complete(), at + 1 == arrivals.len());
    }
    if slot.needs_record {
        slot.read_record(SLOT, &record(written))?;
    } else {
        slot.add_up(SLOT)?;
    }
    Ok([slot.sizes[0], slot.sizes[1]])
}

#[test]
fn the_size_is_what_the_nic_says() {
    let units = Told::Units(2);
    let mut slot = waiting(&[256]);
    let shares = [arrival(0, 0b11, units, 128), arrival(1, 0b11, units, 72)];
    assert_eq!(sizes(&mut slot, &shares, &[]), Ok([200, 0]));
    assert_eq!(slot.carriers, 0b11);
}

#[test]
fn without_payload_the_size_is_what_the_immediate_says() {
    let none = [arrival(2, 0b100, Told::Units(3), 0)];
    assert_eq!(sizes(&mut waiting(&[500]), &none, &[]), Ok([384, 0]));
    let empty = [arrival(0, 1, Told::Units(0), 0)];
    assert_eq!(sizes(&mut waiting(&[0]), &empty, &[]), Ok([0, 0]));
}

#[test]
fn the_record_is_read_where_it_is_told_of_and_its_bytes_are_not_added() {
    let signals = [arrival(0, 0b11, Told::Record, 8), arrival(1, 0b11, Told::Record, 0)];
    assert_eq!(sizes(&mut waiting(&[200]), &signals, &[100]), Ok([100, 0]));
    let two = [arrival(0, 1, Told::Record, 16)];
    assert_eq!(sizes(&mut waiting(&[50, 60]), &two, &[7, 60]), Ok([7, 60]));
    let moved = [arrival(1, 0b11, Told::Units(1), 50), arrival(0, 0b11, Told::Moved(0), 8)];
    assert_eq!(sizes(&mut waiting(&[200]), &moved, &[100]), Ok([100, 0]));
}

#[test]
fn several_buffers_are_in_the_record_whatever_was_told() {
    let told = [arrival(0, 1, Told::Units(1), 5)];
    let missing = RecordError::NotWritten { buffer: 0 };
    let error = ProtocolError::Record { slot: SLOT, source: missing };
    assert_eq!(sizes(&mut waiting(&[50, 60]), &told, &[]), Err(error));
}

#[test]
fn sizes_that_disagree_are_refused() {
    let disagree = |said, came| Err(ProtocolError::SizesDisagree { slot: SLOT, said, came });
    let short = [arrival(0, 1, Told::Units(2), 100)];
    assert_eq!(sizes(&mut waiting(&[256]), &short, &[]), disagree(256, 100));
    let units = [arrival(0, 0b11, Told::Units(2), 1), arrival(1, 0b11, Told::Units(1), 1)];
    assert_eq!(sizes(&mut waiting(&[256]), &units, &[]), disagree(256, 128));
    let moved = [arrival(0, 0b11, Told::Units(2), 1), arrival(1, 0b11, Told::Moved(1), 8)];
    assert_eq!(sizes(&mut waiting(&[999]), &moved, &[300]), disagree(256, 300));
}

#[test]
fn more_than_the_buffer_holds_is_refused() {
    let long = [arrival(0, 1, Told::Units(2), 200)];
    let error = ProtocolError::TooLong { slot: SLOT, size: 200, capacity: 199 };
    assert_eq!(sizes(&mut waiting(&[199]), &long, &[]), Err(error));
    let said = [arrival(0, 1, Told::Units(2), 0)];
    let error = ProtocolError::TooLong { slot: SLOT, size: 256, capacity: 199 };
    assert_eq!(sizes(&mut waiting(&[199]), &said, &[]), Err(error));
}

#[test]
fn immediates_that_are_not_due_are_refused() {
    let units = Told::Units(1);
    let first = arrival(0, 0b11, units, 10);
    let bad = [
        (arrival(0, 0b11, units, 1), ProtocolError::Twice { slot: SLOT, rail: 0 }),
        (arrival(1, 0, units, 1), ProtocolError::EmptyMask { slot: SLOT }),
        (
            arrival(1, 0b10, units, 1),
            ProtocolError::MaskChanged {
                slot: SLOT,
                before: Mask::from_bits(0b11),
                now: Mask::of(1),
            },
        ),
        (
            arrival(2, 0b11, units, 1),
            ProtocolError::ForeignMask { slot: SLOT, rail: 2, mask: Mask::from_bits(0b11) },
        ),
    ];
    for (arrival, error) in bad {
        let mut slot = waiting(&[100]);
        assert_eq!(slot.note(&first), Ok(false));
        assert_eq!(slot.note(&arrival), Err(error));
    }
}
