//! PCI links of devices for `polyrail devices`.

use polyrail::place::{PciLink, Place};

/// Returns a rate in Gbit/s, as the tables of devices show rates.
pub(super) fn gigabits(mbps: u32) -> f64 {
    f64::from(mbps) / 1000.0
}

/// Returns a link as text: `16.0 GT/s PCIe x16`.
pub(super) fn text(link: &PciLink) -> String {
    format!("{} x{}", link.speed, link.lanes)
}

/// Returns a line about a device whose PCI link is slower than its active ports, which have a data
/// rate of `mbps` together.
pub(super) fn slower_than_ports(device: &str, place: &Place, mbps: u32) -> Option<String> {
    let limited = place.limited_mbps(mbps);
    let link = place.link.as_ref().filter(|_| limited < mbps)?;
    let mut line = format!(
        "{device}: its PCI link, {} with {} Gbit/s, is slower than its active ports with {} Gbit/s",
        text(link),
        gigabits(limited),
        gigabits(mbps)
    );
    let is_better = |best: &&PciLink| best.mbps > link.mbps;
    if let Some(best) = place.max_link.as_ref().filter(is_better) {
        line += &format!("; the device supports {}: see which link its slot supports", text(best));
    }
    Some(line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_is_slower_than_the_ports_is_named_with_its_cure() {
        let link = |speed: &str, lanes, mbps| {
            Some(PciLink { speed: speed.into(), lanes, mbps: Some(mbps) })
        };
        let narrow = Place {
            link: link("8.0 GT/s PCIe", 8, 63_008),
            max_link: link("16.0 GT/s PCIe", 16, 252_048),
            ..Place::default()
        };
        let line = |place: &Place, mbps| slower_than_ports("mlx5_0", place, mbps);
        let slow = "mlx5_0: its PCI link, 8.0 GT/s PCIe x8 with 63.008 Gbit/s, is slower than its active \
                    ports with 100 Gbit/s";
        let cure = "; the device supports 16.0 GT/s PCIe x16: see which link its slot supports\n";
        assert_eq!(line(&narrow, 100_000), Some(format!("{slow}{cure}")));
        let best = Place { max_link: narrow.link.clone(), ..narrow.clone() };
        assert_eq!(line(&best, 100_000), Some(format!("{slow}\n")), "no slot is better");
        assert_eq!((line(&narrow, 50_000), line(&narrow, 0)), (None, None));
        assert_eq!(line(&Place::default(), 100_000), None, "an unknown link");
    }
}
