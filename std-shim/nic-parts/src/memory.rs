//! Memory regions: the bytes and access rights of each key.
//!
//! The software NICs of a fabric share one table. Execution locks the table for reading;
//! registration and deregistration lock it for writing. Deregistration therefore waits for accesses
//! in progress, and no device accesses the memory afterwards.

use crate::dma::Span;
use crate::error::{NicError, vendor};
use crate::options::DeviceLimits;
use crate::sync::SplitMix64;
use polyrail_core::verbs::{AccessFlags, DeviceId, DeviceKeys};
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A protection domain's number, unique in its [`MemoryTable`]: it implies the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainId(pub u32);

/// The range and access rights of a region.
#[derive(Debug)]
pub struct Region {
    /// The protection domain whose queue pairs may access it.
    pub domain: DomainId,
    /// Address by which requests name its first byte.
    pub start: u64,
    /// Address of its first byte in this process.
    pub memory: u64,
    /// Its length in bytes.
    pub length: u64,
    /// The accesses that it permits.
    pub access: AccessFlags,
    /// Keeps owned memory alive while a key names it. `None` for foreign memory, which the caller
    /// of the registration keeps alive.
    pub owner: Option<Owner>,
}

/// An owner that keeps memory allocated.
pub type Owner = Arc<dyn Any + Send + Sync>;

impl Region {
    /// Checks that a device with these limits would register the region.
    ///
    /// # Errors
    ///
    /// The device does not support the access flags, or verbs forbids them; the region is empty,
    /// over the device's limit, or wraps around the address space.
    pub fn validate(&self, limits: &DeviceLimits) -> Result<(), NicError> {
        let remote_writes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
        let mut supported = remote_writes
            | AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::RELAXED_ORDERING;
        supported.set(AccessFlags::ON_DEMAND, limits.on_demand_paging);
        let max_bytes = limits.max_mr_size;
        if !supported.contains(self.access) {
            return Err(NicError::UnsupportedAccess(self.access - supported));
        }
        if self.access.intersects(remote_writes) && !self.access.contains(AccessFlags::LOCAL_WRITE)
        {
            return Err(NicError::AccessWithoutLocalWrite(self.access));
        }
        if self.length == 0 {
            return Err(NicError::Zero { what: "the length of a memory region" });
        }
        if self.length > max_bytes {
            let what = "a memory region's length";
            return Err(NicError::Limit { what, asked: self.length, limit: max_bytes });
        }
        let Self { start, memory, length, .. } = *self;
        let addr = start.max(memory);
        addr.checked_add(length).map(|_| ()).ok_or(NicError::AddressWraps { addr, length })
    }

    #[inline]
    fn span(&self, addr: u64, length: u32) -> Option<Span<'_>> {
        let offset = addr.checked_sub(self.start)?;
        if offset.checked_add(u64::from(length))? > self.length {
            return None;
        }
        let memory = self.memory.wrapping_add(offset) as usize;
        let start = std::ptr::with_exposed_provenance_mut::<u8>(memory);
        // SAFETY: within the region, whose memory stays allocated while the region exists, as the
        // caller of `MemoryTable::insert` guarantees. The table is borrowed for the span's life, so
        // the region cannot be removed meanwhile.
        Some(unsafe { Span::new(start, length as usize) })
    }
}

/// The keys of one region on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionKeys {
    /// The device that the region is registered with.
    pub device: DeviceId,
    /// Key for requests of the device's own queue pairs.
    pub lkey: u32,
    /// Key for requests of their peers.
    pub rkey: u32,
}

impl RegionKeys {
    /// Returns the keys of a request that moves data between this region and the peer's region with
    /// `remote_rkey`.
    pub const fn toward(self, remote_rkey: u32) -> DeviceKeys {
        DeviceKeys { device: self.device, lkey: self.lkey, rkey: remote_rkey }
    }
}

/// Number of memory regions of a device.
#[derive(Debug, Default)]
pub struct RegionCount(AtomicU32);

impl RegionCount {
    /// Counts another region.
    ///
    /// # Errors
    ///
    /// The device has `limit` regions.
    pub fn add(&self, limit: u32) -> Result<(), NicError> {
        let more = |regions| (regions < limit).then_some(regions + 1);
        let counted = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        counted.map(|_| ()).map_err(|regions| NicError::Limit {
            what: "the number of memory regions",
            asked: u64::from(regions) + 1,
            limit: limit.into(),
        })
    }

    /// Counts a region less.
    pub fn remove(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number.
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Why a key does not permit access to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFault {
    /// The key names no region: never issued, or deregistered since.
    Unknown,
    /// Its region belongs to another protection domain, or to another device.
    Domain,
    /// The range does not lie within its region.
    Bounds,
    /// Its region does not permit the access.
    Access,
}

impl KeyFault {
    /// Returns its `vendor_err`.
    pub const fn vendor(self) -> u32 {
        match self {
            Self::Unknown => vendor::KEY_UNKNOWN,
            Self::Domain => vendor::KEY_DOMAIN,
            Self::Bounds => vendor::KEY_BOUNDS,
            Self::Access => vendor::KEY_ACCESS,
        }
    }
}

/// A range as a request names it.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// The lkey or rkey.
    pub key: u32,
    /// Address of the first byte.
    pub addr: u64,
    /// Number of bytes.
    pub length: u32,
}

/// The regions of one device, or of all devices of a fabric.
#[derive(Debug)]
pub struct MemoryTable {
    slots: Vec<Slot>,
    /// Unused slots, the longest unused first, so that a stale key stays invalid for a long time.
    free: VecDeque<u16>,
    rng: SplitMix64,
}

#[derive(Debug)]
struct Slot {
    /// Tag of the lkey; the rkey's is one more. Changes with every registration.
    tag: u16,
    region: Option<Region>,
}

/// Keys are `tag << 16 | slot`, scrambled so that programs cannot use them as indices by mistake.
const SCRAMBLE: u32 = 0x9e37_79b1;
const UNSCRAMBLE: u32 = 0x0e8b_2f51;
const _: () = assert!(SCRAMBLE.wrapping_mul(UNSCRAMBLE) == 1);

const fn key_of(tag: u16, slot: u16) -> u32 {
    (((tag as u32) << 16) | slot as u32).wrapping_mul(SCRAMBLE)
}

#[inline]
const fn tag_and_slot(key: u32) -> (u16, u16) {
    let plain = key.wrapping_mul(UNSCRAMBLE);
    ((plain >> 16) as u16, plain as u16)
}

/// Maximum number of regions of a table.
const MAX_REGIONS: usize = 1 << 16;

impl MemoryTable {
    /// Makes an empty table, whose keys depend on `seed`.
    pub fn new(seed: u64) -> Self {
        Self { slots: Vec::new(), free: VecDeque::new(), rng: SplitMix64::new(seed) }
    }

    /// Inserts a region, which should be [valid](Region::validate). Returns its lkey and rkey.
    ///
    /// # Errors
    ///
    /// The table has 65,536 regions.
    ///
    /// # Safety
    ///
    /// Until the region is removed, or the table dropped:
    ///
    /// - its bytes stay allocated, or if it has an owner, they do as long as the owner exists;
    /// - they are writable if it permits [`AccessFlags::LOCAL_WRITE`];
    /// - bytes that spans of the region write are accessed by spans or atomically, and bytes that
    ///   spans read are written by spans or atomically.
    pub unsafe fn insert(&mut self, region: Region) -> Result<(u32, u32), NicError> {
        let index = self.take_slot()?;
        let slot = &mut self.slots[usize::from(index)];
        slot.region = Some(region);
        Ok((key_of(slot.tag, index), key_of(slot.tag + 1, index)))
    }

    fn take_slot(&mut self) -> Result<u16, NicError> {
        if let Some(index) = self.free.pop_front() {
            return Ok(index);
        }
        let index = u16::try_from(self.slots.len()).map_err(|_| NicError::Limit {
            what: "the number of memory regions",
            asked: MAX_REGIONS as u64 + 1,
            limit: MAX_REGIONS as u64,
        })?;
        // Even, so that an rkey is odd, and neither is 0.
        let tag = (self.rng.next() as u16 & !1).max(2);
        self.slots.push(Slot { tag, region: None });
        Ok(index)
    }

    /// Removes the region with this lkey, if it exists. Both keys are invalid afterwards.
    pub fn remove(&mut self, lkey: u32) -> Option<Region> {
        let (tag, index) = tag_and_slot(lkey);
        let slot = self.slots.get_mut(usize::from(index)).filter(|slot| slot.tag == tag)?;
        let region = slot.region.take()?;
        slot.tag = slot.tag.wrapping_add(2).max(2);
        self.free.push_back(index);
        Some(region)
    }

    /// Returns the bytes that a request of a local queue pair names, for reading or, with
    /// [`AccessFlags::LOCAL_WRITE`], for writing.
    ///
    /// # Errors
    ///
    /// The key does not permit the access.
    #[inline]
    pub fn local(
        &self,
        domain: DomainId,
        range: Range,
        access: AccessFlags,
    ) -> Result<Span<'_>, KeyFault> {
        let (tag, index) = tag_and_slot(range.key);
        self.open(tag, index, domain, range, access)
    }

    /// Returns the bytes that a peer's request names.
    ///
    /// # Errors
    ///
    /// The key does not permit the access.
    #[inline]
    pub fn remote(
        &self,
        domain: DomainId,
        range: Range,
        access: AccessFlags,
    ) -> Result<Span<'_>, KeyFault> {
        let (tag, index) = tag_and_slot(range.key);
        self.open(tag.wrapping_sub(1), index, domain, range, access)
    }

    #[inline]
    fn open(
        &self,
        tag: u16,
        index: u16,
        domain: DomainId,
        range: Range,
        access: AccessFlags,
    ) -> Result<Span<'_>, KeyFault> {
        let slot = self.slots.get(usize::from(index)).filter(|slot| slot.tag == tag);
        let region = slot.and_then(|slot| slot.region.as_ref()).ok_or(KeyFault::Unknown)?;
        if region.domain != domain {
            return Err(KeyFault::Domain);
        }
        if !region.access.contains(access) {
            return Err(KeyFault::Access);
        }
        region.span(range.addr, range.length).ok_or(KeyFault::Bounds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::Pages;
    use polyrail_core::verbs::DEVICE_ADDRESSES;

    const HOME: DomainId = DomainId(1);

    fn region(pages: &Arc<Pages>, access: AccessFlags) -> Region {
        let start = pages.addr();
        let owner: Owner = Arc::<Pages>::clone(pages);
        Region { domain: HOME, start, memory: start, length: 100, access, owner: Some(owner) }
    }

    fn table() -> (MemoryTable, Arc<Pages>, u32, u32) {
        let pages = Arc::new(Pages::new(100).unwrap());
        let mut table = MemoryTable::new(3);
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
        // SAFETY: the region owns its pages, which are accessed by spans only.
        let (lkey, rkey) = unsafe { table.insert(region(&pages, access)) }.unwrap();
        (table, pages, lkey, rkey)
    }

    #[test]
    fn keys_are_distinct_nonzero_and_open_their_own_side_only() {
        let (table, pages, lkey, rkey) = table();
        assert!(lkey != rkey && lkey != 0 && rkey != 0);
        let range = |key| Range { key, addr: pages.addr(), length: 100 };
        assert!(table.local(HOME, range(lkey), AccessFlags::LOCAL_WRITE).is_ok());
        assert!(table.remote(HOME, range(rkey), AccessFlags::REMOTE_READ).is_ok());
        let swapped = table.local(HOME, range(rkey), AccessFlags::empty());
        assert_eq!(swapped.unwrap_err(), KeyFault::Unknown);
        let swapped = table.remote(HOME, range(lkey), AccessFlags::empty());
        assert_eq!(swapped.unwrap_err(), KeyFault::Unknown);
    }

    #[test]
    fn bounds_access_and_domain_are_checked() {
        let (table, pages, lkey, _) = table();
        let open = |domain, offset: i64, length, access| {
            let addr = pages.addr().wrapping_add_signed(offset);
            table.local(domain, Range { key: lkey, addr, length }, access).err()
        };
        let none = AccessFlags::empty();
        assert_eq!(open(HOME, 99, 1, none), None);
        assert_eq!(open(HOME, 100, 0, none), None);
        assert_eq!(open(HOME, 99, 2, none), Some(KeyFault::Bounds));
        assert_eq!(open(HOME, -1, 1, none), Some(KeyFault::Bounds));
        assert_eq!(open(HOME, 1, u32::MAX, none), Some(KeyFault::Bounds));
        assert_eq!(open(HOME, 0, 1, AccessFlags::REMOTE_WRITE), Some(KeyFault::Access));
        assert_eq!(open(DomainId(2), 0, 1, none), Some(KeyFault::Domain));
    }

    #[test]
    fn a_region_is_named_by_its_own_address_wherever_its_bytes_are() {
        let pages = Arc::new(Pages::new(100).unwrap());
        pages.span(0, 3).write(b"abc");
        let start = DEVICE_ADDRESSES + 7;
        let mut table = MemoryTable::new(3);
        let elsewhere = Region { start, ..region(&pages, AccessFlags::empty()) };
        // SAFETY: as in `table`.
        let (lkey, _) = unsafe { table.insert(elsewhere) }.unwrap();
        let open = |addr, length| {
            table.local(HOME, Range { key: lkey, addr, length }, AccessFlags::empty())
        };
        let mut bytes = [0; 2];
        open(start + 1, 2).unwrap().read(&mut bytes);
        assert_eq!(&bytes, b"bc");
        assert_eq!(open(start + 99, 2).unwrap_err(), KeyFault::Bounds);
        assert_eq!(open(pages.addr(), 1).unwrap_err(), KeyFault::Bounds);
    }

    #[test]
    fn a_removed_region_stays_unknown_though_its_slot_is_used_again() {
        let (mut table, pages, lkey, _) = table();
        assert!(table.remove(lkey).is_some());
        assert!(table.remove(lkey).is_none());
        for _ in 0..10_000 {
            // SAFETY: as in `table`.
            let (next, _) = unsafe { table.insert(region(&pages, AccessFlags::empty())) }.unwrap();
            let stale = Range { key: lkey, addr: pages.addr(), length: 1 };
            let opened = table.local(HOME, stale, AccessFlags::empty());
            assert_eq!(opened.unwrap_err(), KeyFault::Unknown);
            table.remove(next).unwrap();
        }
    }

    #[test]
    fn what_no_device_registers_is_refused() {
        let pages = Arc::new(Pages::new(100).unwrap());
        let limits = DeviceLimits { max_mr_size: 1000, ..DeviceLimits::default() };
        let check = |access| region(&pages, access).validate(&limits);
        assert!(check(AccessFlags::all() - AccessFlags::all()).is_ok());
        let remote = AccessFlags::REMOTE_WRITE;
        assert_eq!(check(remote), Err(NicError::AccessWithoutLocalWrite(remote)));
        let paging = AccessFlags::ON_DEMAND;
        assert_eq!(check(paging), Err(NicError::UnsupportedAccess(paging)));
        let pages_on_demand = DeviceLimits { on_demand_paging: true, ..limits };
        assert_eq!(region(&pages, paging).validate(&pages_on_demand), Ok(()));
        let small = DeviceLimits { max_mr_size: 99, ..limits };
        assert!(matches!(
            region(&pages, AccessFlags::empty()).validate(&small),
            Err(NicError::Limit { limit: 99, .. })
        ));
        let wraps = Region { start: u64::MAX - 5, ..region(&pages, AccessFlags::empty()) };
        assert_eq!(
            wraps.validate(&limits),
            Err(NicError::AddressWraps { addr: u64::MAX - 5, length: wraps.length })
        );
    }
}
