//! Locks, atomics, threads and sleeps, or loom's models of them under `--cfg polyrail_loom`, where
//! `tests/gate.sh loom` runs what threads hand over to each other in every interleaving.

#[cfg(polyrail_loom)]
mod modelled;
#[cfg(not(polyrail_loom))]
mod real;

#[cfg(polyrail_loom)]
pub(crate) use modelled::*;
#[cfg(not(polyrail_loom))]
pub(crate) use real::*;
