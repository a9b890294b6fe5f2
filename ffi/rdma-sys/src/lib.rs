//! The parts of `infiniband/verbs.h` that polyrail-ffi uses, under the names and with the
//! signatures of crate rdma-sys 0.3 of crates.io.
//!
//! That crate does not build with libclang 16 and later: it pins bindgen 0.59, which then gives all
//! structs without a name the same name (rust-bindgen issue 2312). It also links libibverbs, so
//! programs do not start where the library is not installed.
//!
//! Types and numbers in `generated` are what bindgen makes of the header of rdma-core 44, so a
//! build needs neither the header nor libclang; `header`, a crate beside this one, makes them and
//! compares them. What a newer library adds behind the end of a struct is not used. `library` has
//! the exported functions and loads libibverbs at the first call; the functions that an older
//! library may lack, or that are newer than the header, return `None` without it. `inline` has the
//! header's inline functions; `verbs` has the types.

#[cfg(not(target_pointer_width = "64"))]
compile_error!("the bindings have the layouts of 64-bit processors");

mod inline;
mod library;
mod verbs;

pub use inline::*;
pub use library::*;
pub use verbs::*;
