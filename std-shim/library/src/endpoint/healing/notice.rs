//! What an endpoint notices by itself: what devices say, and rails that make no headway.

use super::headway::Look;
use super::message::HealingMessage;
use super::walk::Walk;
use crate::backend::{Connect, DeviceEvent};
use crate::endpoint::place::{Place, rail_ids};
use crate::endpoint::rail_log::Noticed;
use polyrail_core::hardware::CompletionQueue;
use polyrail_core::virtual_qp::{RailId, RailState};
use std::time::Duration;

/// How often devices are asked for events: a system call for each, with real verbs.
const EVENTS_EVERY: Duration = Duration::from_millis(1);

/// When a rail that has to stay away for now is looked at again.
const HOME_AGAIN: Duration = Duration::from_millis(10);

impl<Q, C, const ROUTES: usize> Walk<'_, Q, C, ROUTES>
where
    Q: Connect,
    C: CompletionQueue,
{
    /// Reads what devices say, if that is due.
    pub(super) fn look_at_devices(&mut self) {
        if self.healer.next_events.is_some_and(|next| self.now < next) {
            return;
        }
        self.healer.next_events = self.now.checked_add(EVENTS_EVERY);
        let mut readers = std::mem::take(&mut self.healer.readers);
        for (device, reader) in readers.iter_mut().enumerate() {
            let id = self.qp.devices[device];
            let next = || self.owner.devices.next_event(id, reader);
            let events: Vec<DeviceEvent> = std::iter::from_fn(next).collect();
            for (at, event) in events.iter().enumerate() {
                self.device_said(device, *event, &events[at + 1..]);
            }
        }
        self.healer.readers = readers;
    }

    /// `later` is what else it said, after that.
    fn device_said(&mut self, device: usize, event: DeviceEvent, later: &[DeviceEvent]) {
        self.healer.is_busy = true;
        match event {
            DeviceEvent::PortDown { port } => {
                // It may be up again; then what is in flight is carried on. It is asked only then: the answer
                // may have to wait until whoever takes the port down is done.
                let may_be_up = later.contains(&DeviceEvent::PortUp { port });
                let id = self.qp.devices[device];
                if !may_be_up || self.owner.devices.port(id, port).is_err() {
                    self.give_up_rails_on(device, Some(port), Noticed::PortDown);
                }
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

    /// Whether any rail makes no headway while others do.
    pub(super) fn watch(&mut self) {
        let Some(timeout) = self.healer.options.stall_timeout else { return };
        if !self.healer.headway.is_due(self.now) {
            return;
        }
        let stalled = self.qp.check_stalled();
        let mut looks = [Look::default(); _];
        for (rail, look) in rail_ids().zip(&mut looks) {
            *look = Look {
                is_stalled: stalled.contains(rail),
                completed: self.carried(rail).completed,
                is_in_service: self.state(rail) == Some(RailState::InService),
            };
        }
        for at in self.healer.headway.look(self.now, timeout, &looks) {
            if let Some(rail) = rail_ids().nth(at) {
                self.give_up_rail(rail, Noticed::Silent(timeout));
            }
        }
    }
}
