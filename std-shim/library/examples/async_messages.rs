//! A message between two processes over TCP, by futures: a thread polls, and any executor awaits.
//!
//! ```text
//! cargo run --example async_messages            both processes, over the loopback interface
//!
//! async_messages listen tcp:eth0                receives
//! async_messages 10.0.0.2:7471 tcp:eth0         sends
//! ```

use polyrail::any::{AnyDomain, AnyRegion, OpenOptions, open_devices};
use polyrail::chain::Chain;
use polyrail::link::{
    Arrivals, Hello, Link, LinkError, Listener, Message, NoOutcome, Reason, Timeouts, bring_up_p2p,
};
use polyrail::memory::RegisteredBuffer;
use polyrail::p2p::{P2pBuilder, P2pEndpoint, RecvBuffer};
use polyrail::pairing::in_pairs;
use polyrail::progress::messages::{P2pHandle, P2pThread};
use polyrail::verbs::AccessFlags;
use std::error::Error;
use std::process::{Command, ExitCode};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

const LENGTH: u32 = 1 << 20;
const TAG: u32 = 7;

fn main() -> ExitCode {
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // An error leaves its reason to its source, which `Display` does not print.
            eprintln!("{}", Chain(&*error));
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &*arguments {
        [] => both(),
        [peer, devices @ ..] if peer == "listen" => {
            receive(&Listener::bind("0.0.0.0:7471")?, devices)
        }
        [peer, devices @ ..] => run(Link::connect(peer, &Timeouts::default())?, None, devices),
    }
}

/// Starts another process of this program, which sends, and receives from it.
fn both() -> Result<(), Box<dyn Error>> {
    let listener = Listener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let mut sender = Command::new(std::env::current_exe()?).args([&address, "tcp:lo"]).spawn()?;
    receive(&listener, &["tcp:lo".into()])?;
    let status = sender.wait()?;
    if status.success() { Ok(()) } else { Err(format!("the sender ended with {status}").into()) }
}

fn receive(listener: &Listener, devices: &[String]) -> Result<(), Box<dyn Error>> {
    let arrival = Arrivals::default().accept(listener, &Timeouts::default())?;
    run(arrival.link, Some(arrival.hello), devices)
}

/// Connects a message endpoint over the link, and moves one message. The side that listened has the
/// peer's hello, and receives.
pub(crate) fn run(
    link: Link,
    hello: Option<Hello>,
    devices: &[String],
) -> Result<(), Box<dyn Error>> {
    let receives = hello.is_some();
    let (link, endpoint, buffer) = connect(link, hello, devices)?;
    // From here on the thread polls, and any executor does.
    let messages = P2pThread::spawn(endpoint)?;
    let handle = messages.handle(0).ok_or("the set has one member")?;
    let (last, to_send) = mpsc::channel();
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let ended = watch(link, to_send);
            if ended.is_err() {
                // Otherwise requests would wait without end for a peer that is gone.
                messages.give_up(0);
            }
            ended
        });
        let moved = pollster::block_on(move_message(handle, &buffer, receives));
        // If it is not taken, the link has ended before.
        _ = last.send(match &moved {
            Ok(()) => Message::Done(NoOutcome {}),
            Err(error) => Message::Failed { reason: Reason::new(Chain(&**error)) },
        });
        watch.join().map_err(|_| "the thread that watches the link panicked")??;
        moved
    })?;
    messages.shutdown()?;
    Ok(())
}

type Connected = (Link, P2pEndpoint<AnyDomain>, RegisteredBuffer<AnyRegion>);

/// Connects a message endpoint over the link.
pub(crate) fn connect(
    mut link: Link,
    hello: Option<Hello>,
    devices: &[String],
) -> Result<Connected, Box<dyn Error>> {
    let opened = open_devices(devices, &OpenOptions::default())?;
    // The side that answers pairs its devices with those of the other side.
    let domains = match &hello {
        Some(asking) => in_pairs(&opened, &asking.reach)?,
        None => opened.iter().collect(),
    };
    let mut endpoint = P2pBuilder::new().rails(2).build(&domains)?;
    let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let buffer = RegisteredBuffer::new(LENGTH as usize, writable, &domains)?;

    let reach = endpoint.address().into();
    link.send(&Message::Hello(Hello {
        reach,
        buffer: buffer.remote(),
        purpose: None,
        session: None,
    }))?;
    let peer = match hello {
        Some(hello) => hello,
        None => link.expect_hello()?,
    };
    bring_up_p2p::<_, Box<dyn Error>, _>(&mut endpoint, &mut link, &peer)?;
    Ok((link, endpoint, buffer))
}

/// Sends or receives one message.
async fn move_message(
    mut handle: P2pHandle,
    buffer: &RegisteredBuffer<AnyRegion>,
    receives: bool,
) -> Result<(), Box<dyn Error>> {
    let keys = buffer.own_keys();
    if receives {
        let offered = RecvBuffer { local: buffer.local(0, LENGTH)?, tag: TAG, keys: &keys };
        let received = handle.irecv(&[offered])?.await?;
        let mut text = vec![0; received.sizes()[0] as usize];
        buffer.read_at(0, &mut text)?;
        println!("received: {}", String::from_utf8_lossy(&text));
    } else {
        buffer.write_at(0, b"hello")?;
        handle.isend(buffer.local(0, 5)?, TAG, &keys)?.await?;
    }
    Ok(())
}

/// Watches the link, which the library does not do, until both sides are done: a side that leaves
/// before the other one is done would end the other's requests. Sends this side's last message.
fn watch(mut link: Link, to_send: Receiver<Message>) -> Result<(), LinkError> {
    let (mut is_done, mut is_peer_done) = (false, false);
    while !(is_done && is_peer_done) {
        if let Ok(last) = to_send.try_recv() {
            link.send(&last)?;
            if matches!(last, Message::Failed { .. }) {
                return Ok(());
            }
            is_done = true;
        }
        match link.try_recv()? {
            Some(Message::Done(_)) => is_peer_done = true,
            Some(Message::Failed { reason }) => return Err(LinkError::GaveUp { reason }),
            Some(_) => {}
            None => link.wait_for_news(Duration::from_millis(5))?,
        }
    }
    Ok(())
}
