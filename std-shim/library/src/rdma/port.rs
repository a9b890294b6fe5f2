//! The present attributes of ports, with the GID that rails use.

use super::gid::{NoGid, choose_gid};
use crate::backend::{Gid, Mtu, Port};
use crate::devices::GidInterface;
use polyrail_ffi::{Context, GidEntry, LinkLayer, PortAttributes};

/// Returns a port with its GID at `gid_index`, or its best GID.
pub(super) fn usable_port(
    context: &Context,
    number: u8,
    attributes: &PortAttributes,
    table: &[GidEntry],
    gid_index: Option<u8>,
) -> Result<Port, NoGid> {
    let interface = |entry: &GidEntry| GidInterface::of(context.name(), entry);
    let entry = choose_gid(table, number, gid_index, interface)?;
    let device = context.attributes();
    let mtu = attributes.active_mtu.and_then(|mtu| Mtu::from_bytes(mtu.bytes()));
    // Some drivers fill the field in on Ethernet, where it has no meaning.
    let has_lid = attributes.link_layer != LinkLayer::Ethernet;
    Ok(Port {
        number,
        gid_index: entry.index as u8,
        gid: Gid(entry.gid.0),
        lid: if has_lid { attributes.lid } else { 0 },
        // Every port supports the smallest MTU, even if its driver does not report it.
        mtu: mtu.unwrap_or(Mtu::Mtu256),
        max_rd_atomic: device.max_qp_rd_atom.min(device.max_qp_init_rd_atom).min(255) as u8,
    })
}
