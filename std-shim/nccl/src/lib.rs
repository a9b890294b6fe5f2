//! NCCL's network plugin over polyrail: its file is `libnccl-net-polyrail.so`, its interface the tables
//! `ncclNetPlugin_v8` to `ncclNetPlugin_v12`. README.md says how it is built, installed and set up.
//!
//! # Reading order
//!
//! 1. `abi` is NCCL's interface; `tables` what NCCL finds, `calls` the functions in them, and `properties` those that
//!    describe devices; each within `guard`, which turns what failed into a code and words for NCCL's logger (`log`);
//! 2. `settings` come from the environment;
//! 3. `devices` are the NICs and what is made of several, and `rails` what the rest asks of them, whatever their kind;
//! 4. `meet`: two ends find each other; `comm`: a connection, its requests and memory, which `registering` registers;
//! 5. `slots` has everything that NCCL holds handles of, and `plugin` what there is once in a process.

mod abi;
mod calls;
mod comm;
mod devices;
mod guard;
#[cfg(feature = "test-hooks")]
mod hooks;
mod log;
mod meet;
mod plugin;
mod properties;
mod rails;
mod random;
mod registering;
mod settings;
mod slots;
mod tables;
