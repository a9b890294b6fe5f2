//! Models: the data structures of the reference implementation, written plainly with std's
//! collections, run beside the engine's, and the properties of every reader of text. Each is driven
//! by bytes, so that quickcheck and the fuzz targets share it; it panics where the two disagree.

mod card;
mod control;
mod messages;
#[cfg(feature = "program")]
mod program;
mod routing;
mod tag;
mod tracker;
mod window;

pub use card::card;
pub use control::control;
pub use messages::messages;
#[cfg(feature = "program")]
pub use program::{handshake, size};
pub use routing::routing;
pub use tag::tag;
pub use tracker::{ReferenceTracker, tracker};
pub use window::window;

use std::fs;
use std::path::PathBuf;

/// The folder with a folder of inputs for each fuzz target.
pub fn seeds_folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/seeds"))
}

/// The inputs that are kept for this fuzz target.
///
/// # Panics
///
/// If there are none.
pub fn seeds(target: &str) -> Vec<Vec<u8>> {
    let files = seeds_folder().join(target).read_dir();
    let files = files.unwrap_or_else(|error| panic!("{target} has no seeds: {error}"));
    let seeds: Vec<_> = files.map(|file| fs::read(file.unwrap().path()).unwrap()).collect();
    assert!(!seeds.is_empty(), "{target} has no seeds");
    seeds
}
