//! The I/O threads of the process.

use crate::commands::{NETLINK, WAKE};
use crate::io::{Work, is_lack};
use crate::netlink;
use crate::place::Processors;
use crate::shared::{Inbox, IoThread};
use polyrail_nic_parts::sync::lock;
use polyrail_process::{PerProcess, Process};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;

/// The threads of the process.
#[derive(Default)]
struct Pool {
    threads: Vec<Member>,
    next: usize,
}

struct Member {
    thread: Weak<IoThread>,
    /// Where it may run.
    processors: Processors,
}

static POOL: PerProcess<Mutex<Pool>> = PerProcess::new();

impl IoThread {
    /// Returns the thread of a new device, which runs on these processors: a new one as long as
    /// there are fewer than half of them.
    pub(crate) fn for_device(processors: Processors) -> io::Result<Arc<Self>> {
        let mut pool = lock(POOL.get_or_make(Mutex::default));
        pool.threads.retain(|member| member.thread.strong_count() > 0);
        let fitting = pool.threads.iter().filter(|member| member.processors == processors);
        // Its last device may just have been closed.
        let fitting: Vec<_> = fitting.filter_map(|member| member.thread.upgrade()).collect();
        if fitting.len() < processors.count().div_ceil(2) {
            let thread = Arc::new(Self::start(processors)?);
            pool.threads.push(Member { thread: Arc::downgrade(&thread), processors });
            return Ok(thread);
        }
        let turn = pool.next % fitting.len();
        pool.next = turn + 1;
        Ok(Arc::clone(&fitting[turn]))
    }

    fn start(processors: Processors) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        let (commands, ends) = (Mutex::new(Vec::new()), AtomicBool::new(false));
        let inbox = Arc::new(Inbox { epoll, wake, commands, ends });
        let netlink = match netlink::open().map_err(io::Error::from) {
            Ok(netlink) => Some(netlink),
            Err(error) if is_lack(&error) => return Err(error),
            // A filter of system calls refuses it: ports stay as they were when devices were
            // opened.
            Err(_) => None,
        };
        if let Some(netlink) = &netlink {
            epoll::add(&inbox.epoll, netlink, EventData::new_u64(NETLINK), EventFlags::IN)?;
        }
        let mut work = Work::new(Arc::clone(&inbox), netlink);
        let builder = thread::Builder::new().name("polyrail-tcp".to_owned());
        // A channel would allocate in the calling thread, and free it never if that is the main
        // thread of a C program.
        let pinned = Arc::new(OnceLock::new());
        let report = Arc::clone(&pinned);
        let thread = builder.spawn(move || {
            if report.get_or_init(|| processors.pin()).is_ok() {
                work.run();
            }
        })?;
        let thread = Self { inbox, process: Process::current(), thread: Some(thread) };
        match pinned.wait() {
            Ok(()) => Ok(thread),
            Err(errno) => Err((*errno).into()),
        }
    }
}

#[cfg(test)]
mod rt_tests {
    use super::*;
    use crate::device::{Device, DeviceOptions, OpenError};
    use crate::place::ThreadPlace;
    use rustix::thread::{CpuSet, sched_getaffinity};
    use std::os::unix::thread::JoinHandleExt;
    use std::time::{Duration, Instant};

    /// The processors that this process may use.
    fn allowed() -> Vec<usize> {
        let set = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
    }

    fn open(address: &str, thread_place: ThreadPlace) -> Result<Device, OpenError> {
        Device::open(address, &DeviceOptions { thread_place, ..DeviceOptions::default() })
    }

    #[test]
    fn a_thread_runs_on_its_processor_and_serves_devices_of_the_same_place() {
        let processor = ThreadPlace::Processor(*allowed().last().unwrap() as u32);
        let pinned = open("127.8.3.1", processor).unwrap();
        let also = open("127.8.3.2", processor).unwrap();
        let free = open("127.8.3.3", ThreadPlace::Anywhere).unwrap();
        // The loopback interface is virtual.
        let beside = open("127.8.3.4", ThreadPlace::BesideNic).unwrap();
        assert!(Arc::ptr_eq(&pinned.0.io, &also.0.io));
        for other in [free, beside] {
            assert!(!Arc::ptr_eq(&pinned.0.io, &other.0.io));
        }
        assert_eq!(pinned.0.io.processors(), [*allowed().last().unwrap()]);
    }

    #[test]
    fn a_processor_that_is_not_there_is_refused() {
        for number in [CpuSet::MAX_CPU as u32 - 1, CpuSet::MAX_CPU as u32, u32::MAX] {
            match open("127.8.3.5", ThreadPlace::Processor(number)) {
                Err(OpenError::Processor { processor, source }) => {
                    assert_eq!(processor, number);
                    assert_eq!(source.raw_os_error(), Some(libc::EINVAL));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_thread_with_a_spin_time_does_not_sleep_after_it_had_something_to_do() {
        // A thread of its own, whatever other tests do.
        let thread_place = ThreadPlace::Processor(allowed()[0] as u32);
        let spin = Duration::from_secs(3600);
        let options = DeviceOptions { thread_place, spin, ..DeviceOptions::default() };
        let device = Device::open("127.8.3.6", &options).unwrap();
        device.0.io.inbox.wake();
        let io = &device.0.io;
        let (before, begin) = (io.used(), Instant::now());
        while io.used() < before + Duration::from_millis(50) {
            assert!(begin.elapsed() < Duration::from_secs(120), "it sleeps");
            thread::sleep(Duration::from_millis(1));
        }
    }

    impl IoThread {
        fn pthread(&self) -> libc::pthread_t {
            self.thread.as_ref().unwrap().as_pthread_t() as libc::pthread_t
        }

        /// The processors on which it may run.
        fn processors(&self) -> Vec<usize> {
            // SAFETY: a set without processors is all zeros.
            let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
            // SAFETY: the thread runs as long as its handle is there; the set is written.
            let result = unsafe {
                libc::pthread_getaffinity_np(self.pthread(), size_of_val(&set), &mut set)
            };
            assert_eq!(result, 0);
            // SAFETY: the numbers are below the size of the set.
            let is_set = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &set) };
            (0..libc::CPU_SETSIZE as usize).filter(is_set).collect()
        }

        /// The processor time that it has used.
        fn used(&self) -> Duration {
            let mut clock = 0;
            // SAFETY: the thread runs as long as its handle is there; the number is written.
            let result = unsafe { libc::pthread_getcpuclockid(self.pthread(), &mut clock) };
            assert_eq!(result, 0);
            let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: the time is written.
            let result = unsafe { libc::clock_gettime(clock, &mut time) };
            assert_eq!(result, 0);
            Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
        }
    }
}
