//! What an end detects: events of devices, and rails that complete nothing.

use super::message::HealingMessage;
use super::repaired::{Detected, Repaired};
use super::silence::Look;
use super::step::RepairStep;
use crate::backend::DeviceEvent;
use crate::trace;
use polyrail_core::virtual_qp::RailState;
use std::collections::BTreeSet;
use std::time::Duration;

/// After this time a rail that is needed on another rail's device is checked again.
const HOME_AGAIN: Duration = Duration::from_millis(10);

impl<E: Repaired<RAILS>, const RAILS: usize> RepairStep<'_, E, RAILS> {
    /// Reads the events of devices, if that is due.
    pub(super) fn look_at_devices(&mut self) {
        let end = &self.end;
        let next = |device: usize, cursor: &mut _| end.next_event(device, cursor);
        let is_up = |device: usize, port| end.port(device, port).is_ok();
        for (device, event) in self.healer.device_events.read(self.now, next, is_up) {
            self.handle_event(device, event);
        }
    }

    fn handle_event(&mut self, device: usize, event: DeviceEvent) {
        self.healer.is_busy = true;
        match event {
            DeviceEvent::PortDown { port } => {
                for rail in E::rails() {
                    let place = self.end.place(rail);
                    if place.is_some_and(|at| at.device == device && at.port.number == port) {
                        self.end.fail_rail(rail, Detected::PortDown);
                    }
                }
            }
            DeviceEvent::PortUp { port } => {
                // It may have been down for too short a time to fail a rail.
                if self.ports_of(device).contains(&port) {
                    self.end.read_rate(device, port);
                }
                // Where no queue pair could be created there may be one now.
                E::rails()
                    .filter(|rail| self.is_out(*rail))
                    .collect::<Vec<_>>()
                    .into_iter()
                    .for_each(|rail| self.retry_now(rail));
                let after = self.healer.options.home_after;
                self.healer.home_at = after.and_then(|after| self.now.checked_add(after));
            }
            DeviceEvent::SpeedChange => {
                // Each rate costs several calls.
                if self.end.follows_rates_of(device) || trace::wants_port_speeds() {
                    self.note_rates(device);
                }
            }
            DeviceEvent::Gone => self.end.device_gone(device),
        }
    }

    /// Notes the present rates of the ports of a device that rails use. The event does not name the
    /// port.
    fn note_rates(&mut self, device: usize) {
        for port in self.ports_of(device) {
            self.end.note_rate(device, port);
        }
    }

    /// Returns the ports of a device that rails use.
    fn ports_of(&self, device: usize) -> BTreeSet<u8> {
        let places = E::rails().filter_map(|rail| self.end.place(rail));
        places.filter(|at| at.device == device).map(|at| at.port.number).collect()
    }

    /// Makes the next attempt due now, at the end that offers.
    fn retry_now(&mut self, rail: E::Rail) {
        if !self.end.offers(rail) {
            self.send(HealingMessage::Wanted { rail });
        } else if let Some(repair) = self.repair_of(rail) {
            repair.retry_now();
        }
    }

    /// Moves rails that are on another rail's device back to their own, by failing them: where two
    /// rails share a device, throughput is lost. A rail that is still needed is moved later.
    pub(super) fn go_home(&mut self) {
        if self.healer.home_at.is_none_or(|at| self.now < at) {
            return;
        }
        self.healer.home_at = None;
        self.healer.is_busy = true;
        for rail in E::rails() {
            let away = self.end.place(rail).zip(self.end.home(rail));
            let Some((_, home)) = away.filter(|(at, home)| at.device != home.device) else {
                continue;
            };
            if self.end.port(home.device, home.port.number).is_err() {
                continue;
            }
            if self.end.is_needed(rail) {
                self.healer.home_at = self.now.checked_add(HOME_AGAIN);
                continue;
            }
            self.end.fail_rail(rail, Detected::Home);
            self.retry_now(rail);
        }
    }

    /// Fails rails that complete nothing for too long, although the peer is alive. If this end
    /// would fail without a rail whose oldest request may wait for the peer, the rail stays, until
    /// requests that need only devices have waited for too long as well.
    pub(super) fn watch(&mut self) {
        let Some(timeout) = self.healer.options.stall_timeout else { return };
        if !self.healer.silence.is_due(self.now, timeout) {
            return;
        }
        let stalled = self.end.stalled();
        let mut looks = [Look::default(); RAILS];
        let mut is_well = [false; RAILS];
        let (mut is_held_up, mut acknowledged) = (false, 0);
        for (at, rail) in E::rails().enumerate() {
            let carried = self.end.carried(rail);
            let completed = Some(carried.completed);
            acknowledged += carried.acknowledged;
            let before = std::mem::replace(&mut self.healer.completed[at], completed);
            let has_moved = before.is_some() && before != completed;
            if matches!(self.end.state(rail), Some((RailState::InService, _))) {
                looks[at].is_stalled = stalled[at];
                is_well[at] = has_moved || !looks[at].is_stalled;
                is_held_up |= stalled[at] && self.end.peer_may_be_late(rail);
            }
        }
        let is_held_up = is_held_up && self.end.has_requests_without_receive();
        let acknowledged = is_held_up.then_some(acknowledged);
        let limit = self.healer.options.rail_timeout;
        let is_too_long = self.healer.held_up.look(acknowledged, timeout, limit);
        for ((at, rail), look) in E::rails().enumerate().zip(&mut looks) {
            let is_other_well = |other: usize| other != at && is_well[other];
            look.peer_is_alive = !self.end.peer_may_be_late(rail)
                || (0..RAILS).any(is_other_well)
                || (is_too_long && self.end.fails_without(rail));
        }
        let mut may_be_late = [false; RAILS];
        for at in self.healer.silence.look(looks) {
            let Some(rail) = E::rails().nth(at) else { continue };
            // Rails that are broken first: this end may need the others then.
            match self.end.peer_may_be_late(rail) {
                true => may_be_late[at] = true,
                false => self.end.fail_rail(rail, Detected::Silent(timeout)),
            }
        }
        for (_, rail) in may_be_late.into_iter().zip(E::rails()).filter(|(may_be, _)| *may_be) {
            // Asked for each of them, because those before it may have failed just now.
            if self.end.fails_without(rail) && !is_too_long {
                continue;
            }
            let carried = self.end.carried(rail);
            self.repair_of(rail).into_iter().for_each(|repair| repair.excuse(carried));
            self.healer.limits.restart();
            self.end.fail_rail(rail, Detected::Silent(timeout));
        }
    }
}
