//! What the owners of a connection call: to send and receive messages, and to ask what became of
//! them.

use super::{Memory, Rig, TestReceiver, TestSender};
use polyrail_core::p2p::{CallError, Received, RecvBuffer, RecvHandle, SendHandle};
use polyrail_core::verbs::SendRequest;

// Of the first connection, which is the only one in most tests.
impl Rig {
    pub(crate) fn sender(&mut self) -> &mut TestSender {
        &mut self.connections[0].sender
    }

    pub(crate) fn receiver(&mut self) -> &mut TestReceiver {
        &mut self.connections[0].receiver
    }

    pub(crate) fn near(&self, place: usize) -> usize {
        self.connections[0].near[place]
    }

    pub(crate) fn far(&self, place: usize) -> usize {
        self.connections[0].far[place]
    }

    pub(crate) fn try_irecv(
        &mut self,
        buffers: &[(&Memory, u32, u32, u32)],
    ) -> Result<RecvHandle, CallError> {
        irecv(&mut self.connections[0].receiver, buffers)
    }

    /// Offers all of one memory, with tag 0.
    pub(crate) fn irecv(&mut self, target: &Memory, length: u32) -> RecvHandle {
        self.try_irecv(&[(target, 0, length, 0)]).expect("there is room")
    }

    pub(crate) fn try_isend(
        &mut self,
        source: &Memory,
        length: u32,
        tag: u32,
    ) -> Result<SendHandle, CallError> {
        self.sender().isend(source.local(0, length), tag, &source.keys)
    }

    pub(crate) fn isend(&mut self, source: &Memory, length: u32) -> SendHandle {
        self.try_isend(source, length, 0).expect("there is room")
    }

    /// Offers a buffer of this length and posts the send for it, which is not executed yet.
    pub(crate) fn start(
        &mut self,
        source: &Memory,
        target: &Memory,
        length: u32,
    ) -> (SendHandle, RecvHandle) {
        let recv = self.irecv(target, length);
        self.settle();
        (self.isend(source, length), recv)
    }

    /// As [`start`](Self::start), but the entry is shown without a step of what was posted before.
    pub(crate) fn start_unexecuted(
        &mut self,
        source: &Memory,
        target: &Memory,
        length: u32,
    ) -> (SendHandle, RecvHandle) {
        let recv = self.irecv(target, length);
        self.poll_far();
        for place in 0..usize::from(self.setup.rails) {
            self.fabric.execute(self.far(place));
        }
        (self.isend(source, length), recv)
    }

    /// Requires that these messages are done at both ends.
    pub(crate) fn assert_done(
        &mut self,
        handles: impl IntoIterator<Item = (SendHandle, RecvHandle)>,
    ) {
        for (send, recv) in handles {
            assert!(self.sent(send) && self.received(recv).is_some());
        }
    }

    pub(crate) fn sent(&mut self, handle: SendHandle) -> bool {
        self.sender().test(handle).expect("it works")
    }

    pub(crate) fn received(&mut self, handle: RecvHandle) -> Option<Received> {
        self.receiver().test(handle).expect("it works")
    }

    /// Sends a message of one buffer and returns what the receiver learned of it.
    pub(crate) fn message(
        &mut self,
        source: &Memory,
        target: &Memory,
        length: u32,
        room: u32,
    ) -> u32 {
        let recv = self.irecv(target, room);
        self.settle();
        let send = self.isend(source, length);
        self.settle();
        assert!(self.sent(send));
        let received = self.received(recv).expect("it arrived");
        assert_eq!(received.number(), send.number());
        received.sizes()[0]
    }

    /// Requests executed since the last call, of the data queue pairs: place and request.
    pub(crate) fn take_data(&mut self) -> Vec<(usize, SendRequest)> {
        let near = &self.connections[0].near;
        let place = |at| near.iter().position(|other| *other == at);
        let log = self.fabric.take_log();
        log.into_iter().filter_map(|(at, request)| Some((place(at)?, request))).collect()
    }
}

/// Offers buffers: memory, offset, length and tag of each.
pub(crate) fn irecv(
    receiver: &mut TestReceiver,
    buffers: &[(&Memory, u32, u32, u32)],
) -> Result<RecvHandle, CallError> {
    let buffers: Vec<_> = buffers
        .iter()
        .map(|(memory, offset, length, tag)| RecvBuffer {
            local: memory.local(*offset, *length),
            tag: *tag,
            keys: &memory.keys,
        })
        .collect();
    receiver.irecv(&buffers)
}
