//! Faults of devices, links and drivers, and rails that leave service.

use super::World;
use super::shape::FaultLevel;
use crate::allocations::without_allocating;
use crate::choices::{Choices, pick};
use polyrail::nic::{Fault, When};
use polyrail_core::hardware::Refusal;
use polyrail_faults::{DriverFault, Faults, WorkQueue};
use std::time::Duration;

impl World {
    /// Injects a fault.
    pub(super) fn trouble(&mut self, choices: &mut dyn Choices) {
        match (self.shape.fault_level, choices.below(8)) {
            (_, 0) => self.change_service(choices),
            (_, 1) if choices.one_in(3) => self.displace(choices),
            (_, 1) => self.detach_or_attach(choices),
            (_, 2) => self.bystander_posts(),
            (FaultLevel::None, _) => {}
            (FaultLevel::Delays, _) | (FaultLevel::Failures, 3..=4) => self.hinder(choices),
            (FaultLevel::Failures, 5) => self.stray(choices),
            (FaultLevel::Failures, 6) => self.feed_rubbish(choices),
            (FaultLevel::Failures, _) if choices.one_in(6) => self.move_to_error(choices),
            (FaultLevel::Failures, _) => self.break_something(choices),
        }
    }

    fn any_device(&self, choices: &mut dyn Choices) -> (usize, usize) {
        (choices.below(2) as usize, choices.below(self.shape.devices as u32) as usize)
    }

    fn inject(&mut self, (host, at): (usize, usize), fault: Fault, choices: &mut dyn Choices) {
        self.summary.faults += 1;
        let when = self.some_time(choices);
        self.hosts[host].devices[at].inject(when, fault);
    }

    fn inject_into_driver(&mut self, (host, at): (usize, usize), fault: DriverFault) {
        self.summary.faults += 1;
        self.hosts[host].drivers[at].inject(fault);
    }

    fn some_time(&self, choices: &mut dyn Choices) -> When {
        match choices.below(3) {
            0 => When::Now,
            1 => When::Bytes(u64::from(choices.below(8192))),
            _ => When::Step(self.fabric.steps() + u64::from(choices.below(40))),
        }
    }

    /// A fault that only costs time.
    fn hinder(&mut self, choices: &mut dyn Choices) {
        let device = self.any_device(choices);
        match choices.below(4) {
            0 => {
                let queue = any_queue(choices);
                let commits = choices.below(3);
                self.inject_into_driver(device, DriverFault::QueueFull { queue, commits });
            }
            1 => {
                let requests = choices.below(3);
                self.inject(device, Fault::ForceRnr { requests }, choices);
            }
            2 => {
                let delay = Duration::from_micros(pick(choices, &[0, 5, 40]));
                self.inject(device, Fault::DelayCompletions(delay), choices);
            }
            _ => self.inject_into_driver(device, take_in_part(choices, Refusal::QueueFull)),
        }
    }

    /// A fault that may make requests fail.
    fn break_something(&mut self, choices: &mut dyn Choices) {
        let (host, at) = self.any_device(choices);
        self.damage(host, at);
        let fault = match choices.below(13) {
            0..=1 => Fault::LinkDown,
            2..=4 => Fault::LinkUp,
            5 => Fault::Silent(true),
            6 => Fault::Silent(false),
            7 => Fault::LoseAcks(true),
            8..=9 => Fault::LoseAcks(false),
            10 if choices.one_in(4) => Fault::DeviceGone,
            _ => {
                let fault = take_in_part(choices, Refusal::Driver(5));
                return self.inject_into_driver((host, at), fault);
            }
        };
        if fault == Fault::DeviceGone {
            self.gone[host][at] = true;
        }
        self.inject((host, at), fault, choices);
    }

    /// Everything that uses this device may fail from now on.
    fn damage(&mut self, host: usize, at: usize) {
        for connection in &mut self.connections {
            let uses = connection.ends[host].physical.iter().any(|physical| physical.at == at);
            connection.damaged |= uses;
        }
        self.damaged = true;
    }

    fn change_service(&mut self, choices: &mut dyn Choices) {
        let (at, end) = self.any_end(choices);
        let rail = choices.below(8) as u8;
        let in_service = choices.coin();
        let qp = self.hosts[end].qp(self.connections[at].ends[end].index);
        if choices.coin() {
            without_allocating("set_rail_in_service", || qp.set_rail_in_service(rail, in_service));
        } else {
            without_allocating("reserve_rail", || qp.reserve_rail(rail, in_service));
        }
    }

    /// Ends what can be ended: links, silence, lost acknowledgements, delays, faults of drivers.
    pub(super) fn lift_faults(&mut self) {
        for device in self.hosts.iter().flat_map(|host| &host.devices) {
            for fault in [
                Fault::LinkUp,
                Fault::Silent(false),
                Fault::LoseAcks(false),
                Fault::DelayCompletions(Duration::ZERO),
            ] {
                device.inject(When::Now, fault);
            }
        }
        self.hosts.iter().flat_map(|host| &host.drivers).for_each(Faults::lift);
    }
}

fn any_queue(choices: &mut dyn Choices) -> WorkQueue {
    pick(choices, &[WorkQueue::Send, WorkQueue::Send, WorkQueue::Recv])
}

fn take_in_part(choices: &mut dyn Choices, refusal: Refusal) -> DriverFault {
    DriverFault::AcceptOnly {
        queue: any_queue(choices),
        nth_batch: choices.below(3),
        requests: choices.below(4),
        refusal,
    }
}
