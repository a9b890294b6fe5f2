//! Prints what thousands of peers of one process cost on the software NIC.

use clap::Parser;
use polyrail_benches::peers::{
    self, Active, LENGTH, MESSAGE_ENDS, MOST, MessageEnd, Peers, RAILS, REQUESTS,
};
use std::error::Error;
use std::io::{self, Write};

/// Time, memory and polls of many connected virtual queue pairs of two rails over two devices.
#[derive(Debug, Parser)]
struct Options {
    /// Number of peers.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=MOST as i64))]
    peers: u32,
}

fn main() -> Result<(), Box<dyn Error>> {
    let Options { peers } = Options::parse();
    print(&mut io::stdout().lock(), &peers::measure(peers as usize, REQUESTS)?)?;
    print_messages(&mut io::stdout().lock())?;
    Ok(())
}

/// What a peer takes that messages are exchanged with, beside its queue pairs.
fn print_messages(out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "\nmessages, bytes of each end of a peer   registered   engine's state")?;
    for MessageEnd { name, registered, state } in MESSAGE_ENDS {
        writeln!(out, "  {name:<36} {registered:>11} {state:>16}")?;
    }
    Ok(())
}

fn print(out: &mut impl Write, peers: &Peers) -> io::Result<()> {
    let kilobytes = |bytes| bytes as f64 / 1e3;
    writeln!(
        out,
        "many_peers: {} peers of {RAILS} rails and a notify queue pair, both ends in this process, over\n\
         {RAILS} devices of the software NIC each; WRITEs of {LENGTH} bytes\n  \
         both ends made in {:.2?}, connected in {:.2?}, closed in {:.2?}\n  \
         memory of one end: {:.1} KB when connected, {:.1} KB when used\n  \
         a poll that finds nothing {:.0} ns; a request, one by one, {:.0} ns\n  \
         active   ns a request   ns a poll   reports a poll",
        peers.count,
        peers.made,
        peers.connected,
        peers.closed,
        kilobytes(peers.resident),
        kilobytes(peers.resident_used),
        peers.idle_poll_ns,
        peers.one_by_one_ns,
    )?;
    for Active { peers, request_ns, poll_ns, reports } in &peers.active {
        writeln!(out, "  {peers:>6} {request_ns:>14.0} {poll_ns:>11.0} {reports:>16.1}")?;
    }
    Ok(())
}
