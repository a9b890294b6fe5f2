//! The polyrail engine: one virtual RDMA queue pair made of many physical ones.
//!
//! `no_std`, no allocation, no operating system. Reading order, from the bottom up:
//!
//! 1. [`verbs`]: requests, completions, opcodes, statuses, flags, as plain data;
//! 2. [`hardware`]: what the engine asks of queue pairs and completion queues;
//! 3. [`tag`], `in_flight`: how a completion is matched with what was posted;
//! 4. [`tracker`]: the ring of requests;
//! 5. [`sequence`], [`window`]: DQPLB's numbers and the receiver's window;
//! 6. [`virtual_qp`]: the virtual queue pair, whose files are the steps of a request's way;
//! 7. [`routing`], [`virtual_cq`]: where completions go, and polling;
//! 8. [`spsc`]: the ring that carries requests and completions between threads.
#![no_std]
#![deny(unsafe_code)]

pub mod hardware;
mod in_flight;
pub mod routing;
pub mod sequence;
pub mod spsc;
mod sync;
pub mod tag;
pub mod tracker;
pub mod verbs;
pub mod virtual_cq;
pub mod virtual_qp;
pub mod window;
