//! The requests that `tests/stations.sh` traces, each by the name of its way.
//!
//! The script lists what the engine runs within the calls of [`watched`].

// A loopback backend for messages: requests are executed while they are posted.
#[path = "../../../core/examples/messages/backend.rs"]
mod backend;
mod message;
mod rail;
mod watched;
mod write;

fn main() {
    let way = std::env::args().nth(1);
    match way.as_deref() {
        Some("write") => write::run(),
        Some("rail") => rail::run(),
        Some("message") => message::run(),
        _ => panic!("not a way: {way:?}"),
    }
}
