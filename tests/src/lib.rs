//! What polyrail's tests share.
//!
//! [`model`] has the oracles of the engine's structures, [`simulation`] that of whole worlds of
//! virtual queue pairs on software NICs; [`choices`] gives both their decisions, so that
//! quickcheck, fuzzers and seeds drive the same code. [`ends`] has two virtual queue pairs whose
//! rails fail, on NICs of which the test chooses every step; [`p2p`] has connections of the p2p
//! protocol on such ones; [`search`] looks for worlds of either kind that break a promise.
//! [`endpoint`] puts two virtual queue pairs on software NICs. [`nic`] is what the engine sees of
//! any NIC of a test, [`scripted`] one on which the test decides every completion; [`rig`] puts a
//! virtual queue pair and its completion queue on one, [`watched`] with an oracle of every physical
//! request; [`view`] shows in short form what the NIC was asked to do. [`behaviours`] is the list
//! of what every backend must do. [`allocations`] counts allocations.

pub mod allocations;
pub mod behaviours;
pub mod cancel;
pub mod choices;
pub mod endpoint;
pub mod ends;
mod link;
pub mod model;
pub mod nic;
pub mod p2p;
pub mod rig;
pub mod scripted;
pub mod search;
pub mod simulation;
pub mod view;
pub mod watched;
