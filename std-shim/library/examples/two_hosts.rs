//! A megabyte from one host to another, over RDMA devices, network interfaces, or both (feature
//! `verbs` for RDMA):
//!
//! ```text
//! two_hosts listen mlx5_0 tcp:eth0           receives
//! two_hosts 10.0.0.2:7471 mlx5_0 tcp:eth0    sends
//! ```

use polyrail::any::{OpenOptions, open_devices};
use polyrail::chain::Chain;
use polyrail::endpoint::EndpointBuilder;
use polyrail::link::{
    Arrivals, Hello, Link, LinkError, Listener, Message, NoOutcome, Timeouts, bring_up,
};
use polyrail::memory::RegisteredBuffer;
use polyrail::pairing::in_pairs;
use polyrail::verbs::{AccessFlags, RecvWr, SendWr, WcStatus};
use polyrail::virtual_qp::RailFailure;
use std::error::Error;
use std::process::ExitCode;

const LENGTH: u32 = 1 << 20;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // An error leaves its reason to its source, which `Display` does not print.
            eprintln!("{}", Chain(&*error));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let peer = std::env::args().nth(1).ok_or("listen, or an address?")?;
    let names: Vec<String> = std::env::args().skip(2).collect();
    if names.is_empty() {
        return Err("which devices? mlx5_0 or tcp:eth0, for example".into());
    }
    let opened = open_devices(&names, &OpenOptions::default())?;
    let sends = peer != "listen";
    let timeouts = Timeouts { accept: None, ..Timeouts::default() };
    let (mut control, asked): (Link, _) = match sends {
        true => (Link::connect(&peer, &timeouts)?, None),
        false => {
            let listener = Listener::bind("0.0.0.0:7471")?;
            let arrival = Arrivals::default().accept(&listener, &timeouts)?;
            (arrival.link, Some(arrival.hello))
        }
    };
    // The side that answers pairs its devices with those of the other side.
    let domains = match &asked {
        Some(hello) => in_pairs(&opened, &hello.reach)?,
        None => opened.iter().collect(),
    };
    let mut endpoint =
        EndpointBuilder::new().rails(4).rail_failure(RailFailure::Reroute).build(&domains)?;
    let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let buffer = RegisteredBuffer::new(LENGTH as usize, writable, &domains)?;
    // A link that is to be resumed after a break needs its listener, and a session in the hellos.
    let reach = endpoint.address().into();
    let hello = Hello { reach, buffer: buffer.remote(), purpose: None, session: None };
    control.send(&Message::Hello(hello))?;
    let peer = match asked {
        Some(hello) => hello,
        None => control.expect_hello()?,
    };
    bring_up(&mut endpoint, &mut control, &peer, |endpoint| {
        Ok::<_, Box<dyn Error>>(endpoint.post_recv(&RecvWr::notification(1))?)
    })?;

    if sends {
        buffer.write_at(0, b"hello")?;
        let from = buffer.local(0, LENGTH)?;
        let keys = buffer.toward(&peer.buffer)?;
        endpoint.post_send(&SendWr::write_with_imm(2, from, peer.buffer.addr, 42, &keys))?;
    }
    // Rails may fail: what the two endpoints tell each other then goes over the control connection.
    // So each side stays until the other one is done, too, and one that hangs up before that has
    // failed.
    let link = endpoint.healing_link().ok_or("its rails are re-routed")?;
    let (mut completion, mut is_peer_done) = (None, false);
    while completion.is_none() || !is_peer_done {
        let batch = endpoint.poll(16);
        if let Some(error) = batch.error {
            return Err(endpoint.queue_error(error).into());
        }
        for done in batch.completions {
            if done.status != WcStatus::SUCCESS {
                return Err(endpoint.explain(done.status).into());
            }
            completion = Some(done);
            control.send(&Message::Done(NoOutcome {}))?;
        }
        if let Some(failure) = endpoint.failure() {
            return Err(failure.into());
        }
        while let Some(message) = link.next_message() {
            control.send(&Message::Heal(message))?;
        }
        match control.try_recv()? {
            Some(Message::Heal(message)) => link.handle(message)?,
            Some(Message::Done(_)) => is_peer_done = true,
            Some(Message::Failed { reason }) => return Err(LinkError::GaveUp { reason }.into()),
            _ => {}
        }
    }
    let mut word = [0; 5];
    buffer.read_at(0, &mut word)?;
    let imm = completion.and_then(|done| done.imm);
    println!("{}, immediate {imm:?}", String::from_utf8_lossy(&word));
    Ok(())
}
