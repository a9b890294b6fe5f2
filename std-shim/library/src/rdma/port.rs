//! Ports as they are now, with the address that rails take.

use super::gid::choose_gid;
use crate::backend::{Gid, Mtu, Port};
use polyrail_ffi::{Context, GidEntry, LinkLayer, PortAttributes, PortState};

/// Whether it carries data.
pub(super) fn is_active(port: &PortAttributes) -> bool {
    matches!(port.state, PortState::Active | PortState::ActiveDefer)
}

/// A port with its address at `gid_index`, or the best one; `None` if it has none.
pub(super) fn usable_port(
    context: &Context,
    number: u8,
    attributes: &PortAttributes,
    table: &[GidEntry],
    gid_index: Option<u8>,
) -> Option<Port> {
    let entry = choose_gid(table, number, gid_index)?;
    let device = context.attributes();
    let mtu = attributes.active_mtu.and_then(|mtu| Mtu::from_bytes(mtu.bytes()));
    // On Ethernet some drivers fill the field in, and it means nothing.
    let has_lid = attributes.link_layer != LinkLayer::Ethernet;
    Some(Port {
        number,
        gid_index: entry.index as u8,
        gid: Gid(entry.gid.0),
        lid: if has_lid { attributes.lid } else { 0 },
        // Every port carries packets of this length, even if its driver does not report it.
        mtu: mtu.unwrap_or(Mtu::Mtu256),
        max_rd_atomic: device.max_qp_rd_atom.min(device.max_qp_init_rd_atom).min(255) as u8,
    })
}
