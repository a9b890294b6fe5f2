//! What the engine does on a NIC on which the test decides every completion, scenario by scenario: one
//! program, since each one takes longer to link than all of them take to run.
//!
//! - `seed_*`: the examples and tables of the C++ design that polyrail implements;
//! - `reference_defects`: what the public C++ implementation gets wrong (`core/docs/reference.md`);
//! - the others by subject, as their names say.

mod budgets;
mod completion_queue;
mod distribution;
mod drivers;
mod failures;
mod fence;
mod immediates;
mod keys;
mod lists;
mod ownership;
mod panicking_sinks;
mod pass_through;
mod post_many;
mod protocol_errors;
mod reference_defects;
mod refusals;
mod report_order;
mod reroute;
mod seed_dqplb;
mod seed_fragments;
mod seed_ordering;
mod seed_routing;
mod seed_spray;
mod signals;
