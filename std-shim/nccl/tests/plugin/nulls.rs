//! Every function, with one pointer after the other null, and all others as they should be.

use crate::ranks::{LOGGER, Memory, Pair};
use crate::table::{HANDLE, Logger, Pointer, Status, Table, call};
use std::ffi::c_int;
use std::ptr;

/// What was called, and what of it was not refused.
#[derive(Debug, Default)]
pub(crate) struct Called {
    pub(crate) count: usize,
    pub(crate) accepted: Vec<String>,
}

impl Called {
    /// Once for each of these pointers.
    fn each<const N: usize>(
        &mut self,
        name: &str,
        pointers: [Pointer; N],
        call: impl Fn([Pointer; N]) -> Status,
    ) {
        for at in 0..N {
            let mut pointers = pointers;
            pointers[at] = ptr::null_mut();
            self.count += 1;
            if call(pointers) == 0 {
                self.accepted.push(format!("{name}, pointer {at}"));
            }
        }
    }
}

impl Table {
    /// Calls everything that takes pointers. Those that may be null are.
    pub(crate) fn with_nulls(&self, pair: &Pair, from: &mut Memory, to: &mut Memory) -> Called {
        let null: Pointer = ptr::null_mut();
        let mut written = [0u64; 64];
        let out: Pointer = written.as_mut_ptr().cast();
        let (data, room) = (from.at(0), to.at(0));
        let (mut rooms, mut memories) = ([room], [to.handle]);
        let (mut lengths, mut tags, mut merged) =
            ([1usize], [1 as c_int], [1, 0, 0, 0, 0, 0, 0, 0, 0]);
        let lists: [Pointer; 4] = [
            rooms.as_mut_ptr().cast(),
            lengths.as_mut_ptr().cast(),
            tags.as_mut_ptr().cast(),
            memories.as_mut_ptr().cast(),
        ];
        let mut handle = [0u8; HANDLE];
        let listener = self.listen(pair.context, 0, handle.as_mut_ptr().cast()).unwrap();
        let handle: Pointer = handle.as_mut_ptr().cast();
        let mut called = Called::default();
        called.each("devices", [out], |[out]| call!(self, DEVICES, fn(Pointer), out));
        called.each("getProperties", [out], |[out]| {
            call!(self, GET_PROPERTIES, fn(c_int, Pointer), 0, out)
        });
        if self.version >= 9 {
            called.each("makeVDevice", [out, merged.as_mut_ptr().cast()], |[out, merged]| {
                call!(self, MAKE_V_DEVICE, fn(Pointer, Pointer), out, merged)
            });
        }
        self.meet_with_nulls(&mut called, (pair.context, handle, listener, out));
        let registered = [pair.send, data, out];
        called.each("regMr", registered, |[connection, data, out]| {
            call!(
                self,
                REG_MR,
                fn(Pointer, Pointer, usize, c_int, Pointer),
                connection,
                data,
                1,
                1,
                out
            )
        });
        called.each("regMrDmaBuf", registered, |[connection, data, out]| {
            call!(
                self,
                REG_MR_DMA_BUF,
                fn(Pointer, Pointer, usize, c_int, u64, c_int, Pointer),
                connection,
                data,
                1,
                2,
                0,
                0,
                out
            )
        });
        called.each("deregMr", [pair.send, from.handle], |[connection, memory]| {
            self.dereg_mr(connection, memory)
        });
        let sent = [pair.send, data, from.handle, out];
        called.each("isend", sent, |[connection, data, memory, out]| match self.version {
            8 => call!(
                self,
                ISEND,
                fn(Pointer, Pointer, c_int, c_int, Pointer, Pointer),
                connection,
                data,
                1,
                1,
                memory,
                out
            ),
            9 => call!(
                self,
                ISEND,
                fn(Pointer, Pointer, usize, c_int, Pointer, Pointer),
                connection,
                data,
                1,
                1,
                memory,
                out
            ),
            _ => call!(
                self,
                ISEND,
                fn(Pointer, Pointer, usize, c_int, Pointer, Pointer, Pointer),
                connection,
                data,
                1,
                1,
                memory,
                null,
                out
            ),
        });
        let [rooms, lengths, tags, memories] = lists;
        let received = [pair.recv, rooms, lengths, tags, memories, out];
        called.each("irecv", received, |[connection, rooms, lengths, tags, memories, out]| {
            if self.version < 10 {
                call!(
                    self,
                    IRECV,
                    fn(Pointer, c_int, Pointer, Pointer, Pointer, Pointer, Pointer),
                    connection,
                    1,
                    rooms,
                    lengths,
                    tags,
                    memories,
                    out
                )
            } else {
                call!(
                    self,
                    IRECV,
                    fn(Pointer, c_int, Pointer, Pointer, Pointer, Pointer, Pointer, Pointer),
                    connection,
                    1,
                    rooms,
                    lengths,
                    tags,
                    memories,
                    null,
                    out
                )
            }
        });
        let flushed = [pair.recv, rooms, lengths, memories, out];
        called.each("iflush", flushed, |[connection, rooms, lengths, memories, out]| {
            call!(
                self,
                IFLUSH,
                fn(Pointer, c_int, Pointer, Pointer, Pointer, Pointer),
                connection,
                1,
                rooms,
                lengths,
                memories,
                out
            )
        });
        let request = self.irecv(pair.recv, &[(room, 1, 1, to.handle)], false).unwrap();
        called.each("test", [request, out], |[request, done]| {
            call!(self, TEST, fn(Pointer, Pointer, Pointer), request, done, null)
        });
        called.each("closeSend", [pair.send], |[connection]| self.close_send(connection));
        called.each("closeRecv", [pair.recv], |[connection]| self.close_recv(connection));
        called.each("closeListen", [listener], |[listener]| self.close_listen(listener));
        assert_eq!(self.close_listen(listener), 0);
        called
    }

    /// What is called until two ends have met.
    fn meet_with_nulls(
        &self,
        called: &mut Called,
        (context, handle, listener, out): (Pointer, Pointer, Pointer, Pointer),
    ) {
        let null: Pointer = ptr::null_mut();
        if self.has_contexts() {
            called.each("init", [out], |[out]| {
                call!(
                    self,
                    INIT,
                    fn(Pointer, u64, Pointer, Logger, Pointer),
                    out,
                    0,
                    null,
                    LOGGER,
                    null
                )
            });
            called.each("finalize", [context], |[context]| self.finalize(context));
            called.each("listen", [context, handle, out], |[context, handle, out]| {
                call!(self, LISTEN, fn(Pointer, c_int, Pointer, Pointer), context, 0, handle, out)
            });
            called.each("connect", [context, handle, out], |[context, handle, out]| {
                call!(
                    self,
                    CONNECT,
                    fn(Pointer, c_int, Pointer, Pointer, Pointer),
                    context,
                    1,
                    handle,
                    out,
                    null
                )
            });
        } else {
            called.each("listen", [handle, out], |[handle, out]| {
                call!(self, LISTEN, fn(c_int, Pointer, Pointer), 0, handle, out)
            });
            called.each("connect", [handle, out], |[handle, out]| match self.version {
                10 => call!(
                    self,
                    CONNECT,
                    fn(c_int, Pointer, Pointer, Pointer, Pointer),
                    1,
                    null,
                    handle,
                    out,
                    null
                ),
                _ => {
                    call!(self, CONNECT, fn(c_int, Pointer, Pointer, Pointer), 1, handle, out, null)
                }
            });
        }
        called.each("accept", [listener, out], |[listener, out]| {
            call!(self, ACCEPT, fn(Pointer, Pointer, Pointer), listener, out, null)
        });
    }
}
