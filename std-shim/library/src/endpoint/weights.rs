//! How much of the data each rail carries: the user's choice, and the rates of ports.

use super::build_error::BuildError;
use super::service::{Carrying, ServiceRates};
use super::sizes::MAX_DEVICES;
use crate::backend::Domain;
use crate::queue_pair::Place;
use polyrail_core::verbs::DeviceId;
use polyrail_core::virtual_qp::MAX_RAILS;
use std::borrow::Borrow;
use std::time::Instant;

/// What decides how much of the data each rail carries. See [the page about
/// rails](crate::rails#unequal-rails).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RailWeights {
    /// [`Rates`](Self::Rates) if the rates of all ports that rails use are known and differ, else
    /// [`Equal`](Self::Equal). Standby rails do not count.
    #[default]
    Auto,
    /// Rails take turns, so each carries the same.
    Equal,
    /// The rail that would finish first comes next: its outstanding bytes are divided by the rate of
    /// its port. If a rate is unknown, all rates count as equal.
    Rates,
    /// As [`Rates`](Self::Rates), with rates that are measured: the bytes that a rail completes in
    /// the time in which it has requests in flight. This needs
    /// [`RailFailure::Reroute`](polyrail_core::virtual_qp::RailFailure::Reroute), because repair steps
    /// measure; without it, rates are those of the ports.
    Measured,
}

impl RailWeights {
    /// The values, with the names that options and settings use.
    pub const NAMES: [(&str, Self); 4] = [
        ("auto", Self::Auto),
        ("equal", Self::Equal),
        ("rates", Self::Rates),
        ("measured", Self::Measured),
    ];
}

/// The user's choice of weights.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WeightOptions {
    weights: RailWeights,
    /// Rates in Mbit/s that replace those of devices.
    device_mbps: [Option<(DeviceId, u32)>; MAX_DEVICES],
    /// Rates were given for more devices.
    is_overfull: bool,
}

impl WeightOptions {
    pub(crate) const fn with_weights(self, weights: RailWeights) -> Self {
        Self { weights, ..self }
    }

    /// Replaces the rate of a device; with 0, its own counts.
    pub(crate) fn with_device_mbps(mut self, device: DeviceId, mbps: u32) -> Self {
        let places = &mut self.device_mbps;
        let known = places.iter().position(|place| place.is_some_and(|(of, _)| of == device));
        let free = || places.iter().position(Option::is_none);
        match (known.or_else(free), mbps) {
            // A device without a rate takes no place.
            (_, 0) => known.into_iter().for_each(|at| places[at] = None),
            (Some(at), _) => places[at] = Some((device, mbps)),
            (None, _) => self.is_overfull = true,
        }
        self
    }

    /// Refuses rates of more devices than an endpoint can have.
    pub(crate) const fn check(&self) -> Result<(), BuildError> {
        if self.is_overfull { Err(BuildError::DeviceRates) } else { Ok(()) }
    }

    /// Returns the rate that replaces that of a device.
    fn given(&self, device: DeviceId) -> Option<u32> {
        let given = self.device_mbps.iter().flatten().find(|(of, _)| *of == device);
        given.map(|(_, mbps)| *mbps)
    }
}

/// The rates of the ports of rails.
#[derive(Clone, Debug)]
pub(crate) struct Weights {
    options: WeightOptions,
    /// The places of the rails. A rail whose queue pair is on another rail's device carries only
    /// what no other rail can carry, so the place of its first queue pair counts.
    homes: Vec<Place>,
    /// The devices, by their places.
    devices: Vec<DeviceId>,
    /// The rate of each rail's port in Mbit/s; `Some(0)`: the device does not report it. `None`: it
    /// was not read, because the port is down. Such a port does not decide whether rates count.
    mbps: [Option<u32>; MAX_RAILS],
    /// Measured rates.
    service: ServiceRates<MAX_RAILS>,
}

impl Weights {
    /// Learns the rates of the ports at these places of rails, on these devices.
    pub(crate) fn new<D: Domain, T: Borrow<D>>(
        options: WeightOptions,
        homes: &[Place],
        domains: &[T],
    ) -> Self {
        let devices = domains.iter().map(|domain| domain.borrow().device_id()).collect();
        let mut weights = Self {
            options,
            homes: homes.to_vec(),
            devices,
            mbps: [None; MAX_RAILS],
            service: ServiceRates::new(),
        };
        if !weights.follows_rates() {
            return weights;
        }
        for (rail, home) in homes.iter().enumerate().take(MAX_RAILS) {
            if !homes[..rail].iter().any(|known| is_same_port(known, home)) {
                let number = home.port.number;
                let mbps = domains[home.device].borrow().port_mbps(number);
                // The rate of a port that is down is read when its rails return.
                weights.take((home.device, number), mbps.ok());
            }
        }
        weights
    }

    /// Whether rates matter: rails take turns otherwise, or use the same port.
    fn follows_rates(&self) -> bool {
        let first = self.homes.first();
        self.options.weights != RailWeights::Equal
            && self.homes.iter().any(|home| first.is_some_and(|first| !is_same_port(first, home)))
    }

    /// Whether the rates of the ports of a device matter. A rate that the user gave replaces them.
    pub(crate) fn follows_rates_of(&self, device: usize) -> bool {
        let device = self.devices.get(device);
        self.follows_rates() && device.is_some_and(|device| self.options.given(*device).is_none())
    }

    /// Whether it is time for a [look](Self::look).
    pub(crate) fn is_look_due(&self, now: Instant) -> bool {
        let measures = self.options.weights == RailWeights::Measured && self.homes.len() > 1;
        measures && self.service.is_due(now)
    }

    /// Takes what each rail carries; `None` for a rail that is not in service. Returns whether
    /// weights changed.
    pub(crate) fn look(&mut self, now: Instant, rail: impl FnMut(u8) -> Option<Carrying>) -> bool {
        const RAILS: [u8; MAX_RAILS] = [0, 1, 2, 3, 4, 5, 6, 7];
        self.service.look(now, RAILS.map(rail))
    }

    /// Takes note of the present rate of a port of a device.
    pub(crate) fn note(&mut self, port: (usize, u8), mbps: u32) {
        self.take(port, Some(mbps));
    }

    fn take(&mut self, (device, port): (usize, u8), mbps: Option<u32>) {
        let given = self.devices.get(device).and_then(|device| self.options.given(*device));
        let mbps = given.or(mbps);
        for (home, known) in self.homes.iter().zip(&mut self.mbps) {
            if (home.device, home.port.number) == (device, port) {
                *known = mbps;
            }
        }
    }

    /// Returns the bandwidth of each rail in Mbit/s; `None` if rails take turns.
    pub(crate) fn bandwidth_mbps(
        &self,
        is_standby: impl Fn(u8) -> bool,
    ) -> Option<[u32; MAX_RAILS]> {
        let rails = self.homes.len().min(MAX_RAILS);
        let mbps = &self.mbps[..rails];
        let at_home = (0..).zip(mbps).filter(|(rail, _)| !is_standby(*rail));
        let at_home = at_home.filter_map(|(_, mbps)| *mbps);
        let slowest = at_home.clone().min().unwrap_or(0);
        let fastest = at_home.max().unwrap_or(0);
        let is_known = slowest > 0;
        let by_rates = match self.options.weights {
            RailWeights::Auto => is_known && slowest < fastest,
            RailWeights::Equal => false,
            RailWeights::Rates | RailWeights::Measured => rails > 1,
        };
        let bandwidth = |rail: usize| match (mbps.get(rail), self.homes.get(rail)) {
            (Some(mbps), Some(home)) if is_known => {
                let on_port = self.homes.iter().filter(|other| is_same_port(other, home)).count();
                // A standby rail of unknown rate counts as slow, and so does a port that is down.
                let mbps = mbps.filter(|mbps| *mbps > 0).unwrap_or(slowest);
                share_of_port(mbps, on_port)
            }
            _ => 1,
        };
        by_rates.then(|| measured(in_u32(std::array::from_fn(bandwidth)), self.service.rates()))
    }
}

/// Returns the measured rates in place of the rates of ports, as far as they are known: a rail that
/// was not measured keeps its ratio to the others.
fn measured(ports: [u32; MAX_RAILS], rates: [u64; MAX_RAILS]) -> [u32; MAX_RAILS] {
    let known = || ports.iter().zip(rates).filter(|(_, rate)| *rate > 0);
    let of_ports: u128 = known().map(|(port, _)| u128::from(*port)).sum();
    if of_ports == 0 {
        return ports;
    }
    let sum: u128 = known().map(|(_, rate)| u128::from(rate)).sum();
    let rate = |rail: usize| match rates[rail] {
        0 => u128::from(ports[rail]) * sum / of_ports,
        rate => rate.into(),
    };
    let all: [u128; MAX_RAILS] = std::array::from_fn(rate);
    // Only the ratios matter: a part of the fastest rail in 2^-20.
    let fastest = all.iter().copied().max().unwrap_or(1).max(1);
    all.map(|rate| ((rate << 20) / fastest).max(1) as u32)
}

/// Returns the weight of each of `rails` rails, at most 8, that share a port of this rate.
fn share_of_port(mbps: u32, rails: usize) -> u64 {
    /// A multiple of each number up to 8, so that no share is rounded: only ratios matter.
    const MULTIPLE: u32 = 840;
    u64::from(mbps) * u64::from(MULTIPLE / rails.max(1) as u32)
}

/// Returns weights of about the same ratios that fit 32 bits. The engine refuses weights of 0.
fn in_u32(weights: [u64; MAX_RAILS]) -> [u32; MAX_RAILS] {
    let bits = u64::BITS - weights.iter().fold(0, |all, weight| all | weight).leading_zeros();
    weights.map(|weight| (weight >> bits.saturating_sub(u32::BITS)).max(1) as u32)
}

const _: () = assert!(MAX_RAILS == 8, "MULTIPLE is a multiple of each number of rails");

fn is_same_port(a: &Place, b: &Place) -> bool {
    (a.device, a.port.number) == (b.device, b.port.number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Gid, Mtu, Port};

    /// A rail's device, the port there, and its rate.
    type Rail = (usize, u8, u32);

    fn weights(weights: RailWeights, given: &[u32], rails: &[Rail]) -> Weights {
        let options = WeightOptions::default().with_weights(weights);
        let place = |&(device, number, _): &Rail| {
            let gid = Gid::default();
            let mtu = Mtu::default();
            Place {
                device,
                port: Port { number, gid_index: 0, gid, lid: 0, mtu, max_rd_atomic: 1 },
            }
        };
        let homes = rails.iter().map(place).collect();
        let give = |options: WeightOptions, (device, mbps): (u32, &u32)| {
            options.with_device_mbps(DeviceId(device), *mbps)
        };
        let options = (0..).zip(given).fold(options, give);
        let devices = (0..8).map(DeviceId).collect();
        let service = ServiceRates::new();
        let mut weights = Weights { options, homes, devices, mbps: [None; MAX_RAILS], service };
        rails.iter().for_each(|&(device, port, mbps)| weights.note((device, port), mbps));
        weights
    }

    /// Returns the ratios of the weights, to that of the last rail; `None` if rails take turns.
    fn ratios(weights: &Weights, standby: &[u8]) -> Option<Vec<f64>> {
        let rails = weights.homes.len();
        let mbps = weights.bandwidth_mbps(|rail| standby.contains(&rail))?;
        assert!(mbps.iter().all(|mbps| *mbps > 0), "the engine refuses {mbps:?}");
        Some(
            mbps[..rails]
                .iter()
                .map(|each| f64::from(*each) / f64::from(mbps[rails - 1]))
                .collect(),
        )
    }

    const AUTO: RailWeights = RailWeights::Auto;
    const FAST_AND_SLOW: [Rail; 2] = [(0, 1, 400_000), (1, 1, 100_000)];

    #[test]
    fn rates_count_if_they_are_known_and_differ() {
        let of = |choice, rails: &[Rail]| ratios(&weights(choice, &[], rails), &[]);
        assert_eq!(of(AUTO, &FAST_AND_SLOW), Some(vec![4.0, 1.0]));
        assert_eq!(of(AUTO, &[(0, 1, 100_000), (1, 1, 100_000)]), None);
        assert_eq!(of(AUTO, &[(0, 1, 400_000), (1, 1, 0)]), None, "unknown");
        assert_eq!(of(AUTO, &[(0, 1, 400_000)]), None, "there is one rail");
        assert_eq!(of(RailWeights::Equal, &FAST_AND_SLOW), None);
        assert_eq!(of(RailWeights::Rates, &FAST_AND_SLOW), Some(vec![4.0, 1.0]));
        assert_eq!(of(RailWeights::Rates, &[(0, 1, 400_000), (1, 1, 0)]), Some(vec![1.0, 1.0]));
        assert_eq!(of(RailWeights::Rates, &[(0, 1, 7), (1, 1, 7)]), Some(vec![1.0, 1.0]));
        assert_eq!(of(RailWeights::Rates, &[(0, 1, 7)]), None, "there is one rail");
    }

    #[test]
    fn rails_share_the_rate_of_their_port() {
        let three = [(0, 1, 300_000), (1, 1, 100_000), (0, 1, 300_000)];
        assert_eq!(ratios(&weights(AUTO, &[], &three), &[]), Some(vec![1.0, 2.0 / 3.0, 1.0]));
        let ports = [(0, 1, 300_000), (0, 2, 100_000)];
        assert_eq!(ratios(&weights(AUTO, &[], &ports), &[]), Some(vec![3.0, 1.0]));
        let equal = [(0, 1, 100_000), (1, 1, 100_000), (0, 1, 100_000)];
        assert_eq!(ratios(&weights(AUTO, &[], &equal), &[]), None, "equal rates: as ever");
    }

    #[test]
    fn rates_of_the_user_replace_those_of_devices() {
        assert_eq!(
            ratios(&weights(AUTO, &[0, 200_000], &FAST_AND_SLOW), &[]),
            Some(vec![2.0, 1.0])
        );
        assert_eq!(ratios(&weights(AUTO, &[5, 5], &FAST_AND_SLOW), &[]), None);
        let unknown = [(0, 1, 0), (1, 1, 0)];
        let mut given = weights(AUTO, &[5, 1], &unknown);
        assert_eq!(ratios(&given, &[]), Some(vec![5.0, 1.0]));
        assert_eq!([0, 1, 2].map(|device| given.follows_rates_of(device)), [false, false, true]);
        given.note((0, 1), 7);
        assert_eq!(ratios(&given, &[]), Some(vec![5.0, 1.0]), "they stay");
    }

    #[test]
    fn a_new_rate_counts_for_all_rails_of_the_port() {
        let mut weights = weights(AUTO, &[], &[(0, 1, 8), (1, 1, 8), (0, 1, 8), (1, 1, 8)]);
        assert_eq!(ratios(&weights, &[]), None);
        weights.note((0, 1), 4);
        assert_eq!(ratios(&weights, &[]), Some(vec![0.5, 1.0, 0.5, 1.0]));
        weights.note((0, 2), 1);
        assert_eq!(ratios(&weights, &[]), Some(vec![0.5, 1.0, 0.5, 1.0]), "no rail is there");
        weights.note((0, 1), 8);
        assert_eq!(ratios(&weights, &[]), None);
    }

    /// A port that is down when the endpoint is built has no rate yet.
    #[test]
    fn a_port_that_is_down_does_not_decide() {
        let down = |choice, rails: &[Rail], rail: usize| {
            let mut weights = weights(choice, &[], rails);
            weights.mbps[rail] = None;
            weights
        };
        let three = [(0, 1, 400_000), (1, 1, 100_000), (2, 1, 200_000)];
        for choice in [AUTO, RailWeights::Rates] {
            let mut weights = down(choice, &three, 2);
            assert_eq!(ratios(&weights, &[]), Some(vec![4.0, 1.0, 1.0]));
            weights.note((2, 1), 200_000);
            assert_eq!(ratios(&weights, &[]), Some(vec![2.0, 0.5, 1.0]), "it returns");
        }
        assert_eq!(ratios(&down(AUTO, &FAST_AND_SLOW, 0), &[]), None, "one rate is known");
        let unknown = [(0, 1, 400_000), (1, 1, 0), (2, 1, 0)];
        assert_eq!(ratios(&down(AUTO, &unknown, 2), &[]), None, "a device reports none");
    }

    #[test]
    fn standby_rails_do_not_decide() {
        let rails = [(0, 1, 400_000), (1, 1, 400_000), (2, 1, 10_000)];
        assert_eq!(ratios(&weights(AUTO, &[], &rails), &[2]), None);
        let rails = [(0, 1, 400_000), (1, 1, 100_000), (2, 1, 0)];
        assert_eq!(ratios(&weights(AUTO, &[], &rails), &[2]), Some(vec![4.0, 1.0, 1.0]));
    }

    #[test]
    fn measured_rates_replace_those_of_ports() {
        let ports = [100, 100, 400, 1, 1, 1, 1, 1];
        assert_eq!(measured(ports, [0; 8]), ports, "nothing is measured");
        let [a, b, c, ..] = measured(ports, [1_000, 3_000, 0, 0, 0, 0, 0, 0]);
        // The third rail is believed to be four times the average of the others.
        assert_eq!((a, b, c), ((1 << 20) / 8, 3 * (1 << 20) / 8, 1 << 20));
        let extreme = measured(ports, [1, u64::MAX, 1, 1, 1, 1, 1, 1]);
        assert!(extreme.iter().all(|weight| *weight > 0));
    }

    #[test]
    fn the_greatest_rates_do_not_overflow() {
        let rails = [(0, 1, u32::MAX), (1, 1, 1)];
        assert!(ratios(&weights(AUTO, &[], &rails), &[]).is_some_and(|ratios| ratios[0] > 1e6));
        // Above 5.1 Tbit/s: 840 times that does not fit 32 bits.
        for (fast, slow) in [(12_800_000, 6_400_000), (u32::MAX, u32::MAX / 2)] {
            let ratio = ratios(&weights(AUTO, &[], &[(0, 1, fast), (1, 1, slow)]), &[]).unwrap()[0];
            assert!((ratio - 2.0).abs() < 1e-6, "{fast}: {ratio}");
        }
    }

    #[test]
    fn the_last_rate_of_a_device_counts_and_there_are_eight() {
        let rate = |options: WeightOptions, device| {
            options.with_device_mbps(DeviceId(device), 10 + device)
        };
        let options = (0..8).fold(WeightOptions::default(), rate);
        let options = options.with_device_mbps(DeviceId(7), 3).with_device_mbps(DeviceId(6), 0);
        let given = [0, 6, 7, 8].map(|device| options.given(DeviceId(device)));
        assert_eq!(given, [Some(10), None, Some(3), None]);
        assert_eq!(options.check(), Ok(()));
        let ninth = rate(options, 8);
        assert_eq!((ninth.check(), ninth.given(DeviceId(8))), (Ok(()), Some(18)), "6 left a place");
        assert_eq!(rate(ninth, 9).check(), Err(BuildError::DeviceRates));
        let zero = |options: WeightOptions, device| options.with_device_mbps(DeviceId(device), 0);
        assert_eq!((20..40).fold(ninth, zero).check(), Ok(()), "0 takes no place");
    }
}
