//! The table of metrics: the only place that has their names, units, labels and descriptions.

use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number that only grows. Its name ends with `_total`.
    Counter,
    /// A number that grows and shrinks.
    Gauge,
}

impl Kind {
    /// Returns the name: `counter` or `gauge`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }

    pub(super) const fn metric_type(self) -> MetricType {
        match self {
            Self::Counter => MetricType::Counter,
            Self::Gauge => MetricType::Gauge,
        }
    }
}

/// A metric with all its series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// The name without the suffixes for unit and kind.
    stem: &'static str,
    /// The kind.
    pub kind: Kind,
    /// The unit, which is a part of the name: `bytes`, `seconds`; empty for a number of things.
    pub unit: &'static str,
    /// The labels of each series, beside those of all metrics.
    pub labels: &'static [&'static str],
    /// What it is.
    pub help: &'static str,
}

impl Family {
    /// Returns the name of its series, with its unit, and `_total` for a counter.
    pub fn name(&self) -> String {
        let Self { stem, kind, unit, .. } = self;
        let unit = if unit.is_empty() { String::new() } else { format!("_{unit}") };
        let total = if *kind == Kind::Counter { "_total" } else { "" };
        format!("{stem}{unit}{total}")
    }

    pub(super) const fn stem(&self) -> &'static str {
        self.stem
    }

    pub(super) fn unit(&self) -> Option<Unit> {
        match self.unit {
            "" => None,
            "bytes" => Some(Unit::Bytes),
            "seconds" => Some(Unit::Seconds),
            other => Some(Unit::Other(other.to_owned())),
        }
    }
}

/// Labels of everything that is counted for each rail.
const RAIL: &[&str] = &["name", "traffic", "device", "rail"];

macro_rules! families {
    ($($index:ident: $kind:ident $stem:literal, $unit:literal, $labels:expr, $help:literal;)*) => {
        /// All metrics, in the order of the text.
        pub const FAMILIES: &[Family] = &[$(Family {
            stem: $stem, kind: Kind::$kind, unit: $unit, labels: $labels, help: $help,
        },)*];

        /// The place of each metric in the table.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(super) enum Index {
            $($index,)*
        }
    };
}

families! {
    BuildInfo: Gauge "polyrail_build_info", "", &["version"],
        "Always 1; the label has the version of polyrail.";
    Connections: Gauge "polyrail_connections", "", &["name", "kind", "state"],
        "Connections by state.";
    Unreported: Gauge "polyrail_unreported_requests", "", &["name", "kind"],
        "Accepted requests or messages that are incomplete, or not reported to the caller yet.";
    QueuePairs: Gauge "polyrail_queue_pairs", "", &["name", "traffic", "device", "rail", "state"],
        "Queue pairs by state of their rail.";
    SnapshotAge: Gauge "polyrail_snapshot_age", "seconds", &["name"],
        "Time since the owner of these connections, of the slowest one, last published its counts.";
    SentBytes: Counter "polyrail_rail_sent", "bytes", RAIL,
        "Payload bytes of send requests that were handed to the device.";
    SendRequests: Counter "polyrail_rail_send_requests", "", RAIL,
        "Send requests that were handed to the device: fragments, whole requests, notifications.";
    Doorbells: Counter "polyrail_rail_doorbells", "", RAIL,
        "Batches of send requests, each with one doorbell.";
    Completions: Counter "polyrail_rail_completions", "", RAIL,
        "Completions of sends and receives, failed ones included.";
    Errors: Counter "polyrail_rail_errors", "", RAIL,
        "Failed completions, also of receives that are flushed when a connection ends in order.";
    Failures: Counter "polyrail_rail_failures", "", &["name", "traffic", "device", "rail", "reason"],
        "Failures after which other rails took over, by reason.";
    Fences: Counter "polyrail_rail_fences", "", RAIL,
        "Failures after which both ends know which requests arrived.";
    Arrived: Counter "polyrail_rail_arrived_requests", "", RAIL,
        "Requests that were in flight at a failure and had arrived.";
    PostedAgain: Counter "polyrail_rail_reposted_requests", "", RAIL,
        "Requests that were in flight at a failure and were posted again on other rails.";
    StateSeconds: Counter "polyrail_rail_state", "seconds",
        &["name", "traffic", "device", "rail", "state"],
        "Time in service, draining (from a failure to the fence) and down (until the return).";
    CacheHits: Counter "polyrail_registration_cache_hits", "", &["name"],
        "Requests for memory that was registered already.";
    CacheMisses: Counter "polyrail_registration_cache_misses", "", &["name"],
        "Requests for memory that had to be registered.";
    CacheRegistrations: Gauge "polyrail_registration_cache_registrations", "", &["name"],
        "Registrations in the cache.";
    CacheBytes: Gauge "polyrail_registration_cache_size", "bytes", &["name"],
        "Total length of the registrations in the cache; bytes of several count several times.";
    LinkBreaks: Counter "polyrail_link_breaks", "", &[],
        "Links between processes that broke, and are resumed.";
    LinkResumptions: Counter "polyrail_link_resumptions", "", &[],
        "Links between processes that were resumed.";
    RefusedPeers: Counter "polyrail_refused_peers", "", &[],
        "Peers whose link ended before their hello: another token, no answer, a protocol error.";
}

impl Index {
    pub(super) const fn family(self) -> &'static Family {
        &FAMILIES[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeSet;

    const PAGE: &str = include_str!("../../docs/metrics.md");
    const DASHBOARD: &str = include_str!("../../docs/grafana.json");

    #[test]
    fn the_page_has_the_table() {
        let row = |family: &Family| {
            let labels: Vec<_> = family.labels.iter().map(|label| format!("`{label}`")).collect();
            let (name, kind) = (family.name(), family.kind.name());
            format!("| `{name}` | {kind} | {} | {} |", labels.join(", "), family.help)
        };
        let table: Vec<String> = FAMILIES.iter().map(row).collect();
        let of_page: Vec<&str> =
            PAGE.lines().filter(|line| line.starts_with("| `polyrail_")).collect();
        assert_eq!(of_page, table, "should be:\n{}", table.join("\n"));
    }

    /// Words of an expression that are not names of metrics or labels.
    fn words(expression: &str) -> impl Iterator<Item = &str> {
        let is_end = |c: char| !c.is_ascii_alphanumeric() && c != '_';
        expression.split(is_end).filter(|word| !word.is_empty())
    }

    /// The labels after `by` in an expression.
    fn grouped(expression: &str) -> Vec<&str> {
        let groups = expression.split("by (").skip(1);
        groups.flat_map(|rest| words(rest.split(')').next().unwrap_or_default())).collect()
    }

    #[test]
    fn the_dashboard_shows_metrics_of_the_table() {
        /// Labels that Prometheus adds, and that all metrics have.
        const OF_ALL: [&str; 2] = ["instance", "component"];
        let board: Value = serde_json::from_str(DASHBOARD).unwrap();
        let panels = board["panels"].as_array().unwrap();
        let mut shown = BTreeSet::new();
        let mut places = BTreeSet::new();
        for panel in panels {
            let title = panel["title"].as_str().unwrap();
            let place = |key: &str| panel["gridPos"][key].as_u64().unwrap();
            for x in place("x")..place("x") + place("w") {
                for y in place("y")..place("y") + place("h") {
                    assert!(x < 24 && places.insert((x, y)), "{title} covers another panel");
                }
            }
            for target in panel["targets"].as_array().unwrap() {
                let expression = target["expr"].as_str().unwrap();
                let named = words(expression).filter(|word| word.starts_with("polyrail_"));
                for name in named {
                    let family = FAMILIES.iter().find(|family| family.name() == name);
                    let family = family.unwrap_or_else(|| panic!("{title}: {name}"));
                    shown.insert(name);
                    for label in grouped(expression) {
                        let has_it = family.labels.contains(&label) || OF_ALL.contains(&label);
                        assert!(has_it, "{title}: {name} has no label {label}");
                    }
                }
                assert_eq!(expression.matches('(').count(), expression.matches(')').count());
                // What a legend names is what is grouped by.
                let legend = target["legendFormat"].as_str().unwrap();
                for label in legend.split("{{").skip(1) {
                    let label = label.split("}}").next().unwrap();
                    assert!(grouped(expression).contains(&label), "{title}: {label}");
                }
            }
        }
        let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
        assert_eq!(ids.len(), panels.len(), "each panel has a number of its own");
        assert!(shown.len() >= 17, "{shown:?}");
    }

    #[test]
    fn names_follow_the_conventions() {
        for family in FAMILIES {
            let name = family.name();
            let is_valid = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(name.starts_with("polyrail_") && name.chars().all(is_valid), "{name}");
            assert_eq!(name.ends_with("_total"), family.kind == Kind::Counter, "{name}");
            assert!(family.help.ends_with('.'), "{name}");
            assert_eq!(FAMILIES.iter().filter(|other| other.name() == name).count(), 1, "{name}");
        }
    }
}
