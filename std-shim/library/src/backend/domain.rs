//! What endpoints ask of a device.

use super::connect::Connect;
use super::error::DeviceError;
use super::event::DeviceEvent;
use super::port::Port;
use polyrail_core::hardware::{CompletionQueue, ReceiveQueue};
use polyrail_core::verbs::{AccessFlags, DeviceId};
use polyrail_software_nic::{EventCursor, Pages, QpCap, RegionKeys};
use std::fmt::Debug;
use std::sync::Arc;

/// A device as endpoints use it: opened, with a protection domain, and with the ports that rails
/// are to take. A cheap handle: clones mean the same device. An endpoint keeps one, and makes queue pairs
/// with it in the place of those that failed.
pub trait Domain: Clone + Send + Sync + 'static {
    /// Its queue pairs.
    type Qp: Connect;
    /// Its completion queues.
    type Cq: CompletionQueue;
    /// Its shared receive queues. A clone is another handle of the same queue, which may post from another
    /// thread.
    type Srq: ReceiveQueue + Clone;
    /// Registered memory. Dropping it deregisters the memory.
    type Region: Debug;

    /// The device's number, unique in this process.
    fn device_id(&self) -> DeviceId;

    /// The device's name, for people.
    fn device_name(&self) -> &str;

    /// Requests that one queue of a queue pair can hold.
    fn max_qp_wr(&self) -> u32;

    /// Receives that one shared receive queue can hold.
    fn max_srq_wr(&self) -> u32;

    /// The ports that rails take in turn, at least one.
    ///
    /// # Errors
    ///
    /// The device does not report them, or is gone.
    fn ports(&self) -> Result<Vec<Port>, DeviceError>;

    /// One of its [`ports`](Self::ports) as it is now: its address may be another one than before.
    ///
    /// # Errors
    ///
    /// There is no such port, or it carries no data now; the device is gone.
    fn port(&self, number: u8) -> Result<Port, DeviceError>;

    /// Where a reader of the device's events who begins now begins: behind those that happened so far.
    fn event_cursor(&self) -> EventCursor;

    /// The oldest event that this reader has not seen. Never waits for one, and costs little when there is
    /// none: it may be asked every millisecond.
    ///
    /// All readers, of all clones, see all events. A reader who falls far behind misses the oldest, so an
    /// event is a hint to act at once; what it would have told is also found by completions that fail
    /// and by [`port`](Self::port).
    fn next_event(&self, reader: &mut EventCursor) -> Option<DeviceEvent>;

    /// A completion queue for at least `capacity` completions.
    ///
    /// # Errors
    ///
    /// The device refuses.
    fn create_cq(&self, capacity: u32) -> Result<Self::Cq, DeviceError>;

    /// A reliable connected queue pair in RESET, whose queues both complete on `cq`.
    ///
    /// # Errors
    ///
    /// The device refuses.
    fn create_qp(&self, cq: &Self::Cq, cap: QpCap) -> Result<Self::Qp, DeviceError>;

    /// A shared receive queue for `max_wr` receives.
    ///
    /// # Errors
    ///
    /// The device refuses, or has none.
    fn create_srq(&self, max_wr: u32) -> Result<Self::Srq, DeviceError>;

    /// As [`create_qp`](Self::create_qp), but receives come from `srq`: there is no room for others, whatever
    /// `cap` says.
    ///
    /// # Errors
    ///
    /// The device refuses.
    fn create_qp_with_srq(
        &self,
        cq: &Self::Cq,
        srq: &Self::Srq,
        cap: QpCap,
    ) -> Result<Self::Qp, DeviceError>;

    /// Registers `pages`, all [`len`](Pages::len) bytes and no more. Until the region is dropped, it
    /// keeps the pages.
    ///
    /// # Errors
    ///
    /// The device refuses.
    fn register_pages(
        &self,
        pages: &Arc<Pages>,
        access: AccessFlags,
    ) -> Result<(Self::Region, RegionKeys), DeviceError>;
}
