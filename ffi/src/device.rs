//! The devices of this machine.

use crate::error::{Argument, DeviceName, Result, VerbsError};
use polyrail_process::PerProcess;
use rdma_sys::{ibv_device, ibv_node_type, ibv_transport_type};
use std::ffi::CStr;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::OnceLock;

/// The kind of a device (`enum ibv_node_type`).
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

/// The transport of a device (`enum ibv_transport_type`).
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

/// Returns whether this process may fork while memory is registered: the result of `ibv_fork_init`.
/// [`DeviceList::new`] calls it before anything else, and this function calls it if that did not
/// happen. It is called once per process; threads that come meanwhile wait for its result.
///
/// On kernels that copy pinned pages at a fork the call does nothing. On older kernels every later
/// registration keeps its pages out of child processes; see
/// [`ProtectionDomain::register`](crate::ProtectionDomain::register).
///
/// Devices are usable after a failure. Then a process with registered memory must not fork unless
/// all its threads are blocked until the child exits or calls `exec`: after a fork, the first
/// process that writes to a page gets a copy of it, and the device keeps the original, even if that
/// process is the parent.
///
/// # Errors
///
/// EINVAL: another component of the process registered memory earlier, on an older kernel. Let that
/// component call `ibv_fork_init`, or set RDMAV_FORK_SAFE in the environment. ENOSYS: the kernel
/// does not have `MADV_DONTFORK`. ENOMEM. ELIBACC: libibverbs cannot be loaded.
pub fn fork_safety() -> Result<()> {
    // The call may not run twice at once. A fork has a lock of its own: it may have copied the
    // parent's while another thread held it.
    static DONE: PerProcess<OnceLock<Result<()>>> = PerProcess::new();
    *DONE.get_or_make(OnceLock::new).get_or_init(|| {
        loaded()?;
        // SAFETY: takes no arguments, and runs once at a time.
        let returned = unsafe { rdma_sys::ibv_fork_init() };
        VerbsError::check(returned, "ibv_fork_init", Argument::None)
    })
}

/// Loads libibverbs, which is not linked so that programs start where it is not installed.
fn loaded() -> Result<()> {
    let refused = |why| VerbsError::new("dlopen", libc::ELIBACC, Argument::Library(why));
    rdma_sys::load().map_err(refused)
}

/// The devices of this machine at the time of the call (`ibv_get_device_list`).
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
    /// Lists the devices. Makes forks safe first, if possible: see [`fork_safety`].
    ///
    /// # Errors
    ///
    /// ELIBACC: libibverbs is not installed, or too old. ENOSYS: the kernel has no RDMA support.
    /// ENOMEM. A machine without devices gives an empty list.
    pub fn new() -> Result<Self> {
        loaded()?;
        // Devices are usable without fork safety; programs that fork call `fork_safety`.
        _ = fork_safety();
        let mut length = 0;
        // SAFETY: the length is written to a local variable.
        let list = unsafe { rdma_sys::ibv_get_device_list(&raw mut length) };
        let list = NonNull::new(list)
            .ok_or_else(|| VerbsError::last("ibv_get_device_list", Argument::None))?;
        Ok(Self { list, length: usize::try_from(length).unwrap_or(0) })
    }

    /// Iterates over the devices, in the library's order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Device<'_>> {
        // SAFETY: the library returned `length` pointers, which stay valid until the list is freed;
        // the borrow prevents that.
        let devices = unsafe { std::slice::from_raw_parts(self.list.as_ptr(), self.length) };
        devices.iter().map(|&device| Device { device, list: PhantomData })
    }

    /// Returns the device with this name.
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
/// A list or a context keeps the device alive.
pub(crate) unsafe fn name(device: *mut ibv_device) -> DeviceName {
    // SAFETY: guaranteed by the caller. The device holds its name, a C string of at most 64 bytes
    // including the terminator.
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
    /// Returns the name, such as `mlx5_0`.
    pub fn name(&self) -> DeviceName {
        // SAFETY: the list keeps the device alive.
        unsafe { name(self.device) }
    }

    /// Returns the GUID as a number; 0 if the driver does not report it.
    pub fn guid(&self) -> u64 {
        // SAFETY: the list keeps the device alive.
        u64::from_be(unsafe { rdma_sys::ibv_get_device_guid(self.device) })
    }

    /// Returns the kind of device.
    pub fn node_type(&self) -> NodeType {
        // SAFETY: the list keeps the device alive.
        match unsafe { (*self.device).node_type } {
            ibv_node_type::IBV_NODE_CA => NodeType::ChannelAdapter,
            ibv_node_type::IBV_NODE_SWITCH => NodeType::Switch,
            ibv_node_type::IBV_NODE_ROUTER => NodeType::Router,
            ibv_node_type::IBV_NODE_RNIC => NodeType::Rnic,
            other => NodeType::Other(other),
        }
    }

    /// Returns the transport.
    pub fn transport(&self) -> Transport {
        // SAFETY: the list keeps the device alive.
        match unsafe { (*self.device).transport_type } {
            ibv_transport_type::IBV_TRANSPORT_IB => Transport::Infiniband,
            ibv_transport_type::IBV_TRANSPORT_IWARP => Transport::Iwarp,
            other => Transport::Other(other),
        }
    }
}
