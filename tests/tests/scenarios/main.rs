//! What the engine does on a NIC on which the test decides every completion, scenario by scenario.
//! They are one program, because each program takes longer to link than all of them take to run.
//!
//! The documentation of each module names the page and the heading that its tests prove. A test
//! whose name begins with `defect_NN` proves row NN of the table in `core/docs/reference.md`: a
//! defect of the C++ reference that polyrail does not have. What the type system forbids is in
//! `core/tests/ui`.

mod budgets;
mod building;
mod card;
mod completion_queue;
mod distribution;
mod dqplb_receiver;
mod dqplb_sender;
mod drivers;
mod failures;
mod fence;
mod flags;
mod fragments;
mod immediates;
mod keys;
mod lists;
mod notifies;
mod one_trip;
mod ownership;
mod panicking_sinks;
mod pass_through;
mod post_many;
mod protocol_errors;
mod receives;
mod refusals;
mod report_order;
mod reroute;
mod routing;
mod signals;
mod standby;
mod tracker;
