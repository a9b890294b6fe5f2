//! Memory windows: their ranges and their keys.

use crate::fake::{fail, with};
use crate::fixture::open;
use crate::requests::{connected, ids, posted};
use polyrail_core::hardware::{CommitError, Refusal};
use polyrail_core::verbs::{AccessFlags, SendFlags};
use polyrail_ffi::{PostMode, ProtectionDomain, WindowRange};

#[test]
fn windows_and_regions_of_another_device_never_reach_the_driver() {
    let mut qp = connected(PostMode::Auto);
    let pd = qp.pd().clone();
    let (_, there, _) = open();
    let access = AccessFlags::MW_BIND;
    let register = |pd: &ProtectionDomain| {
        // SAFETY: the fake device never touches memory.
        unsafe { pd.register(std::ptr::without_provenance_mut(4096), 64, access) }.unwrap()
    };
    let own = register(&pd);
    let foreign = register(&there);
    let refused = CommitError { accepted: 0, refusal: Refusal::Driver(libc::EINVAL) };
    for (window_of, region, result) in
        [(&there, &own, Err(refused)), (&pd, &foreign, Err(refused)), (&pd, &own, Ok(()))]
    {
        let mut window = window_of.alloc_window().unwrap();
        let range = WindowRange { region, addr: 4096, length: 64, access };
        assert_eq!(qp.bind_window(1, SendFlags::empty(), &mut window, range), result);
        assert_eq!(window.rkey(), 0x500 + u32::from(result.is_ok()));
    }
    assert_eq!(ids(), [1]);
}

#[test]
fn a_window_has_a_new_key_once_its_request_is_taken() {
    let mut qp = connected(PostMode::Auto);
    let pd = qp.pd().clone();
    let access = AccessFlags::MW_BIND;
    // SAFETY: the fake device never touches memory.
    let region =
        unsafe { pd.register(std::ptr::without_provenance_mut(4096), 64, access) }.unwrap();
    let mut window = pd.alloc_window().unwrap();
    let range = WindowRange { region: &region, addr: 4096, length: 64, access };
    let mut bind = || {
        let bound = qp.bind_window(9, SendFlags::SIGNALED, &mut window, range);
        (bound, window.rkey())
    };
    with(|state| state.refusing = Some((0, libc::ENOMEM)));
    let full = CommitError { accepted: 0, refusal: Refusal::QueueFull };
    assert_eq!(bind(), (Err(full), 0x500));
    assert_eq!(bind(), (Ok(()), 0x501));
    assert_eq!(
        posted().iter().map(|request| (request.wr_id, request.opcode)).collect::<Vec<_>>(),
        [(9, 8)]
    );
    window.close().unwrap();
    fail("ibv_alloc_mw", libc::ENOMEM);
    assert_eq!(pd.alloc_window().map_err(|error| error.call).err(), Some("ibv_alloc_mw"));
}
