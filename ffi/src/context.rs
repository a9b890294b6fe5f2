//! An open device.

use crate::attributes::DeviceAttributes;
use crate::device::Device;
use crate::error::{Argument, DeviceName, Result, VerbsError};
use crate::event::AsyncEvent;
use crate::owned::{CloseError, Owned};
use crate::port::{self, PortAttributes};
use polyrail_core::verbs::DeviceId;
use rdma_sys::ibv_context;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The first number of a context. Numbers are unique in the process; the software NIC numbers its
/// devices from 0, below this.
static NEXT_DEVICE: AtomicU32 = AtomicU32::new(1 << 31);

#[derive(Debug)]
struct Shared {
    raw: Owned<ibv_context>,
    id: DeviceId,
    name: DeviceName,
    attributes: DeviceAttributes,
    max_msg_size: u32,
    /// Events that were read on behalf of queue pairs but not yet returned, oldest first, with the
    /// `user_context` of their object.
    kept_events: Mutex<VecDeque<(AsyncEvent, usize)>>,
}

/// An open device (`struct ibv_context`). Cloning is cheap: clones share the context, and objects
/// made from it keep it open.
#[derive(Clone, Debug)]
pub struct Context(Arc<Shared>);

impl Context {
    fn open(device: &Device<'_>) -> Result<Self> {
        let name = device.name();
        // SAFETY: the device list, which `device` borrows, keeps the device alive.
        let raw = unsafe { rdma_sys::ibv_open_device(device.device) };
        // SAFETY: null, or a new context that nothing else owns.
        let raw = unsafe { Owned::new(raw, "ibv_open_device", Argument::Device(name)) }?;
        set_nonblocking(&raw)?;
        let attributes = DeviceAttributes::query(raw.as_ptr(), name)?;
        let max_msg_size = max_msg_size(raw.as_ptr(), attributes.phys_port_cnt)?;
        let id = DeviceId(NEXT_DEVICE.fetch_add(1, Ordering::Relaxed));
        let kept_events = Mutex::default();
        Ok(Self(Arc::new(Shared { raw, id, name, attributes, max_msg_size, kept_events })))
    }

    /// Closes the device.
    ///
    /// # Errors
    ///
    /// An object made from it still exists, or the library reports an error.
    pub fn close(self) -> std::result::Result<(), CloseError> {
        let shared = Arc::into_inner(self.0).ok_or(CloseError::InUse)?;
        Ok(shared.raw.close()?)
    }

    /// Returns the number by which the engine identifies the device. Every opening has a different
    /// number, since memory keys belong to a context.
    pub fn id(&self) -> DeviceId {
        self.0.id
    }

    /// Returns the device's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the capabilities that the device reported when it was opened.
    pub fn attributes(&self) -> &DeviceAttributes {
        &self.0.attributes
    }

    /// Returns the longest message in bytes that all ports support.
    pub fn max_msg_size(&self) -> u32 {
        self.0.max_msg_size
    }

    /// Returns the number of completion vectors.
    /// [`CqInit::comp_vector`](crate::CqInit::comp_vector) is below it.
    pub fn num_comp_vectors(&self) -> u32 {
        // SAFETY: the context is open.
        u32::try_from(unsafe { (*self.as_ptr()).num_comp_vectors }).unwrap_or(0)
    }

    /// Returns the file descriptor that becomes readable when an [event](Self::next_event) arrives.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context keeps the file descriptor open while it is borrowed.
        unsafe { BorrowedFd::borrow_raw((*self.as_ptr()).async_fd) }
    }

    /// Returns the present attributes of a port. Ports are numbered from 1.
    ///
    /// # Errors
    ///
    /// EINVAL: the port does not exist.
    pub fn query_port(&self, port: u8) -> Result<PortAttributes> {
        PortAttributes::query(self.for_call("ibv_query_port")?, port)
    }

    /// Returns the present data rate of a port in Mbit/s, without line coding; 0 if it is unknown.
    ///
    /// It may be less than [`speed_mbps`](PortAttributes::speed_mbps), which counts lanes: an XDR
    /// port that has lost one of its planes, a virtual function whose rate is limited; or more: a
    /// function of two bonded ports. [`AsyncEvent::DeviceSpeedChange`] reports changes. Where the
    /// library (before rdma-core 62), the kernel or the driver does not report it, it is the rate
    /// of the lanes.
    ///
    /// # Errors
    ///
    /// EINVAL: the port does not exist.
    pub fn query_port_speed(&self, port: u8) -> Result<u32> {
        port::query_speed(self.for_call("ibv_query_port_speed")?, port)
    }

    /// Returns an entry of a port's P_Key table.
    ///
    /// # Errors
    ///
    /// The port or the entry does not exist.
    pub fn query_pkey(&self, port: u8, index: u16) -> Result<u16> {
        const CALL: &str = "ibv_query_pkey";
        let context = self.for_call(CALL)?;
        let mut pkey = 0;
        // SAFETY: the context is open, and the key is written to a local variable.
        let returned =
            unsafe { rdma_sys::ibv_query_pkey(context, port, index.into(), &raw mut pkey) };
        let argument = Argument::Number("index", index.into());
        VerbsError::check(returned, CALL, argument)?;
        Ok(u16::from_be(pkey))
    }

    pub(crate) fn kept_events(&self) -> MutexGuard<'_, VecDeque<(AsyncEvent, usize)>> {
        // A panic cannot leave the queue inconsistent.
        self.0.kept_events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn device_name(&self) -> DeviceName {
        self.0.name
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_context {
        self.0.raw.as_ptr()
    }

    /// Returns the context for this call, unless this process is a fork of the one that opened it.
    pub(crate) fn for_call(&self, call: &'static str) -> Result<*mut ibv_context> {
        self.0.raw.for_call(call)
    }
}

impl Device<'_> {
    /// Opens the device. The context outlives the list.
    ///
    /// # Errors
    ///
    /// No permission on the device file, no driver, no memory, or an error of querying the device.
    pub fn open(&self) -> Result<Context> {
        Context::open(self)
    }
}

/// Makes reading events nonblocking: callers wait by polling the file descriptor.
fn set_nonblocking(context: &Owned<ibv_context>) -> Result<()> {
    // SAFETY: the context is open.
    nonblocking(unsafe { (*context.as_ptr()).async_fd })
}

pub(crate) fn nonblocking(fd: libc::c_int) -> Result<()> {
    // SAFETY: no memory is involved.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: as above.
    if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(VerbsError::last("fcntl", Argument::Number("fd", fd as u64)));
    }
    Ok(())
}

/// Returns the smallest limit of the ports, except ports that report 0.
fn max_msg_size(context: *mut ibv_context, ports: u8) -> Result<u32> {
    let mut least = u32::MAX;
    for port in 1..=ports {
        match PortAttributes::query(context, port)?.max_msg_size {
            0 => {}
            size => least = least.min(size),
        }
    }
    // The InfiniBand specification limits a message to 2^31 bytes.
    Ok(least.min(1 << 31))
}
