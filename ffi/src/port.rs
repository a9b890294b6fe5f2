//! Ports: state, addresses, speed.

use crate::error::{Argument, Result, VerbsError};
use rdma_sys::{ibv_context, ibv_port_attr, ibv_port_state};
use std::mem::MaybeUninit;

/// Path MTU: maximum payload of a packet (`enum ibv_mtu`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512 = 2,
    /// 1024 bytes.
    Mtu1024 = 3,
    /// 2048 bytes.
    Mtu2048 = 4,
    /// 4096 bytes.
    Mtu4096 = 5,
}

impl Mtu {
    /// Returns the number of bytes.
    pub const fn bytes(self) -> u32 {
        128 << self as u8
    }

    pub(crate) fn from_raw(code: u32) -> Option<Self> {
        Some(match code {
            1 => Self::Mtu256,
            2 => Self::Mtu512,
            3 => Self::Mtu1024,
            4 => Self::Mtu2048,
            5 => Self::Mtu4096,
            _ => return None,
        })
    }
}

/// Whether a port carries data (`enum ibv_port_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortState {
    /// No link.
    Down,
    /// The link is up, but no subnet manager has configured the port.
    Init,
    /// A subnet manager has configured the port.
    Armed,
    /// Ready.
    Active,
    /// Ready, but the link is recovering from errors.
    ActiveDefer,
    /// Anything else, by its number.
    Other(u32),
}

/// The link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkLayer {
    /// InfiniBand: addressed by LID.
    Infiniband,
    /// Ethernet: RoCE, addressed by GID.
    Ethernet,
    /// The driver does not report it. Before Ethernet ports existed, this meant InfiniBand.
    Unspecified,
}

/// Attributes of a port (`struct ibv_port_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttributes {
    /// State of the port.
    pub state: PortState,
    /// Largest MTU that the port supports; `None` if the driver returned an unknown code.
    pub max_mtu: Option<Mtu>,
    /// MTU in use on the link; `None` if the driver returned an unknown code.
    pub active_mtu: Option<Mtu>,
    /// Entries of its GID table.
    pub gid_table_len: u32,
    /// Entries of its P_Key table.
    pub pkey_table_len: u16,
    /// Longest message in bytes.
    pub max_msg_size: u32,
    /// The port's LID in an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// LMC: number of low bits of the LID that select a path.
    pub lmc: u8,
    /// The subnet manager's LID.
    pub sm_lid: u16,
    /// Link layer.
    pub link_layer: LinkLayer,
    /// Number of lanes.
    pub width: u8,
    /// Speed of a lane, as the code of `active_speed`.
    pub speed_code: u8,
    /// Data rate of all lanes in Mbit/s, without line coding; 0 if the code is unknown.
    pub speed_mbps: u32,
}

impl PortAttributes {
    pub(crate) fn query(context: *mut ibv_context, port: u8) -> Result<Self> {
        let mut raw = MaybeUninit::<ibv_port_attr>::zeroed();
        // SAFETY: the caller's context is open; the struct is plain numbers, so zeros are valid.
        let returned = unsafe { crate::sys::query_port(context, port, raw.as_mut_ptr()) };
        VerbsError::check(returned, "ibv_query_port", Argument::Number("port_num", port.into()))?;
        // SAFETY: at least zeroed.
        Ok(Self::from_raw(unsafe { raw.assume_init_ref() }))
    }

    fn from_raw(raw: &ibv_port_attr) -> Self {
        let width = lanes(raw.active_width);
        Self {
            state: match raw.state {
                ibv_port_state::IBV_PORT_DOWN => PortState::Down,
                ibv_port_state::IBV_PORT_INIT => PortState::Init,
                ibv_port_state::IBV_PORT_ARMED => PortState::Armed,
                ibv_port_state::IBV_PORT_ACTIVE => PortState::Active,
                ibv_port_state::IBV_PORT_ACTIVE_DEFER => PortState::ActiveDefer,
                other => PortState::Other(other),
            },
            max_mtu: Mtu::from_raw(raw.max_mtu),
            active_mtu: Mtu::from_raw(raw.active_mtu),
            gid_table_len: u32::try_from(raw.gid_tbl_len).unwrap_or(0),
            pkey_table_len: raw.pkey_tbl_len,
            max_msg_size: raw.max_msg_sz,
            lid: raw.lid,
            lmc: raw.lmc,
            sm_lid: raw.sm_lid,
            // IBV_LINK_LAYER_UNSPECIFIED, _INFINIBAND and _ETHERNET of infiniband/verbs.h.
            link_layer: match raw.link_layer {
                1 => LinkLayer::Infiniband,
                2 => LinkLayer::Ethernet,
                _ => LinkLayer::Unspecified,
            },
            width,
            speed_code: raw.active_speed,
            speed_mbps: lane_mbps(raw.active_speed) * u32::from(width),
        }
    }
}

/// Translates the codes of `active_width` (InfiniBand specification, PortInfo.LinkWidthActive).
const fn lanes(code: u8) -> u8 {
    match code {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    }
}

/// Returns the data rate of a lane for the codes of `active_speed`: SDR, DDR, QDR, FDR10, FDR, EDR,
/// HDR, NDR (InfiniBand specification, PortInfo.LinkSpeedActive and LinkSpeedExtActive).
const fn lane_mbps(code: u8) -> u32 {
    match code {
        1 => 2_000,
        2 => 4_000,
        4 => 8_000,
        8 => 10_000,
        16 => 13_636,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mtu_is_a_code_and_a_number_of_bytes() {
        let codes: Vec<_> = (0..7).filter_map(Mtu::from_raw).map(Mtu::bytes).collect();
        assert_eq!(codes, [256, 512, 1024, 2048, 4096]);
    }

    #[test]
    fn speeds_are_lanes_times_the_rate_of_one() {
        assert_eq!(lane_mbps(32) * u32::from(lanes(2)), 100_000, "EDR 4x");
        assert_eq!(lane_mbps(1) * u32::from(lanes(1)), 2_000, "SDR 1x");
        assert_eq!(lane_mbps(3), 0, "no such code");
    }
}
