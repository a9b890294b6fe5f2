//! What an endpoint notices by itself: what devices say, and rails that complete nothing.

use super::message::HealingMessage;
use super::walk::Walk;
use crate::backend::{Connect, DeviceEvent};
use crate::endpoint::place::{Place, RAIL_IDS, rail_ids};
use crate::endpoint::rail_log::Noticed;
use crate::heal::Look;
use polyrail_core::hardware::CompletionQueue;
use polyrail_core::virtual_qp::{RailId, RailState};
use std::time::Duration;

/// When a rail that has to stay away for now is looked at again.
const HOME_AGAIN: Duration = Duration::from_millis(10);

impl<Q, C, const ROUTES: usize> Walk<'_, Q, C, ROUTES>
where
    Q: Connect,
    C: CompletionQueue,
{
    /// Reads what devices say, if that is due.
    pub(super) fn look_at_devices(&mut self) {
        let (ids, devices) = (&self.qp.devices, self.owner.devices);
        let next = |device: usize, cursor: &mut _| devices.next_event(ids[device], cursor);
        let is_up = |device: usize, port| devices.port(ids[device], port).is_ok();
        for (device, event) in self.healer.device_events.read(self.now, next, is_up) {
            self.device_said(device, event);
        }
    }

    fn device_said(&mut self, device: usize, event: DeviceEvent) {
        self.healer.is_busy = true;
        match event {
            DeviceEvent::PortDown { port } => {
                self.give_up_rails_on(device, Some(port), Noticed::PortDown);
            }
            DeviceEvent::PortUp { .. } => {
                self.hurry_all();
                let after = self.healer.options.home_after;
                self.healer.home_at = after.and_then(|after| self.now.checked_add(after));
            }
            DeviceEvent::Gone => {
                self.qp.lose_gone_rails();
                self.give_up_rails_on(device, None, Noticed::DeviceGone);
            }
        }
    }

    /// Rails whose queue pairs are on a device, on this port of it if there is one.
    fn give_up_rails_on(&mut self, device: usize, port: Option<u8>, noticed: Noticed) {
        for rail in rail_ids() {
            let is_there = |place: &Place| {
                place.device == device && port.is_none_or(|port| port == place.port.number)
            };
            if self.qp.place_of(rail).is_some_and(is_there) {
                self.give_up_rail(rail, noticed);
            }
        }
    }

    /// Rails that requests wait for may be where they share another rail's device: that costs throughput for as
    /// long as they do. If their own device has a port for them again, they fail once more: once the endpoint can do
    /// without them.
    pub(super) fn go_home(&mut self) {
        if self.healer.home_at.is_none_or(|at| self.now < at) {
            return;
        }
        self.healer.home_at = None;
        self.healer.is_busy = true;
        for rail in rail_ids() {
            let away = self.qp.place_of(rail).zip(self.qp.home_of(rail));
            let Some((_, home)) = away.filter(|(at, home)| at.device != home.device) else {
                continue;
            };
            let device = self.qp.devices[home.device];
            if self.owner.devices.port(device, home.port.number).is_err() {
                continue;
            }
            if self.is_needed(rail) {
                self.healer.home_at = self.now.checked_add(HOME_AGAIN);
                continue;
            }
            self.give_up_rail(rail, Noticed::Home);
            self.hurry_at(rail);
        }
    }

    /// Whether too few rails would be in service without this one, or none though there are others.
    fn is_needed(&self, rail: RailId) -> bool {
        if self.is_out(rail) || !matches!(rail, RailId::Data(_)) {
            return false;
        }
        let is_other = |other: &RailId| matches!(other, RailId::Data(_)) && *other != rail;
        let others = || rail_ids().filter(is_other).filter_map(|other| self.state(other));
        let in_service = others().filter(|state| *state == RailState::InService).count();
        let min_rails = usize::from(self.qp.virtual_qp().config().min_rails);
        in_service < min_rails.max(others().count().min(1))
    }

    pub(super) fn hurry(&mut self, rail: RailId) {
        if let Some(care) = self.healer.care(rail) {
            care.hurry();
        }
    }

    /// There may be queue pairs where there were none: who offers tries at once.
    fn hurry_all(&mut self) {
        for rail in rail_ids() {
            if self.is_out(rail) {
                self.hurry_at(rail);
            }
        }
    }

    fn hurry_at(&mut self, rail: RailId) {
        if self.healer.offers {
            self.hurry(rail);
        } else {
            self.healer.link.say(HealingMessage::Wanted { rail });
        }
    }

    /// Gives rails up that complete nothing for too long, while other rails do or have nothing to do.
    pub(super) fn watch(&mut self) {
        let Some(timeout) = self.healer.options.stall_timeout else { return };
        if !self.healer.silence.is_due(self.now, timeout) {
            return;
        }
        let stalled = self.qp.check_stalled();
        let mut looks = [Look::default(); RAIL_IDS];
        let mut is_well = [false; RAIL_IDS];
        for (at, rail) in rail_ids().enumerate() {
            let completed = Some(self.carried(rail).completed);
            let before = std::mem::replace(&mut self.healer.completed[at], completed);
            let has_moved = before.is_some() && before != completed;
            if self.state(rail) == Some(RailState::InService) {
                looks[at].is_stalled = stalled.contains(rail);
                is_well[at] = has_moved || !looks[at].is_stalled;
            }
        }
        for (at, look) in looks.iter_mut().enumerate() {
            look.peer_is_alive = (0..RAIL_IDS).any(|other| other != at && is_well[other]);
        }
        for at in self.healer.silence.look(looks) {
            if let Some(rail) = rail_ids().nth(at) {
                self.give_up_rail(rail, Noticed::Silent(timeout));
            }
        }
    }
}
