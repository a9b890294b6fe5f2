//! Events of devices: ports that go down, come up or change their speed, and devices that are
//! removed.

use crate::backend::{DeviceEvent, EventCursor};
use std::time::{Duration, Instant};

/// How often devices are asked for events. With real verbs each question is a system call.
const EVERY: Duration = Duration::from_millis(1);

/// The events of the devices of one endpoint.
#[derive(Debug)]
pub(crate) struct DeviceEvents {
    /// How far the events of each device have been read.
    cursors: Vec<EventCursor>,
    /// When they are read next; `None` before the first time.
    next: Option<Instant>,
}

impl DeviceEvents {
    /// Begins behind the events that `cursors` stand at, one cursor for each device.
    pub(crate) const fn new(cursors: Vec<EventCursor>) -> Self {
        Self { cursors, next: None }
    }

    /// Returns what happened since the last call, with the place of the device, if it is time to
    /// ask.
    ///
    /// A port that went down and came up again before anyone looked is not reported as down if it
    /// `is_up` now: its queue pairs carry on what is in flight. A port is asked only then, because
    /// the answer may have to wait until the process that takes the port down is done.
    pub(crate) fn read(
        &mut self,
        now: Instant,
        mut next_event: impl FnMut(usize, &mut EventCursor) -> Option<DeviceEvent>,
        mut is_up: impl FnMut(usize, u8) -> bool,
    ) -> Vec<(usize, DeviceEvent)> {
        if self.next.is_some_and(|next| now < next) {
            return Vec::new();
        }
        self.next = now.checked_add(EVERY);
        let mut happened = Vec::new();
        for (device, cursor) in self.cursors.iter_mut().enumerate() {
            let events: Vec<_> = std::iter::from_fn(|| next_event(device, cursor)).collect();
            for (at, event) in events.iter().enumerate() {
                let is_over = match *event {
                    DeviceEvent::PortDown { port } => {
                        events[at + 1..].contains(&DeviceEvent::PortUp { port })
                            && is_up(device, port)
                    }
                    // The last one is enough: the speed is the present one.
                    DeviceEvent::SpeedChange => events[at + 1..].contains(event),
                    DeviceEvent::PortUp { .. } | DeviceEvent::Gone => false,
                };
                if !is_over {
                    happened.push((device, *event));
                }
            }
        }
        happened
    }
}
