//! Flag sets. The bits are those of `infiniband/verbs.h`.

use bitflags::bitflags;

bitflags! {
    /// How a send work request is to be carried out (`enum ibv_send_flags`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct SendFlags: u8 {
        /// Start only when every earlier READ and atomic is complete; over several rails, everything
        /// earlier.
        const FENCE = 1 << 0;
        /// Report a completion on success too.
        const SIGNALED = 1 << 1;
        /// Wake a peer that waits for solicited events only.
        const SOLICITED = 1 << 2;
        /// Copy the data while posting: the buffer is free when the post returns, no lkey needed.
        const INLINE = 1 << 3;
        /// Fill in the checksums of IP packets that the request carries: datagrams only, where the
        /// device does it.
        const IP_CSUM = 1 << 4;
    }
}

bitflags! {
    /// What else a completion carries (`enum ibv_wc_flags`).
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
        // Undefined bits come from drivers, on failed completions above all; they are kept.
        const _ = !0;
    }
}

bitflags! {
    /// What a memory region or a queue pair permits (`enum ibv_access_flags`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct AccessFlags: u32 {
        /// The device may write here on behalf of local requests (receives, READ, atomics).
        const LOCAL_WRITE = 1 << 0;
        /// Peers may write.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may read.
        const REMOTE_READ = 1 << 2;
        /// Peers may run atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Addresses count from the region's start.
        const ZERO_BASED = 1 << 5;
        /// Pages are brought in on demand.
        const ON_DEMAND = 1 << 6;
        /// The region is made of huge pages.
        const HUGETLB = 1 << 7;
        /// The device may reorder its writes on the bus.
        const RELAXED_ORDERING = 1 << 20;
    }
}
