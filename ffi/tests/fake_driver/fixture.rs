//! One object of each kind, on the fake device.

use crate::fake::install;
use polyrail_core::verbs::AccessFlags;
use polyrail_ffi::{
    AddressHandle, CompletionChannel, CompletionQueue, Context, CqInit, DeviceList, Gid, Grh,
    MemoryRegion, ModifyError, Path, PostMode, ProtectionDomain, QpCap, QpInit, QueuePair,
    SharedReceiveQueue, SrqInit, VerbsError,
};

/// One object of each kind.
#[allow(dead_code, reason = "fields are there to be dropped")]
pub(crate) struct All {
    // In a drop order that would be wrong if children did not keep their parents.
    pub(crate) context: Context,
    pub(crate) channel: CompletionChannel,
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: CompletionQueue,
    pub(crate) srq: SharedReceiveQueue,
    pub(crate) qp: QueuePair,
    pub(crate) ah: AddressHandle,
    pub(crate) mr: MemoryRegion,
}

pub(crate) fn path() -> Path {
    Path::roce(1, Grh::new(Gid([1; 16]), 0))
}

impl All {
    pub(crate) fn new(post_mode: PostMode) -> Result<Self, VerbsError> {
        let list = devices()?;
        let context = list.find("fake0").expect("the fake device").open()?;
        drop(list);
        let pd = context.alloc_pd()?;
        let access = AccessFlags::LOCAL_WRITE;
        // SAFETY: the fake device never touches memory.
        let mr = unsafe { pd.register(std::ptr::without_provenance_mut(4096), 64, access) }?;
        let channel = context.create_channel()?;
        let init = CqInit { channel: Some(&channel), ..CqInit::new(64) };
        let cq = context.create_cq(&init)?;
        let srq = pd.create_srq(&SrqInit::new(8))?;
        let ah = pd.create_ah(&path()).map_err(|error| match error {
            ModifyError::Verbs(error) => error,
            other => panic!("{other}"),
        })?;
        let init = QpInit { srq: Some(&srq), post_mode, ..QpInit::new(&cq, QpCap::default()) };
        let qp = pd.create_qp(&init)?;
        Ok(Self { context, channel, pd, cq, srq, qp, ah, mr })
    }
}

/// The devices of the fake library.
pub(crate) fn devices() -> Result<DeviceList, VerbsError> {
    install();
    DeviceList::new()
}

/// An open device, a domain and a completion queue.
pub(crate) fn open() -> (Context, ProtectionDomain, CompletionQueue) {
    let list = devices().unwrap();
    let context = list.find("fake0").unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(&CqInit::new(64)).unwrap();
    (context, pd, cq)
}
