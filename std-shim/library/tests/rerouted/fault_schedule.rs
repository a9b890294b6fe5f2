//! Faults that come and go at random.

use super::Ends;
use polyrail::endpoint::Endpoint;
use polyrail::nic::{Device, Fault, When};
use polyrail::virtual_qp::RailId;

/// Two ends whose devices fail.
pub trait TwoEnds {
    /// The devices of an end, and the end.
    fn side(&mut self, is_near: bool) -> (&[Device], &mut Endpoint);
}

impl TwoEnds for Ends {
    fn side(&mut self, is_near: bool) -> (&[Device], &mut Endpoint) {
        let end = if is_near { &mut self.near } else { &mut self.far };
        (&end.devices, &mut end.endpoint)
    }
}

/// Faults of all devices, that begin and end at random, several at a time.
pub struct FaultSchedule {
    pub random: Random,
    /// What devices suffer: how it ends.
    suffered: Vec<(bool, usize, Fault)>,
}

impl FaultSchedule {
    pub fn new(seed: u64) -> Self {
        Self { random: Random(seed), suffered: Vec::new() }
    }

    /// One step.
    pub fn step(&mut self, ends: &mut impl TwoEnds) {
        if self.random.one_in(100) {
            self.notice_silence(ends);
        }
        if !self.random.one_in(150) {
            return;
        }
        let at = self.random.below(4) as usize;
        if at < self.suffered.len() {
            let (is_near, device, end) = self.suffered.swap_remove(at);
            return ends.side(is_near).0[device].inject(When::Now, end);
        }
        let is_near = self.random.one_in(2);
        let (devices, _) = ends.side(is_near);
        let device = self.random.below(devices.len() as u64) as usize;
        let (begin, end) = match self.random.below(4) {
            0 => (Fault::Silent(true), Fault::Silent(false)),
            1 => (Fault::LoseAcks(true), Fault::LoseAcks(false)),
            _ => (Fault::LinkDown, Fault::LinkUp),
        };
        devices[device].inject(When::Now, begin);
        self.suffered.push((is_near, device, end));
    }

    /// Nothing but a clock tells of rails that fall silent.
    fn notice_silence(&mut self, ends: &mut impl TwoEnds) {
        for (_, device, _) in self.suffered.iter().filter(|(.., end)| *end == Fault::Silent(false))
        {
            let (_, here) = ends.side(self.random.one_in(2));
            for rail in (0..4).map(RailId::Data).chain([RailId::Notify]) {
                let name = here.device_of(rail);
                if name.ends_with(&device.to_string()) {
                    here.fail_rail(rail);
                }
            }
        }
    }

    /// Ends all of it.
    pub fn lift_all(&mut self, ends: &mut impl TwoEnds) {
        self.notice_silence(ends);
        for (is_near, device, end) in self.suffered.drain(..) {
            ends.side(is_near).0[device].inject(When::Now, end);
        }
    }
}

/// SplitMix64.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}
