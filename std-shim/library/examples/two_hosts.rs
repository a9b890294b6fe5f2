//! A megabyte from one host to another, over RDMA devices, or all that there are:
//!
//! ```text
//! two_hosts listen mlx5_0 mlx5_1           receives
//! two_hosts 10.0.0.2:7471 mlx5_0 mlx5_1    sends
//! ```

use polyrail::endpoint::{Endpoint, EndpointBuilder, HealingLink};
use polyrail::exchange::{Control, Hello, Listener, Message, Timeouts, bring_up};
use polyrail::memory::RegisteredBuffer;
use polyrail::rdma::{CompletionQueue, OpenOptions, QueuePair, open_devices};
use polyrail::verbs::{AccessFlags, RecvWr, SendWr, WcStatus};
use polyrail::virtual_qp::RailFailure;
use std::error::Error;

const LENGTH: u32 = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let peer = std::env::args().nth(1).ok_or("listen, or an address?")?;
    let names = std::env::args().skip(2).map(|name| name.parse()).collect::<Result<Vec<_>, _>>()?;
    let opened = open_devices(&names, &OpenOptions::default())?;
    let domains: Vec<_> = opened.iter().collect();
    let mut endpoint: Endpoint<QueuePair, CompletionQueue> =
        EndpointBuilder::new().rails(4).rail_failure(RailFailure::Reroute).build(&domains)?;
    let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let buffer = RegisteredBuffer::new(LENGTH as usize, writable, &domains)?;

    let sends = peer != "listen";
    let timeouts = Timeouts { accept: None, ..Timeouts::default() };
    let mut control: Control = match sends {
        true => Control::connect(&peer, &timeouts)?,
        false => Listener::bind("0.0.0.0:7471")?.accept(&timeouts)?.0,
    };
    let address = endpoint.address();
    let memory = buffer.remote();
    let session = control.session();
    let hello = Hello { reach: address.into(), buffer: memory, purpose: None, session };
    control.send(&Message::Hello(hello))?;
    let peer = control.expect_hello()?;
    bring_up(&mut endpoint, &mut control, &peer, |endpoint| {
        Ok::<_, Box<dyn Error>>(endpoint.post_recv(&RecvWr::notification(1))?)
    })?;

    if sends {
        buffer.write_at(0, b"hello")?;
        let from = buffer.local(0, LENGTH)?;
        let keys = buffer.toward(&peer.buffer)?;
        endpoint.post_send(&SendWr::write_with_imm(2, from, peer.buffer.addr, 42, &keys))?;
    }
    let link = endpoint.healing_link();
    let completion = loop {
        if let Some(completion) = endpoint.poll(16).completions.pop() {
            break completion;
        }
        // Rails may fail: what the two endpoints tell each other then goes over the control connection.
        while let Some(message) = link.as_ref().and_then(HealingLink::next_message) {
            control.send(&Message::Heal(message))?;
        }
        if let (Some(link), Ok(Some(Message::Heal(message)))) = (&link, control.try_recv()) {
            link.hear(message)?;
        }
    };
    if completion.status != WcStatus::SUCCESS {
        return Err(endpoint.explain(completion.status).into());
    }
    let mut word = [0; 5];
    buffer.read_at(0, &mut word)?;
    println!("{}, immediate {:?}", String::from_utf8_lossy(&word), completion.imm);
    Ok(())
}
