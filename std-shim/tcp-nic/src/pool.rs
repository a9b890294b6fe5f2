//! The I/O threads of the process.

use crate::commands::{NETLINK, WAKE};
use crate::io::{Work, is_lack};
use crate::netlink;
use crate::shared::{Inbox, IoThread};
use polyrail_nic_parts::sync::lock;
use polyrail_process::{PerProcess, Process};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, Weak};
use std::thread;

/// The threads of the process.
#[derive(Default)]
struct Pool {
    threads: Vec<Weak<IoThread>>,
    next: usize,
}

static POOL: PerProcess<Mutex<Pool>> = PerProcess::new();

impl IoThread {
    /// Returns the thread of a new device: a new one as long as there are fewer than half the
    /// processors.
    pub(crate) fn for_device() -> io::Result<Arc<Self>> {
        let mut pool = lock(POOL.get_or_make(Mutex::default));
        pool.threads.retain(|thread| thread.strong_count() > 0);
        let most = thread::available_parallelism().map_or(1, |count| count.get().div_ceil(2));
        if pool.threads.len() < most {
            let thread = Arc::new(Self::start()?);
            pool.threads.push(Arc::downgrade(&thread));
            return Ok(thread);
        }
        let turn = pool.next % pool.threads.len();
        pool.next = turn + 1;
        match pool.threads[turn].upgrade() {
            Some(thread) => Ok(thread),
            // Its last device was just closed.
            None => {
                let thread = Arc::new(Self::start()?);
                pool.threads[turn] = Arc::downgrade(&thread);
                Ok(thread)
            }
        }
    }

    fn start() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        let (commands, ends) = (Mutex::new(Vec::new()), AtomicBool::new(false));
        let inbox = Arc::new(Inbox { epoll, wake, commands, ends });
        let netlink = match netlink::open().map_err(io::Error::from) {
            Ok(netlink) => Some(netlink),
            Err(error) if is_lack(&error) => return Err(error),
            // A filter of system calls refuses it: ports stay as they were when devices were opened.
            Err(_) => None,
        };
        if let Some(netlink) = &netlink {
            epoll::add(&inbox.epoll, netlink, EventData::new_u64(NETLINK), EventFlags::IN)?;
        }
        let mut work = Work::new(Arc::clone(&inbox), netlink);
        let builder = thread::Builder::new().name("polyrail-tcp".to_owned());
        let thread = Some(builder.spawn(move || work.run())?);
        Ok(Self { inbox, process: Process::current(), thread })
    }
}
