//! Requests that are taken back between two processes, over devices whose links may fail meanwhile.
//!
//! ```text
//! taken_back listen tcp:b0 tcp:b1
//! taken_back 10.77.100.2:7471 tcp:a0 tcp:a1 --cancels 10000
//! taken_back both software:0 software:1                        in one process
//! ```
//!
//! The side that connects writes to slots of the other side's memory, and takes some of its requests
//! back. Once one is reported as cancelled, a further WRITE fills its slot with poison. Some time
//! later, before the slot is used again, a READ fetches it, and another one does so at the end: what
//! of the cancelled request was written after its report stands in the poison. Prints how long
//! reports took, and how much was moved by requests that nobody took back.

use clap::Parser;
use polyrail::any::{
    AnyCompletionQueue, AnyDomain, AnyQueuePair, AnyRegion, OpenError, OpenOptions, open_devices,
};
use polyrail::chain::Chain;
use polyrail::endpoint::{Endpoint, EndpointBuilder};
use polyrail::heal::Detected;
use polyrail::link::{
    Arrivals, Hello, Link, LinkError, Listener, Message, NoOutcome, Timeouts, bring_up,
};
use polyrail::memory::RegisteredBuffer;
use polyrail::pairing::in_pairs;
use polyrail::verbs::{AccessFlags, DeviceKeys, SendWr, WcStatus};
use polyrail::virtual_qp::{CancelError, RailFailure, Scheme};
use std::error::Error;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

type AnyEndpoint = Endpoint<AnyQueuePair, AnyCompletionQueue>;

const POISON: u8 = 0xEE;

/// For what moves after a cancel.
const WINDOW: Duration = Duration::from_millis(20);
const WINDOWS: usize = 10;

/// Takes requests back between two processes.
#[derive(Parser)]
struct Arguments {
    /// `listen`, or the address of the side that listens; `both` has both sides in this process.
    peer: String,
    /// Devices, each of which has one rail.
    #[arg(required = true)]
    devices: Vec<String>,
    /// Where to listen.
    #[arg(long, default_value = "0.0.0.0:7471")]
    at: String,
    /// The GID of RDMA devices that peers reach.
    #[arg(long)]
    gid_index: Option<u8>,
    /// How notifications would be made; both sides need the same one.
    #[arg(long, default_value = "spray")]
    scheme: String,
    /// Ends after so many reports of cancelled requests.
    #[arg(long, default_value_t = 100)]
    cancels: u64,
    /// But not before so many rails have lost their links.
    #[arg(long, default_value_t = 0)]
    losses: u64,
    /// Milliseconds from one cancel to the next.
    #[arg(long, default_value_t = 0)]
    every: u64,
    /// Seconds for which requests are counted of which none is taken back, before any is.
    #[arg(long, default_value_t = 0)]
    alone: u64,
    /// Microseconds for which a cancel waits before it fences rails; as the library has it by
    /// default.
    #[arg(long)]
    grace_us: Option<u64>,
    /// Bytes of a slot.
    #[arg(long, default_value_t = 1 << 20)]
    length: u32,
    /// Slots.
    #[arg(long, default_value_t = 8)]
    slots: usize,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", Chain(&*error));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    match &*arguments.peer {
        "listen" => listen(arguments, &Listener::bind(&arguments.at)?),
        "both" => {
            let listener = Listener::bind("127.0.0.1:0")?;
            let address = listener.local_addr()?.to_string();
            thread::scope(|scope| {
                let far =
                    || listen(arguments, &listener).map_err(|error| Chain(&*error).to_string());
                let far = scope.spawn(far);
                connect(arguments, &address)?;
                Ok(far.join().expect("it does not panic")?)
            })
        }
        address => connect(arguments, address),
    }
}

fn timeouts() -> Timeouts {
    Timeouts { accept: None, ..Timeouts::default() }
}

/// The side that is written to.
fn listen(arguments: &Arguments, listener: &Listener) -> Result<(), Box<dyn Error>> {
    let opened = open(arguments)?;
    let arrival = Arrivals::default().accept(listener, &timeouts())?;
    let domains = in_pairs(&opened, &arrival.hello.reach)?;
    Run::new(arguments, arrival.link, &domains, Some(arrival.hello))?.serve()
}

/// The side that writes and takes back.
fn connect(arguments: &Arguments, address: &str) -> Result<(), Box<dyn Error>> {
    let opened = open(arguments)?;
    let control = Link::connect(address, &timeouts())?;
    let domains: Vec<&AnyDomain> = opened.iter().collect();
    Run::new(arguments, control, &domains, None)?.take_back()
}

fn open(arguments: &Arguments) -> Result<Vec<AnyDomain>, OpenError> {
    let mut options = OpenOptions::default();
    options.verbs.gid_index = arguments.gid_index;
    open_devices(&arguments.devices, &options)
}

/// What a slot is used for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Use {
    Nothing,
    /// A WRITE of the slot's byte, perhaps taken back at this time.
    Write {
        cancelled: Option<Instant>,
    },
    /// A WRITE of poison, over what was cancelled.
    Poison,
    /// Late writes have until then to come.
    Rest {
        until: Instant,
    },
    /// A READ, which has to find the slot's byte only.
    Check,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Of the request under way.
    number: u64,
    of: Use,
    /// What the peer's memory has to be after the request.
    byte: u8,
}

struct Run<'a> {
    arguments: &'a Arguments,
    control: Link,
    endpoint: AnyEndpoint,
    buffer: RegisteredBuffer<AnyRegion>,
    keys: Vec<DeviceKeys>,
    target: u64,
    slots: Vec<Slot>,
    posted: u64,
    is_peer_done: bool,
    /// From the cancel to the report, of requests that were cancelled.
    times: Vec<Duration>,
    delivered_late: u64,
    /// Rails that failed because a link was down.
    ports_down: u64,
    /// Bytes of WRITEs that nobody took back.
    bytes: u64,
    /// The same, by the time since the last cancel.
    after: [u64; WINDOWS],
    last_cancel: Option<Instant>,
}

impl<'a> Run<'a> {
    /// Connects, with the other side's hello if that has asked.
    fn new(
        arguments: &'a Arguments,
        mut control: Link,
        domains: &[&AnyDomain],
        asked: Option<Hello>,
    ) -> Result<Self, Box<dyn Error>> {
        // The second half is what READs fetch, and the last slot is poison.
        let bytes = (2 * arguments.slots + 1) * arguments.length as usize;
        let access =
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        let buffer = RegisteredBuffer::new(bytes, access, domains)?;
        buffer.fill(0, bytes, POISON)?;
        let scheme = match &*arguments.scheme {
            "spray" => Scheme::Spray,
            "dqplb" => Scheme::Dqplb,
            other => return Err(format!("there is no scheme {other}").into()),
        };
        let builder = EndpointBuilder::new()
            .rails(domains.len())
            .scheme(scheme)
            .min_rails(0)
            .rail_failure(RailFailure::Reroute);
        let builder = match arguments.grace_us {
            Some(micros) => builder.cancel_grace(Duration::from_micros(micros)),
            None => builder,
        };
        let mut endpoint = builder.build(domains)?;
        let reach = endpoint.address().into();
        let hello = Hello { reach, buffer: buffer.remote(), purpose: None, session: None };
        control.send(&Message::Hello(hello))?;
        let peer = match asked {
            Some(hello) => hello,
            None => control.expect_hello()?,
        };
        bring_up(&mut endpoint, &mut control, &peer, |_| Ok::<_, Box<dyn Error>>(()))?;
        Ok(Self {
            arguments,
            control,
            endpoint,
            keys: buffer.toward(&peer.buffer)?,
            target: peer.buffer.addr,
            buffer,
            slots: vec![Slot { number: 0, of: Use::Nothing, byte: POISON }; arguments.slots],
            posted: 0,
            is_peer_done: false,
            times: Vec::new(),
            delivered_late: 0,
            ports_down: 0,
            bytes: 0,
            after: [0; WINDOWS],
            last_cancel: None,
        })
    }

    /// Polls, and passes messages about rails on.
    fn progress(&mut self) -> Result<(), Box<dyn Error>> {
        let batch = self.endpoint.poll(64);
        if let Some(error) = batch.error {
            return Err(self.endpoint.queue_error(error).into());
        }
        let is_idle = batch.completions.is_empty();
        for done in batch.completions {
            self.finish(done.wr_id, done.status, done.byte_len)?;
        }
        if let Some(failure) = self.endpoint.failure() {
            return Err(failure.into());
        }
        while let Some(event) = self.endpoint.take_rail_event() {
            if std::env::var_os("TELL").is_some() {
                eprintln!("{event}");
            }
            if event.detected == Some(Detected::PortDown) {
                self.ports_down += 1;
            }
        }
        let link = self.endpoint.healing_link().ok_or("its rails are re-routed")?;
        while let Some(message) = link.next_message() {
            self.control.send(&Message::Heal(message))?;
        }
        match self.control.try_recv()? {
            Some(Message::Heal(message)) => link.handle(message)?,
            Some(Message::Done(_)) => self.is_peer_done = true,
            Some(Message::Failed { reason }) => return Err(LinkError::GaveUp { reason }.into()),
            _ if is_idle => thread::yield_now(),
            _ => {}
        }
        Ok(())
    }

    /// The side that is written to: it polls until the other one is done.
    fn serve(&mut self) -> Result<(), Box<dyn Error>> {
        while !self.is_peer_done {
            self.progress()?;
        }
        Ok(self.control.send(&Message::Done(NoOutcome {}))?)
    }

    fn place(&self, slot: usize) -> usize {
        slot * self.arguments.length as usize
    }

    /// Posts what this slot is used for next.
    fn post(&mut self, slot: usize, of: Use) -> Result<(), Box<dyn Error>> {
        let Arguments { length, slots, .. } = *self.arguments;
        let number = self.posted;
        let remote = self.target + self.place(slot) as u64;
        let local = |slot| self.buffer.local(self.place(slot), length);
        let wr = match of {
            Use::Write { .. } => {
                let byte = self.slots[slot].byte;
                self.buffer.fill(self.place(slot), length as usize, byte)?;
                SendWr::write(number, local(slot)?, remote, &self.keys)
            }
            Use::Poison => SendWr::write(number, local(2 * slots)?, remote, &self.keys),
            Use::Check => SendWr::read(number, local(slots + slot)?, remote, &self.keys),
            Use::Nothing | Use::Rest { .. } => unreachable!("it has no request"),
        };
        self.endpoint.post_send(&wr)?;
        self.posted += 1;
        self.slots[slot] = Slot { number, of, ..self.slots[slot] };
        Ok(())
    }

    fn finish(
        &mut self,
        number: u64,
        status: WcStatus,
        written: u32,
    ) -> Result<(), Box<dyn Error>> {
        let has_request = |of| matches!(of, Use::Write { .. } | Use::Poison | Use::Check);
        let is_it = |slot: &Slot| slot.number == number && has_request(slot.of);
        let Some(slot) = self.slots.iter().position(is_it) else {
            return Err(format!("request {number} was reported twice").into());
        };
        let length = self.arguments.length;
        match (self.slots[slot].of, status) {
            (Use::Write { cancelled }, WcStatus::SUCCESS) => {
                match cancelled {
                    Some(_) => self.delivered_late += 1,
                    None => self.moved(),
                }
                match fastrand::u8(..) {
                    0..16 => self.post(slot, Use::Check),
                    _ => self.write(slot),
                }
            }
            (Use::Write { cancelled: Some(at) }, WcStatus::CANCELLED) => {
                if written > length {
                    return Err(format!("{written} bytes of {length} were written").into());
                }
                self.times.push(at.elapsed());
                // From now on nothing of it may be written.
                self.slots[slot].byte = POISON;
                self.post(slot, Use::Poison)
            }
            (Use::Poison, WcStatus::SUCCESS) => {
                self.moved();
                let until = Instant::now() + Duration::from_millis(fastrand::u64(..50));
                self.slots[slot].of = Use::Rest { until };
                Ok(())
            }
            (Use::Check, WcStatus::SUCCESS) => {
                self.check(slot)?;
                self.write(slot)
            }
            (of, status) => {
                let explained = self.endpoint.explain(status);
                Err(format!("request {number}, {of:?}: {status}: {explained}").into())
            }
        }
    }

    /// Counts a WRITE that nobody took back.
    fn moved(&mut self) {
        let length = u64::from(self.arguments.length);
        self.bytes += length;
        let Some(at) = self.last_cancel else { return };
        let window = at.elapsed().as_micros() / WINDOW.as_micros();
        if let Some(bytes) = self.after.get_mut(window as usize) {
            *bytes += length;
        }
    }

    /// Begins the slot's next WRITE, or leaves the slot alone if the run is over.
    fn write(&mut self, slot: usize) -> Result<(), Box<dyn Error>> {
        if self.is_over() {
            self.slots[slot].of = Use::Nothing;
            return Ok(());
        }
        self.slots[slot].byte = fastrand::u8(1..POISON);
        self.post(slot, Use::Write { cancelled: None })
    }

    fn is_over(&self) -> bool {
        let Arguments { cancels, losses, .. } = *self.arguments;
        self.times.len() as u64 >= cancels && self.ports_down >= losses
    }

    fn check(&self, slot: usize) -> Result<(), Box<dyn Error>> {
        let mut bytes = vec![0; self.arguments.length as usize];
        self.buffer.read_at(self.place(self.arguments.slots + slot), &mut bytes)?;
        let byte = self.slots[slot].byte;
        match bytes.iter().position(|it| *it != byte) {
            None => Ok(()),
            Some(at) => {
                let other = bytes[at];
                Err(format!("slot {slot}: byte {at} is {other:#x}, not {byte:#x}").into())
            }
        }
    }

    /// Takes a WRITE back that is under way; returns false if the drawn slot has none.
    fn cancel(&mut self) -> Result<bool, Box<dyn Error>> {
        let slot = fastrand::usize(..self.slots.len());
        let Slot { number, of: Use::Write { cancelled: None }, .. } = self.slots[slot] else {
            return Ok(false);
        };
        match self.endpoint.cancel(number) {
            Ok(()) => {
                let now = Some(Instant::now());
                self.slots[slot].of = Use::Write { cancelled: now };
                self.last_cancel = now;
                Ok(true)
            }
            // It is done but for its report.
            Err(CancelError::TooLate | CancelError::Unknown { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The side that writes and takes back.
    fn take_back(&mut self) -> Result<(), Box<dyn Error>> {
        (0..self.slots.len()).try_for_each(|slot| self.write(slot))?;
        let alone = self.measure(Duration::from_secs(self.arguments.alone))?;
        let begin = Instant::now();
        let (before, mut next) = (self.bytes, begin);
        while !self.is_over() {
            self.step()?;
            if Instant::now() >= next && self.cancel()? {
                // Anywhere in the time of a request.
                let jitter = Duration::from_micros(fastrand::u64(..1000));
                next = Instant::now() + Duration::from_millis(self.arguments.every) + jitter;
            }
        }
        let others = (self.bytes - before) as f64 / begin.elapsed().as_secs_f64();
        self.finish_all()?;
        // What comes late has come by now.
        let end = Instant::now() + Duration::from_secs(1);
        while Instant::now() < end {
            self.progress()?;
        }
        (0..self.slots.len()).try_for_each(|slot| self.post(slot, Use::Check))?;
        self.finish_all()?;
        self.control.send(&Message::Done(NoOutcome {}))?;
        while !self.is_peer_done {
            self.progress()?;
        }
        self.print(alone, others);
        Ok(())
    }

    /// Polls, and checks slots that have rested.
    fn step(&mut self) -> Result<(), Box<dyn Error>> {
        self.progress()?;
        for slot in 0..self.slots.len() {
            if let Use::Rest { until } = self.slots[slot].of
                && Instant::now() >= until
            {
                self.post(slot, Use::Check)?;
            }
        }
        Ok(())
    }

    fn finish_all(&mut self) -> Result<(), Box<dyn Error>> {
        while self.slots.iter().any(|slot| slot.of != Use::Nothing) {
            self.step()?;
        }
        Ok(())
    }

    /// Returns bytes per second, while nothing is taken back.
    fn measure(&mut self, time: Duration) -> Result<f64, Box<dyn Error>> {
        let (begin, before) = (Instant::now(), self.bytes);
        while begin.elapsed() < time {
            self.step()?;
        }
        Ok((self.bytes - before) as f64 / begin.elapsed().as_secs_f64())
    }

    fn print(&mut self, alone: f64, others: f64) {
        self.times.sort_unstable();
        let at = |part: f64| {
            let last = self.times.len().saturating_sub(1);
            self.times.get((part * last as f64) as usize).copied().unwrap_or_default()
        };
        println!(
            "{} cancelled, {} delivered before that; reported after {:.2?} (median), {:.2?} (99%), {:.2?} (all); {} rails lost their links",
            self.times.len(),
            self.delivered_late,
            at(0.5),
            at(0.99),
            at(1.0),
            self.ports_down
        );
        if alone == 0.0 {
            return;
        }
        println!(
            "the others moved {:.1} MB/s, {:.3} of {:.1} without cancels",
            others / 1e6,
            others / alone,
            alone / 1e6
        );
        if Duration::from_millis(self.arguments.every) >= WINDOWS as u32 * WINDOW {
            let cancels = (self.times.len() as u64 + self.delivered_late) as f64;
            let all = alone * WINDOW.as_secs_f64() * cancels;
            let ratios = self.after.map(|bytes| format!("{:.2}", bytes as f64 / all));
            println!("in each {WINDOW:?} after a cancel: {}", ratios.join(" "));
        }
    }
}
