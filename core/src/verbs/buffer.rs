//! Buffers and the keys that make them reachable.

/// Identifies a device, by an index or any other number that the owner of the devices chooses. It
/// is unique in a process, since queue pair numbers repeat from device to device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct DeviceId(pub u32);

/// The keys of one buffer on one device.
///
/// `lkey` is the key of the local buffer on the local device; `rkey` is the key of the remote
/// buffer on the device at the other end of that device's rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceKeys {
    /// The local device.
    pub device: DeviceId,
    /// Key of the local buffer.
    pub lkey: u32,
    /// Key of the remote buffer; unused by requests without remote memory.
    pub rkey: u32,
}

/// First address that only devices translate: requests name memory that was registered at such an
/// address by its keys, and no CPU reads or writes there. Programs have no memory at addresses from
/// 2^63 on.
///
/// Queue pairs refuse an INLINE request with such an address (EINVAL), because the CPU copies
/// inline data by its address alone, without a key.
pub const DEVICE_ADDRESSES: u64 = 1 << 63;

/// Memory of this process that a device may read or write: address and length.
///
/// # Buffer ownership
///
/// Constructing it is unsafe; posting it is safe. From the post until the request is reported (or,
/// for an INLINE request, until the post returns) the device may access the bytes at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalBuffer {
    addr: u64,
    length: u32,
}

impl LocalBuffer {
    /// No bytes, for notification receives.
    pub const EMPTY: Self = Self { addr: 0, length: 0 };

    /// Describes `length` bytes from `addr`.
    ///
    /// # Safety
    ///
    /// While a request made from the description, or from a copy of it, is outstanding: the bytes
    /// stay allocated; if the device writes them (receives, READ, atomics), no reference to them
    /// exists; if it only reads them (WRITE, SEND), the program does not write them. The same holds
    /// for memory that was registered for remote access, while peers can reach it.
    ///
    /// At a [device address](DEVICE_ADDRESSES), this is required only of bytes that are registered
    /// there, until they are deregistered: without a valid key, nothing accesses them.
    #[allow(unsafe_code, reason = "the only constructor: the caller guarantees the memory")]
    pub const unsafe fn new(addr: u64, length: u32) -> Self {
        Self { addr, length }
    }

    /// Returns the virtual address of the first byte.
    #[inline]
    pub const fn addr(&self) -> u64 {
        self.addr
    }

    /// Returns the length in bytes, up to 4 GiB - 1: the length field of a verbs scatter/gather
    /// entry has 32 bits.
    #[inline]
    pub const fn length(&self) -> u32 {
        self.length
    }

    /// Returns `length` bytes from `offset`, or `None` if they are not all within this buffer.
    pub const fn slice(&self, offset: u32, length: u32) -> Option<Self> {
        match offset.checked_add(length) {
            Some(end) if end <= self.length => Some(self.part(offset, length)),
            _ => None,
        }
    }

    /// [`slice`](Self::slice) for callers that know that the part is within the buffer.
    #[inline]
    pub(crate) const fn part(&self, offset: u32, length: u32) -> Self {
        debug_assert!(offset as u64 + length as u64 <= self.length as u64);
        Self { addr: self.addr.wrapping_add(offset as u64), length }
    }

    /// Returns a buffer of `length` bytes that contains this one at offset `start`. The caller uses
    /// only those bytes of it that are in this buffer.
    #[inline]
    pub(crate) const fn within(&self, start: u32, length: u32) -> Self {
        Self { addr: self.addr.wrapping_sub(start as u64), length }
    }

    /// Returns the scatter/gather entry for this buffer under `lkey`.
    #[inline]
    pub const fn sge(&self, lkey: u32) -> Sge {
        Sge { addr: self.addr, length: self.length, lkey }
    }
}

/// A scatter/gather entry (`struct ibv_sge`). It can only be made from a [`LocalBuffer`], so the
/// guarantee that was given for the memory holds for the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    addr: u64,
    length: u32,
    lkey: u32,
}

static_assertions::const_assert_eq!(size_of::<Sge>(), 16);

impl Sge {
    /// No bytes: the request has no scatter/gather list.
    pub const EMPTY: Self = LocalBuffer::EMPTY.sge(0);

    /// Returns the `length` bytes behind this entry. The caller guarantees that they are in the
    /// same buffer.
    #[inline(always)]
    pub(crate) const fn behind(self, length: u32) -> Self {
        Self { addr: self.addr.wrapping_add(self.length as u64), length, lkey: self.lkey }
    }

    /// Returns the first `length` bytes.
    #[inline(always)]
    pub(crate) const fn first(self, length: u32) -> Self {
        Self { length, ..self }
    }

    /// Returns the virtual address of the first byte.
    #[inline]
    pub const fn addr(&self) -> u64 {
        self.addr
    }

    /// Returns the length in bytes.
    #[inline]
    pub const fn length(&self) -> u32 {
        self.length
    }

    /// Returns the key of the memory region.
    #[inline]
    pub const fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Whether only devices translate the address: see [`DEVICE_ADDRESSES`].
    #[inline]
    pub const fn has_device_address(&self) -> bool {
        self.addr >= DEVICE_ADDRESSES
    }
}
