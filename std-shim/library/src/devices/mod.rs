//! The RDMA devices of this machine, or the reason why there are none.
//!
//! ```no_run
//! for device in polyrail::devices::devices()? {
//!     println!("{} has {} ports", device.name, device.ports.len());
//! }
//! # Ok::<(), polyrail::devices::DevicesError>(())
//! ```

mod gid_interface;
mod missing;

use crate::place::Place;
pub(crate) use gid_interface::GidInterface;
pub use missing::DevicesError;
pub(crate) use missing::what_is_missing;
pub use polyrail_ffi::PortState;

use polyrail_ffi::{
    AtomicCap, Context, Device, DeviceAttributes, DeviceList, GidEntry, GidType, LinkLayer,
    NodeType, PortAttributes, Transport, VerbsError,
};
use serde::{Serialize, Serializer};

/// A device and its attributes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceReport {
    /// Its name, such as `mlx5_0`.
    pub name: String,
    /// Its GUID in the notation of rdma-core's tools: `0002:c903:00ab:cdef`.
    pub guid: String,
    /// Kind of device, such as `channel adapter`.
    pub node_type: String,
    /// Transport, such as `InfiniBand`, which includes RoCE.
    pub transport: String,
    /// Its place in the machine.
    pub place: Place,
    /// Its limits; `None` if it could not be opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Its ports, in the order of their numbers.
    pub ports: Vec<PortReport>,
    /// The error of opening or querying it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Limits of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Outstanding requests on one queue.
    pub requests_per_queue: u32,
    /// Completions in one completion queue.
    pub completions_per_queue: u32,
    /// Scatter/gather entries per request.
    pub buffers_per_request: u32,
    /// Outstanding READs and atomics on one queue pair, in either direction.
    pub reads_in_flight: u32,
    /// Memory regions.
    pub memory_regions: u32,
    /// Size of the largest memory region in bytes.
    pub region_bytes: u64,
    /// Longest message in bytes.
    pub message_bytes: u32,
    /// Shared receive queues.
    pub shared_receive_queues: u32,
    /// Scope of atomics: `none`, `device`, `global`.
    pub atomics: &'static str,
}

impl DeviceReport {
    /// Returns the sum of the data rates of its active ports in Mbit/s; 0 if it is unknown.
    pub fn mbps(&self) -> u32 {
        let active = self.ports.iter().filter(|port| port.is_active());
        active.fold(0, |sum, port| sum.saturating_add(port.mbps))
    }

    /// Returns the rate in Mbit/s at which the device can use its active ports, which share its PCI
    /// link; 0 if it is unknown.
    pub fn effective_mbps(&self) -> u32 {
        self.place.limited_mbps(self.mbps())
    }
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortReport {
    /// Its number, from 1.
    pub port: u8,
    /// State of the port; serialized in words.
    #[serde(serialize_with = "in_words")]
    pub state: PortState,
    /// Link layer: `Ethernet`, `InfiniBand`.
    pub link_layer: &'static str,
    /// MTU in use; 0 if the driver does not report it.
    pub active_mtu: u32,
    /// Largest MTU; 0 if the driver does not report it.
    pub max_mtu: u32,
    /// Its LID in an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// Number of lanes.
    pub lanes: u8,
    /// Present data rate in Mbit/s; 0 if the driver does not report it. It is not that of all lanes
    /// where the driver reports another one
    /// ([`query_port_speed`](polyrail_ffi::Context::query_port_speed)).
    pub mbps: u32,
    /// Rate in Mbit/s at which the device can use the port: `mbps`, or the data rate of its PCI
    /// link if that is less ([`Place::limited_mbps`]).
    pub effective_mbps: u32,
    /// Its GIDs.
    pub gids: Vec<GidReport>,
}

impl PortReport {
    /// Returns whether the port carries data.
    pub fn is_active(&self) -> bool {
        self.state.is_active()
    }
}

fn in_words<S: Serializer>(state: &PortState, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(state)
}

/// A GID of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GidReport {
    /// Its index, for `--gid-index`.
    pub index: u32,
    /// The GID.
    pub gid: String,
    /// Protocol of its packets: `RoCE v2`, `RoCE v1`, `InfiniBand`.
    pub gid_type: String,
    /// Its network interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Whether the interface is in another network namespace than this process. Rails use such a
    /// GID only by its index.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub other_namespace: bool,
}

/// Lists the devices of this machine, of which at least one can be used.
///
/// # Errors
///
/// There is no device, or none can be used; the error contains the reason.
pub fn devices() -> Result<Vec<DeviceReport>, DevicesError> {
    let list = DeviceList::new()?;
    some_usable(list.iter().map(|device| report(&device)).collect())
}

/// Returns the reports, unless there are none or all devices failed.
fn some_usable(reports: Vec<DeviceReport>) -> Result<Vec<DeviceReport>, DevicesError> {
    if reports.is_empty() {
        return Err(what_is_missing());
    }
    let refusal = |report: &DeviceReport| {
        report.error.as_ref().map(|error| format!("{}: {error}", report.name))
    };
    match reports.iter().map(refusal).collect() {
        Some(devices) => Err(DevicesError::Refused { devices }),
        None => Ok(reports),
    }
}

fn report(device: &Device<'_>) -> DeviceReport {
    let guid = device.guid();
    let part = |shift: u32| format!("{:04x}", guid >> shift & 0xffff);
    let mut report = DeviceReport {
        name: device.name().to_string(),
        guid: [48, 32, 16, 0].map(part).join(":"),
        node_type: match device.node_type() {
            NodeType::ChannelAdapter => "channel adapter".into(),
            NodeType::Switch => "switch".into(),
            NodeType::Router => "router".into(),
            NodeType::Rnic => "iWARP NIC".into(),
            other => format!("{other:?}"),
        },
        transport: match device.transport() {
            Transport::Infiniband => "InfiniBand".into(),
            Transport::Iwarp => "iWARP".into(),
            other => format!("{other:?}"),
        },
        place: Place::of(device.name().as_str()),
        limits: None,
        ports: Vec::new(),
        error: None,
    };
    let asked = device.open().and_then(|context| {
        report.limits = Some(limits(&context));
        report.ports = ports(&context, &report.place)?;
        Ok(())
    });
    report.error = asked.err().map(|error| error.to_string());
    report
}

fn limits(context: &Context) -> Limits {
    let DeviceAttributes { max_qp, max_qp_wr, max_cqe, max_mr, max_mr_size, max_srq, .. } =
        *context.attributes();
    let attributes = context.attributes();
    Limits {
        queue_pairs: max_qp,
        requests_per_queue: max_qp_wr,
        completions_per_queue: max_cqe,
        buffers_per_request: attributes.max_sge,
        reads_in_flight: attributes.max_qp_rd_atom.min(attributes.max_qp_init_rd_atom),
        memory_regions: max_mr,
        region_bytes: max_mr_size,
        message_bytes: context.max_msg_size(),
        shared_receive_queues: max_srq,
        atomics: match attributes.atomic_cap {
            AtomicCap::Device => "device",
            AtomicCap::Global => "global",
            _ => "none",
        },
    }
}

fn ports(context: &Context, place: &Place) -> Result<Vec<PortReport>, VerbsError> {
    let gids = context.gid_table()?;
    let ports = 1..=context.attributes().phys_port_cnt;
    let report = |port| {
        let mut attributes = context.query_port(port)?;
        attributes.speed_mbps = present_mbps(&attributes, context.query_port_speed(port));
        Ok(port_report((context.name(), place), port, &attributes, &gids))
    };
    ports.map(report).collect()
}

/// Returns the present data rate of a port in Mbit/s; 0 if it is unknown. `reported` is the answer
/// of [`Context::query_port_speed`]. Without it the port is usable, and the rate of its lanes is
/// the best that is known.
pub(crate) fn present_mbps(port: &PortAttributes, reported: Result<u32, VerbsError>) -> u32 {
    reported.unwrap_or(port.speed_mbps)
}

fn port_report(
    (device, place): (&str, &Place),
    port: u8,
    attributes: &PortAttributes,
    gids: &[GidEntry],
) -> PortReport {
    let gids = gids.iter().filter(|entry| entry.port == port);
    let bytes = |mtu: Option<polyrail_ffi::Mtu>| mtu.map_or(0, polyrail_ffi::Mtu::bytes);
    PortReport {
        port,
        state: attributes.state,
        link_layer: match attributes.link_layer {
            LinkLayer::Ethernet => "Ethernet",
            _ => "InfiniBand",
        },
        active_mtu: bytes(attributes.active_mtu),
        max_mtu: bytes(attributes.max_mtu),
        lid: attributes.lid,
        lanes: attributes.width,
        mbps: attributes.speed_mbps,
        effective_mbps: place.limited_mbps(attributes.speed_mbps),
        gids: gids.map(|entry| gid_report(device, entry)).collect(),
    }
}

fn gid_report(device: &str, entry: &GidEntry) -> GidReport {
    let GidInterface { name, is_here, .. } = GidInterface::of(device, entry);
    GidReport {
        index: entry.index,
        gid: entry.gid.to_string(),
        gid_type: match entry.gid_type {
            GidType::Infiniband => "InfiniBand".into(),
            GidType::RoceV1 => "RoCE v1".into(),
            GidType::RoceV2 => "RoCE v2".into(),
            other => format!("{other:?}"),
        },
        interface: name,
        other_namespace: !is_here,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::PciLink;

    fn report_of(name: &str, error: Option<&str>) -> DeviceReport {
        DeviceReport {
            name: name.into(),
            guid: String::new(),
            node_type: String::new(),
            transport: String::new(),
            place: Place::default(),
            limits: None,
            ports: Vec::new(),
            error: error.map(Into::into),
        }
    }

    #[test]
    fn only_devices_that_all_refuse_are_an_error() {
        let refused = || report_of("mlx5_0", Some("ibv_open_device(mlx5_0): Permission denied"));
        let error = some_usable(vec![refused(), report_of("mlx5_1", Some("gone"))]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("Permission denied") && text.contains("mlx5_1: gone"), "{text}");
        let some = vec![refused(), report_of("mlx5_1", None)];
        assert_eq!(some_usable(some.clone()), Ok(some));
    }

    #[test]
    fn a_device_is_as_fast_as_its_ports_or_as_the_pci_link_that_they_share() {
        let link = |mbps| PciLink { speed: String::new(), lanes: 16, mbps };
        let port = |number: u8, state, mbps| {
            let place = Place { link: Some(link(Some(126_016))), ..Place::default() };
            let attributes = PortAttributes { state, speed_mbps: mbps, ..attributes() };
            port_report(("mlx5_0", &place), number, &attributes, &[])
        };
        let ports = vec![
            port(1, PortState::Active, 100_000),
            port(2, PortState::ActiveDefer, 200_000),
            port(3, PortState::Down, 100_000),
        ];
        let effective: Vec<u32> = ports.iter().map(|port| port.effective_mbps).collect();
        assert_eq!(effective, [100_000, 126_016, 100_000]);
        for (link_mbps, expected) in
            [(Some(126_016), 126_016), (Some(504_112), 300_000), (None, 300_000)]
        {
            let place = Place { link: Some(link(link_mbps)), ..Place::default() };
            let ports = ports.clone();
            let device = DeviceReport { place, ports, ..report_of("mlx5_0", None) };
            assert_eq!((device.mbps(), device.effective_mbps()), (300_000, expected));
        }
        let json = serde_json::to_value(&ports[1]).unwrap();
        assert_eq!(json["state"], "active, recovering");
        assert_eq!((&json["mbps"], &json["effective_mbps"]), (&200_000.into(), &126_016.into()));
    }

    #[test]
    fn a_port_has_the_rate_that_is_reported_or_that_of_its_lanes() {
        let lanes = PortAttributes { speed_mbps: 400_000, ..attributes() };
        assert_eq!(present_mbps(&lanes, Ok(300_000)), 300_000);
        let (call, argument) = ("ibv_query_port_speed", polyrail_ffi::Argument::None);
        let refused = VerbsError { call, errno: libc::EIO, argument };
        assert_eq!(present_mbps(&lanes, Err(refused)), 400_000);
    }

    fn attributes() -> PortAttributes {
        PortAttributes {
            state: PortState::Active,
            max_mtu: None,
            active_mtu: None,
            gid_table_len: 0,
            pkey_table_len: 0,
            max_msg_size: 0,
            lid: 0,
            lmc: 0,
            sm_lid: 0,
            link_layer: LinkLayer::Infiniband,
            width: 4,
            speed_code: 64,
            speed_mbps: 0,
        }
    }
}
