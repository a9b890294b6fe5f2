//! Flag sets. The bits are those of `infiniband/verbs.h`.

use bitflags::bitflags;

bitflags! {
    /// Flags of a send work request (`enum ibv_send_flags`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct SendFlags: u8 {
        /// Start only after all earlier READs and atomics are complete; on a virtual queue pair
        /// with several rails, after all earlier requests.
        const FENCE = 1 << 0;
        /// Generate a completion on success, too.
        const SIGNALED = 1 << 1;
        /// Raise a completion event at a peer that waits for solicited completions only.
        const SOLICITED = 1 << 2;
        /// Copy the data during the post: the buffer can be reused when the post returns, and no
        /// lkey is needed.
        const INLINE = 1 << 3;
        /// Fill in the checksums of IP packets that the request carries: datagrams only, on devices
        /// that support it.
        const IP_CSUM = 1 << 4;
    }
}

bitflags! {
    /// Flags of a completion (`enum ibv_wc_flags`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[repr(transparent)]
    pub struct WcFlags: u32 {
        /// A global routing header precedes the data (UD).
        const GRH = 1 << 0;
        /// The immediate is valid.
        const WITH_IMM = 1 << 1;
        /// The IP checksum was verified.
        const IP_CSUM_OK = 1 << 2;
        /// A key was invalidated.
        const WITH_INV = 1 << 3;
        // Drivers set undefined bits, mainly on failed completions; they are kept.
        const _ = !0;
    }
}

bitflags! {
    /// Access rights of a memory region or a queue pair (`enum ibv_access_flags`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct AccessFlags: u32 {
        /// The device may write to the region for local requests (receives, READ, atomics).
        const LOCAL_WRITE = 1 << 0;
        /// Peers may write.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may read.
        const REMOTE_READ = 1 << 2;
        /// Peers may execute atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Requests address the region by offsets from its start.
        const ZERO_BASED = 1 << 5;
        /// Pages are mapped on demand instead of pinned.
        const ON_DEMAND = 1 << 6;
        /// The region consists of huge pages.
        const HUGETLB = 1 << 7;
        /// The device may reorder its writes on the PCI bus.
        const RELAXED_ORDERING = 1 << 20;
    }
}
