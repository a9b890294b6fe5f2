//! The data path of messages.

use super::set::MessagesOn;
use super::under_way::{Entry, Work};
use crate::arguments::{list, out};
use crate::call::call;
use crate::code::Code;
use crate::error::{Failure, Refusal, refuse};
use crate::keys::{Keys, Local};
use crate::numbers::Numbers;
use crate::peers::common::Common;
use crate::peers::object::on_messages;
use crate::sized::place;
use crate::table::{exclusive, words};
use crate::types::{
    Buffer, Memory, MessageInfo, POLYRAIL_ACCESS_REMOTE_WRITE, POLYRAIL_MAX_BUFFERS,
    POLYRAIL_TEST_KEEP, Peers, Region,
};
use arrayvec::ArrayVec;
use polyrail::backend::Domain;
use polyrail::p2p::{CallError, P2pMember, Received, RecvBuffer};
use polyrail::verbs::LocalBuffer;

/// The result of a request that is done.
struct Done {
    received: Option<Received>,
}

#[cold]
fn refusal<D: Domain>(member: &P2pMember<D>, error: &CallError) -> Refusal {
    // The error itself has no names of devices.
    if let CallError::Failed(_) = error
        && let Some(failure) = member.failure()
    {
        return Failure::of(Code::Failed, &failure).into();
    }
    let code = match error {
        CallError::NotNow(_) => return Refusal::NotNow,
        CallError::Failed(_) => Code::Failed,
        CallError::NotConnected => Code::State,
        CallError::Buffers { .. } => Code::TooMany,
        CallError::TooLong { .. } => Code::Range,
        CallError::MissingKeys { .. } => Code::Keys,
        CallError::NoRequest { .. } => Code::Request,
        CallError::TakenBack { .. } => Code::TakenBack,
        CallError::CannotFlush { .. } | CallError::OneWay => Code::Unsupported,
    };
    Failure::of(code, error).into()
}

impl<D: Domain> MessagesOn<D> {
    /// Returns a connected peer, if there is a number left for one more request.
    #[inline]
    fn connected(&mut self, common: &Common, peer: u64) -> Result<&mut P2pMember<D>, Refusal> {
        let place = common.numbers.place(peer)?;
        if !common.states[place].is_connected {
            return refuse(Code::State, format_args!("peer {peer:#x} is not connected yet"));
        }
        if !self.under_way.has_room() {
            return Err(Refusal::NotNow);
        }
        Numbers::found(self.set.get_mut(place), peer)
    }

    fn poll(&mut self, common: &mut Common, budget: usize) -> Result<(), Refusal> {
        let polled = self.set.poll(budget);
        common.drive_sometimes(self);
        match polled.error {
            Some(error) if !self.survives(common) => {
                let words = format!("a completion queue cannot be polled: {error:?}");
                Err(Failure::new(Code::Device, words).into())
            }
            _ => Ok(()),
        }
    }

    fn receive(&mut self, common: &Common, peer: u64, buffers: &[Buffer]) -> Result<u64, Refusal> {
        let member = self.connected(common, peer)?;
        if !(1..=POLYRAIL_MAX_BUFFERS).contains(&buffers.len()) {
            let count = buffers.len();
            let words = format!("{count} buffers, where 1 to {POLYRAIL_MAX_BUFFERS} are possible");
            return refuse(Code::TooMany, words);
        }
        let mut all = ArrayVec::<(LocalBuffer, Keys), POLYRAIL_MAX_BUFFERS>::new();
        for Buffer { region, offset, length, .. } in buffers {
            let memory = Local::from_words(&words(*region)?);
            if memory.access & POLYRAIL_ACCESS_REMOTE_WRITE == 0 {
                let words = "the region was registered without POLYRAIL_ACCESS_REMOTE_WRITE";
                return refuse(Code::Access, words);
            }
            let addr = memory.at(*offset, *length)?;
            // SAFETY: the caller keeps the memory registered and leaves it alone until the receive
            // is done.
            all.push((unsafe { LocalBuffer::new(addr, *length) }, memory.own_keys().collect()));
        }
        let offered = all.iter().zip(buffers);
        let offered: ArrayVec<RecvBuffer<'_>, POLYRAIL_MAX_BUFFERS> = offered
            .map(|((local, keys), buffer)| RecvBuffer { local: *local, tag: buffer.tag, keys })
            .collect();
        let handle = member.irecv(&offered).map_err(|error| refusal(member, &error))?;
        Ok(self.under_way.add(Entry { peer, work: Work::Receive(handle) }))
    }

    fn send(
        &mut self,
        common: &Common,
        peer: u64,
        (region, offset, length): (*mut Region, u64, u32),
        tag: u32,
    ) -> Result<u64, Refusal> {
        let member = self.connected(common, peer)?;
        let memory = Local::from_words(&words(region)?);
        let addr = memory.at(offset, length)?;
        // SAFETY: the caller keeps the memory registered and leaves it alone until the send is
        // done.
        let local = unsafe { LocalBuffer::new(addr, length) };
        let keys: Keys = memory.own_keys().collect();
        let sent = member.isend(local, tag, &keys);
        let handle = sent.map_err(|error| refusal(member, &error))?;
        Ok(self.under_way.add(Entry { peer, work: Work::Send(handle) }))
    }

    /// Tests whether a request is done. The error contains which memory may still be accessed.
    fn test(
        &mut self,
        common: &Common,
        number: u64,
        keep: bool,
    ) -> Result<Done, (Refusal, Memory)> {
        // An unknown request was returned as done or its peer was removed; nothing accessed its
        // memory then.
        let none = |refusal| (refusal, Memory::Quiet);
        let Entry { peer, work } = *self.under_way.get(number).map_err(none)?;
        let member = self.member(common, peer).map_err(none)?;
        let (tested, failed) = match work {
            Work::Send(handle) => {
                let tested = member.test_send(handle);
                (
                    tested.map(|done| done.then_some(Done { received: None })),
                    Memory::RemoteMayChange,
                )
            }
            Work::Receive(handle) => {
                let tested = member.test_recv(handle);
                let done = |received| Done { received: Some(received) };
                (tested.map(|received| received.map(done)), Memory::Quiet)
            }
            Work::Kept(received) => (Ok(Some(Done { received: Some(received) })), Memory::Quiet),
            Work::Flush(handle) => {
                let tested = member.test_flush(&handle);
                (tested.map(|done| done.then_some(Done { received: None })), Memory::Quiet)
            }
        };
        match tested {
            Ok(None) => Err((Refusal::NotNow, Memory::UnderWay)),
            Ok(Some(done)) => {
                match done.received.filter(|_| keep) {
                    Some(received) => {
                        let kept = Entry { peer, work: Work::Kept(received) };
                        *self.under_way.get(number).map_err(none)? = kept;
                    }
                    None => self.under_way.forget(number),
                }
                Ok(done)
            }
            Err(error) => {
                let taken_back = matches!(error, CallError::TakenBack { .. });
                let refusal = refusal(member, &error);
                self.under_way.forget(number);
                Err((refusal, if taken_back { Memory::Quiet } else { failed }))
            }
        }
    }

    fn flush(&mut self, common: &Common, number: u64) -> Result<(), Refusal> {
        let Entry { peer, work } = *self.under_way.get(number)?;
        let Work::Kept(received) = work else {
            return refuse(Code::State, "only a receive that is done and was kept can be flushed");
        };
        let member = self.member(common, peer)?;
        let handle = member.flush(&received).map_err(|error| refusal(member, &error))?;
        self.under_way.get(number)?.work = Work::Flush(handle);
        Ok(())
    }

    fn forget(&mut self, number: u64) -> Result<(), Refusal> {
        let Work::Kept(_) = self.under_way.get(number)?.work else {
            return refuse(
                Code::State,
                "only a receive that is done and was kept can be forgotten",
            );
        };
        self.under_way.forget(number);
        Ok(())
    }
}

/// Offers up to POLYRAIL_MAX_BUFFERS buffers for the peer's next messages, and stores the number of
/// the request. If the peer has another offer already, a later poll sends this one. Nothing of a
/// receive is transferred before each of its buffers has found its send: a sender must send to all
/// of them before it waits for one. POLYRAIL_CODE_NOT_NOW: poll, and try again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_messages_receive(
    peers: *mut Peers,
    peer: u64,
    buffers: *const Buffer,
    count: usize,
    request: *mut u64,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let place = unsafe { out(request, "request") }?;
        // SAFETY: guaranteed by the caller.
        let buffers = unsafe { list(buffers, count, "buffers") }?;
        let added = on_messages!(&mut *exclusive(peers)?, (common, messages) => {
            messages.receive(common, peer, buffers)
        });
        place.write(added?);
        Ok(())
    })
}

/// Sends a message to the buffer with this tag in the peer's next receive, and stores the number of
/// the request. POLYRAIL_CODE_NOT_NOW: that receive has no unmatched buffer with this tag, or there
/// is no room; poll, and try again. POLYRAIL_CODE_RANGE: the message is longer than the buffer, but
/// may be sent to another buffer. It is not done before all buffers of that receive have a send.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_messages_send(
    peers: *mut Peers,
    peer: u64,
    region: *mut Region,
    offset: u64,
    length: u32,
    tag: u32,
    request: *mut u64,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let place = unsafe { out(request, "request") }?;
        let from = (region, offset, length);
        let added = on_messages!(&mut *exclusive(peers)?, (common, messages) => {
            messages.send(common, peer, from, tag)
        });
        place.write(added?);
        Ok(())
    })
}

/// Takes up to `budget` completions, and drives everything that waits for them. Some polls also
/// drive links and repair rails. A loop that sleeps between its polls calls polyrail_peers_drive in
/// each turn: no function waits for messages.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_messages_poll(peers: *mut Peers, budget: usize) -> Code {
    call(
        || on_messages!(&mut *exclusive(peers)?, (common, messages) => messages.poll(common, budget)),
    )
}

/// Tests whether a request is done. POLYRAIL_CODE_OK: it is done, and its memory belongs to the
/// caller again. Its number is invalid from then on, unless `flags` has POLYRAIL_TEST_KEEP and it
/// is a receive. POLYRAIL_CODE_NOT_NOW: it is not done yet. POLYRAIL_CODE_FAILED,
/// POLYRAIL_CODE_TAKEN_BACK, or POLYRAIL_CODE_UNSUPPORTED of a flush: it will never be done, its
/// local memory belongs to the caller again, and its number is invalid. POLYRAIL_CODE_REQUEST: there is no such request, or it
/// was already returned. Other codes do not describe the request. `info` may be NULL; its `memory`
/// is correct whatever the code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_messages_test(
    peers: *mut Peers,
    request: u64,
    flags: u32,
    info: *mut MessageInfo,
) -> Code {
    call(|| {
        let place = match info.is_null() {
            true => None,
            // SAFETY: guaranteed by the caller.
            false => Some(unsafe { place(info) }?),
        };
        let mut info = MessageInfo {
            size: 0,
            count: 0,
            lengths: [0; POLYRAIL_MAX_BUFFERS],
            memory: Memory::UnderWay as u32,
            reserved: 0,
        };
        // The value for codes that do not describe the request, including a panic.
        if let Some(place) = &place {
            place.put(&info);
        }
        if flags & !POLYRAIL_TEST_KEEP != 0 {
            return refuse(Code::Argument, format_args!("unknown flags {flags:#x} of a test"));
        }
        let keep = flags & POLYRAIL_TEST_KEEP != 0;
        let tested = on_messages!(&mut *exclusive(peers)?, (common, messages) => {
            Ok(messages.test(common, request, keep))
        })?;
        let tested = match tested {
            Ok(Done { received }) => {
                info.memory = Memory::Done as u32;
                if let Some(received) = received {
                    info.count = received.sizes().len() as u32;
                    for (place, length) in info.lengths.iter_mut().zip(received.sizes()) {
                        *place = *length;
                    }
                }
                Ok(())
            }
            Err((refusal, memory)) => {
                info.memory = memory as u32;
                Err(refusal)
            }
        };
        if let Some(place) = place {
            place.put(&info);
        }
        tested
    })
}

/// Starts a flush, which makes all bytes of a receive visible to all readers of its memory, such as
/// a GPU. The receive must have been tested to be done, with POLYRAIL_TEST_KEEP. From then on the
/// request stands for the flush, and is done when the flush is. Requires POLYRAIL_ENDPOINT_FLUSHES.
/// POLYRAIL_CODE_NOT_NOW: poll, and try again.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_messages_flush(peers: *mut Peers, request: u64) -> Code {
    call(
        || on_messages!(&mut *exclusive(peers)?, (common, messages) => messages.flush(common, request)),
    )
}

/// Releases the number of a receive that was kept by POLYRAIL_TEST_KEEP.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_messages_forget(peers: *mut Peers, request: u64) -> Code {
    call(|| on_messages!(&mut *exclusive(peers)?, (_common, messages) => messages.forget(request)))
}
