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

/// A protection domain: queue pairs reach only memory registered in their own. A cheap handle:
/// clones mean the same domain, and what is made from it keeps it alive.
#[derive(Clone, Debug)]
pub struct ProtectionDomain(Arc<Shared>);

impl ProtectionDomain {
    /// The device it belongs to.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Destroys it.
    ///
    /// # Errors
    ///
    /// Something that was made from it still exists, or the driver reports an error.
    pub fn close(self) -> std::result::Result<(), CloseError> {
        let shared = Arc::into_inner(self.0).ok_or(CloseError::InUse)?;
        Ok(shared.raw.close()?)
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_pd {
        self.0.raw.as_ptr()
    }
}

impl Context {
    /// A new protection domain.
    ///
    /// # Errors
    ///
    /// ENOMEM.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain> {
        // SAFETY: the context is open.
        let raw = unsafe { rdma_sys::ibv_alloc_pd(self.as_ptr()) };
        let argument = Argument::Number("max_pd", self.attributes().max_pd.into());
        // SAFETY: null, or a fresh domain that is handed over.
        let raw = unsafe { Owned::new(raw, "ibv_alloc_pd", argument) }?;
        Ok(ProtectionDomain(Arc::new(Shared { raw, context: self.clone() })))
    }
}
