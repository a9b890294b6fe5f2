//! The cache of registrations, against a plain list of them, and over devices that refuse.

mod recorded;

use polyrail::backend::DeviceError;
use polyrail::endpoint::{Endpoint, EndpointBuilder, connect_endpoints};
use polyrail::memory::{
    CacheCounters, CacheLimits, CachedBuffer, RegionKeys, RegisteredBuffer, RegistrationCache,
    StillRegistered,
};
use polyrail::nic::{DeviceLimits, Fabric, NicError};
use polyrail::verbs::{AccessFlags, SendWr, WcStatus};
use quickcheck::{Arbitrary, Gen, QuickCheck};
use recorded::{Recorded, RecordedQp, RecordedRegion};
use std::sync::atomic::Ordering;
use std::thread;

type Cached = CachedBuffer<RecordedRegion>;

const READABLE: AccessFlags = AccessFlags::REMOTE_READ;
const WRITABLE: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_WRITE);

/// Memory that is never freed before the cache.
const BYTES: usize = 64;

struct Rig {
    cache: RegistrationCache<Recorded>,
    device: Recorded,
    memory: Box<[u8; BYTES]>,
}

impl Rig {
    fn new(limits: CacheLimits) -> Self {
        Self::on(DeviceLimits::default(), limits)
    }

    fn on(device: DeviceLimits, limits: CacheLimits) -> Self {
        let device = Recorded::on(&Fabric::threaded(), "soft0", device);
        let cache = RegistrationCache::new(&[&device], limits);
        Self { cache, device, memory: Box::new([0; BYTES]) }
    }

    fn at(&self, start: usize) -> *mut u8 {
        self.memory.as_ptr().cast_mut().wrapping_add(start)
    }

    fn get(&self, start: usize, length: usize, access: AccessFlags) -> Result<Cached, DeviceError> {
        // SAFETY: the memory is touched through devices only, and lives as long as the cache.
        unsafe { self.cache.get(self.at(start), length, access) }
    }

    fn invalidate(&self, start: usize, length: usize) -> Result<(), StillRegistered> {
        self.cache.invalidate(self.at(start), length)
    }
}

/// Up to this many registrations and bytes.
fn at_most(max_registrations: usize, max_bytes: u64) -> CacheLimits {
    CacheLimits { max_registrations, max_bytes }
}

#[derive(Clone, Debug)]
enum Step {
    /// Asks for a range, and holds what comes in a slot, which then lets go of what it held.
    Get {
        slot: usize,
        start: usize,
        length: usize,
        is_writable: bool,
    },
    Release {
        slot: usize,
    },
    Invalidate {
        start: usize,
        length: usize,
    },
}

const SLOTS: usize = 4;

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        let slot = usize::arbitrary(g) % SLOTS;
        let start = usize::arbitrary(g) % BYTES;
        let length = 1 + usize::arbitrary(g) % (BYTES - start).min(24);
        match u8::arbitrary(g) % 8 {
            0 => Self::Invalidate { start, length },
            1..=3 => Self::Release { slot },
            _ => Self::Get { slot, start, length, is_writable: bool::arbitrary(g) },
        }
    }
}

/// The cache as a list.
struct Model {
    limits: CacheLimits,
    registrations: Vec<Registered>,
    slots: [Option<Held>; SLOTS],
    clock: u64,
    hits: u64,
    misses: u64,
}

#[derive(Clone, Copy)]
struct Registered {
    keys: RegionKeys,
    start: usize,
    end: usize,
    access: AccessFlags,
    used: u64,
    answers: bool,
}

#[derive(Clone, Copy)]
struct Held {
    keys: RegionKeys,
    start: usize,
    length: usize,
}

impl Model {
    fn new(limits: CacheLimits) -> Self {
        let slots = [None; SLOTS];
        Self { limits, registrations: Vec::new(), slots, clock: 0, hits: 0, misses: 0 }
    }

    fn is_used(&self, registered: &Registered) -> bool {
        self.slots.iter().flatten().any(|held| held.keys == registered.keys)
    }

    /// What answers for a range.
    fn find(&mut self, start: usize, end: usize, access: AccessFlags) -> Option<&mut Registered> {
        let all = self.registrations.iter_mut();
        let answers = all.filter(|registered| {
            let contains = registered.start <= start && end <= registered.end;
            registered.answers && registered.access == access && contains
        });
        // Of several the last.
        answers.max_by_key(|registered| registered.start)
    }

    /// Notes that a range came with these keys; whether those are the right ones.
    fn got(&mut self, held: Held, access: AccessFlags) -> bool {
        let Held { keys, start, length } = held;
        let end = start + length;
        self.clock += 1;
        let used = self.clock;
        if let Some(found) = self.find(start, end, access) {
            found.used = used;
            let fits = found.keys == keys;
            self.hits += 1;
            return fits;
        }
        self.misses += 1;
        let is_new = self.registrations.iter().all(|other| other.keys != keys);
        for other in &mut self.registrations {
            let is_contained = start <= other.start && other.end <= end;
            other.answers &= !(is_contained && other.access == access);
        }
        self.registrations.push(Registered { keys, start, end, access, used, answers: true });
        is_new
    }

    fn release(&mut self, slot: usize) {
        self.slots[slot] = None;
        self.trim();
    }

    /// Drops unused entries beyond the limit.
    fn trim(&mut self) {
        while self.is_over() {
            let idle = self.answering().filter(|one| !self.is_used(one));
            let Some(oldest) = idle.map(|one| one.used).min() else { break };
            self.registrations.retain(|one| one.used != oldest);
        }
        let all = std::mem::take(&mut self.registrations);
        let stays = |one: &Registered| one.answers || self.is_used(one);
        self.registrations = all.into_iter().filter(stays).collect();
    }

    fn answering(&self) -> impl Iterator<Item = &Registered> {
        self.registrations.iter().filter(|registered| registered.answers)
    }

    fn counters(&self) -> CacheCounters {
        let bytes = self.answering().map(|one| (one.end - one.start) as u64).sum();
        let registrations = self.answering().count();
        CacheCounters { hits: self.hits, misses: self.misses, registrations, bytes }
    }

    fn is_over(&self) -> bool {
        let CacheCounters { registrations, bytes, .. } = self.counters();
        registrations > self.limits.max_registrations || bytes > self.limits.max_bytes
    }

    /// Forgets a range; how many registrations of it are in use.
    fn invalidate(&mut self, start: usize, length: usize) -> usize {
        let overlaps = |one: &Registered| one.start < start + length && start < one.end;
        for registered in &mut self.registrations {
            registered.answers &= !overlaps(registered);
        }
        self.trim();
        self.registrations.iter().filter(|one| overlaps(one)).count()
    }
}

/// Runs the steps on both; whether they agree after each.
fn agrees(steps: Vec<Step>, limits: usize) -> bool {
    let choices = [at_most(3, 1000), at_most(1000, 40), at_most(0, 0), CacheLimits::default()];
    let limits = choices[limits % choices.len()];
    let rig = Rig::new(limits);
    let mut model = Model::new(limits);
    let mut slots: [Option<Cached>; SLOTS] = Default::default();
    for step in &steps {
        let agreed = match *step {
            Step::Get { slot, start, length, is_writable } => {
                slots[slot] = None;
                model.release(slot);
                let access = if is_writable { WRITABLE } else { READABLE };
                let got = rig.get(start, length, access).unwrap();
                let held = Held { keys: got.keys()[0], start, length };
                let is_the_range = (got.addr(), got.len()) == (rig.at(start).addr() as u64, length);
                slots[slot] = Some(got);
                let fits = model.got(held, access);
                model.slots[slot] = Some(held);
                model.trim();
                fits && is_the_range
            }
            Step::Release { slot } => {
                slots[slot] = None;
                model.release(slot);
                true
            }
            Step::Invalidate { start, length } => {
                let used = model.invalidate(start, length);
                let expected =
                    if used == 0 { Ok(()) } else { Err(StillRegistered { used, kept: 0 }) };
                rig.invalidate(start, length) == expected
            }
        };
        let regions = model.registrations.len();
        if !agreed
            || rig.cache.counters() != model.counters()
            || rig.device.regions() as usize != regions
        {
            return false;
        }
    }
    let all_usable = slots.iter().flatten().all(|held| is_usable(&rig.device, held));
    let Rig { cache, device, memory: _memory } = rig;
    drop(cache);
    let used = model.registrations.iter().filter(|one| model.is_used(one)).count();
    let stays_while_used = device.regions() as usize == used;
    drop(slots);
    all_usable && stays_while_used && device.regions() == 0
}

/// Whether the device reads all of a buffer with its key.
fn is_usable(device: &Recorded, held: &Cached) -> bool {
    let builder = EndpointBuilder::new().rails(1);
    let mut near: Endpoint<RecordedQp> = builder.build(&[device]).unwrap();
    let mut far: Endpoint<RecordedQp> = builder.build(&[device]).unwrap();
    connect_endpoints(&mut near, &mut far).unwrap();
    let target = RegisteredBuffer::new(BYTES, WRITABLE, &[device]).unwrap();
    let local = held.local(0, held.len() as u32).unwrap();
    let keys = held.toward(&target.remote()).unwrap();
    near.post_send(&SendWr::write(1, local, target.addr(), &keys)).unwrap();
    loop {
        _ = far.poll(1);
        if let Some(done) = near.poll(1).completions.pop() {
            return done.status == WcStatus::SUCCESS;
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "it maps memory for endpoints")]
fn the_cache_does_what_a_plain_list_does() {
    QuickCheck::new()
        .rng(Gen::from_size_and_seed(100, 1))
        .tests(1000)
        .quickcheck(agrees as fn(Vec<Step>, usize) -> bool);
}

#[test]
fn unused_registrations_make_room_where_a_device_runs_out() {
    let two = DeviceLimits { max_mr: 2, ..DeviceLimits::default() };
    let rig = Rig::on(two, CacheLimits::default());
    let first = rig.get(0, 8, READABLE).unwrap();
    drop(rig.get(8, 8, READABLE).unwrap());
    let third = rig.get(16, 8, READABLE).unwrap();
    assert_eq!((rig.device.regions(), rig.cache.counters().registrations), (2, 2));
    let full = rig.get(24, 8, READABLE).unwrap_err();
    assert!(matches!(full, DeviceError::Nic(NicError::Limit { limit: 2, .. })), "{full}");
    assert_eq!(rig.get(0, 8, READABLE).unwrap().keys(), first.keys());
    drop((first, third));
    assert_eq!(rig.device.regions(), 2);
    // What makes no sense costs the others nothing.
    assert!(rig.get(0, 0, READABLE).is_err() && rig.get(0, 8, AccessFlags::MW_BIND).is_err());
    assert_eq!(rig.cache.counters().registrations, 2);
}

/// No room that the cache could make would help.
#[test]
fn memory_that_is_too_long_for_a_device_costs_no_registration() {
    let short = DeviceLimits { max_mr_size: 16, ..DeviceLimits::default() };
    let rig = Rig::on(short, CacheLimits::default());
    drop(rig.get(0, 16, READABLE).unwrap());
    let refused = rig.get(0, 17, READABLE).unwrap_err();
    assert!(matches!(refused, DeviceError::RegionTooLong { limit: 16, .. }), "{refused}");
    assert_eq!((rig.device.regions(), rig.cache.counters().registrations), (1, 1));
}

#[test]
fn memory_in_use_is_not_said_to_be_free() {
    let rig = Rig::new(CacheLimits::default());
    let held = rig.get(10, 10, READABLE).unwrap();
    let used = |used| Err(StillRegistered { used, kept: 0 });
    assert_eq!(rig.invalidate(0, 10), Ok(()), "the byte behind it is not its own");
    assert_eq!(rig.invalidate(19, 1), used(1));
    assert!(is_usable(&rig.device, &held), "it stays for who uses it");
    let anew = rig.get(12, 2, READABLE).unwrap();
    assert_ne!(anew.keys(), held.keys(), "and for nobody else");
    assert_eq!(rig.invalidate(0, BYTES), used(2));
    drop(held);
    assert_eq!((rig.invalidate(0, BYTES), rig.device.regions()), (used(1), 1));
    drop(anew);
    assert_eq!((rig.invalidate(0, BYTES), rig.device.regions()), (Ok(()), 0));
    let held = rig.get(0, 1, READABLE).unwrap();
    let Rig { cache, device, memory: _memory } = rig;
    let error = cache.close().unwrap_err();
    assert_eq!(
        error.to_string(),
        "memory is still registered: 1 registrations are in use, 0 could not be deregistered"
    );
    drop(held);
    assert_eq!(device.regions(), 0, "buffers outlive their cache");
}

#[test]
fn what_a_device_does_not_deregister_is_never_said_to_be_free() {
    let rig = Rig::new(at_most(1, 1000));
    drop(rig.get(0, 8, READABLE).unwrap());
    rig.device.keeps_regions.store(true, Ordering::Relaxed);
    // The second pushes out the first.
    drop(rig.get(8, 8, READABLE).unwrap());
    rig.device.keeps_regions.store(false, Ordering::Relaxed);
    assert_eq!(rig.invalidate(8, 8), Ok(()));
    let kept = Err(StillRegistered { used: 0, kept: 1 });
    assert_eq!((rig.invalidate(7, 1), rig.invalidate(0, 8)), (kept, kept));
    assert_eq!((rig.device.regions(), rig.cache.close()), (1, kept));
}

#[test]
fn what_is_being_deregistered_is_waited_for() {
    let rig = Rig::new(at_most(0, 0));
    let held = rig.get(0, 8, READABLE).unwrap();
    let begun = rig.device.is_slow.clone();
    begun.store(true, Ordering::Relaxed);
    thread::scope(|scope| {
        scope.spawn(|| drop(held));
        while rig.cache.counters().registrations != 0 {
            thread::yield_now();
        }
        assert_eq!((rig.invalidate(0, 8), rig.device.regions()), (Ok(()), 0));
    });
}

#[test]
fn threads_get_release_and_invalidate_at_once() {
    const THREADS: usize = 4;
    const ROUNDS: usize = if cfg!(miri) { 20 } else { 2000 };
    let rig = Rig::new(at_most(3, 1000));
    let work = |own: usize| {
        for round in 0..ROUNDS {
            // All threads share the first half; each has its own part of the second half to
            // invalidate.
            let shared = rig.get(round % 16, 16, READABLE).unwrap();
            let start = BYTES / 2 + 8 * own;
            let held = rig.get(start, 1 + round % 8, READABLE).unwrap();
            assert_eq!(held.addr(), rig.at(start).addr() as u64);
            drop(held);
            assert_eq!(rig.invalidate(start, 8), Ok(()));
            drop(shared);
        }
    };
    thread::scope(|scope| {
        let work = &work;
        (0..THREADS).for_each(|own| _ = scope.spawn(move || work(own)));
    });
    let CacheCounters { hits, misses, registrations, .. } = rig.cache.counters();
    assert_eq!((hits + misses) as usize, 2 * THREADS * ROUNDS);
    assert!(registrations <= 3 && rig.device.regions() as usize == registrations);
    assert_eq!((rig.invalidate(0, BYTES), rig.device.regions()), (Ok(()), 0));
}
