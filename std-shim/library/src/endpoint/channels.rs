//! The completion channels of an endpoint or a set, as one file descriptor.

use super::build_error::BuildError;
use crate::backend::Notify;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Can be read when one of the channels can; none, if completion queues are only polled.
#[derive(Debug, Default)]
pub(crate) struct Channels(Option<OwnedFd>);

impl Channels {
    pub(super) const NONE: Self = Self(None);

    /// Adds the channel of a completion queue, if it has one.
    pub(crate) fn add(&mut self, cq: &impl Notify) -> Result<(), BuildError> {
        let Some(channel) = cq.channel_fd() else { return Ok(()) };
        let all = match self.0.take() {
            Some(all) => all,
            None => epoll::create(CreateFlags::CLOEXEC).map_err(BuildError::no_channel)?,
        };
        let added = epoll::add(&all, channel, EventData::new_u64(0), EventFlags::IN);
        self.0 = Some(all);
        added.map_err(BuildError::no_channel)
    }

    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }
}
