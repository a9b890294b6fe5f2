//! Buffers and the keys that make them reachable.

/// Which device: an index or any other number that the owner of the devices chose. Two devices of
/// one process never share it, since queue pair numbers repeat from device to device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct DeviceId(pub u32);

/// The keys of one buffer on one device.
///
/// `lkey` names the local buffer's registration with the local device, `rkey` the remote buffer's
/// registration with the device at the other end of that device's rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceKeys {
    /// The local device.
    pub device: DeviceId,
    /// Key of the local buffer on it.
    pub lkey: u32,
    /// Key of the remote buffer behind it; unused by requests that touch no remote memory.
    pub rkey: u32,
}

/// Memory of this process that a device may be told to read or write: address and length.
///
/// # Buffer ownership
///
/// Making one is the unsafe step; posting it is safe. From the post until the request is reported
/// (or, for an INLINE request, until the post returns) the device may access the bytes at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalBuffer {
    addr: u64,
    length: u32,
}

impl LocalBuffer {
    /// No bytes at all, for notification receives.
    pub const EMPTY: Self = Self { addr: 0, length: 0 };

    /// Describes `length` bytes from `addr` on.
    ///
    /// # Safety
    ///
    /// For as long as a request made from the description, or from a copy of it, is outstanding:
    /// the bytes stay allocated; if the device writes them (receives, READ, atomics), no reference
    /// to them exists; if it only reads them (WRITE, SEND), nobody writes them. The same holds for
    /// memory that was registered for remote access, while peers may reach it.
    #[allow(unsafe_code, reason = "the one place where an address becomes a promise")]
    pub const unsafe fn new(addr: u64, length: u32) -> Self {
        Self { addr, length }
    }

    /// Virtual address of the first byte.
    #[inline]
    pub const fn addr(&self) -> u64 {
        self.addr
    }

    /// Bytes, up to 4 GiB - 1: the length field of a verbs scatter/gather entry has 32 bits.
    #[inline]
    pub const fn length(&self) -> u32 {
        self.length
    }

    /// `length` bytes from `offset` on, or `None` if they do not all lie within this buffer.
    pub const fn slice(&self, offset: u32, length: u32) -> Option<Self> {
        match offset.checked_add(length) {
            Some(end) if end <= self.length => Some(self.part(offset, length)),
            _ => None,
        }
    }

    /// [`slice`](Self::slice) for callers that know the part lies within.
    #[inline]
    pub(crate) const fn part(&self, offset: u32, length: u32) -> Self {
        debug_assert!(offset as u64 + length as u64 <= self.length as u64);
        Self { addr: self.addr.wrapping_add(offset as u64), length }
    }

    /// A buffer of `length` bytes of which this one is a part, `start` bytes behind its first byte. For code
    /// that touches no other bytes of it.
    #[inline]
    pub(crate) const fn within(&self, start: u32, length: u32) -> Self {
        Self { addr: self.addr.wrapping_sub(start as u64), length }
    }

    /// The scatter/gather entry for this buffer under `lkey`.
    #[inline]
    pub const fn sge(&self, lkey: u32) -> Sge {
        Sge { addr: self.addr, length: self.length, lkey }
    }
}

/// A scatter/gather entry (`struct ibv_sge`). Made from a [`LocalBuffer`] only, so that whoever
/// holds one holds the promise that was given for the memory.
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

    /// The part behind this one, `length` bytes long. The caller has the whole buffer.
    #[inline(always)]
    pub(crate) const fn behind(self, length: u32) -> Self {
        Self { addr: self.addr.wrapping_add(self.length as u64), length, lkey: self.lkey }
    }

    /// The first `length` bytes.
    #[inline(always)]
    pub(crate) const fn first(self, length: u32) -> Self {
        Self { length, ..self }
    }

    /// Virtual address of the first byte.
    #[inline]
    pub const fn addr(&self) -> u64 {
        self.addr
    }

    /// Bytes.
    #[inline]
    pub const fn length(&self) -> u32 {
        self.length
    }

    /// Key of the memory region.
    #[inline]
    pub const fn lkey(&self) -> u32 {
        self.lkey
    }
}
