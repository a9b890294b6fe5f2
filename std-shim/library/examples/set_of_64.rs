//! A set of 64 virtual queue pairs of four rails each, as a server of 64 clients has: one poll for
//! all. One client goes, and another one takes its place, while the others are served. Over the
//! software NIC, or between the two devices that are named, of any backend:
//!
//! ```sh
//! cargo run --release --example set_of_64
//! cargo run --release --example set_of_64 tcp:127.0.0.1 tcp:127.0.0.2
//! ```

use polyrail::any::{
    AnyCompletionQueue, AnyDomain, AnyQueuePair, AnyRegion, OpenOptions, open_device,
};
use polyrail::endpoint::{EndpointBuilder, connect_endpoints};
use polyrail::verbs::{AccessFlags, RecvWr, SendWr};
use std::error::Error;

const CLIENTS: usize = 64;
const BYTES: u32 = 64 << 10;

// Of devices of any backend.
type Endpoint = polyrail::endpoint::Endpoint<AnyQueuePair, AnyCompletionQueue>;
type EndpointSet = polyrail::endpoint::EndpointSet<AnyQueuePair, AnyCompletionQueue>;
type RegisteredBuffer = polyrail::memory::RegisteredBuffer<AnyRegion>;

/// A client, its memory, and the keys with which it writes to the server's.
struct Client {
    endpoint: Endpoint,
    buffer: RegisteredBuffer,
}

impl Client {
    fn new(nic: &AnyDomain, builder: EndpointBuilder) -> Result<Self, Box<dyn Error>> {
        let buffer = RegisteredBuffer::new(BYTES as usize, AccessFlags::empty(), &[nic])?;
        Ok(Self { endpoint: builder.build(&[nic])?, buffer })
    }

    /// Writes `byte` all over its part of the server's memory, and notifies it.
    fn write(
        &mut self,
        byte: u8,
        to: &RegisteredBuffer,
        part: usize,
    ) -> Result<(), Box<dyn Error>> {
        self.buffer.write_at(0, &vec![byte; BYTES as usize])?;
        let keys = self.buffer.toward(&to.remote())?;
        let local = self.buffer.local(0, BYTES)?;
        let addr = to.addr() + (part * BYTES as usize) as u64;
        self.endpoint.post_send(&SendWr::write_with_imm(1, local, addr, part as u32, &keys))?;
        Ok(())
    }

    /// Polls, and fails if a write has failed.
    fn poll(&mut self) -> Result<(), Box<dyn Error>> {
        let failed =
            self.endpoint.poll(16).completions.into_iter().find(|done| !done.status.is_success());
        failed.map_or(Ok(()), |failed| Err(self.endpoint.explain(failed.status).into()))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut names = std::env::args().skip(1);
    let mut open = |otherwise: &str| {
        let name = names.next();
        open_device(name.as_deref().unwrap_or(otherwise), &OpenOptions::default())
    };
    let (here, there) = (open("software:server")?, open("software:clients")?);
    let builder = EndpointBuilder::new().rails(4);
    let mut set = EndpointSet::build(vec![(builder, [&here]); CLIENTS])?;
    let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let memory = RegisteredBuffer::new(CLIENTS * BYTES as usize, writable, &[&here])?;
    let mut clients = Vec::new();
    for qp in set.qps_mut() {
        let mut client = Client::new(&there, builder)?;
        connect_endpoints(qp, &mut client.endpoint)?;
        qp.post_recv(&RecvWr::notification(1))?;
        clients.push(client);
    }

    serve(&mut set, &mut clients, &memory, 1)?;
    // Client 17 goes, and another one comes.
    set.remove(17).ok_or("there is a member 17")?;
    let number = set.add(builder, &[&here])?;
    let mut newcomer = Client::new(&there, builder)?;
    let qp = set.get_mut(number).ok_or("the new member is there")?;
    connect_endpoints(qp, &mut newcomer.endpoint)?;
    qp.post_recv(&RecvWr::notification(1))?;
    clients[17] = newcomer;
    serve(&mut set, &mut clients, &memory, 2)?;
    println!("{CLIENTS} clients served, one of them new");
    Ok(())
}

/// Every client writes once, and the server is told of each.
fn serve(
    set: &mut EndpointSet,
    clients: &mut [Client],
    memory: &RegisteredBuffer,
    byte: u8,
) -> Result<(), Box<dyn Error>> {
    for (part, client) in clients.iter_mut().enumerate() {
        client.write(byte, memory, part)?;
    }
    let mut told = 0;
    while told < clients.len() {
        clients.iter_mut().try_for_each(Client::poll)?;
        let batch = set.poll(64);
        if let Some(error) = batch.error {
            return Err(error.into());
        }
        for done in batch.completions {
            let number = set.number_of(done.qp_num).ok_or("a member of the set")?;
            let qp = set.get_mut(number).ok_or("a member of the set")?;
            if !done.status.is_success() {
                return Err(qp.explain(done.status).into());
            }
            let part = done.imm.ok_or("a notification")? as usize;
            let mut bytes = vec![0; BYTES as usize];
            memory.read_at(part * BYTES as usize, &mut bytes)?;
            assert!(bytes.iter().all(|found| *found == byte), "all of it is there when it is told");
            qp.post_recv(&RecvWr::notification(1))?;
            told += 1;
        }
    }
    Ok(())
}
