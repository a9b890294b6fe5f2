//! libpolyrail: [polyrail](https://docs.rs/polyrail) for C programs. They include
//! `include/polyrail.h`, which is generated from the docs of the functions here.
//!
//! # Reading order
//!
//! 1. `types` are the header's structures, `code` is what calls return, `error` keeps the last
//!    error message of each thread;
//! 2. every call goes through `call`; `arguments` and `sized` check pointers, and `table` handles;
//!    `stack` runs calls that need a large stack, `log` reports events to the program, and
//!    `environment` recognizes variables that are not settings;
//! 3. `devices` and `domain` are devices, `region` is memory, which the data path sees as `keys`;
//! 4. `options` become builders, `numbers` name peers, `events` queues what happened to them, and
//!    `pace` decides when polls look for it; `metrics` exports what they count;
//! 5. `link` is how two sides meet over TCP, and `peer_state` the state of a peer beside its
//!    connection;
//! 6. `peers` are connections, for requests or for messages.

#![allow(
    clippy::missing_safety_doc,
    reason = "the header states it for all functions: pointers are NULL or valid during the call"
)]

// In the order of the header.
mod version;

mod log;

mod domain;

mod region;

mod link;

mod peers;

mod environment;

mod arguments;
mod call;
mod code;
mod devices;
mod error;
mod events;
mod keys;
mod metrics;
mod numbers;
mod options;
mod pace;
mod pairs;
mod peer_state;
mod sized;
mod stack;
mod table;
mod types;

pub use code::Code;
pub use domain::*;
pub use environment::*;
pub use link::*;
pub use log::*;
pub use peers::*;
pub use region::*;
pub use types::*;
pub use version::*;
