//! A fork while another thread holds a lock: the child, in which the lock is never released, waits
//! for none.

mod fixture;
#[path = "../../process/tests/in_fork/mod.rs"]
mod in_fork;

use fixture::{ALL_ACCESS, LONG};
use in_fork::in_fork;
use polyrail::backend::{Connecting, DeviceError, MOST_ASIDE};
use polyrail::endpoint::EndpointBuilder;
use polyrail::heal::HealingMessage;
use polyrail::memory::{CacheCounters, CacheLimits, RegistrationCache};
use polyrail::nic::{DeviceConfig, Fabric, ProtectionDomain};
use polyrail::virtual_qp::{RailFailure, RailId};
use polyrail_process::Forked;
use std::fmt::{self, Debug, Write};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

/// Forks when a certain text is written.
struct Forks<F> {
    at: &'static str,
    /// Times that the text is still written before the fork.
    later: usize,
    work: Option<F>,
}

impl<F: FnOnce()> Write for Forks<F> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if text == self.at {
            match self.later.checked_sub(1) {
                Some(later) => self.later = later,
                None => self.work.take().into_iter().for_each(in_fork),
            }
        }
        Ok(())
    }
}

/// Runs `work` in a fork, in which a lock is held: a mutex is locked while its contents are
/// formatted for `Debug`, and the fork happens when `at` is written for the time number `later`
/// (from 0).
#[track_caller]
fn with_lock_held(formatted: &dyn Debug, at: &'static str, later: usize, work: impl FnOnce()) {
    let work = || {
        let text = format!("{formatted:?}");
        assert!(text.contains("<locked>"), "no lock is held: {text}");
        work();
    };
    let mut forks = Forks { at, later, work: Some(work) };
    write!(forks, "{formatted:?}").unwrap();
    assert!(forks.work.is_none(), "{at:?} is not written so often: {formatted:?}");
}

#[test]
fn a_child_waits_for_no_lock() {
    let fabric = Fabric::threaded();
    let domain = fabric.create_device(DeviceConfig::named("nic")).alloc_pd().unwrap();
    an_end_that_repairs(&domain);
    a_cache(&domain);
    work_aside();
}

/// The child has no thread of its parent, all of which are busy.
fn work_aside() {
    let done = Arc::new(Mutex::new(()));
    let held = done.lock().unwrap();
    let work = |_| {
        let done = Arc::clone(&done);
        Connecting::aside(move || {
            drop(done.lock());
            Ok(())
        })
    };
    let works: Vec<_> = (0..=MOST_ASIDE).map(work).collect();
    in_fork(|| {
        let mut work = Connecting::aside(|| Ok(7));
        let begin = Instant::now();
        let done = loop {
            match work.take() {
                Some(done) => break done,
                None => assert!(begin.elapsed() < LONG, "the work waits for threads of the parent"),
            }
            thread::yield_now();
        };
        assert_eq!(done, Ok(7));
    });
    drop(held);
    for mut work in works {
        while work.take().is_none() {
            thread::yield_now();
        }
    }
}

/// The locks of the link: messages and waker of one direction, then of the other.
fn an_end_that_repairs(domain: &ProtectionDomain) {
    let builder = EndpointBuilder::new().rail_failure(RailFailure::Reroute);
    let mut ends = [(); 2].map(|()| builder.build(&[domain]).unwrap());
    let addresses = ends.each_ref().map(|end| end.address());
    ends[0].connect(&addresses[1]).unwrap();
    ends[1].connect(&addresses[0]).unwrap();
    let link = ends[0].healing_link().expect("its rails are re-routed");
    let rail = RailId::Data(0);
    for lock in 0..4 {
        link.handle(HealingMessage::Wanted { rail }).unwrap();
        let mut all = Some(ends);
        with_lock_held(&link, "data", lock, || {
            let [mut end, peer] = all.take().unwrap();
            end.fail_rail(rail);
            for _ in 0..100 {
                _ = end.poll(16);
            }
            assert_eq!(link.next_message(), None);
            drop((end, peer));
        });
        ends = all.unwrap();
    }
    // The parent's message is still there, and nothing was sent.
    assert_eq!(link.next_message(), None);
    drop(ends);
    assert!(matches!(link.next_message(), Some(HealingMessage::Control(_))));
}

fn a_cache(domain: &ProtectionDomain) {
    const PAGE: usize = 4096;
    let mut bytes = vec![0u8; 3 * PAGE];
    let start = bytes.as_mut_ptr();
    let cache = RegistrationCache::new(&[domain], CacheLimits::default());
    let get = |cache: &RegistrationCache<_>, page: usize| {
        // SAFETY: the memory is freed after the cache is closed, and no request names it.
        unsafe { cache.get(start.wrapping_add(page * PAGE), PAGE, ALL_ACCESS) }
    };
    let (used, formatted) = (get(&cache, 0).unwrap(), get(&cache, 1).unwrap());
    let owner = std::process::id();
    let mut all = Some((cache, used));
    // A field of what the lock protects.
    with_lock_held(&formatted, "answering", 0, || {
        let (cache, used) = all.take().unwrap();
        let forked = Forked { owner, current: std::process::id() };
        for page in [0, 2] {
            let got = get(&cache, page).map(drop);
            assert_eq!(got, Err(DeviceError::Forked(forked)));
        }
        assert_eq!(cache.invalidate(start, 3 * PAGE), Ok(()));
        assert_eq!(cache.counters(), CacheCounters::default());
        drop(used);
        assert_eq!(cache.close(), Ok(()));
    });
    let (cache, used) = all.unwrap();
    assert_eq!(cache.counters().registrations, 2);
    drop((used, formatted));
    cache.close().unwrap();
}
