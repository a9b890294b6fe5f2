//! Queue pairs whose completions may be held back.
//!
//! A device may give the number of a destroyed queue pair to a new one, and takes the old one's
//! completions away before. What is held back here is out of its reach. So only completions of queue
//! pairs on the roster are held back, under a serial number that is never given twice, and what a
//! queue pair has left behind is forgotten. Once a queue pair said that its [last receive was
//! taken](polyrail_core::hardware::QueuePair::last_wqe_reached), nothing of it is held back: an empty poll
//! must mean what it says.

use polyrail_core::verbs::DeviceId;

/// A queue pair, among all that were ever on a roster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Serial(u64);

#[derive(Clone, Copy, Debug)]
struct Member {
    device: DeviceId,
    qp_num: u32,
    serial: Serial,
    /// Completions that are held back.
    held: u32,
    /// It said that its last receive was taken.
    has_ended: bool,
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
        self.members.push(Member { device, qp_num, serial, held: 0, has_ended: false });
        serial
    }

    pub(crate) fn dismiss(&mut self, serial: Serial) {
        self.members.retain(|member| member.serial != serial);
    }

    /// Whose completion is to be held back; `None`: it is to pass.
    pub(crate) fn hold(&mut self, device: DeviceId, qp_num: u32) -> Option<Serial> {
        let is_it = |member: &&mut Member| (member.device, member.qp_num) == (device, qp_num);
        let member = self.members.iter_mut().find(is_it).filter(|member| !member.has_ended)?;
        member.held += 1;
        Some(member.serial)
    }

    /// A completion is not held back any more; returns whether its queue pair still is there.
    pub(crate) fn release(&mut self, serial: Serial) -> bool {
        let member = self.member(serial);
        let is_there = member.is_some();
        member.into_iter().for_each(|member| member.held -= 1);
        is_there
    }

    /// A queue pair that takes no receive any more ends, unless something of it is held back; returns
    /// whether it did.
    pub(crate) fn end(&mut self, serial: Serial) -> bool {
        self.member(serial).is_some_and(|member| {
            member.has_ended |= member.held == 0;
            member.has_ended
        })
    }

    /// Whether something that comes must not be held back.
    pub(crate) fn has_ended(&self) -> bool {
        self.members.iter().any(|member| member.has_ended)
    }

    fn member(&mut self, serial: Serial) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.serial == serial)
    }
}
