//! The p2p protocol on devices of which the test chooses every step: `device` has them, `rig` two
//! ends of connections on them; the others are scenarios by subject, named by what they show.

mod allocations;
mod beside;
mod cancel;
mod connection_failures;
mod device;
mod entries;
mod flushes;
mod immediates;
mod messages;
/// The module of the package `polyrail-tests`.
#[path = "../../../tests/src/nic.rs"]
mod nic;
mod peers;
mod pools;
mod refusals;
mod reroute;
mod rig;
mod standby;
