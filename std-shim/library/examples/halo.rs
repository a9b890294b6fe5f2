//! Two ranks that exchange the rims of their parts of a grid with each other, over two rails: a
//! heat equation on a bar that is cut in two. Each rank is a thread with its own endpoint, on the
//! embedded software NIC; between hosts, the ranks' addresses travel over any connection.
//!
//! ```sh
//! cargo run --release --example halo
//! ```

use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{DeviceConfig, Fabric, ProtectionDomain};
use polyrail::p2p::{P2pAddress, P2pBuilder, P2pEndpoint, RecvBuffer};
use polyrail::verbs::{AccessFlags, DeviceKeys};
use std::error::Error;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;

/// Cells of each half, steps, and bytes of a cell.
const CELLS: usize = 1000;
const STEPS: usize = 2000;
const CELL: usize = size_of::<f64>();

/// Which rim a message is.
const RIM: u32 = 1;

/// Where in the buffer the rim is that is sent, and where the other one lands.
const OWN: usize = 0;
const THEIRS: usize = CELL;

type Failed = Box<dyn Error + Send + Sync>;

/// How ranks reach each other before their endpoints do, and learn that the other one has ended.
struct Other {
    to: Sender<String>,
    from: Receiver<String>,
    is_done: bool,
}

impl Other {
    /// Fails if the other rank has: nobody else would say so once all that this one sent has
    /// arrived.
    fn check(&mut self) -> Result<(), Failed> {
        match self.from.try_recv() {
            Ok(_) => self.is_done = true,
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Err("the other rank has failed".into()),
        }
        Ok(())
    }

    /// Waits until the other rank needs nothing more of this one.
    fn part(&mut self) -> Result<(), Failed> {
        self.to.send(String::new())?;
        if !self.is_done {
            self.from.recv()?;
        }
        Ok(())
    }
}

/// One half of the bar, and how it hears of the other.
struct Rank {
    endpoint: P2pEndpoint,
    rims: RegisteredBuffer,
    keys: Vec<DeviceKeys>,
    other: Other,
}

impl Rank {
    fn new(domains: &[ProtectionDomain], other: Other) -> Result<Self, Failed> {
        let endpoint = P2pBuilder::new().rails(2).build(domains)?;
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let rims = RegisteredBuffer::new(2 * CELL, access, domains)?;
        let keys = rims.own_keys();
        Ok(Self { endpoint, rims, keys, other })
    }

    /// Tells the other rank where this one is, and connects.
    fn meet(&mut self) -> Result<(), Failed> {
        let Other { to, from, .. } = &self.other;
        to.send(self.endpoint.address().to_json())?;
        self.endpoint.connect(&P2pAddress::from_json(from.recv()?.as_bytes())?)?;
        // Both must be connected before either offers a buffer.
        to.send(String::new())?;
        from.recv()?;
        Ok(())
    }

    /// Sends a rim, and returns the other rank's.
    fn exchange(&mut self, rim: f64) -> Result<f64, Failed> {
        let Self { endpoint, rims, keys, other } = self;
        let bytes = CELL as u32;
        let offered = RecvBuffer { local: rims.local(THEIRS, bytes)?, tag: RIM, keys };
        let receive = endpoint.irecv(&[offered])?;
        rims.write_at(OWN, &rim.to_le_bytes())?;
        let (mut sent, mut arrived) = (None, None);
        loop {
            endpoint.poll(16).check()?;
            other.check()?;
            match sent {
                None => match endpoint.isend(rims.local(OWN, bytes)?, RIM, keys) {
                    Err(error) if error.is_not_now() => {}
                    send => sent = Some(send?),
                },
                Some(send) if arrived.is_some() => {
                    if endpoint.test_send(send)? {
                        break;
                    }
                }
                Some(_) => arrived = endpoint.test_recv(receive)?,
            }
        }
        let mut theirs = [0; CELL];
        rims.read_at(THEIRS, &mut theirs)?;
        Ok(f64::from_le_bytes(theirs))
    }
}

/// Lets heat flow, and returns what is in this half at the end. The bar is insulated.
fn flow(mut half: Vec<f64>, rank: &mut Rank) -> Result<f64, Failed> {
    let rim = half.len() - 1;
    for _ in 0..STEPS {
        let beyond = rank.exchange(half[rim])?;
        let at = |cell: usize| half[cell];
        let next = |cell: usize| {
            let left = if cell == 0 { at(0) } else { at(cell - 1) };
            let right = if cell == rim { beyond } else { at(cell + 1) };
            at(cell) + 0.25 * (left - 2.0 * at(cell) + right)
        };
        half = (0..half.len()).map(next).collect();
    }
    Ok(half.iter().sum())
}

fn main() -> Result<(), Failed> {
    let fabric = Fabric::threaded();
    let device = |name: String| fabric.create_device(DeviceConfig::named(name)).alloc_pd();
    let mut ranks = Vec::new();
    for rank in 0..2 {
        let domains = [device(format!("rank{rank}nic0"))?, device(format!("rank{rank}nic1"))?];
        ranks.push((rank, domains));
    }
    let (to_second, from_first) = channel();
    let (to_first, from_second) = channel();
    let ways = [(to_second, from_second), (to_first, from_first)];
    let work: Vec<_> = ranks
        .into_iter()
        .zip(ways)
        .map(|((number, domains), (to, from))| {
            thread::spawn(move || -> Result<f64, Failed> {
                let mut rank = Rank::new(&domains, Other { to, from, is_done: false })?;
                rank.meet()?;
                // All heat is in the first half; the halves' rims touch.
                let heat = if number == 0 { 1.0 } else { 0.0 };
                let left = flow(vec![heat; CELLS], &mut rank)?;
                // The other rank may not have heard of its last message yet.
                rank.other.part()?;
                Ok(left)
            })
        })
        .collect();
    let mut halves = Vec::new();
    for (rank, work) in work.into_iter().enumerate() {
        match work.join().unwrap_or_else(|_| Err("it panicked".into())) {
            Ok(half) => halves.push(half),
            // If both did, one of them only because the other had.
            Err(error) => eprintln!("rank {rank}: {error}"),
        }
    }
    let [first, second] = halves[..] else { return Err("a rank has failed".into()) };
    println!("heat after {STEPS} steps: {first:.3} and {second:.3} of {CELLS}");
    // None is lost on the way from one rank to the other, but for rounding.
    if (first + second - CELLS as f64).abs() > 1e-6 || second < 1.0 {
        return Err("heat was lost".into());
    }
    Ok(())
}
