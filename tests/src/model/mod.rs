//! Models: the seeds' data structures, written plainly with std's collections, run beside the
//! engine's. Every model is driven by bytes, so that quickcheck and the fuzz targets share it; it
//! panics where the two disagree.

mod routing;
mod tracker;
mod window;

pub use routing::routing;
pub use tracker::{SeedTracker, tracker};
pub use window::window;
