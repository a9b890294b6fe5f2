//! What polyrail-ffi needs of `infiniband/verbs.h`, under the names and with the signatures of the
//! crate rdma-sys 0.3 of crates.io.
//!
//! That crate does not build with libclang 16 and later: it pins bindgen 0.59, which gives structs
//! without a name the same name there (rust-bindgen issue 2312). And it links libibverbs, without which
//! the program then does not start. This one takes its place in the workspace.
//!
//! Types and numbers are translated from the installed header at build time, and signatures compared
//! with it. The exported functions are in `library`, which loads libibverbs when the first of them is
//! called; what is inline in the header is in `inline`, and the structs with unnamed unions are in
//! `requests`.

mod inline;
mod library;
mod requests;

/// As bindgen wrote it.
#[allow(missing_docs, reason = "the library's own manual pages")]
#[allow(missing_debug_implementations, reason = "C structs")]
#[allow(non_camel_case_types, non_snake_case, non_upper_case_globals, reason = "names of C")]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, reason = "generated")]
mod verbs {
    use crate::requests::{ibv_send_wr, ibv_wc};
    use libc::{pthread_cond_t, pthread_mutex_t};
    include!(concat!(env!("OUT_DIR"), "/verbs.rs"));
}

pub use inline::*;
pub use library::*;
pub use requests::*;
pub use verbs::*;
