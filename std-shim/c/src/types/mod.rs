//! The structures of the header.

// In the order of the header, which begins with their constants.
mod limits;

mod options;

mod data;

mod handles;
#[cfg(test)]
mod layout;

pub use data::*;
pub use handles::*;
pub use limits::*;
pub use options::*;
