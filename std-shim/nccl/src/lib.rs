//! A network plugin for NCCL over polyrail. It is built as `libnccl-net-polyrail.so` and exports
//! the tables `ncclNetPlugin_v8` to `ncclNetPlugin_v12`. README.md describes building, installing
//! and settings.
//!
//! # Reading order
//!
//! 1. `abi` declares NCCL's interface. `tables` are the exported tables, `calls` their functions,
//!    and `properties` the functions that describe devices. Each runs within `guard`, which turns
//!    errors into a code and a line in NCCL's log (`log`);
//! 2. `settings` come from the environment;
//! 3. `devices` are NICs and merged NICs, and `rails` is the interface to both kinds of them;
//! 4. `meet` connects two ends; `comm` is a connection with its requests and memory, which
//!    `registering` registers; `metrics` exports what connections count;
//! 5. `slots` contains all objects for which NCCL has handles, and `plugin` the state of the
//!    process.

mod abi;
mod calls;
mod comm;
mod devices;
mod guard;
#[cfg(feature = "test-hooks")]
mod hooks;
mod log;
mod meet;
mod metrics;
mod plugin;
mod properties;
mod rails;
mod random;
mod registering;
mod settings;
mod slots;
mod tables;
