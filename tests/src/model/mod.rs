//! Models: the data structures of the reference implementation, written plainly with std's
//! collections, run beside the engine's, and the properties of every reader of text. Each is driven
//! by bytes, so that quickcheck and the fuzz targets share it; it panics where the two disagree.

mod control;
mod messages;
mod routing;
mod tag;
mod text;
mod tracker;
mod window;

pub use control::control;
pub use messages::messages;
pub use routing::routing;
pub use tag::tag;
pub use text::{card, handshake, size};
pub use tracker::{ReferenceTracker, tracker};
pub use window::window;
