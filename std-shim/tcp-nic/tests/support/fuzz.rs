//! Peers that are made of any bytes. The random test (`rt_any_bytes.rs`) and the fuzz targets
//! (`fuzz/targets/frames.rs`, `first_frames.rs`) share these functions, which panic where a queue
//! pair breaks a promise.

use super::raw::{self, Frame, Raw};
use super::{Buffer, Side, request, wait};
use polyrail_core::verbs::{
    AccessFlags, Completion, Imm, Opcode, SendFlags, SendRequest, WcStatus,
};
use polyrail_nic_parts::options::ConnectOptions;
use polyrail_nic_parts::state::QpState;
use polyrail_tcp_nic::{Device, DeviceOptions, connect_pair};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::OnceLock;

/// Bytes of a script, read as numbers. After the end they are 0.
struct Script<'b>(&'b [u8]);

impl<'b> Script<'b> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// A number that is mostly small.
    fn number(&mut self) -> u32 {
        match self.byte() {
            small @ 0..200 => small.into(),
            200..220 => u32::MAX - u32::from(self.byte()),
            220..240 => u32::from(self.byte()) << 8 | u32::from(self.byte()),
            _ => u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()]),
        }
    }

    fn bytes(&mut self) -> &'b [u8] {
        let count = usize::from(self.byte()).min(self.0.len());
        let (bytes, rest) = self.0.split_at(count);
        self.0 = rest;
        bytes
    }

    const fn is_over(&self) -> bool {
        self.0.is_empty()
    }
}

fn device() -> &'static Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    DEVICE.get_or_init(|| Device::open("127.7.0.1", &DeviceOptions::default()).unwrap())
}

/// Checks that two other queue pairs of the device move data.
fn check_bystanders() {
    let [mut near, mut far] = [Side::on(device()), Side::on(device())];
    connect_pair(&near.qp, &far.qp, &ConnectOptions::default()).unwrap();
    near.buffer.write(0, b"others go on");
    near.post(near.write_to(&far.buffer, 0, 12)).unwrap();
    assert_eq!(near.completion().status, WcStatus::SUCCESS);
    assert_eq!(far.buffer.read(0, 12), b"others go on");
    drop(far.poll());
}

/// Memory that the peer must not write, for three reasons.
struct Private {
    unknown: Buffer,
    elsewhere: Buffer,
    readable: Buffer,
}

impl Private {
    const BYTES: usize = 4096;

    fn new(side: &Side) -> Self {
        let unknown = Buffer::new(Self::BYTES, &side.pd);
        let elsewhere = Buffer::new(Self::BYTES, &side.device.alloc_pd().unwrap());
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
        let readable = Buffer::with_access(Self::BYTES, access, &side.pd);
        for buffer in [&unknown, &elsewhere, &readable] {
            buffer.fill(0xee);
        }
        Self { unknown, elsewhere, readable }
    }

    fn check(&self) {
        for buffer in [&self.unknown, &self.elsewhere, &self.readable] {
            assert!(buffer.is_all(0xee), "memory was written that the peer may not write");
        }
    }
}

/// Runs a peer that has proved its key and sends any frames.
pub fn frames(bytes: &[u8]) {
    let mut script = Script(bytes);
    let mut side = Side::on(device());
    let private = Private::new(&side);
    let raw = Raw::of(&side, &ConnectOptions { max_rd_atomic: 3, ..ConnectOptions::default() });
    let mut world = World { raw, sent: Vec::new(), received: 0, completions: Vec::new() };
    while !script.is_over() {
        world.step(&mut script, &mut side, &private);
    }
    // What came is taken before the end of the connection is.
    _ = world.raw.stream.shutdown(Shutdown::Write);
    wait("the end of the connection", || {
        world.completions.extend(side.poll());
        !side.qp.is_connected() || side.qp.state() == QpState::Err
    });
    side.qp.to_error().unwrap();
    world.check(&mut side);
    private.check();
    check_bystanders();
}

struct World {
    raw: Raw,
    /// Whether each request that was posted is signaled.
    sent: Vec<bool>,
    received: u64,
    completions: Vec<Completion>,
}

/// `wr_id`s of receives begin here.
const RECEIVES: u64 = 1 << 32;

impl World {
    fn step(&mut self, script: &mut Script<'_>, side: &mut Side, private: &Private) {
        match script.byte() % 8 {
            0 => drop(self.raw.try_send(script.bytes())),
            1..4 => {
                let frame = frame(script, side, private);
                drop(self.raw.try_send(&frame.bytes()));
            }
            4 => self.post(script, side),
            5 => {
                let length = usize::from(script.byte());
                let at = 1 << 20;
                let sge = side.buffer.sge(at, length);
                if side.recv(RECEIVES + self.received, sge).is_ok() {
                    self.received += 1;
                }
            }
            6 => self.completions.extend(side.poll()),
            _ => self.take_frames(),
        }
    }

    fn post(&mut self, script: &mut Script<'_>, side: &mut Side) {
        const OPCODES: [Opcode; 5] = [
            Opcode::RdmaWrite,
            Opcode::Send,
            Opcode::RdmaRead,
            Opcode::FetchAdd,
            Opcode::SendWithImm,
        ];
        let opcode = OPCODES[usize::from(script.byte()) % OPCODES.len()];
        let is_atomic = opcode == Opcode::FetchAdd;
        let length = if is_atomic { 8 } else { script.number() as usize % 100_000 };
        let is_signaled = script.byte() & 1 == 0;
        let flags = if is_signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let request = SendRequest {
            flags,
            imm: Imm::from_number(7),
            sge: side.buffer.sge(0, length),
            remote_addr: 64,
            ..request(opcode, self.sent.len() as u64)
        };
        if side.post(request).is_ok() {
            self.sent.push(is_signaled);
        }
    }

    /// Takes what has come, so that the other end can send more.
    fn take_frames(&mut self) {
        self.raw.stream.set_nonblocking(true).unwrap();
        let mut bytes = [0; 65_536];
        while self.raw.stream.read(&mut bytes).is_ok_and(|count| count > 0) {}
        self.raw.stream.set_nonblocking(false).unwrap();
    }

    /// Checks that everything completes once and in order: requests that succeed if they are
    /// signaled, and all from the first failure on.
    fn check(&mut self, side: &mut Side) {
        let mut sends = Vec::new();
        wait("flushed receives", || {
            self.completions.extend(side.poll());
            let receives = self.completions.iter().filter(|one| one.wr_id >= RECEIVES);
            receives.count() as u64 == self.received
        });
        self.completions.extend(side.poll());
        let mut next_receive = RECEIVES;
        for completion in &self.completions {
            if completion.wr_id >= RECEIVES {
                assert_eq!(completion.wr_id, next_receive, "receives complete in order");
                next_receive += 1;
            } else {
                sends.push((completion.wr_id, completion.status));
            }
        }
        let failed = sends.iter().find(|(_, status)| !status.is_success());
        let failed = failed.map_or(u64::MAX, |(wr_id, _)| *wr_id);
        let all = self.sent.iter().enumerate();
        let expected = all.map(|(wr_id, signaled)| (wr_id as u64, *signaled));
        let expected = expected.filter(|(wr_id, signaled)| *signaled || *wr_id >= failed);
        let expected: Vec<_> = expected.map(|(wr_id, _)| wr_id).collect();
        assert_eq!(sends.iter().map(|(wr_id, _)| *wr_id).collect::<Vec<_>>(), expected);
    }
}

/// A frame whose fields are mostly possible.
fn frame(script: &mut Script<'_>, side: &Side, private: &Private) -> Frame {
    let kind = script.byte();
    let kind = if kind < 240 { kind % 14 } else { kind };
    let flags = script.byte();
    let flags = if flags < 200 { raw::FIRST | raw::LAST } else { flags };
    let length = script.number();
    let other = |script: &mut Script<'_>, usual: u32| match script.byte() {
        0..200 => usual,
        _ => script.number(),
    };
    let payload = script.byte();
    let places = [
        (side.buffer.addr(0), side.buffer.rkey),
        (side.buffer.addr(super::BUFFER_BYTES - 100), side.buffer.rkey),
        (private.unknown.addr(0), 0),
        (private.unknown.addr(0), private.unknown.lkey),
        (private.elsewhere.addr(0), private.elsewhere.rkey),
        (private.readable.addr(0), private.readable.rkey),
        (private.readable.addr(0) - 16, side.buffer.rkey),
    ];
    let place = script.byte();
    let place = if place < 128 { 0 } else { usize::from(place) % places.len() };
    let (addr, rkey) = places[place];
    Frame {
        kind,
        flags,
        rnr_timer: script.byte(),
        zero: u8::from(script.byte() == 255),
        length,
        number: script.byte().into(),
        acked: other(script, 0),
        total: other(script, length),
        offset: other(script, 0),
        addr: addr.wrapping_add(u64::from(script.byte() & !7)),
        rkey,
        imm: [script.byte(), 0, 0, 0],
        // What a long frame lacks comes from the frames behind it.
        payload: vec![payload; length.min(1 << 19) as usize],
    }
}

/// Runs a stranger that sends any first messages.
pub fn first_frames(bytes: &[u8]) {
    let mut script = Script(bytes);
    let side = Side::on(device());
    side.qp.to_rtr(&raw::address(), &ConnectOptions::default()).unwrap();
    let number = side.qp.as_remote(0).qp_num;
    let key = side.qp.meeting().key.0;
    let mut stream = raw::connect(side.device.address());
    let nonce = [script.byte(); 16];
    let mut challenge = None;
    while !script.is_over() {
        let message: Vec<u8> = match script.byte() % 5 {
            0 => script.bytes().to_vec(),
            1 => {
                let version = if script.byte() < 200 { 1 } else { script.byte().into() };
                let to = if script.byte() < 200 { number } else { script.number() };
                raw::hello(version, to, raw::NUMBER, nonce)
            }
            2 => {
                challenge = receive_challenge(&mut stream);
                continue;
            }
            3 => {
                // Everything but the key may be right.
                let mut wrong = key;
                wrong[usize::from(script.byte()) % 16] ^= script.byte() | 1;
                let nonces = [nonce, challenge.unwrap_or_default()];
                let side = if script.byte() < 200 { "connects" } else { "accepts " };
                raw::proof(side, &wrong, [raw::NUMBER, number], nonces).to_vec()
            }
            _ => {
                _ = stream.shutdown(Shutdown::Write);
                continue;
            }
        };
        if stream.write_all(&message).is_err() {
            break;
        }
    }
    assert!(!side.qp.is_connected(), "without the key");
    drop(stream);
    let Ok(mut raw) = Raw::to(side.device.address(), number, &key) else { panic!("with the key") };
    raw.send(&Frame::new(raw::WRITE, 0).at(side.buffer.addr(0), side.buffer.rkey).with(b"mine"));
    assert_eq!(raw.receive_kind(raw::ACK).acked, 1);
    assert_eq!(side.buffer.read(0, 4), b"mine");
}

/// The nonce of a challenge, if one comes soon.
fn receive_challenge(stream: &mut TcpStream) -> Option<[u8; 16]> {
    stream.set_read_timeout(Some(std::time::Duration::from_millis(2))).unwrap();
    let mut bytes = [0; 28];
    stream.read_exact(&mut bytes).ok()?;
    bytes[12..].try_into().ok()
}
