//! What verbs devices in software have in common. `polyrail-software-nic`, whose network is memory,
//! and `polyrail-tcp-nic`, whose network is TCP, are made of these parts. Programs use those
//! crates, which export the public types from here.
//!
//! # Reading order
//!
//! 1. plain data: [`address`]; [`error`]; [`event`]; [`state`], the states of a queue pair and the
//!    rules of its transitions; [`options`];
//! 2. [`sync`]: locks, random numbers and times;
//! 3. memory: [`dma`], the only way in which bytes are accessed; [`pages`], memory to register;
//!    [`memory`], the table of keys; [`local`], the buffers of one request;
//! 4. queues: [`lists`], requests with several buffers; [`staging`], a batch before it is posted;
//!    [`send_ring`] and [`recv_ring`]; [`completions`]; [`channel`], notifications; [`event_log`].

pub mod address;
pub mod channel;
pub mod completions;
pub mod dma;
pub mod error;
pub mod event;
pub mod event_log;
mod growth;
pub mod interface;
pub mod lists;
pub mod local;
pub mod memory;
pub mod options;
pub mod pages;
pub mod random;
pub mod recv_ring;
pub mod send_ring;
pub mod staging;
pub mod state;
pub mod sync;
