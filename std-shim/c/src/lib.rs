//! libpolyrail: [polyrail](https://docs.rs/polyrail) for C programs. `include/polyrail.h` is what they see, and its
//! words are those of the functions here.
//!
//! # Reading order
//!
//! 1. `types` are the header's structures, `code` is what calls return, `error` keeps words for each thread;
//! 2. `call` is what every call goes through, `arguments` and `sized` check pointers, and `table` handles; `stack`
//!    is for those that need much of it, and `log` tells the program what happens;
//! 3. `devices` and `domain` are devices, `region` is memory, which the data path sees as `keys`;
//! 4. `options` become builders, `numbers` name peers, `events` is what happened to them, `pace` when polls look;
//! 5. `link` is how two sides meet over TCP, and `peer_state` the state of a peer beside its connection;
//! 6. `peers` are connections, for requests or for messages.

#![allow(
    clippy::missing_safety_doc,
    reason = "the header says it once for all: pointers are NULL, or to what they should be, for the call"
)]

// In the order of the header.
mod version;

mod log;

mod domain;

mod region;

mod link;

mod peers;

mod arguments;
mod call;
mod code;
mod devices;
mod error;
mod events;
mod keys;
mod numbers;
mod options;
mod pace;
mod peer_state;
mod sized;
mod stack;
mod table;
mod types;

pub use code::Code;
pub use domain::*;
pub use link::*;
pub use log::*;
pub use peers::*;
pub use region::*;
pub use types::*;
pub use version::*;
