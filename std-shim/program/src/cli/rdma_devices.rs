//! RDMA devices for `polyrail devices`.

use super::pci_links::{self, gigabits, slower_than_ports};
use super::table::{Table, known};
use polyrail::devices::{DeviceReport, GidReport, Limits, PortReport};
use polyrail::rdma::OpenError;
use polyrail_program::devices::DevicesError;
use polyrail_program::size::human_size;
use std::fmt::Write;

pub(super) type Report = DeviceReport;

/// Lists the devices, or returns what is missing.
pub(super) fn list() -> Result<Vec<Report>, DevicesError> {
    Ok(polyrail::devices::devices().map_err(OpenError::from)?)
}

/// Returns tables of devices, ports, GIDs and limits, if `verbose` also of where the devices
/// are, and below them a line for each device that could not be queried or has a slow PCI link.
pub(super) fn tables(devices: &[DeviceReport], verbose: bool) -> String {
    let mut tables = vec![names(devices), ports(devices), gids(devices), limits(devices)];
    if verbose {
        tables.extend([places(devices), links(devices)]);
    }
    let tables: Vec<_> = tables.iter().map(Table::text).collect();
    let mut text = tables.join("\n");
    for device in devices {
        if let Some(error) = &device.error {
            // Writing to a string cannot fail.
            _ = write!(text, "\n{}: {error}\n", device.name);
        }
        if let Some(line) = slower_than_ports(&device.name, &device.place, device.mbps()) {
            text += &format!("\n{line}");
        }
    }
    text
}

fn names(devices: &[DeviceReport]) -> Table {
    let mut table = Table::new(&["device", "guid", "type", "transport"]);
    for DeviceReport { name, guid, node_type, transport, .. } in devices {
        table.row([name, guid, node_type, transport].map(Clone::clone).into());
    }
    table
}

fn each_port(devices: &[DeviceReport]) -> impl Iterator<Item = (&DeviceReport, &PortReport)> {
    devices.iter().flat_map(|device| device.ports.iter().map(move |port| (device, port)))
}

fn ports(devices: &[DeviceReport]) -> Table {
    let mut table = Table::new(&[
        "device",
        "port",
        "state",
        "link",
        "mtu",
        "max mtu",
        "lid",
        "lanes",
        "Gbit/s",
        "PCI Gbit/s",
    ]);
    for (device, port) in each_port(devices) {
        let link = device.place.link.as_ref().and_then(|link| link.mbps);
        table.row(vec![
            device.name.clone(),
            port.port.to_string(),
            port.state.to_string(),
            port.link_layer.to_owned(),
            port.active_mtu.to_string(),
            port.max_mtu.to_string(),
            port.lid.to_string(),
            port.lanes.to_string(),
            gigabits(port.mbps).to_string(),
            known(link.map(gigabits).as_ref()),
        ]);
    }
    table
}

fn gids(devices: &[DeviceReport]) -> Table {
    let mut table = Table::new(&["device", "port", "gid index", "type", "interface", "gid"]);
    for (device, port) in each_port(devices) {
        for gid in &port.gids {
            table.row(vec![
                device.name.clone(),
                port.port.to_string(),
                gid.index.to_string(),
                gid.gid_type.clone(),
                interface(gid),
                gid.gid.clone(),
            ]);
        }
    }
    table
}

fn interface(gid: &GidReport) -> String {
    let name = gid.interface.clone().unwrap_or_default();
    if gid.other_namespace { format!("{name} (other namespace)") } else { name }
}

fn limits(devices: &[DeviceReport]) -> Table {
    let mut table = Table::new(&[
        "device",
        "queue pairs",
        "requests",
        "completions",
        "buffers",
        "reads",
        "regions",
        "region",
        "message",
        "srqs",
        "atomics",
    ]);
    for device in devices {
        let Some(limits) = &device.limits else { continue };
        let Limits { queue_pairs, requests_per_queue, completions_per_queue, .. } = *limits;
        table.row(vec![
            device.name.clone(),
            queue_pairs.to_string(),
            requests_per_queue.to_string(),
            completions_per_queue.to_string(),
            limits.buffers_per_request.to_string(),
            limits.reads_in_flight.to_string(),
            limits.memory_regions.to_string(),
            size_or_unlimited(limits.region_bytes),
            human_size(limits.message_bytes.into()),
            limits.shared_receive_queues.to_string(),
            limits.atomics.to_owned(),
        ]);
    }
    table
}

fn places(devices: &[DeviceReport]) -> Table {
    let mut table = Table::new(&["device", "below it", "NUMA node", "near CPUs", "PCI"]);
    for DeviceReport { name, place, .. } in devices {
        table.row(vec![
            name.clone(),
            known(place.parent.as_ref()),
            known(place.numa_node.as_ref()),
            known(place.cpus.as_ref()),
            known(place.pci.as_ref()),
        ]);
    }
    table
}

fn links(devices: &[DeviceReport]) -> Table {
    let mut table = Table::new(&["device", "PCI link", "PCI link at most", "firmware", "board"]);
    for DeviceReport { name, place, .. } in devices {
        table.row(vec![
            name.clone(),
            known(place.link.as_ref().map(pci_links::text).as_ref()),
            known(place.max_link.as_ref().map(pci_links::text).as_ref()),
            known(place.firmware.as_ref()),
            known(place.board.as_ref()),
        ]);
    }
    table
}

fn size_or_unlimited(bytes: u64) -> String {
    if bytes == u64::MAX { "unlimited".into() } else { human_size(bytes) }
}

#[cfg(test)]
mod tests {
    use super::super::args::definition;
    use super::*;
    use polyrail::devices::PortState;
    use polyrail::place::{PciLink, Place};

    #[test]
    fn a_port_is_shown_beside_its_pci_link_and_a_slow_link_in_words() {
        let place = Place {
            link: Some(PciLink { speed: "8.0 GT/s PCIe".into(), lanes: 8, mbps: Some(63_008) }),
            ..Place::default()
        };
        let port = PortReport {
            port: 1,
            state: PortState::Active,
            link_layer: "Ethernet",
            active_mtu: 4096,
            max_mtu: 4096,
            lid: 0,
            lanes: 4,
            mbps: 100_000,
            effective_mbps: 63_008,
            gids: Vec::new(),
        };
        let device = |place, port| DeviceReport {
            name: "mlx5_0".into(),
            guid: String::new(),
            node_type: String::new(),
            transport: String::new(),
            place,
            limits: None,
            ports: vec![port],
            error: None,
        };
        let text = tables(&[device(place.clone(), port.clone())], false);
        assert!(text.contains("100      63.008\n"), "{text}");
        let line = slower_than_ports("mlx5_0", &place, 100_000).unwrap();
        assert!(text.ends_with(&format!("\n\n{line}")), "{text}");
        let unknown = tables(&[device(Place::default(), port.clone())], false);
        assert!(unknown.contains("100  -\n") && !unknown.contains("slower"), "{unknown}");
        let down = PortReport { state: PortState::Down, ..port };
        assert!(!tables(&[device(place, down)], false).contains("slower"));
    }

    #[test]
    fn help_explains_every_column() {
        let definition = definition();
        let command = definition.find_subcommand("devices").unwrap();
        let help = command.get_after_help().unwrap().to_string();
        for table in tables(&[], true).split("\n\n") {
            let head = table.lines().next().unwrap();
            let columns = head.split("  ").map(str::trim).filter(|column| !column.is_empty());
            for column in columns.filter(|&column| column != "device") {
                assert!(help.contains(column), "{column:?} is not in {help}");
            }
        }
    }
}
