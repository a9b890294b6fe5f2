//! Protection domains.

use crate::context::Context;
use crate::error::{Argument, Result};
use crate::owned::{CloseError, Owned};
use rdma_sys::ibv_pd;
use std::sync::Arc;

#[derive(Debug)]
struct Shared {
    raw: Owned<ibv_pd>,
    context: Context,
}

/// A protection domain: queue pairs reach only memory registered in their domain. Cloning is cheap:
/// clones share the domain, and objects made from it keep it alive.
#[derive(Clone, Debug)]
pub struct ProtectionDomain(Arc<Shared>);

impl ProtectionDomain {
    /// Returns the device of the domain.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Destroys the domain.
    ///
    /// # Errors
    ///
    /// An object made from it still exists, or the driver reports an error.
    pub fn close(self) -> std::result::Result<(), CloseError> {
        let shared = Arc::into_inner(self.0).ok_or(CloseError::InUse)?;
        Ok(shared.raw.close()?)
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_pd {
        self.0.raw.as_ptr()
    }

    /// Returns the domain for this call, unless this process is a fork of the one that made it.
    pub(crate) fn for_call(&self, call: &'static str) -> Result<*mut ibv_pd> {
        self.0.raw.for_call(call)
    }
}

impl Context {
    /// Allocates a protection domain.
    ///
    /// # Errors
    ///
    /// ENOMEM.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain> {
        // SAFETY: the context is open.
        let raw = unsafe { rdma_sys::ibv_alloc_pd(self.for_call("ibv_alloc_pd")?) };
        let argument = Argument::Number("max_pd", self.attributes().max_pd.into());
        // SAFETY: null, or a new domain that nothing else owns.
        let raw = unsafe { Owned::new(raw, "ibv_alloc_pd", argument) }?;
        Ok(ProtectionDomain(Arc::new(Shared { raw, context: self.clone() })))
    }
}
