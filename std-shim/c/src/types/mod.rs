//! The structures of the header.

mod data;
mod handles;
#[cfg(test)]
mod layout;
mod options;

pub use data::*;
pub use handles::*;
pub use options::*;
