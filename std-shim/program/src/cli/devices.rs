//! `polyrail devices`: lists the devices of this machine.

use super::args::DevicesArguments;
use super::exit::Failure;
use super::pci_links::{gigabits, slower_than_ports};
#[cfg(feature = "verbs")]
use super::rdma_devices;
use super::table::{Table, known};
use super::{output, print};
use polyrail::chain::Chain;
use polyrail::printable;
use polyrail::tcp;
use polyrail_program::devices::DevicesError;
use serde::Serialize;

pub(super) fn run(arguments: &DevicesArguments) -> Result<(), Failure> {
    let result = list(arguments);
    if arguments.json
        && let Err(failure) = &result
    {
        failure.print_json();
    }
    result
}

/// Without verbs, RDMA devices cannot be listed.
#[cfg(not(feature = "verbs"))]
mod rdma_devices {
    use polyrail_program::devices::DevicesError;

    /// There is none.
    #[derive(Debug, serde::Serialize)]
    pub(super) enum Report {}

    pub(super) fn list() -> Result<Vec<Report>, DevicesError> {
        Err(DevicesError::WithoutVerbs)
    }

    pub(super) fn tables(_: &[Report], _: bool) -> String {
        String::new()
    }
}

/// A device as JSON.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Report {
    Rdma(rdma_devices::Report),
    Tcp(tcp::DeviceReport),
}

/// Lists RDMA devices, and network interfaces. If there are interfaces, what is missing for RDMA
/// devices is a note.
fn list(arguments: &DevicesArguments) -> Result<(), Failure> {
    let interfaces = tcp::devices().map_err(DevicesError::from)?;
    let (rdma, why_none) = match rdma_devices::list() {
        Ok(rdma) => (rdma, None),
        Err(why) if interfaces.is_empty() => return Err(why.into()),
        Err(why) => (Vec::new(), Some(Chain(&why).to_string())),
    };
    if let Some(why) = why_none {
        output::tell(&format!("polyrail: no RDMA devices: {}\n", printable::escaped(&why)));
    }
    if arguments.json {
        let rdma = rdma.into_iter().map(Report::Rdma);
        let reports: Vec<_> = rdma.chain(interfaces.into_iter().map(Report::Tcp)).collect();
        return print::print_json(&reports);
    }
    let mut text = String::new();
    if !rdma.is_empty() {
        text = rdma_devices::tables(&rdma, arguments.verbose) + "\n";
    }
    text += &tables(&interfaces, arguments.verbose);
    print::print(text.as_bytes())
}

/// Returns tables of network interfaces, if `verbose` also of where they are, and below them a line
/// for each one that has a slow PCI link.
fn tables(interfaces: &[tcp::DeviceReport], verbose: bool) -> String {
    let mut addresses = Table::new(&["device", "state", "Gbit/s", "address"]);
    for tcp::DeviceReport { name, addresses: all, up, mbps, .. } in interfaces {
        let state = if *up { "up" } else { "down" };
        let rate = known(mbps.map(gigabits).as_ref());
        for address in all {
            addresses.row(vec![name.clone(), state.into(), rate.clone(), address.to_string()]);
        }
    }
    let slow: String = interfaces
        .iter()
        .filter_map(|device| slower_than_ports(&device.name, &device.place, device.mbps?))
        .map(|line| format!("\n{line}"))
        .collect();
    if !verbose {
        return addresses.text() + &slow;
    }
    let mut places = Table::new(&["device", "NUMA node", "near CPUs", "PCI"]);
    for tcp::DeviceReport { name, place, .. } in interfaces {
        places.row(vec![
            name.clone(),
            known(place.numa_node.as_ref()),
            known(place.cpus.as_ref()),
            known(place.pci.as_ref()),
        ]);
    }
    format!("{}\n{}{slow}", addresses.text(), places.text())
}
