//! Queue pairs whose completions may be held back.
//!
//! A device may give the number of a destroyed queue pair to a new one, after it has removed the
//! old one's completions. It cannot remove completions that are held back here. Therefore only
//! completions of queue pairs on the roster are held back, under a serial number that is never
//! reused, and completions of a queue pair that left the roster are dropped. After a queue pair has
//! reported that its [last receive was
//! taken](polyrail_core::hardware::QueuePair::last_wqe_reached), none of its completions are held
//! back, because an empty poll then means that all were returned.

use polyrail_core::verbs::DeviceId;

/// The serial number of a queue pair, unique among all that were ever on a roster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Serial(u64);

#[derive(Clone, Copy, Debug)]
struct Member {
    device: DeviceId,
    qp_num: u32,
    serial: Serial,
    /// Number of its completions that are held back.
    held: u32,
    /// It reported that its last receive was taken.
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

    /// Returns the queue pair whose completion is to be held back; `None`: the completion passes.
    pub(crate) fn hold(&mut self, device: DeviceId, qp_num: u32) -> Option<Serial> {
        let is_it = |member: &&mut Member| (member.device, member.qp_num) == (device, qp_num);
        let member = self.members.iter_mut().find(is_it).filter(|member| !member.has_ended)?;
        member.held += 1;
        Some(member.serial)
    }

    /// Removes a held back completion. Returns whether its queue pair still exists.
    pub(crate) fn release(&mut self, serial: Serial) -> bool {
        let member = self.member(serial);
        let is_there = member.is_some();
        member.into_iter().for_each(|member| member.held -= 1);
        is_there
    }

    /// Records the end of a queue pair that takes no more receives, unless completions of it are
    /// held back. Returns whether it ended.
    pub(crate) fn end(&mut self, serial: Serial) -> bool {
        self.member(serial).is_some_and(|member| {
            member.has_ended |= member.held == 0;
            member.has_ended
        })
    }

    /// Returns whether completions of a queue pair must not be held back any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.members.iter().any(|member| member.has_ended)
    }

    fn member(&mut self, serial: Serial) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.serial == serial)
    }
}
