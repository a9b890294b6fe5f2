//! Ports: state, addresses, speed.

use crate::error::{Argument, Result, VerbsError};
use crate::sys::{self, PortAttr};
use rdma_sys::{ibv_context, ibv_port_state};
use std::fmt;
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

impl PortState {
    /// Returns whether the port carries data.
    pub const fn is_active(self) -> bool {
        matches!(self, Self::Active | Self::ActiveDefer)
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Down => "down",
            Self::Init => "init",
            Self::Armed => "armed",
            Self::Active => "active",
            Self::ActiveDefer => "active, recovering",
            Self::Other(number) => return write!(f, "state {number}"),
        })
    }
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
    /// Speed of a lane, as the code of `active_speed_ex` if the library reports it, else of
    /// `active_speed`, which has no code for XDR and later speeds.
    pub speed_code: u32,
    /// Data rate of all lanes in Mbit/s, without line coding; 0 if the code is unknown. See
    /// [`Context::query_port_speed`](crate::Context::query_port_speed) for ports whose rate is not
    /// that of their lanes.
    pub speed_mbps: u32,
}

/// The code of EDR, the first speed whose line coding drivers do not count.
const EDR: u32 = 32;

/// Returns the data rate of a port in Mbit/s: `ibv_query_port_speed` if the library, the kernel and
/// the driver have it, otherwise the rate of the lanes.
pub(crate) fn query_speed(context: *mut ibv_context, port: u8) -> Result<u32> {
    const CALL: &str = "ibv_query_port_speed";
    let lanes = PortAttributes::query(context, port)?;
    let mut hundreds = 0;
    // SAFETY: the caller's context is open, and the speed is written to a local variable.
    let returned =
        unsafe { rdma_sys::ibv_query_port_speed(context, port.into(), &raw mut hundreds) };
    let Some(returned) = returned else { return Ok(lanes.speed_mbps) };
    // EOPNOTSUPP by the driver; EPROTONOSUPPORT by a kernel without this call; ENOTTY and ENOSYS by
    // a kernel without any call of its kind.
    if matches!(
        sys::errno_of(returned),
        libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::ENOTTY | libc::ENOSYS
    ) {
        return Ok(lanes.speed_mbps);
    }
    VerbsError::check(returned, CALL, Argument::Number("port_num", port.into()))?;
    Ok(lanes.effective_mbps(hundreds))
}

impl PortAttributes {
    pub(crate) fn query(context: *mut ibv_context, port: u8) -> Result<Self> {
        let mut raw = MaybeUninit::<PortAttr>::zeroed();
        // SAFETY: the caller's context is open; the struct is plain numbers, so zeros are valid.
        let returned = unsafe { sys::query_port(context, port, raw.as_mut_ptr()) };
        VerbsError::check(returned, "ibv_query_port", Argument::Number("port_num", port.into()))?;
        // SAFETY: at least zeroed.
        Ok(Self::from_raw(unsafe { raw.assume_init_ref() }))
    }

    /// Returns the data rate in Mbit/s of a port whose driver reports this speed, in units of 100
    /// Mbit/s; 0 if it does not know the speed, or the port is down.
    fn effective_mbps(&self, hundreds: u64) -> u32 {
        let is_coded = self.link_layer != LinkLayer::Ethernet && self.speed_code < EDR;
        if hundreds == 0 || is_coded {
            return self.speed_mbps;
        }
        u32::try_from(hundreds.saturating_mul(100)).unwrap_or(u32::MAX)
    }

    fn from_raw(raw: &PortAttr) -> Self {
        let PortAttr { known: raw, active_speed_ex } = raw;
        let width = lanes(raw.active_width);
        let speed_code = match *active_speed_ex {
            0 => u32::from(raw.active_speed),
            code => code,
        };
        // IBV_LINK_LAYER_UNSPECIFIED, _INFINIBAND and _ETHERNET of infiniband/verbs.h.
        let link_layer = match raw.link_layer {
            1 => LinkLayer::Infiniband,
            2 => LinkLayer::Ethernet,
            _ => LinkLayer::Unspecified,
        };
        let lane = match link_layer {
            LinkLayer::Ethernet => ethernet_lane_mbps(speed_code, width),
            _ => lane_mbps(speed_code),
        };
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
            link_layer,
            width,
            speed_code,
            speed_mbps: lane * u32::from(width),
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
/// HDR, NDR, XDR (InfiniBand specification, PortInfo.LinkSpeedActive, LinkSpeedExtActive and
/// LinkSpeedExt2Active).
const fn lane_mbps(code: u32) -> u32 {
    match code {
        1 => 2_000,
        2 => 4_000,
        4 => 8_000,
        8 => 10_000,
        16 => 13_636,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        256 => 200_000,
        _ => 0,
    }
}

/// Returns the data rate of a lane of Ethernet with this number of lanes. Ethernet's rates have no
/// line coding to subtract.
///
/// The kernel reports Ethernet by codes of InfiniBand (`ib_get_width_and_speed` in
/// `drivers/infiniband/core/verbs.c`, and what drivers have in its place):
///
/// - if it knows the lanes, a lane of 2.5 Gbit/s is SDR, so 10 Gbit/s over four lanes is four lanes
///   of SDR; 5 Gbit/s is DDR, 10 Gbit/s FDR10, 14 Gbit/s FDR;
/// - if it does not know them, 1 Gbit/s and less is one lane of SDR, 10 Gbit/s one lane of FDR10 or
///   QDR, and 20 Gbit/s four lanes of DDR.
///
/// The kernel reports any other rate of a lane as SDR, too. So one lane of SDR may have 1 or 2.5
/// Gbit/s; RDMA over 1 Gbit/s is more common.
const fn ethernet_lane_mbps(code: u32, lanes: u8) -> u32 {
    match (code, lanes) {
        (1, 1) => 1_000,
        (1, _) => 2_500,
        (2, _) => 5_000,
        (4, _) => 10_000,
        (16, _) => 14_000,
        _ => lane_mbps(code),
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

    /// Codes and widths of `enum ib_port_speed` and `enum ib_port_width` of the kernel's
    /// `rdma/ib_verbs.h`.
    const LANES: [(u8, u32); 5] = [(1, 1), (16, 2), (2, 4), (4, 8), (8, 12)];

    fn port(layer: u8, code: u32, width: u8) -> PortAttributes {
        // SAFETY: plain numbers.
        let mut raw: PortAttr = unsafe { MaybeUninit::zeroed().assume_init() };
        (raw.known.link_layer, raw.known.active_width) = (layer, width);
        // As the kernel and libibverbs report it: no code above NDR fits.
        raw.known.active_speed = code.min(128) as u8;
        raw.active_speed_ex = code;
        PortAttributes::from_raw(&raw)
    }

    #[test]
    fn a_port_carries_data_in_two_states() {
        use PortState::{Active, ActiveDefer, Armed, Down, Init, Other};
        let all = [Down, Init, Armed, Active, ActiveDefer, Other(9)];
        let active: Vec<_> = all.into_iter().filter(|state| state.is_active()).collect();
        assert_eq!(active, [Active, ActiveDefer]);
        let words: Vec<_> = all.iter().map(PortState::to_string).collect();
        assert_eq!(words, ["down", "init", "armed", "active", "active, recovering", "state 9"]);
    }

    const INFINIBAND: u8 = 1;
    const ETHERNET: u8 = 2;

    #[test]
    fn every_speed_times_every_width_is_the_data_rate() {
        for (code, lane) in [
            (1, 2_000),
            (2, 4_000),
            (4, 8_000),
            (8, 10_000),
            (16, 13_636),
            (32, 25_000),
            (64, 50_000),
            (128, 100_000),
            (256, 200_000),
        ] {
            for (width, lanes) in LANES {
                let port = port(INFINIBAND, code, width);
                assert_eq!((port.speed_code, u32::from(port.width)), (code, lanes));
                assert_eq!(port.speed_mbps, lane * lanes, "code {code}, {lanes} lanes");
            }
        }
        assert_eq!(port(INFINIBAND, 3, 2).speed_mbps, 0, "no such code");
        assert_eq!(port(INFINIBAND, 128, 3).speed_mbps, 0, "no such width");
    }

    /// Ethernet's rates are those of data: see [`ethernet_lane_mbps`].
    #[test]
    fn ethernet_has_its_own_rates_for_the_codes() {
        for (rate, code, width) in [
            (1_000, 1, 1),
            (5_000, 1, 16),
            (10_000, 1, 2),
            (5_000, 2, 1),
            (10_000, 4, 1),
            (10_000, 8, 1),
            (20_000, 2, 2),
            (25_000, 32, 1),
            (40_000, 4, 2),
            (40_000, 8, 2),
            (50_000, 64, 1),
            (56_000, 16, 2),
            (100_000, 32, 2),
            (400_000, 128, 2),
            (800_000, 256, 2),
            (1_600_000, 256, 4),
        ] {
            assert_eq!(port(ETHERNET, code, width).speed_mbps, rate, "code {code}, width {width}");
        }
    }

    #[test]
    fn without_an_extended_code_the_short_one_counts() {
        // SAFETY: plain numbers.
        let mut raw: PortAttr = unsafe { MaybeUninit::zeroed().assume_init() };
        (raw.known.active_speed, raw.known.active_width) = (32, 2);
        let port = PortAttributes::from_raw(&raw);
        assert_eq!((port.speed_code, port.speed_mbps), (32, 100_000), "EDR 4x");
        raw.active_speed_ex = 128;
        let port = PortAttributes::from_raw(&raw);
        assert_eq!(port.speed_code, 128);
    }

    /// Drivers count the bits of the line coding in the speeds of SDR to FDR.
    #[test]
    fn the_reported_speed_counts_where_it_is_that_of_data() {
        let qdr = port(INFINIBAND, 4, 2);
        assert_eq!((qdr.effective_mbps(400), qdr.effective_mbps(0)), (32_000, 32_000));
        let fdr = port(INFINIBAND, 16, 2);
        assert_eq!(fdr.effective_mbps(560), 54_544);
        let edr = port(INFINIBAND, 32, 2);
        assert_eq!(edr.effective_mbps(500), 50_000);
        // Two members of a bond.
        let bond = port(ETHERNET, 4, 1);
        assert_eq!((bond.effective_mbps(200), bond.effective_mbps(100)), (20_000, 10_000));
        // A driver that reports the speed of a code that is unknown here.
        assert_eq!(port(INFINIBAND, 512, 2).effective_mbps(16_000), 1_600_000);
    }
}
