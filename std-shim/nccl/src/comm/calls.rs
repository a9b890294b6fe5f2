//! The calls of NCCL on a connection.

use super::connection::{Connection, Role};
use super::memory::{Memory, MemoryHandle};
use super::requests::Request;
use crate::devices::Device;
use crate::guard::{Code, Refusal};
use crate::rails::Registered;
use arrayvec::ArrayVec;
use polyrail::chain::Chain;
use polyrail::p2p::{CallError, MAX_BUFFERS, NotNow, RecvBuffer};
use polyrail::verbs::{DeviceKeys, LocalBuffer};
use std::ffi::c_int;
use std::sync::Arc;

/// A buffer of NCCL.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub(crate) addr: u64,
    pub(crate) length: usize,
    pub(crate) tag: c_int,
    pub(crate) memory: MemoryHandle,
}

impl Connection {
    /// Sends a buffer. Returns `None` if it cannot be sent now.
    pub(crate) fn isend(&mut self, buffer: Buffer) -> Result<Option<u64>, Refusal> {
        self.check_role(Role::Sender)?;
        if !self.requests.has_room() {
            self.poll();
            return Ok(None);
        }
        let Described { local, keys, is_gpu } = described(&self.memory, &buffer)?;
        let tag = buffer.tag.cast_unsigned();
        let sent = match is_gpu {
            true => self.wire.isend(local, tag, keys),
            false => self.wire.isend_inline(local, tag, keys),
        };
        match sent {
            Ok(handle) => Ok(self.requests.insert(Request::Send { handle, bytes: local.length() })),
            Err(error) => self.not_now(&error),
        }
    }

    /// Offers buffers. Returns `None` if they cannot be offered now. With `early`, the request is
    /// reported as done at once, since NCCL does not need the completion.
    pub(crate) fn irecv(
        &mut self,
        buffers: &[Buffer],
        early: bool,
    ) -> Result<Option<u64>, Refusal> {
        self.check_role(Role::Receiver)?;
        if !self.requests.has_room() {
            self.poll();
            return Ok(None);
        }
        // With re-routing, data that is posted again must not land in a buffer that NCCL has
        // already reused.
        let early = early && !self.terms.reroutes;
        if early {
            // No test of such a request polls for its message. What has arrived makes the sender
            // free for the next offer, which otherwise waits for a poll.
            self.poll();
        }
        let mut offered = ArrayVec::<_, MAX_BUFFERS>::new();
        let mut may_flush = self.always_flush;
        for buffer in buffers {
            let Described { local, keys, is_gpu } = described(&self.memory, buffer)?;
            offered.push(RecvBuffer { local, tag: buffer.tag.cast_unsigned(), keys });
            may_flush |= is_gpu;
        }
        let called = self.wire.irecv(&offered);
        drop(offered);
        match called {
            Ok(handle) => {
                let request = if early {
                    self.early.push(handle);
                    Request::Early { count: buffers.len() as u8 }
                } else {
                    let addrs = may_flush.then(|| buffers.iter().map(|each| each.addr).collect());
                    Request::Recv { handle, addrs }
                };
                Ok(self.requests.insert(request))
            }
            Err(error) => self.not_now(&error),
        }
    }

    /// Makes the data that arrived in these buffers visible to GPUs. Returns `None` if there is
    /// nothing to do.
    pub(crate) fn iflush(&mut self, buffers: &[Buffer]) -> Result<Option<u64>, Refusal> {
        self.check_role(Role::Receiver)?;
        // The buffers of one receive are flushed together, so any of them identifies the receive.
        let (mut flushed, mut unknown) = (None, None);
        for buffer in buffers.iter().filter(|buffer| buffer.length > 0) {
            let is_gpu = registered(&self.memory, buffer.memory)?.is_gpu;
            if is_gpu || self.always_flush {
                flushed = self.arrived.find(buffer.addr);
                if flushed.is_some() {
                    break;
                }
                unknown.get_or_insert(buffer.addr);
            }
        }
        let Some(received) = flushed else {
            let refused = |addr| {
                let words = format!("no message arrived at {addr:#x}, which is to be flushed");
                Err(Refusal::argument(words))
            };
            return unknown.map_or(Ok(None), refused);
        };
        // NCCL would understand "not now" as "nothing to do".
        let request = match self.wire.flush(&received) {
            Ok(handle) => Request::Flush { handle },
            Err(error) if error.is_not_now() => Request::FlushLater { received },
            Err(error) => return Err(self.refused(&error)),
        };
        let serial = self.requests.insert(request);
        let too_many = || Refusal::new(Code::Internal, "more requests than NCCL may have");
        serial.map(Some).ok_or_else(too_many)
    }

    /// Returns whether a request is done, after calling `report` with the bytes of each of its
    /// buffers.
    // NCCL calls this thousands of times for each message.
    #[inline]
    pub(crate) fn test(&mut self, serial: u64, report: impl Fn(&[u32])) -> Result<bool, Refusal> {
        // A poll often completes several requests: if the last call found its request done, this
        // one is likely to be done too, and needs no poll.
        if self.found {
            self.found = false;
            match self.look_without_poll(serial, &report) {
                Ok(false) => {}
                known => return self.conclude(serial, known),
            }
        }
        // Most calls find nothing, so they look only once.
        self.poll();
        match self.look(serial, &report) {
            Ok(false) => match self.overdue() {
                None => Ok(false),
                Some(overdue) => self.conclude(serial, Err(overdue)),
            },
            tested => self.conclude(serial, tested),
        }
    }

    /// Removes a request whose result is returned.
    #[inline]
    fn conclude(&mut self, serial: u64, result: Result<bool, Refusal>) -> Result<bool, Refusal> {
        // One that is reported early says nothing about the others.
        self.found = !matches!(self.requests.get(serial), Some(Request::Early { .. }));
        self.requests.remove(serial);
        result
    }

    /// Outlined copy of [`look`](Self::look): calls that find nothing must not pay for a second
    /// one.
    #[inline(never)]
    fn look_without_poll(
        &mut self,
        serial: u64,
        report: &impl Fn(&[u32]),
    ) -> Result<bool, Refusal> {
        self.look(serial, report)
    }

    /// Returns whether a request is done, after calling `report`.
    #[inline(always)]
    fn look(&mut self, serial: u64, report: &impl Fn(&[u32])) -> Result<bool, Refusal> {
        let Self { requests, wire, arrived, .. } = self;
        let is_done = match requests.get(serial) {
            Some(Request::Send { handle, bytes }) => wire.test_send(*handle).inspect(|is_done| {
                if *is_done {
                    report(&[*bytes])
                }
            }),
            // By reference, since the value is large.
            Some(Request::Recv { handle, addrs }) => match &wire.test_recv(*handle) {
                Ok(Some(received)) => {
                    report(received.sizes());
                    if let Some(addrs) = addrs {
                        arrived.note(addrs, received);
                    }
                    Ok(true)
                }
                Ok(None) => Ok(false),
                Err(error) => Err(*error),
            },
            Some(Request::Early { count }) => {
                report(&[0; MAX_BUFFERS][..usize::from(*count)]);
                return Ok(true);
            }
            Some(Request::Flush { handle }) => wire.test_flush(handle).inspect(|is_done| {
                if *is_done {
                    report(&[0])
                }
            }),
            Some(Request::FlushLater { received }) => match wire.flush(received) {
                Ok(handle) => {
                    requests.replace(serial, Request::Flush { handle });
                    return Ok(false);
                }
                Err(error) if error.is_not_now() => return Ok(false),
                Err(error) => Err(error),
            },
            None => {
                return Err(Refusal::argument(
                    "the request is unknown, or its result was already returned",
                ));
            }
        };
        is_done.map_err(|error| self.refused(&error))
    }

    /// Returns the device to register memory with. Registration may take long, so it happens
    /// outside of the connection's lock.
    pub(crate) fn device(&self) -> Arc<Device> {
        Arc::clone(&self.device)
    }

    /// Adds registered memory.
    pub(crate) fn keep(&mut self, registered: Registered) -> Result<MemoryHandle, Refusal> {
        let handle = self.memory.insert(registered);
        handle
            .ok_or_else(|| Refusal::new(Code::Internal, "too many registrations of one connection"))
    }

    /// Removes registered memory, which is deregistered when it is dropped.
    pub(crate) fn give_back(&mut self, handle: MemoryHandle) -> Result<Registered, Refusal> {
        self.memory.remove(handle).ok_or_else(|| no_memory(handle))
    }

    fn check_role(&self, role: Role) -> Result<(), Refusal> {
        if self.role == role {
            return Ok(());
        }
        Err(Refusal::argument(format!("a connection whose end here is the {:?}", self.role)))
    }

    /// Returns `None` if the call can be repeated later, or else the error.
    fn not_now<T>(&mut self, error: &CallError) -> Result<Option<T>, Refusal> {
        match error {
            CallError::NotNow(NotNow::NoEntry | NotNow::NoSuchTag) => {}
            CallError::NotNow(_) => self.poll(),
            error => return Err(self.refused(error)),
        }
        // A peer that has ended will send nothing.
        self.fail_without_peer();
        Ok(None)
    }

    #[cold]
    fn refused(&self, error: &CallError) -> Refusal {
        let code = match error {
            CallError::Failed(_) | CallError::CannotFlush { .. } => Code::Remote,
            CallError::TooLong { .. } => Code::Usage,
            CallError::Buffers { .. } => Code::Argument,
            _ => Code::Internal,
        };
        let words = Chain(error).to_string();
        let why = self.failure().filter(|_| code == Code::Remote);
        Refusal::new(code, why.map_or(words.clone(), |why| format!("{why}: {words}")))
    }
}

/// A buffer, converted for a request.
struct Described<'m> {
    local: LocalBuffer,
    keys: &'m [DeviceKeys],
    /// Whether the buffer is GPU memory, which this process cannot read.
    is_gpu: bool,
}

/// Converts a buffer for a request, if it is within its registration. An empty buffer may be
/// anywhere: NCCL passes addresses behind the last byte.
#[inline]
fn described<'m>(memory: &'m Memory, buffer: &Buffer) -> Result<Described<'m>, Refusal> {
    let length = u32::try_from(buffer.length)
        .map_err(|_| Refusal::argument(format!("{} bytes in one message", buffer.length)))?;
    if length == 0 {
        if !buffer.memory.is_null() {
            registered(memory, buffer.memory)?;
        }
        // SAFETY: there are no bytes.
        let local = unsafe { LocalBuffer::new(buffer.addr, 0) };
        return Ok(Described { local, keys: &[], is_gpu: false });
    }
    let registered = registered(memory, buffer.memory)?;
    let local = registered.local(buffer.addr, length).ok_or_else(|| {
        Refusal::argument(format!(
            "{length} bytes at {:#x} are not within their registration",
            buffer.addr
        ))
    })?;
    Ok(Described { local, keys: &registered.keys, is_gpu: registered.is_gpu })
}

#[inline]
fn registered(memory: &Memory, handle: MemoryHandle) -> Result<&Registered, Refusal> {
    memory.get(handle).ok_or_else(|| no_memory(handle))
}

fn no_memory(handle: MemoryHandle) -> Refusal {
    Refusal::argument(format!(
        "the registration {handle:p} is unknown to this connection, or was already deregistered"
    ))
}
