//! The parts of `infiniband/verbs.h` that polyrail-ffi uses, under the names and with the
//! signatures of crate rdma-sys 0.3 of crates.io.
//!
//! That crate does not build with libclang 16 and later: it pins bindgen 0.59, which then gives all
//! structs without a name the same name (rust-bindgen issue 2312). It also links libibverbs, so
//! programs do not start where the library is not installed. This crate replaces it in the
//! workspace.
//!
//! Types and numbers are translated from the installed header at build time, and signatures are
//! compared with the header. `library` has the exported functions and loads libibverbs at the first
//! call; `inline` has the header's inline functions; `verbs` has the types.

mod inline;
mod library;
mod verbs;

pub use inline::*;
pub use library::*;
pub use verbs::*;
