//! Memory windows and invalidation.

use crate::fixture::Rails;
use crate::memory::Buffer;
use polyrail_core::verbs::{
    AccessFlags, Opcode, SendFlags, SendRequest, Sge, WcFlags, WcOpcode, WcStatus,
};
use polyrail_ffi::{MemoryWindow, WindowRange};
use polyrail_tests::behaviours::{End, Fixture, Memory, Pair};

/// Memory that peers can reach through windows only.
fn closed(rails: &Rails) -> Buffer {
    rails.memory(End::Far, 4096, AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND)
}

/// Opens the second kilobyte of `memory` for writes by `near`.
fn open<'r>(pair: &mut Pair<Rails>, window: &mut MemoryWindow<'r>, memory: &'r Buffer) {
    let region = memory.region(0);
    let access = AccessFlags::REMOTE_WRITE;
    let range = WindowRange { region, addr: memory.addr() + 1024, length: 1024, access };
    let before = window.rkey();
    pair.far.qp.bind_window(21, SendFlags::SIGNALED, window, range).unwrap();
    let bound = pair.far.completions(1)[0];
    assert_eq!((bound.wr_id, bound.status), (21, WcStatus::SUCCESS));
    assert_eq!(bound.opcode, WcOpcode::BIND_MW);
    assert_ne!(window.rkey(), before);
}

/// A write of 8 bytes through a window.
fn through(pair: &Pair<Rails>, window: &MemoryWindow<'_>, memory: &Buffer, at: u64) -> SendRequest {
    let remote_addr = memory.addr() + at;
    let rkey = window.rkey();
    SendRequest { remote_addr, rkey, ..pair.write(1, 0, 8) }
}

pub(super) fn a_window_opens_a_part_and_the_peer_closes_it(rails: &Rails) {
    let mut pair = Pair::new(rails);
    let memory = closed(rails);
    let mut window = rails.domain(End::Far, 0).alloc_window().unwrap();
    open(&mut pair, &mut window, &memory);
    pair.near.memory.write(0, b"through!");
    pair.near.post(&[through(&pair, &window, &memory, 1024)]).unwrap();
    assert_eq!(pair.near.ends(1), [(1, WcStatus::SUCCESS)]);
    assert_eq!(memory.read(1024, 8), b"through!");

    pair.far.recv(11, Sge::EMPTY).unwrap();
    let invalidate = pair.request(2, Opcode::SendWithInv, 0, 0);
    pair.near.post(&[SendRequest { rkey: window.rkey(), ..invalidate }]).unwrap();
    assert_eq!(pair.near.ends(1), [(2, WcStatus::SUCCESS)]);
    let arrived = pair.far.completions(1)[0];
    assert_eq!((arrived.wr_id, arrived.status), (11, WcStatus::SUCCESS));
    // rxe gives the kernel's number for the flag, which is that of another flag in verbs.
    assert!(arrived.wc_flags.intersects(WcFlags::WITH_INV | WcFlags::IP_CSUM_OK), "{arrived:?}");
    pair.near.post(&[through(&pair, &window, &memory, 1024)]).unwrap();
    assert_eq!(pair.near.ends(1), [(1, WcStatus::REM_ACCESS_ERR)]);
    window.close().unwrap();
}

/// Not tested: access beyond the part, which rxe permits up to the end of the region.
pub(super) fn a_window_permits_only_its_own_access(rails: &Rails) {
    let mut pair = Pair::new(rails);
    let memory = closed(rails);
    let mut window = rails.domain(End::Far, 0).alloc_window().unwrap();
    open(&mut pair, &mut window, &memory);
    let read = through(&pair, &window, &memory, 1024);
    pair.near.post(&[SendRequest { opcode: Opcode::RdmaRead, ..read }]).unwrap();
    assert_eq!(pair.near.ends(1), [(1, WcStatus::REM_ACCESS_ERR)]);
}

pub(super) fn a_window_that_its_owner_invalidates_is_closed(rails: &Rails) {
    let mut pair = Pair::new(rails);
    let memory = closed(rails);
    let mut window = rails.domain(End::Far, 0).alloc_window().unwrap();
    open(&mut pair, &mut window, &memory);
    let request = pair.request(3, Opcode::LocalInv, 0, 0);
    pair.far.post(&[SendRequest { rkey: window.rkey(), ..request }]).unwrap();
    let closed = pair.far.completions(1)[0];
    assert_eq!((closed.wr_id, closed.status), (3, WcStatus::SUCCESS));
    assert_eq!(closed.opcode, WcOpcode::LOCAL_INV);
    pair.near.post(&[through(&pair, &window, &memory, 1024)]).unwrap();
    assert_eq!(pair.near.ends(1), [(1, WcStatus::REM_ACCESS_ERR)]);
}
