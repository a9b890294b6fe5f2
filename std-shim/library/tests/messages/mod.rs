//! Two endpoints for messages, and what carries their repair messages.

#![allow(dead_code, reason = "every test program uses its own part")]
#![allow(unreachable_pub, reason = "a module of several test programs")]

use crate::fixture::{Host, LONG};
use polyrail::backend::Domain;
use polyrail::heal::MAX_HEALING_BYTES;
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{Device, Fabric, ProtectionDomain};
use polyrail::p2p::{
    CallError, End, FlushHandle, HealingLink, HealingMessage, NotNow, P2pBuilder, P2pEndpoint,
    Received, RecvBuffer, RecvHandle, SendHandle,
};
use polyrail::verbs::DeviceKeys;
use polyrail::virtual_qp::RailState;
use std::time::Instant;

/// One end: its devices, of the software NIC unless others are named, and a buffer for what it
/// sends and receives.
pub struct Side<D: Domain = ProtectionDomain, V = Device> {
    pub devices: Vec<V>,
    pub domains: Vec<D>,
    pub buffer: RegisteredBuffer<D::Region>,
    pub keys: Vec<DeviceKeys>,
    pub endpoint: P2pEndpoint<D>,
}

impl Side {
    pub fn new(
        fabric: &Fabric,
        name: &str,
        devices: usize,
        bytes: usize,
        builder: &P2pBuilder,
    ) -> Self {
        let Host { devices, domains, buffer } = Host::new(fabric, name, devices, bytes);
        Self::with((devices, domains, buffer), builder)
    }
}

impl<D: Domain, V> Side<D, V> {
    pub fn with(
        (devices, domains, buffer): (Vec<V>, Vec<D>, RegisteredBuffer<D::Region>),
        builder: &P2pBuilder,
    ) -> Self {
        let endpoint = builder.build(&domains.iter().collect::<Vec<_>>()).unwrap();
        let keys = buffer.own_keys();
        Self { devices, domains, buffer, keys, endpoint }
    }

    pub fn offer(&mut self, buffers: &[(usize, u32, u32)]) -> Result<RecvHandle, CallError> {
        let offered: Vec<_> = buffers
            .iter()
            .map(|(at, length, tag)| RecvBuffer {
                local: self.buffer.local(*at, *length).unwrap(),
                tag: *tag,
                keys: &self.keys,
            })
            .collect();
        self.endpoint.irecv(&offered)
    }

    pub fn send(&mut self, at: usize, length: u32, tag: u32) -> Result<SendHandle, CallError> {
        let local = self.buffer.local(at, length).unwrap();
        self.endpoint.isend(local, tag, &self.keys)
    }

    pub fn bytes(&self, at: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.buffer.read_at(at, &mut bytes).unwrap();
        bytes
    }
}

pub struct Pair<D: Domain = ProtectionDomain, V = Device> {
    pub near: Side<D, V>,
    pub far: Side<D, V>,
}

impl Pair {
    pub fn new(devices: [usize; 2], bytes: usize, builder: &P2pBuilder) -> Self {
        Self::of(devices, bytes, [builder; 2])
    }

    /// Of one endpoint each.
    pub fn of(devices: [usize; 2], bytes: usize, builders: [&P2pBuilder; 2]) -> Self {
        let fabric = Fabric::threaded();
        let near = Side::new(&fabric, "near", devices[0], bytes, builders[0]);
        let far = Side::new(&fabric, "far", devices[1], bytes, builders[1]);
        Self::connected(near, far)
    }
}

impl<D: Domain, V> Pair<D, V> {
    pub fn connected(mut near: Side<D, V>, mut far: Side<D, V>) -> Self {
        // As if they were in two processes: their repair messages are carried.
        let [address_near, address_far] = [&near, &far].map(|side| side.endpoint.address());
        near.endpoint.connect(&address_far).unwrap();
        far.endpoint.connect(&address_near).unwrap();
        Self { near, far }
    }

    pub fn turned(self) -> Self {
        Self { near: self.far, far: self.near }
    }

    /// Tries again, polling, until it is not "not now".
    pub fn until<T>(
        &mut self,
        mut call: impl FnMut(&mut Self) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let begin = Instant::now();
        loop {
            match call(self) {
                Err(CallError::NotNow(reason)) => assert!(begin.elapsed() < LONG, "{reason}"),
                done => return done,
            }
            self.poll();
        }
    }

    pub fn poll(&mut self) {
        self.near.endpoint.poll(16).check().unwrap();
        self.far.endpoint.poll(16).check().unwrap();
        self.carry();
        self.near.endpoint.sender().unwrap().invariants();
        self.far.endpoint.receiver().unwrap().invariants();
    }

    pub fn sent(&mut self, handle: SendHandle) -> Result<(), CallError> {
        self.until(|pair| match pair.near.endpoint.test_send(handle)? {
            true => Ok(()),
            false => Err(NotNow::NoCredits.into()),
        })
    }

    pub fn received(&mut self, handle: RecvHandle) -> Result<Received, CallError> {
        self.until(|pair| {
            pair.far.endpoint.test_recv(handle)?.ok_or(CallError::NotNow(NotNow::NoCredits))
        })
    }

    pub fn flushed(&mut self, handle: &FlushHandle) -> Result<(), CallError> {
        self.until(|pair| match pair.far.endpoint.test_flush(handle)? {
            true => Ok(()),
            false => Err(NotNow::NoCredits.into()),
        })
    }

    /// Offers a mebibyte and sends this much of it.
    pub fn start(&mut self, length: u32) -> (SendHandle, RecvHandle) {
        let receive = self.until(|pair| pair.far.offer(&[(0, 1 << 20, 1)])).unwrap();
        (self.until(|pair| pair.near.send(0, length, 1)).unwrap(), receive)
    }

    /// Requires that a message of this length arrives, and that its send is done.
    pub fn finish(&mut self, send: SendHandle, receive: RecvHandle, length: u32) {
        assert_eq!(self.received(receive).unwrap().sizes(), [length]);
        self.sent(send).unwrap();
    }

    /// Returns the links of both ends, whose rails are re-routed.
    pub fn links(&self) -> [HealingLink; 2] {
        [&self.near, &self.far].map(|side| side.endpoint.healing_link().unwrap())
    }

    /// Carries the repair messages between the ends, as text.
    pub fn carry(&self) {
        if self.near.endpoint.healing_link().is_none() {
            return;
        }
        let through = |message: HealingMessage| {
            let text = message.to_json();
            assert!(text.len() < MAX_HEALING_BYTES / 2, "{text}");
            HealingMessage::from_json(text.as_bytes()).unwrap()
        };
        let [near, far] = self.links();
        for (from, to) in [(&near, &far), (&far, &near)] {
            while let Some(message) = from.next_message() {
                to.handle(through(message)).unwrap();
            }
        }
    }

    /// Polls until all queue pairs of the directions that there are, are in service at both ends.
    pub fn wait_until_whole(&mut self) {
        let begin = Instant::now();
        let is_whole = |side: &Side<D, V>| {
            let in_service = |state: Option<(RailState, u16)>| {
                state.is_some_and(|(state, _)| state == RailState::InService)
            };
            [End::Sender, End::Receiver].into_iter().all(|end| {
                let places = 0..side.endpoint.queue_pairs(end).count();
                places.into_iter().all(|at| in_service(side.endpoint.queue_pair_state(end, at)))
            })
        };
        while !(is_whole(&self.near) && is_whole(&self.far)) {
            self.poll();
            assert!(begin.elapsed() < LONG);
        }
    }

    /// Sends a pattern of `length` bytes into a buffer of `capacity`, and checks what arrives.
    pub fn exchange(&mut self, length: u32, capacity: u32) {
        let pattern: Vec<u8> =
            (0..length).map(|at| (at.wrapping_mul(length | 1) >> 5) as u8).collect();
        self.near.buffer.write_at(0, &pattern).unwrap();
        self.far.buffer.fill(0, capacity as usize, 0xee).unwrap();
        let receive = self.until(|pair| pair.far.offer(&[(0, capacity, 5)])).unwrap();
        let send = self.until(|pair| pair.near.send(0, length, 5)).unwrap();
        assert_eq!(self.received(receive).unwrap().sizes(), [length]);
        self.sent(send).unwrap();
        assert!(self.far.bytes(0, length as usize) == pattern, "{length} of {capacity}");
        let rest = self.far.bytes(length as usize, (capacity - length) as usize);
        assert!(rest.iter().all(|byte| *byte == 0xee), "{length} of {capacity}");
    }
}
