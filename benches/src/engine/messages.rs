//! Messages: the real [`Sender`] and [`Receiver`], each with a [`VirtualCq`].

use crate::message_rig::{MessageRig, RECEIVES, SLOTS};
use crate::workload::{CQ, DEPTH, DEVICE, KEYS, Message, OUTSTANDING, POLL, RAILS, Reported};
use crate::workload::{keys, messages};
use polyrail_core::hardware::{CompletionQueue, QueuePair, ReceiveQueue};
use polyrail_core::p2p::{
    Pool, Receiver, ReceiverConfig, RecvBuffer, RecvHandle, Region, SendHandle, Sender,
    SenderConfig,
};
use polyrail_core::verbs::{DeviceKeys, LocalBuffer, WcStatus};
use polyrail_core::virtual_cq::VirtualCq;
use std::sync::atomic::AtomicU64;

type Words = &'static [AtomicU64];

/// Both ends of a connection that carries a burst of messages again and again.
#[derive(Debug)]
pub struct Messages<Q, C, S> {
    receiver: Box<Receiver<Q, S, Words, RAILS, DEPTH, SLOTS>>,
    far_cq: Box<VirtualCq<C, 1, 64>>,
    sender: Box<Sender<Q, Words, RAILS, DEPTH, SLOTS>>,
    near_cq: Box<VirtualCq<C, 1, 64>>,
    messages: Vec<Message>,
    targets: Vec<LocalBuffer>,
    keys: Vec<DeviceKeys>,
    /// The receives and the sends of the burst before.
    recvs: Vec<RecvHandle>,
    sends: Vec<SendHandle>,
}

impl<Q: QueuePair, C: CompletionQueue, S: ReceiveQueue> Messages<Q, C, S> {
    /// Over all rails of `rig`, for messages of `length` bytes.
    ///
    /// # Panics
    ///
    /// If the rig is not sound.
    pub fn new(rig: MessageRig<Q, C, S>, length: u32) -> Self {
        let rails = rig.near.len() as u8;
        let mut near_cq = Box::new(VirtualCq::new([rig.near_cq]).expect("one completion queue"));
        let mut far_cq = Box::new(VirtualCq::new([rig.far_cq]).expect("one completion queue"));
        far_cq.set_aside(CQ, RECEIVES).expect("a deep completion queue");
        let account = Pool::new(DEVICE, RECEIVES).open(rig.srq, RECEIVES).expect("all of it");
        // SAFETY: the words are never freed, and messages are only posted on the null device, which
        // does not follow addresses. The two ends share the words instead of a device that copies
        // entries.
        let (near, far) =
            unsafe { (Region::new(rig.near_words, [KEYS]), Region::new(rig.far_words, [KEYS])) };
        let config = SenderConfig { rails, ..SenderConfig::default() };
        let near = near.expect("one device");
        let mut sender = Box::new(Sender::new(config, rig.near, near).expect("a sound rig"));
        let config = ReceiverConfig { rails, ..ReceiverConfig::default() };
        let far = far.expect("one device");
        let receiver = Receiver::new(config, rig.far, [], [account], far);
        let mut receiver = Box::new(receiver.expect("a sound rig"));
        sender.connect(&receiver.card()).expect("the ends fit");
        receiver.connect(&sender.card()).expect("the ends fit");
        near_cq.attach(0, &*sender).expect("a deep completion queue");
        far_cq.attach(0, &*receiver).expect("a deep completion queue");
        let messages = messages(length);
        let targets = messages.iter().map(Message::target).collect();
        let (recvs, sends) = (Vec::with_capacity(OUTSTANDING), Vec::with_capacity(OUTSTANDING));
        let keys = keys();
        Self { receiver, far_cq, sender, near_cq, messages, targets, keys, recvs, sends }
    }

    /// Polls until the receives of the burst before are done, and offers the buffers again.
    ///
    /// # Panics
    ///
    /// If anything fails.
    #[inline(never)]
    pub fn receive(&mut self) -> Reported {
        let mut reported = Reported::default();
        while reported.count() < self.recvs.len() {
            let polled = self.far_cq.poll(&mut *self.receiver, POLL, |_| panic!("all are ours"));
            debug_assert!(polled.error.is_none());
            while let Some(recv) = self.recvs.get(reported.count())
                && let Some(received) = self.receiver.test(*recv).expect("nothing fails")
            {
                let bytes = u64::from(received.sizes()[0]);
                reported.note(received.number() + bytes, WcStatus::SUCCESS);
            }
        }
        self.recvs.clear();
        for target in &self.targets {
            let buffer = RecvBuffer { local: *target, tag: 0, keys: &self.keys };
            self.recvs.push(self.receiver.irecv(&[buffer]).expect("there is room for a burst"));
        }
        // Sends the offers but the first one.
        let polled = self.far_cq.poll(&mut *self.receiver, POLL, |_| panic!("all are ours"));
        debug_assert!(polled.error.is_none());
        reported
    }

    /// Polls until the sends of the burst before are done, and sends to the buffers that are
    /// offered.
    ///
    /// # Panics
    ///
    /// If anything fails.
    #[inline(never)]
    pub fn send(&mut self) -> Reported {
        let mut reported = Reported::default();
        while reported.count() < self.sends.len() {
            let polled = self.near_cq.poll(&mut *self.sender, POLL, |_| panic!("all are ours"));
            debug_assert!(polled.error.is_none());
            while let Some(send) = self.sends.get(reported.count())
                && self.sender.test(*send).expect("nothing fails")
            {
                reported.note(send.number(), WcStatus::SUCCESS);
            }
        }
        self.sends.clear();
        for message in &self.messages {
            let send = self.sender.isend(message.local, 0, &self.keys);
            self.sends.push(send.expect("there is room for a burst"));
        }
        reported
    }
}
