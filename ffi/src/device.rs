//! Which devices there are.

use crate::error::{Argument, DeviceName, Result, VerbsError};
use rdma_sys::{ibv_device, ibv_node_type, ibv_transport_type};
use std::ffi::CStr;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::OnceLock;

/// What a device is (`enum ibv_node_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeType {
    /// A channel adapter: an InfiniBand or RoCE NIC.
    ChannelAdapter,
    /// An InfiniBand switch.
    Switch,
    /// An InfiniBand router.
    Router,
    /// An iWARP NIC.
    Rnic,
    /// Anything else, by its number.
    Other(i32),
}

/// How a device's packets travel (`enum ibv_transport_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// InfiniBand and RoCE.
    Infiniband,
    /// iWARP.
    Iwarp,
    /// Anything else, by its number.
    Other(i32),
}

/// Whether this process may fork while memory is registered: what `ibv_fork_init` said, which
/// [`DeviceList::new`] calls before anything else, and this does if nobody did. Once for the process.
///
/// Kernels that copy pinned pages at a fork need nothing, and the call does nothing. On older ones it
/// makes every registration keep its pages out of child processes; see
/// [`ProtectionDomain::register`](crate::ProtectionDomain::register).
///
/// A failure leaves the devices usable. Then a process with registered memory must not fork, unless
/// all its threads are blocked until the child ends or goes to `exec`: whoever writes a page first
/// after a fork gets a copy of it, the parent too, and the device keeps the original.
///
/// # Errors
///
/// EINVAL: another component of the process registered memory before, on an older kernel. It can call
/// `ibv_fork_init` itself, or RDMAV_FORK_SAFE can be set in the environment. ENOSYS: the kernel does
/// not know `MADV_DONTFORK`. ENOMEM. ELIBACC: libibverbs is not there.
pub fn fork_safety() -> Result<()> {
    static DONE: OnceLock<Result<()>> = OnceLock::new();
    *DONE.get_or_init(|| {
        loaded()?;
        // SAFETY: takes no arguments, and may be called at any time.
        let returned = unsafe { rdma_sys::ibv_fork_init() };
        VerbsError::check(returned, "ibv_fork_init", Argument::None)
    })
}

/// Loads libibverbs, which is not linked: programs start where it is not installed.
fn loaded() -> Result<()> {
    let refused = |why| VerbsError::new("dlopen", libc::ELIBACC, Argument::Library(why));
    rdma_sys::load().map_err(refused)
}

/// The devices of this machine at one moment (`ibv_get_device_list`).
#[derive(Debug)]
pub struct DeviceList {
    list: NonNull<*mut ibv_device>,
    length: usize,
}

// SAFETY: the list is never written after its creation, and its devices are reference counted by
// the library under a lock.
unsafe impl Send for DeviceList {}
// SAFETY: as above.
unsafe impl Sync for DeviceList {}

impl DeviceList {
    /// Asks for the devices. First it makes forks safe, if they can be: [`fork_safety`] says.
    ///
    /// # Errors
    ///
    /// ELIBACC: libibverbs is not installed, or too old. ENOSYS on a kernel without RDMA, ENOMEM. A
    /// machine without devices gives an empty list.
    pub fn new() -> Result<Self> {
        loaded()?;
        // Devices work without; who wants to fork asks.
        _ = fork_safety();
        let mut length = 0;
        // SAFETY: the number is written to a local variable.
        let list = unsafe { rdma_sys::ibv_get_device_list(&raw mut length) };
        let list = NonNull::new(list)
            .ok_or_else(|| VerbsError::last("ibv_get_device_list", Argument::None))?;
        Ok(Self { list, length: usize::try_from(length).unwrap_or(0) })
    }

    /// The devices, in the library's order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Device<'_>> {
        // SAFETY: the library says that so many pointers follow, and they stay until the list is
        // freed, which the borrow forbids.
        let devices = unsafe { std::slice::from_raw_parts(self.list.as_ptr(), self.length) };
        devices.iter().map(|&device| Device { device, list: PhantomData })
    }

    /// The device of this name.
    pub fn find(&self, name: &str) -> Option<Device<'_>> {
        self.iter().find(|device| device.name().as_str() == name)
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: made by `ibv_get_device_list` and freed once; devices borrow the list.
        unsafe { rdma_sys::ibv_free_device_list(self.list.as_ptr()) }
    }
}

/// # Safety
///
/// A list or a context keeps the device.
pub(crate) unsafe fn name(device: *mut ibv_device) -> DeviceName {
    // SAFETY: the caller's promise; the device keeps its name, a C string of at most 64 bytes with
    // its end.
    let name = unsafe { CStr::from_ptr(rdma_sys::ibv_get_device_name(device)) };
    DeviceName::from(&name.to_string_lossy()).unwrap_or_default()
}

/// A device that can be opened.
#[derive(Clone, Copy, Debug)]
pub struct Device<'l> {
    pub(crate) device: *mut ibv_device,
    list: PhantomData<&'l DeviceList>,
}

impl Device<'_> {
    /// Its name, such as `mlx5_0`.
    pub fn name(&self) -> DeviceName {
        // SAFETY: the list keeps the device.
        unsafe { name(self.device) }
    }

    /// Its GUID, as a number; 0 if the driver does not tell.
    pub fn guid(&self) -> u64 {
        // SAFETY: the list keeps the device.
        u64::from_be(unsafe { rdma_sys::ibv_get_device_guid(self.device) })
    }

    /// What it is.
    pub fn node_type(&self) -> NodeType {
        // SAFETY: the list keeps the device.
        match unsafe { (*self.device).node_type } {
            ibv_node_type::IBV_NODE_CA => NodeType::ChannelAdapter,
            ibv_node_type::IBV_NODE_SWITCH => NodeType::Switch,
            ibv_node_type::IBV_NODE_ROUTER => NodeType::Router,
            ibv_node_type::IBV_NODE_RNIC => NodeType::Rnic,
            other => NodeType::Other(other),
        }
    }

    /// How its packets travel.
    pub fn transport(&self) -> Transport {
        // SAFETY: the list keeps the device.
        match unsafe { (*self.device).transport_type } {
            ibv_transport_type::IBV_TRANSPORT_IB => Transport::Infiniband,
            ibv_transport_type::IBV_TRANSPORT_IWARP => Transport::Iwarp,
            other => Transport::Other(other),
        }
    }
}
