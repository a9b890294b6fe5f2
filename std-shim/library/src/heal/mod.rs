//! What endpoints and messages share to repair queue pairs that fail.
//!
//! `options` has the time limits that users choose. `polls` decides which polls run a repair step. A step reads what
//! happened to devices (`device_events`), looks for queue pairs that complete nothing (`silence`), and tries to make
//! new queue pairs at growing intervals (`attempts`).

mod attempts;
mod device_events;
mod options;
mod polls;
mod silence;

pub(crate) use attempts::Attempts;
pub(crate) use device_events::DeviceEvents;
pub use options::Healing;
pub(crate) use polls::Polls;
pub(crate) use silence::{Look, SilenceWatch};
