//! What endpoints and messages share to repair queue pairs that fail.
//!
//! `options` has the time limits that users choose. `polls` decides which polls run a repair step. A step reads what
//! happened to devices (`device_events`), looks for queue pairs that complete nothing (`silence`), and tries to make
//! new queue pairs at growing intervals (`attempts`). `limits` ends what waits for too long.

mod attempts;
mod device_events;
mod limits;
mod options;
mod polls;
mod silence;

pub(crate) use attempts::Attempts;
pub(crate) use device_events::DeviceEvents;
pub(crate) use limits::{Limits, Passed, Waiting};
pub use options::Healing;
pub(crate) use polls::Polls;
pub(crate) use silence::{Look, SilenceWatch};
