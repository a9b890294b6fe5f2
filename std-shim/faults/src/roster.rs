//! Queue pairs whose completions may be held back.
//!
//! A device may give the number of a destroyed queue pair to a new one, and takes the old one's
//! completions away before. What is held back here is out of its reach. So only completions of queue
//! pairs on the roster are held back, under a serial number that is never given twice, and what a
//! queue pair has left behind is forgotten.

use polyrail_core::verbs::DeviceId;

/// A queue pair, among all that were ever on a roster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Serial(u64);

#[derive(Clone, Copy, Debug)]
struct Member {
    device: DeviceId,
    qp_num: u32,
    serial: Serial,
}

#[derive(Debug, Default)]
pub(crate) struct Roster {
    members: Vec<Member>,
    enrolled: u64,
}

impl Roster {
    pub(crate) fn enroll(&mut self, device: DeviceId, qp_num: u32) -> Serial {
        let serial = Serial(self.enrolled);
        self.enrolled += 1;
        self.members.push(Member { device, qp_num, serial });
        serial
    }

    pub(crate) fn dismiss(&mut self, serial: Serial) {
        self.members.retain(|member| member.serial != serial);
    }

    pub(crate) fn has(&self, serial: Serial) -> bool {
        self.members.iter().any(|member| member.serial == serial)
    }

    pub(crate) fn find(&self, device: DeviceId, qp_num: u32) -> Option<Serial> {
        let is_it = |member: &&Member| (member.device, member.qp_num) == (device, qp_num);
        self.members.iter().find(is_it).map(|member| member.serial)
    }
}
