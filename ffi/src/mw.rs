//! Memory windows: access rights of peers that requests grant and revoke.

use crate::error::{Argument, Result, VerbsError};
use crate::mr::MemoryRegion;
use crate::owned::Owned;
use crate::pd::ProtectionDomain;
use crate::qp::{Connected, QueuePair};
use polyrail_core::hardware::{CommitError, Refusal};
use polyrail_core::verbs::{AccessFlags, SendFlags};
use rdma_sys::{
    bind_mw_t, bind_mw_tso_union_t, ibv_mw, ibv_mw_bind_info, ibv_mw_type, ibv_send_wr,
    ibv_wr_opcode,
};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

/// A memory window of type 2 (`struct ibv_mw`). A request of a queue pair binds it;
/// [`LocalInv`](polyrail_core::verbs::Opcode::LocalInv) there or the peer's
/// [`SendWithInv`](polyrail_core::verbs::Opcode::SendWithInv) invalidates it.
///
/// It borrows the regions that it is bound to, since a region cannot be deregistered while a window
/// is bound to it.
///
/// ```compile_fail,E0505
/// use polyrail_core::verbs::{AccessFlags, SendFlags};
/// use polyrail_ffi::{MemoryRegion, ProtectionDomain, QueuePair, WindowRange};
///
/// fn too_early(pd: &ProtectionDomain, qp: &mut QueuePair, region: MemoryRegion) {
///     let mut window = pd.alloc_window().unwrap();
///     let access = AccessFlags::REMOTE_WRITE;
///     let range = WindowRange { region: &region, addr: region.addr(), length: 8, access };
///     qp.bind_window(1, SendFlags::SIGNALED, &mut window, range).unwrap();
///     drop(region);
/// }
/// ```
#[derive(Debug)]
pub struct MemoryWindow<'r> {
    raw: Owned<ibv_mw>,
    pd: ProtectionDomain,
    rkey: u32,
    _regions: Regions<'r>,
}

/// Borrows the regions. The empty `Drop` makes the compiler keep the borrow until the window is
/// dropped.
#[derive(Debug)]
struct Regions<'r>(PhantomData<&'r MemoryRegion>);

impl Drop for Regions<'_> {
    fn drop(&mut self) {}
}

/// The range that a window is bound to.
#[derive(Clone, Copy, Debug)]
pub struct WindowRange<'r> {
    /// The region, registered with [`MW_BIND`](AccessFlags::MW_BIND).
    pub region: &'r MemoryRegion,
    /// Address of the window's first byte.
    pub addr: u64,
    /// Length in bytes.
    pub length: u64,
    /// Access rights of peers.
    pub access: AccessFlags,
}

impl ProtectionDomain {
    /// Allocates a memory window, which is not bound.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP: the device does not support memory windows; ENOMEM.
    pub fn alloc_window<'r>(&self) -> Result<MemoryWindow<'r>> {
        const CALL: &str = "ibv_alloc_mw";
        // SAFETY: the domain is alive.
        let raw =
            unsafe { rdma_sys::ibv_alloc_mw(self.for_call(CALL)?, ibv_mw_type::IBV_MW_TYPE_2) };
        let argument = Argument::Number("max_mw", self.context().attributes().max_mw.into());
        // SAFETY: null, or a new window that nothing else owns.
        let raw = unsafe { Owned::new(raw.unwrap_or(ptr::null_mut()), CALL, argument) }?;
        // SAFETY: the window is alive.
        let rkey = unsafe { (*raw.as_ptr()).rkey };
        let _regions = Regions(PhantomData);
        Ok(MemoryWindow { raw, pd: self.clone(), rkey, _regions })
    }
}

impl MemoryWindow<'_> {
    /// Returns the key for peers' requests, valid once the window is bound.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Destroys the window.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn close(self) -> std::result::Result<(), VerbsError> {
        self.raw.close()
    }
}

impl<S: Connected> QueuePair<S> {
    /// Posts a request that binds a window under a new key, for the peer of this queue pair. The
    /// window must not be bound.
    ///
    /// # Errors
    ///
    /// Those of a batch of one request. If the window or the region belongs to another device, the
    /// request is refused with EINVAL and the window keeps its key.
    pub fn bind_window<'r>(
        &mut self,
        wr_id: u64,
        flags: SendFlags,
        window: &mut MemoryWindow<'r>,
        range: WindowRange<'r>,
    ) -> std::result::Result<(), CommitError> {
        let own = |pd: &ProtectionDomain| pd.context().id() == self.pd().context().id();
        if !own(&window.pd) || !own(range.region.pd()) {
            return Err(CommitError { accepted: 0, refusal: Refusal::Driver(libc::EINVAL) });
        }
        let rkey = next_key(window.rkey);
        let bind_info = ibv_mw_bind_info {
            mr: range.region.as_ptr(),
            addr: range.addr,
            length: range.length,
            mw_access_flags: range.access.bits(),
        };
        // SAFETY: a C struct of numbers and pointers, so zeros are valid.
        let mut request = unsafe { MaybeUninit::<ibv_send_wr>::zeroed().assume_init() };
        request.wr_id = wr_id;
        request.opcode = ibv_wr_opcode::IBV_WR_BIND_MW;
        request.send_flags = flags.bits().into();
        let mw = window.raw.as_ptr();
        request.bind_mw_tso_union =
            bind_mw_tso_union_t { bind_mw: bind_mw_t { mw, rkey, bind_info } };
        // SAFETY: the request names a window and a region, which are borrowed and so alive.
        unsafe { self.post_one(&raw mut request) }?;
        window.rkey = rkey;
        // SAFETY: the window is alive; verbs requires its owner to write the new key here.
        unsafe { (*mw).rkey = rkey };
        Ok(())
    }
}

/// Returns the next of the 256 keys of a window (`ibv_inc_rkey`).
const fn next_key(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_changes_in_its_low_byte_only() {
        assert_eq!((next_key(0x1234_5600), next_key(0x1234_56ff)), (0x1234_5601, 0x1234_5600));
    }
}
