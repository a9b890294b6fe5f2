//! The progress thread under tokio: many tasks post, one thread polls, and a task sleeps until its
//! request is done. Over the software NIC, or between the two devices that are named, of any backend:
//!
//! ```sh
//! cargo run --release --example under_tokio
//! cargo run --release --example under_tokio tcp:127.0.0.1 tcp:127.0.0.2
//! ```

use polyrail::any::{AnyRegion, OpenOptions, open_device};
use polyrail::endpoint::{EndpointBuilder, EndpointSet, connect_endpoints};
use polyrail::memory::RegisteredBuffer;
use polyrail::progress::{Handle, ProgressThread};
use polyrail::verbs::{AccessFlags, DeviceKeys, RecvWr, SendWr};
use std::error::Error;
use std::sync::Arc;
use tokio::task::JoinSet;

const TASKS: usize = 8;
const REQUESTS: u32 = 200;
const BYTES: u32 = 16 << 10;

type Failed = Box<dyn Error + Send + Sync>;

/// Writes its part of the peer's memory again and again, and notifies the peer each time.
async fn write(
    mut handle: Handle,
    part: usize,
    from: Arc<RegisteredBuffer<AnyRegion>>,
    (addr, keys): (u64, Vec<DeviceKeys>),
) -> Result<(), Failed> {
    let at = part * BYTES as usize;
    for number in 0..REQUESTS {
        let local = from.local(at, BYTES)?;
        let wr = SendWr::write_with_imm(0, local, addr + at as u64, number, &keys);
        let done = handle.post_send(&wr)?.await?;
        assert!(done.status.is_success(), "{}", done.status);
    }
    Ok(())
}

/// Is told of everything that one task writes, in its order.
async fn listen(mut handle: Handle) -> Result<(), Failed> {
    let mut next = handle.post_recv(&RecvWr::notification(0))?;
    for number in 0..REQUESTS {
        // One ahead, so that the writer does not wait for a receive.
        let after = handle.post_recv(&RecvWr::notification(0))?;
        let told = next.await?;
        assert_eq!((told.status.is_success(), told.imm), (true, Some(number)));
        next = after;
    }
    Ok(())
}

fn main() -> Result<(), Failed> {
    let mut names = std::env::args().skip(1);
    let mut open = |otherwise: &str| {
        let name = names.next();
        open_device(name.as_deref().unwrap_or(otherwise), &OpenOptions::default())
    };
    let (here, there) = (open("software:here")?, open("software:there")?);
    let builder = EndpointBuilder::new().rails(2);
    let mut writers = EndpointSet::build(vec![(builder, [&here]); TASKS])?;
    let mut listeners = EndpointSet::build(vec![(builder, [&there]); TASKS])?;
    for (writer, listener) in writers.qps_mut().zip(listeners.qps_mut()) {
        connect_endpoints(writer, listener)?;
    }
    let length = TASKS * BYTES as usize;
    let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let from = Arc::new(RegisteredBuffer::new(length, AccessFlags::empty(), &[&here])?);
    let to = RegisteredBuffer::new(length, writable, &[&there])?;
    let keys = from.toward(&to.remote())?;

    let writers = ProgressThread::spawn(writers)?;
    let listeners = ProgressThread::spawn(listeners)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for part in 0..TASKS {
            let handle =
                |thread: &ProgressThread<_, _>| thread.handle(part).ok_or("a member of the set");
            let remote = (to.addr(), keys.clone());
            tasks.spawn(listen(handle(&listeners)?));
            tasks.spawn(write(handle(&writers)?, part, Arc::clone(&from), remote));
        }
        // As they end: a listener whose writer has failed would be waited for in vain.
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        Ok::<_, Failed>(())
    })?;
    println!("{TASKS} tasks wrote {REQUESTS} times {BYTES} bytes each");
    writers.shutdown()?;
    listeners.shutdown()?;
    Ok(())
}
