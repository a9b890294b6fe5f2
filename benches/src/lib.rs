//! Measures the engine against two other implementations of the same work.
//!
//! Three contenders run on one device that costs next to nothing:
//!
//! - the *floor* does the same physical work without the engine;
//! - the *baseline* is the C++ design that the engine replaces, written plainly in Rust;
//! - the *engine* is the real `VirtualQp` and `VirtualCq`, or a `Sender` and a `Receiver` of
//!   messages.
//!
//! They are compared as ratios, in two ways. `cargo run --release -p polyrail-benches --bin report`
//! times them alternately in one run, since nanoseconds differ from machine to machine.
//! `benches/instructions.sh` counts their instructions with callgrind, which do not: what a change
//! costs is judged by those. The criterion benches (`cargo bench -p polyrail-benches`) time the
//! engine's modules one by one.
//!
//! # Reading order
//!
//! 1. [`workload`]: the work: bursts of 32 requests, fragments of 64 KiB;
//! 2. [`null`]: the device; [`rig`] and [`message_rig`]: its queue pairs, set up alike for all
//!    contenders;
//! 3. [`floor`], [`baseline`], [`engine`]: the three; [`contender`]: what they have in common;
//! 4. [`rows`]: the rows and what they must reach; [`measure`]: how they are timed;
//!    [`instructions`]: how their instructions are counted;
//! 5. [`handover`]: the ring between threads, beside well-known crates; [`handles`]: a progress
//!    thread beside direct posts; [`software`]: the software NIC with one thread and with several;
//!    [`many`] and [`peers`]: large sets;
//! 6. [`counted`]: the tests use it to compare the work of floor and engine; [`figures`] has the
//!    results, and [`how_it_got_fast`] what each trick of the engine gained.
//!
//! # What is measured
//!
//! A burst posts 32 requests, then polls until all 32 are reported, with room for 32 completions at
//! a time. Its functions are never inlined, so that no contender gains from what is known at one
//! call site. Messages, keys and rails are lists whose contents and lengths are known at run time
//! only.
//!
//! - `single_post` and `single_poll` do one half, for which the null device forgets, or repeats,
//!   completions at the cost of two stores. `poll_cq` and `poll_one` are `single_poll` in other
//!   ways; the baseline has only one.
//! - `feed` is given completions that were polled from the physical queue, outside the measured
//!   part; its floor inspects each of them. The baseline has no `feed` and polls.
//! - `pass_through_4` posts SENDs to a virtual queue pair of several rails, the floor to the first
//!   rail.
//! - `list4_cycle` gives each request a list of 4 buffers of 1 KiB, which one physical request
//!   carries; `list_long_cycle` one of 4 buffers of 4 MiB, and its floor is the engine without
//!   lists: requests of several hundred fragments, which wait for room on the rails again and
//!   again; `batch16_cycle` posts 16 requests with one call, with one doorbell per rail, as the
//!   floor does. All three have the floor in place of a baseline.
//! - `dqplb_recv_ooo` delivers 16 requests of 16 fragments, the rails randomly merged, outside the
//!   measured part. It measures polling them, posting the zero-length receives again, and posting
//!   the caller's 16 receives again (floor: the first two, as the third is not physical work).
//! - `routes_idle_4096` compares the engine with itself: its floor is the engine with one
//!   registered queue pair in a table of 64 places, the engine has 4096 in 8192 and uses one of
//!   them.
//! - The rows `reroute_...` also compare the engine with itself: with re-routing enabled, while no
//!   rail fails, and without.
//! - The rows `p2p_...` are messages of the p2p protocol, 32 under way: a burst takes the arrived
//!   messages of the previous burst, reports them, and offers or sends as many again.
//!   `p2p_send_...` do that at both ends; `p2p_sender` and `p2p_recv` measure one of them. Messages
//!   arrive between bursts, outside the measured part, and entries arrive as they are written: the
//!   two ends have the same memory. The floor posts the same requests (the tests compare them field
//!   by field but for `wr_id`s), with hashed entries, and refills the shared receive queue in the
//!   same batches. There is no baseline for these, so the floor is in its place.
//! - `routes_random_4096` uses them all, in random order. Its floor posts in the same order to as
//!   many raw queue pairs, whose rings take up the same memory.
//!
//! # Instructions
//!
//! Callgrind counts 512 bursts after a warm-up, with everything that they call, in the program as
//! users build it. `benches/instructions.json` has the accepted counts and their compiler. With the
//! same compiler, `benches/instructions.sh` fails if the engine needs over 3% more in a row; with
//! another one it only reports. `--accept` rewrites the file. Engine and floor call nothing outside
//! of this workspace, so their counts are the same on every machine; the baseline's contain the
//! system's allocator. `callgrind_annotate` shows where the instructions go. It takes a file of
//! `target/release/instructions.callgrind/`, which has one for each contender of the last run.

pub mod allocations;
pub mod arrivals;
pub mod baseline;
pub mod contender;
pub mod counted;
pub mod engine;
#[doc = include_str!("../docs/figures.md")]
pub mod figures {}
pub mod floor;
pub mod handles;
pub mod handover;
#[doc = include_str!("../docs/how-it-got-fast.md")]
pub mod how_it_got_fast {}
pub mod instructions;
pub mod many;
pub mod measure;
pub mod message_rig;
pub mod null;
pub mod peers;
pub mod polled;
mod processors;
pub mod random;
pub mod rig;
mod rings;
pub mod rows;
pub mod software;
pub mod workload;
