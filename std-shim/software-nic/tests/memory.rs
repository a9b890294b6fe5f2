//! Memory regions as their owners see them.

use polyrail_core::verbs::AccessFlags;
use polyrail_software_nic::{
    DeviceConfig, DeviceLimits, Fabric, NicError, Pages, ProtectionDomain,
};
use std::sync::Arc;

fn domain(limits: DeviceLimits) -> ProtectionDomain {
    let config = DeviceConfig { limits, ..DeviceConfig::named("soft0") };
    Fabric::threaded().create_device(config).alloc_pd().unwrap()
}

#[test]
fn a_device_takes_as_many_regions_as_its_limit() {
    let domain = domain(DeviceLimits { max_mr: 2, ..DeviceLimits::default() });
    let other = domain.device().alloc_pd().unwrap();
    let pages = Arc::new(Pages::new(4096).unwrap());
    let register = |domain: &ProtectionDomain| domain.register_pages(&pages, AccessFlags::empty());
    let first = register(&domain).unwrap();
    let second = register(&other).unwrap();
    assert_eq!(domain.device().memory_regions(), 2);
    let what = "the number of memory regions";
    let limit = NicError::Limit { what, asked: 3, limit: 2 };
    assert_eq!(register(&domain).err(), Some(limit));
    drop(first);
    assert_eq!(domain.device().memory_regions(), 1);
    assert!(domain.register_pages(&pages, AccessFlags::REMOTE_WRITE).is_err());
    let third = register(&domain).unwrap();
    drop((second, third));
    assert_eq!(domain.device().memory_regions(), 0);
}

#[test]
fn a_region_keeps_the_owner_of_its_memory_until_it_is_dropped() {
    let domain = domain(DeviceLimits::default());
    let owner = Arc::new([0u8; 64]);
    let start = owner.as_ptr().cast_mut();
    let kept = Arc::downgrade(&owner);
    // SAFETY: the bytes are the owner's, and no request names them.
    let region = unsafe { domain.register_owned(start, 64, AccessFlags::empty(), owner) }.unwrap();
    assert_eq!((region.addr(), region.len()), (start.addr() as u64, 64));
    assert_eq!(kept.strong_count(), 1);
    drop(region);
    assert_eq!(kept.strong_count(), 0);
}
