//! The calls into the engine that are traced. None is inlined, so that gdb finds it among the
//! callers.

use polyrail_core::hardware::{CompletionQueue, QueuePair, ReceiveQueue};
use polyrail_core::p2p::{Receiver, RecvBuffer, RecvHandle, SendHandle, Sender, Words};
use polyrail_core::verbs::{DeviceKeys, LocalBuffer, SendWr};
use polyrail_core::virtual_cq::{TargetSet, VirtualCq, VirtualWc};
use polyrail_core::virtual_qp::{ControlMessage, RailId, VirtualQp};
use polyrail_tests::rig::{TestCq, TestQp};
use polyrail_tests::scripted::ScriptedQp;

#[inline(never)]
pub(crate) fn post(qp: &mut TestQp, request: &SendWr<'_>) {
    qp.post_send(request).expect("room for one request");
}

/// Polls once. Returns the last report.
#[inline(never)]
pub(crate) fn poll<C, T, const CQS: usize, const ROUTES: usize>(
    cq: &mut VirtualCq<C, CQS, ROUTES>,
    target: &mut T,
) -> Option<VirtualWc>
where
    C: CompletionQueue,
    T: TargetSet,
{
    let mut reported = None;
    let polled = cq.poll(target, 32, |event| reported = event.completion());
    assert_eq!(polled.error, None);
    reported
}

#[inline(never)]
pub(crate) fn next_control(qp: &mut TestQp) -> Option<ControlMessage> {
    qp.next_control()
}

#[inline(never)]
pub(crate) fn control(qp: &mut TestQp, message: ControlMessage) {
    qp.control(message).expect("a correct peer");
}

#[inline(never)]
pub(crate) fn replace_rail(
    (cq, qp): (&mut TestCq, &mut TestQp),
    rail: RailId,
    generation: u16,
    queue_pair: ScriptedQp,
) {
    let replaced = VirtualQp::replace_rail(qp, cq, 0, rail, generation, queue_pair);
    assert!(replaced.is_ok(), "a queue pair that fits");
}

#[inline(never)]
pub(crate) fn irecv<Q, S, M, const QPS: usize, const DEPTH: usize, const SLOTS: usize>(
    receiver: &mut Receiver<Q, S, M, QPS, DEPTH, SLOTS>,
    buffer: RecvBuffer<'_>,
) -> RecvHandle
where
    Q: QueuePair,
    S: ReceiveQueue,
    M: Words,
{
    receiver.irecv(&[buffer]).expect("room for one message")
}

#[inline(never)]
pub(crate) fn isend<Q, M, const QPS: usize, const DEPTH: usize, const SLOTS: usize>(
    sender: &mut Sender<Q, M, QPS, DEPTH, SLOTS>,
    buffer: LocalBuffer,
    tag: u32,
    keys: &[DeviceKeys],
) -> SendHandle
where
    Q: QueuePair,
    M: Words,
{
    sender.isend(buffer, tag, keys).expect("a buffer with this tag")
}

/// Returns the size of the message, if it has arrived.
#[inline(never)]
pub(crate) fn test_recv<Q, S, M, const QPS: usize, const DEPTH: usize, const SLOTS: usize>(
    receiver: &mut Receiver<Q, S, M, QPS, DEPTH, SLOTS>,
    handle: RecvHandle,
) -> Option<u32>
where
    Q: QueuePair,
    S: ReceiveQueue,
    M: Words,
{
    let received = receiver.test(handle).expect("a working connection")?;
    Some(received.sizes()[0])
}

#[inline(never)]
pub(crate) fn test_send<Q, M, const QPS: usize, const DEPTH: usize, const SLOTS: usize>(
    sender: &mut Sender<Q, M, QPS, DEPTH, SLOTS>,
    handle: SendHandle,
) -> bool
where
    Q: QueuePair,
    M: Words,
{
    sender.test(handle).expect("a working connection")
}
