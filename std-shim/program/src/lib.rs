//! The program `polyrail` as a library: copies files and directories, or measures requests, over
//! the rails of a virtual queue pair, within a process or between two. To use virtual queue pairs
//! in another program, the crate [`polyrail`] is enough.
//!
//! # Reading order
//!
//! 1. [`job`]: what two sides do together, as plain data; [`size`] and [`time`] parse quantities;
//! 2. [`session`]: the connection of two sides, whatever they do;
//! 3. `threads` starts threads; `hosts`: two hosts made of software NICs, for a copy or a
//!    measurement within a process, with [injected faults](fault) and the [`fault_schedule`] that
//!    begins and ends them; `visit`: a peer that has sent a request to a server, and its limits;
//! 4. [`transfer`]: the copy path, with its protocol in the module's documentation;
//! 5. [`perf`] measures, within a process and between two;
//! 6. [`serve`]: the server, for files and measurements; [`devices`] between hosts: RDMA devices,
//!    or network interfaces over TCP;
//! 7. pages for users of the program: [copying], [measuring], [real NICs](real_nics),
//!    [over TCP](over_tcp), and [faults on request](faults_on_request);
//! 8. `main.rs` and `cli/`: the program, a thin layer over `transfer`, `perf` and `serve`.

// The links of the pages lead to files, for readers of the files. Here the definition of a link
// comes before the page's own, and the first one counts.
#[doc = "[trust]: polyrail::trust"]
#[doc = include_str!("../docs/copying.md")]
pub mod copying {}
pub mod devices;
pub mod fault;
#[doc = include_str!("../docs/faults.md")]
pub mod faults_on_request {}
mod hosts;
pub mod job;
#[doc = include_str!("../docs/measuring.md")]
pub mod measuring {}
pub mod perf;
/// Shared with the tests of the library.
#[cfg(test)]
#[path = "../../library/tests/recorded/mod.rs"]
mod recorded;
#[doc = "[library]: polyrail::over_tcp"]
#[doc = "[real_nics]: crate::real_nics"]
#[doc = "[trust]: polyrail::trust"]
#[doc = include_str!("../docs/tcp.md")]
pub mod over_tcp {}
#[doc = "[measuring]: crate::measuring"]
#[doc = "[tcp]: crate::over_tcp"]
#[doc = "[trust]: polyrail::trust"]
#[doc = include_str!("../docs/real_nics.md")]
pub mod real_nics {}
pub mod fault_schedule;
pub mod serve;
pub mod session;
pub mod size;
mod threads;
pub mod time;
pub mod transfer;
mod visit;
