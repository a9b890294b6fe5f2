//! Writes metrics as text.

use super::families::{Index, Kind};
use super::snapshot::ConnectionMetrics;
use super::totals::{RailKey, RailTotals};
use crate::heal::RailTimes;
use crate::link::counts::{LINK_BREAKS, LINK_RESUMPTIONS, REFUSED_PEERS};
use crate::memory::CacheCounters;
use polyrail_core::virtual_qp::{QpState, RailCounters, RailState};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, MetricEncoder, prometheus_text, text as open_metrics,
};
use prometheus_client::registry::Registry;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

/// The formats of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// [OpenMetrics 1.0](https://prometheus.io/docs/specs/om/open_metrics_spec/).
    OpenMetrics,
    /// The [text format 0.0.4](https://prometheus.io/docs/instrumenting/exposition_formats/) of
    /// Prometheus, which node_exporter's textfile collector reads.
    Prometheus,
}

impl Format {
    /// Returns the media type, for HTTP.
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The values of the labels of one series, in the order of the family's labels.
type Values = Vec<String>;

/// The value of one series.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Count(u64),
    Seconds(f64),
}

/// The series of all metrics, by the places of their families.
#[derive(Debug, Default)]
pub(super) struct Collected(BTreeMap<(Index, Values), Value>);

impl Collected {
    fn add(&mut self, index: Index, labels: &[&str], count: u64) {
        let values = labels.iter().map(|label| (*label).to_owned()).collect();
        let value = self.0.entry((index, values)).or_insert(Value::Count(0));
        if let Value::Count(sum) = value {
            *sum = sum.saturating_add(count);
        }
    }

    /// Sets a time, unless a longer one is there.
    fn longest(&mut self, index: Index, labels: &[&str], time: Duration) {
        let values = labels.iter().map(|label| (*label).to_owned()).collect();
        let value = self.0.entry((index, values)).or_insert(Value::Seconds(0.0));
        if let Value::Seconds(longest) = value {
            *longest = longest.max(time.as_secs_f64());
        }
    }

    /// Adds how long ago a source published.
    pub(super) fn age(&mut self, name: &str, age: Duration) {
        self.longest(Index::SnapshotAge, &[name], age);
    }

    /// Adds the present state of a connection.
    pub(super) fn connection(&mut self, name: &str, connection: &ConnectionMetrics) {
        let kind = if connection.has_messages { "messages" } else { "requests" };
        for state in [QpState::Ready, QpState::Degraded, QpState::Error] {
            let is_in_it = u64::from(state == connection.state);
            self.add(Index::Connections, &[name, kind, qp_state(state)], is_in_it);
        }
        self.add(Index::Unreported, &[name, kind], connection.unreported as u64);
        for rail in &connection.rails {
            for state in RAIL_STATES {
                let labels =
                    [name, rail.traffic.name(), &rail.device, &rail.rail, rail_state(state)];
                self.add(Index::QueuePairs, &labels, u64::from(state == rail.state));
            }
        }
    }

    /// Adds the totals of a rail.
    pub(super) fn rail(&mut self, key: &RailKey, totals: &RailTotals) {
        let RailKey { name, traffic, device, rail } = key;
        let labels = [name, traffic.name(), device, rail];
        let RailTotals { counters, failures, fences, arrived, posted_again, times } = totals;
        let RailCounters { bytes, send_requests, doorbells, completions, errors } = *counters;
        for (index, count) in [
            (Index::SentBytes, bytes),
            (Index::SendRequests, send_requests),
            (Index::Doorbells, doorbells),
            (Index::Completions, completions),
            (Index::Errors, errors),
            (Index::Fences, *fences),
            (Index::Arrived, *arrived),
            (Index::PostedAgain, *posted_again),
        ] {
            self.add(index, &labels, count);
        }
        let with = |last| [labels[0], labels[1], labels[2], labels[3], last];
        for (reason, count) in failures {
            self.add(Index::Failures, &with(reason), *count);
        }
        let RailTimes { in_service, draining, down } = *times;
        for (state, time) in [("in_service", in_service), ("draining", draining), ("down", down)] {
            self.longest(Index::StateSeconds, &with(state), time);
        }
    }

    /// Adds hits and misses of caches.
    pub(super) fn cache(&mut self, name: &str, [hits, misses]: [u64; 2]) {
        self.add(Index::CacheHits, &[name], hits);
        self.add(Index::CacheMisses, &[name], misses);
    }

    /// Adds the present size of a cache.
    pub(super) fn cache_size(&mut self, name: &str, counters: CacheCounters) {
        self.add(Index::CacheRegistrations, &[name], counters.registrations as u64);
        self.add(Index::CacheBytes, &[name], counters.bytes);
    }

    /// Adds what the process has counted.
    pub(super) fn process(&mut self) {
        self.add(Index::BuildInfo, &[env!("CARGO_PKG_VERSION")], 1);
        self.add(Index::LinkBreaks, &[], LINK_BREAKS.get());
        self.add(Index::LinkResumptions, &[], LINK_RESUMPTIONS.get());
        self.add(Index::RefusedPeers, &[], REFUSED_PEERS.get());
    }
}

const RAIL_STATES: [RailState; 5] = [
    RailState::InService,
    RailState::Draining,
    RailState::Fenced,
    RailState::Down,
    RailState::Joining,
];

const fn rail_state(state: RailState) -> &'static str {
    match state {
        RailState::InService => "in_service",
        RailState::Draining => "draining",
        RailState::Fenced => "fenced",
        RailState::Down => "down",
        RailState::Joining => "joining",
    }
}

const fn qp_state(state: QpState) -> &'static str {
    match state {
        QpState::Ready => "ready",
        QpState::Degraded => "degraded",
        QpState::Error => "error",
    }
}

impl Collector for Collected {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let mut left = self.0.iter().peekable();
        while let Some(((index, _), _)) = left.peek() {
            let index = *index;
            let family = index.family();
            let unit = family.unit();
            let metric_type = family.kind.metric_type();
            let mut series = encoder.encode_descriptor(
                family.stem(),
                family.help,
                unit.as_ref(),
                metric_type,
            )?;
            while let Some(((_, values), value)) = left.next_if(|((each, _), _)| *each == index) {
                let values = values.iter().map(String::as_str);
                let labels: Vec<(&str, &str)> = family.labels.iter().copied().zip(values).collect();
                if labels.is_empty() {
                    value.encode(family.kind, &mut series)?;
                } else {
                    value.encode(family.kind, &mut series.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}

impl Value {
    fn encode(self, kind: Kind, series: &mut MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        match (kind, self) {
            (Kind::Counter, Self::Count(count)) => {
                series.encode_counter::<[(&str, &str); 0], _, f64>(&count, None)
            }
            (Kind::Counter, Self::Seconds(time)) => {
                series.encode_counter::<[(&str, &str); 0], _, f64>(&time, None)
            }
            (Kind::Gauge, Self::Count(count)) => series.encode_gauge(&count),
            (Kind::Gauge, Self::Seconds(time)) => series.encode_gauge(&time),
        }
    }
}

/// Writes everything that was collected, with these labels at each series.
pub(super) fn text(
    collected: Collected,
    labels: impl Iterator<Item = (&'static str, String)>,
    format: Format,
) -> String {
    let labels = labels.map(|(name, value)| (Cow::Borrowed(name), Cow::Owned(value)));
    let mut registry = Registry::with_labels(labels);
    registry.register_collector(Box::new(collected));
    let mut text = String::new();
    let encoded = match format {
        Format::OpenMetrics => open_metrics::encode(&mut text, &registry),
        Format::Prometheus => prometheus_text::encode(&mut text, &registry),
    };
    encoded.expect("writing to a string does not fail");
    text
}
