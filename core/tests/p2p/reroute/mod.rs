//! Queue pairs that fail cost no message: nothing lost, nothing twice, nothing overwritten.

mod entries;
mod generations;
mod queue_pairs;
mod shares;

use crate::rig::{Rig, Setup};
use polyrail_core::p2p::{ImmLayout, Mask, RecvHandle, SendHandle, Told};
use polyrail_core::verbs::Opcode;
use polyrail_core::virtual_qp::RailState;

const DOWN: Option<(RailState, u16)> = Some((RailState::Down, 0));

/// A message of 1000 bytes over three rails, posted and not executed.
fn under_way() -> (Rig, SendHandle, RecvHandle) {
    let mut rig = Setup::rerouting(3).rig();
    let (source, target) = (rig.source(1000), rig.target(1000));
    let (send, recv) = rig.start(&source, &target, 1000);
    rig.fabric.clear_log();
    (rig, send, recv)
}

fn arrives(rig: &mut Rig, send: SendHandle, recv: RecvHandle) {
    rig.recover();
    assert!(rig.sent(send));
    assert_eq!(rig.received(recv).expect("arrived").sizes(), [1000]);
}

/// Requests with a moved immediate among those executed.
fn moved(rig: &mut Rig) -> Vec<(usize, u8, Mask, u32)> {
    let layout = ImmLayout::new(rig.setup.rails).expect("rails");
    let data = rig.take_data();
    let imms = data.iter().filter(|(_, request)| request.opcode == Opcode::RdmaWriteWithImm);
    let moved = imms.filter_map(|(place, request)| {
        let immediate = layout.decode(request.imm);
        let Told::Moved(rail) = immediate.told else { return None };
        Some((*place, rail, immediate.mask, request.sge.length()))
    });
    moved.collect()
}
