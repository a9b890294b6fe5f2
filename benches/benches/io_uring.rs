//! What io_uring would bring the TCP NIC: a connection over loopback, by the system calls that the NIC
//! uses, and by io_uring with its zero-copy sends and multishot receives. The figures are in
//! `benches/docs/figures.md`.
//!
//! ```text
//! cargo bench -p polyrail-benches --bench io_uring
//! ```
//!
//! The ways take turns, and each figure is the median of all turns. Where the kernel or a container
//! forbids io_uring, or the kernel has no zero-copy sends, the bench says so.

use io_uring::{IoUring, Probe, cqueue, opcode, squeue, types};
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::thread;
use std::time::{Duration, Instant};

/// Requests of one submission, which a device sends as one batch.
const BATCH: usize = 16;

/// Where received bytes go: registered memory of this size.
const PLACE: usize = 1 << 20;

/// Buffers that multishot receives fill in turn.
const PROVIDED: usize = 64;
const PROVIDED_LEN: usize = 64 << 10;
const GROUP: u16 = 0;

/// The length of a message that goes to and fro.
const SHORT: usize = 8;

/// What an entry does: gives a buffer back to the kernel, receives, or sends.
const GIVEN: u64 = 0;
const RECEIVED: u64 = 1;
const SENT: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    Calls,
    Ring,
    RingZeroCopy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receiver {
    /// Straight into the place.
    Calls,
    Ring,
    /// Into a provided buffer, then into the place.
    RingMultishot,
}

const WAYS: [(&str, Sender, Receiver); 5] = [
    ("send, recv", Sender::Calls, Receiver::Calls),
    ("io_uring send, recv", Sender::Ring, Receiver::Calls),
    ("io_uring zero-copy send, recv", Sender::RingZeroCopy, Receiver::Calls),
    ("send, io_uring recv", Sender::Calls, Receiver::Ring),
    ("send, io_uring multishot recv", Sender::Calls, Receiver::RingMultishot),
];

fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let one = TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    one.set_nodelay(true)?;
    other.set_nodelay(true)?;
    Ok((one, other))
}

fn ended() -> io::Error {
    ErrorKind::UnexpectedEof.into()
}

fn failed(result: i32) -> io::Error {
    io::Error::from_raw_os_error(-result)
}

/// Adds an entry; the ring has room for a whole batch.
fn push(ring: &mut IoUring, entry: &squeue::Entry) -> io::Result<()> {
    // SAFETY: the callers keep what the entry names until its completion.
    unsafe { ring.submission().push(entry) }.map_err(|_| io::Error::other("the ring is full"))
}

/// Sends each batch by one call, as the NIC does.
fn send_by_calls(mut stream: &TcpStream, batch: &[u8], total: usize) -> io::Result<()> {
    let mut left = total;
    while left > 0 {
        let part = left.min(batch.len());
        stream.write_all(&batch[..part])?;
        left -= part;
    }
    Ok(())
}

fn send_by_ring(fd: RawFd, request: &[u8], count: usize, zero_copy: bool) -> io::Result<()> {
    let mut ring = IoUring::new(2 * BATCH as u32)?;
    let (start, length) = (request.as_ptr(), request.len() as u32);
    let mut left = count;
    while left > 0 {
        let batch = left.min(BATCH);
        for at in 0..batch {
            let wait = 0x100; // MSG_WAITALL: all bytes, or an error
            let entry = match zero_copy {
                true => opcode::SendZc::new(types::Fd(fd), start, length).flags(wait).build(),
                false => opcode::Send::new(types::Fd(fd), start, length).flags(wait).build(),
            };
            // Requests of one stream must not overtake each other.
            let link = if at + 1 < batch { squeue::Flags::IO_LINK } else { squeue::Flags::empty() };
            push(&mut ring, &entry.user_data(SENT).flags(link))?;
        }
        let mut open = batch;
        while open > 0 {
            ring.submit_and_wait(1)?;
            for done in ring.completion() {
                if !cqueue::notif(done.flags()) && done.result() != length as i32 {
                    return Err(failed(done.result().min(-1)));
                }
                // The second completion of a zero-copy send returns its memory.
                open -= usize::from(!cqueue::more(done.flags()));
            }
        }
        left -= batch;
    }
    Ok(())
}

fn receive_by_ring(fd: RawFd, place: &mut [u8], total: usize) -> io::Result<()> {
    let mut ring = IoUring::new(2)?;
    let mut left = total;
    while left > 0 {
        let at = (total - left) % place.len();
        let part = &mut place[at..];
        let length = part.len().min(left) as u32;
        let entry = opcode::Recv::new(types::Fd(fd), part.as_mut_ptr(), length).build();
        push(&mut ring, &entry.user_data(RECEIVED))?;
        ring.submit_and_wait(1)?;
        let done = ring.completion().next().ok_or_else(ended)?;
        match done.result() {
            0 => return Err(ended()),
            received @ 1.. => left -= received as usize,
            error => return Err(failed(error)),
        }
    }
    Ok(())
}

fn receive_by_multishot(fd: RawFd, place: &mut [u8], total: usize) -> io::Result<()> {
    let mut ring = IoUring::new(2 * PROVIDED as u32)?;
    let mut buffers = vec![0; PROVIDED * PROVIDED_LEN];
    let start = buffers.as_mut_ptr();
    let give = |ring: &mut IoUring, first: usize, count: usize| {
        let from = start.wrapping_add(first * PROVIDED_LEN);
        let (length, count) = (PROVIDED_LEN as i32, count as u16);
        let entry = opcode::ProvideBuffers::new(from, length, count, GROUP, first as u16).build();
        push(ring, &entry.user_data(GIVEN))
    };
    give(&mut ring, 0, PROVIDED)?;
    let (mut left, mut is_armed) = (total, false);
    while left > 0 {
        if !is_armed {
            let entry = opcode::RecvMulti::new(types::Fd(fd), GROUP).build();
            push(&mut ring, &entry.user_data(RECEIVED))?;
            is_armed = true;
        }
        ring.submit_and_wait(1)?;
        let done: Vec<_> = ring.completion().collect();
        for done in done {
            let result = done.result();
            if done.user_data() == GIVEN {
                if result < 0 {
                    return Err(failed(result));
                }
                continue;
            }
            is_armed = cqueue::more(done.flags());
            match (result, cqueue::buffer_select(done.flags())) {
                (received @ 1.., Some(buffer)) => {
                    let (mut received, buffer) = (received as usize, usize::from(buffer));
                    let mut from = buffer * PROVIDED_LEN;
                    while received > 0 {
                        let at = (total - left) % place.len();
                        let part = received.min(place.len() - at);
                        // SAFETY: the kernel has filled this part of the buffer, and writes no more
                        // there until the buffer is given back.
                        let bytes = unsafe { std::slice::from_raw_parts(start.add(from), part) };
                        place[at..at + part].copy_from_slice(bytes);
                        (from, received, left) = (from + part, received - part, left - part);
                    }
                    give(&mut ring, buffer, 1)?;
                }
                // No buffer was left (ENOBUFS): the receive has ended, and is armed again.
                (-105, _) => {}
                // The end of the stream, behind all bytes.
                (0, _) if left == 0 => {}
                (0, _) => return Err(ended()),
                (error, _) => return Err(failed(error)),
            }
        }
    }
    Ok(())
}

fn receive_by_calls(mut stream: &TcpStream, place: &mut [u8], total: usize) -> io::Result<()> {
    let mut left = total;
    while left > 0 {
        let at = (total - left) % place.len();
        let end = place.len().min(at + left);
        match stream.read(&mut place[at..end])? {
            0 => return Err(ended()),
            received => left -= received,
        }
    }
    Ok(())
}

/// The rate in GB/s, and the processor time of the process per GB, in seconds.
fn goodput(sender: Sender, receiver: Receiver, size: usize, total: usize) -> io::Result<[f64; 2]> {
    let (near, far) = pair()?;
    let count = total.div_ceil(size);
    let total = count * size;
    let processor = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let (begun, used) = (Instant::now(), processor());
    thread::scope(|scope| {
        let sending = scope.spawn(move || -> io::Result<()> {
            let batch = vec![1; size * BATCH];
            let request = &batch[..size];
            match sender {
                Sender::Calls => send_by_calls(&near, &batch, total),
                Sender::Ring => send_by_ring(near.as_raw_fd(), request, count, false),
                Sender::RingZeroCopy => send_by_ring(near.as_raw_fd(), request, count, true),
            }
        });
        let mut place = vec![0; PLACE];
        let received = match receiver {
            Receiver::Calls => receive_by_calls(&far, &mut place, total),
            Receiver::Ring => receive_by_ring(far.as_raw_fd(), &mut place, total),
            Receiver::RingMultishot => receive_by_multishot(far.as_raw_fd(), &mut place, total),
        };
        // A sender that waits for room ends when this end is closed.
        drop(far);
        // If it failed, the receiver found the end of the stream.
        sending.join().map_err(|_| io::Error::other("the sender panicked"))??;
        received
    })?;
    let gigabytes = total as f64 / 1e9;
    let used = (processor() - used).as_secs_f64();
    Ok([gigabytes / begun.elapsed().as_secs_f64(), used / gigabytes])
}

/// An end of a connection that sends and spins until the answer is there.
trait Spin {
    fn send(&mut self) -> io::Result<()>;

    fn receive(&mut self) -> io::Result<()>;
}

struct ByCalls(TcpStream);

impl Spin for ByCalls {
    fn send(&mut self) -> io::Result<()> {
        self.0.write_all(&[1; SHORT])
    }

    fn receive(&mut self) -> io::Result<()> {
        let mut bytes = [0; SHORT];
        loop {
            match self.0.read(&mut bytes) {
                Ok(SHORT) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Ok(_) => return Err(ended()),
                Err(error) => return Err(error),
            }
        }
    }
}

struct ByRing {
    stream: TcpStream,
    ring: IoUring,
    out: Box<[u8; SHORT]>,
    into: Box<[u8; SHORT]>,
}

impl ByRing {
    fn new(stream: TcpStream) -> io::Result<Self> {
        let mut end = Self {
            stream,
            ring: IoUring::new(8)?,
            out: Box::new([1; SHORT]),
            into: Box::new([0; SHORT]),
        };
        end.expect()?;
        end.ring.submit()?;
        Ok(end)
    }

    /// Receives the next message.
    fn expect(&mut self) -> io::Result<()> {
        let fd = types::Fd(self.stream.as_raw_fd());
        let entry = opcode::Recv::new(fd, self.into.as_mut_ptr(), SHORT as u32).build();
        push(&mut self.ring, &entry.user_data(RECEIVED))
    }
}

impl Spin for ByRing {
    /// One system call sends, and receives the next message.
    fn send(&mut self) -> io::Result<()> {
        let fd = types::Fd(self.stream.as_raw_fd());
        let entry = opcode::Send::new(fd, self.out.as_ptr(), SHORT as u32).build();
        push(&mut self.ring, &entry.user_data(SENT))?;
        self.ring.submit().map(drop)
    }

    fn receive(&mut self) -> io::Result<()> {
        loop {
            let Some(done) = self.ring.completion().next() else { continue };
            match done.result() {
                0 => return Err(ended()),
                ..0 => return Err(failed(done.result())),
                _ if done.user_data() == SENT => {}
                _ => return self.expect(),
            }
        }
    }
}

/// Half a round trip in microseconds, with both ends spinning.
fn latency<S: Spin + Send>(mut near: S, mut far: S, rounds: u32) -> io::Result<f64> {
    thread::scope(|scope| {
        let answers = scope.spawn(move || -> io::Result<S> {
            for _ in 0..rounds {
                far.receive()?;
                far.send()?;
            }
            // Its connection stays open until the last answer has arrived.
            Ok(far)
        });
        let begun = Instant::now();
        for _ in 0..rounds {
            near.send()?;
            near.receive()?;
        }
        let elapsed = begun.elapsed();
        answers.join().map_err(|_| io::Error::other("the other end panicked"))??;
        Ok(elapsed.as_secs_f64() * 1e6 / f64::from(2 * rounds))
    })
}

fn latency_by_calls(rounds: u32) -> io::Result<f64> {
    let (near, far) = pair()?;
    near.set_nonblocking(true)?;
    far.set_nonblocking(true)?;
    latency(ByCalls(near), ByCalls(far), rounds)
}

fn latency_by_ring(rounds: u32) -> io::Result<f64> {
    let (near, far) = pair()?;
    latency(ByRing::new(near)?, ByRing::new(far)?, rounds)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let ring = match IoUring::new(2) {
        Ok(ring) => ring,
        Err(error) => {
            println!("skipped: this system forbids io_uring: {error}");
            return Ok(());
        }
    };
    let mut probe = Probe::new();
    // Multishot receives are as old as zero-copy sends.
    if ring.submitter().register_probe(&mut probe).is_err()
        || !probe.is_supported(opcode::SendZc::CODE)
    {
        println!("skipped: this kernel's io_uring has no zero-copy sends (Linux 6.0)");
        return Ok(());
    }
    // `cargo test` only wants to know whether it runs.
    let is_smoke = !std::env::args().any(|argument| argument == "--bench");
    let (turns, total, rounds) = if is_smoke { (1, 4 << 20, 50) } else { (9, 1 << 30, 20_000) };

    println!("half a round trip of {SHORT} bytes, both ends spin");
    let mut by_calls = Vec::new();
    let mut by_ring = Vec::new();
    for _ in 0..turns {
        by_calls.push(latency_by_calls(rounds)?);
        by_ring.push(latency_by_ring(rounds)?);
    }
    let (calls, ring) = (median(by_calls), median(by_ring));
    println!("  send, recv {calls:.2} us; io_uring {ring:.2} us, ratio {:.2}", ring / calls);

    for size in [4 << 10, 64 << 10, 1 << 20] {
        println!(
            "requests of {} KiB: GB/s, processor s/GB, and their ratios to send, recv",
            size >> 10
        );
        let mut figures = vec![Vec::new(); WAYS.len()];
        for _ in 0..turns {
            for ((_, sender, receiver), figures) in WAYS.iter().zip(&mut figures) {
                figures.push(goodput(*sender, *receiver, size, total)?);
            }
        }
        let medians = |figures: &Vec<[f64; 2]>| {
            [0, 1].map(|column| median(figures.iter().map(|figure| figure[column]).collect()))
        };
        let [base_rate, base_cost] = medians(&figures[0]);
        for ((name, ..), figures) in WAYS.iter().zip(&figures) {
            let [rate, cost] = medians(figures);
            let (rates, costs) = (rate / base_rate, cost / base_cost);
            println!("  {name:32} {rate:6.2} {cost:6.3} {rates:6.2} {costs:6.2}");
        }
    }
    Ok(())
}
