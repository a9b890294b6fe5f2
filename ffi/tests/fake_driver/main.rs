//! Tests with a fake library and driver, so that every call can fail without a device.

mod connector;
mod datagrams;
mod events;
mod failing_calls;
mod fake;
mod fixture;
mod last_wqe;
mod lists;
mod manual;
mod polling;
mod posting;
mod requests;
mod transitions;
mod values;
mod windows;
