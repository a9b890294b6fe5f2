//! What polyrail-ffi needs of `infiniband/verbs.h`, under the names and with the signatures of the
//! crate rdma-sys 0.3 of crates.io.
//!
//! That crate does not build with libclang 16 and later: it pins bindgen 0.59, which gives structs
//! without a name the same name there (rust-bindgen issue 2312). And it links libibverbs, without which
//! the program then does not start. This one takes its place in the workspace.
//!
//! Types and numbers are translated from the installed header at build time, and signatures compared
//! with it. The exported functions are in `library`, which loads libibverbs when the first of them is
//! called; what is inline in the header is in `inline`, and the types are in `verbs`.

mod inline;
mod library;
mod verbs;

pub use inline::*;
pub use library::*;
pub use verbs::*;
