//! The crate on a library and a driver made for tests, so that every call can fail without a device.

mod events;
mod failing_calls;
mod fake;
mod fixture;
mod last_wqe;
mod manual;
mod polling;
mod posting;
mod transitions;
mod values;
