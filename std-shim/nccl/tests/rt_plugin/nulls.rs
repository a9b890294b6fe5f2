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
        called.each("devices", [out], |[out]| call!(self, DEVICES, out => Pointer));
        called.each(
            "getProperties",
            [out],
            |[out]| call!(self, GET_PROPERTIES, 0 => c_int, out => Pointer),
        );
        if self.version >= 9 {
            called.each(
                "makeVDevice",
                [out, merged.as_mut_ptr().cast()],
                |[out, merged]| call!(self, MAKE_V_DEVICE, out => Pointer, merged => Pointer),
            );
        }
        self.meet_with_nulls(&mut called, (pair.context, handle, listener, out));
        let registered = [pair.send, data, out];
        called.each("regMr", registered, |[connection, data, out]| {
            call!(self, REG_MR,
                connection => Pointer,
                data => Pointer,
                1 => usize,
                1 => c_int,
                out => Pointer,
            )
        });
        called.each("regMrDmaBuf", registered, |[connection, data, out]| {
            call!(self, REG_MR_DMA_BUF,
                connection => Pointer,
                data => Pointer,
                1 => usize,
                2 => c_int,
                0 => u64,
                0 => c_int,
                out => Pointer,
            )
        });
        called.each("deregMr", [pair.send, from.handle], |[connection, memory]| {
            self.dereg_mr(connection, memory)
        });
        let sent = [pair.send, data, from.handle, out];
        called.each("isend", sent, |[connection, data, memory, out]| match self.version {
            8 => call!(self, ISEND,
                connection => Pointer,
                data => Pointer,
                1 => c_int,
                1 => c_int,
                memory => Pointer,
                out => Pointer,
            ),
            9 => call!(self, ISEND,
                connection => Pointer,
                data => Pointer,
                1 => usize,
                1 => c_int,
                memory => Pointer,
                out => Pointer,
            ),
            _ => call!(self, ISEND,
                connection => Pointer,
                data => Pointer,
                1 => usize,
                1 => c_int,
                memory => Pointer,
                null => Pointer,
                out => Pointer,
            ),
        });
        let [rooms, lengths, tags, memories] = lists;
        let received = [pair.recv, rooms, lengths, tags, memories, out];
        called.each("irecv", received, |[connection, rooms, lengths, tags, memories, out]| {
            if self.version < 10 {
                call!(self, IRECV,
                    connection => Pointer,
                    1 => c_int,
                    rooms => Pointer,
                    lengths => Pointer,
                    tags => Pointer,
                    memories => Pointer,
                    out => Pointer,
                )
            } else {
                call!(self, IRECV,
                    connection => Pointer,
                    1 => c_int,
                    rooms => Pointer,
                    lengths => Pointer,
                    tags => Pointer,
                    memories => Pointer,
                    null => Pointer,
                    out => Pointer,
                )
            }
        });
        let flushed = [pair.recv, rooms, lengths, memories, out];
        called.each("iflush", flushed, |[connection, rooms, lengths, memories, out]| {
            call!(self, IFLUSH,
                connection => Pointer,
                1 => c_int,
                rooms => Pointer,
                lengths => Pointer,
                memories => Pointer,
                out => Pointer,
            )
        });
        let request = self.irecv(pair.recv, &[(room, 1, 1, to.handle)], false).unwrap();
        called.each("test", [request, out], |[request, done]| {
            call!(self, TEST, request => Pointer, done => Pointer, null => Pointer)
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
                call!(self, INIT,
                    out => Pointer,
                    0 => u64,
                    null => Pointer,
                    LOGGER => Logger,
                    null => Pointer,
                )
            });
            called.each("finalize", [context], |[context]| self.finalize(context));
            called.each("listen", [context, handle, out], |[context, handle, out]| {
                call!(self, LISTEN,
                    context => Pointer,
                    0 => c_int,
                    handle => Pointer,
                    out => Pointer,
                )
            });
            called.each("connect", [context, handle, out], |[context, handle, out]| {
                call!(self, CONNECT,
                    context => Pointer,
                    1 => c_int,
                    handle => Pointer,
                    out => Pointer,
                    null => Pointer,
                )
            });
        } else {
            called.each(
                "listen",
                [handle, out],
                |[handle, out]| call!(self, LISTEN, 0 => c_int, handle => Pointer, out => Pointer),
            );
            called.each("connect", [handle, out], |[handle, out]| match self.version {
                10 => call!(self, CONNECT,
                    1 => c_int,
                    null => Pointer,
                    handle => Pointer,
                    out => Pointer,
                    null => Pointer,
                ),
                _ => {
                    call!(self, CONNECT,
                        1 => c_int,
                        handle => Pointer,
                        out => Pointer,
                        null => Pointer,
                    )
                }
            });
        }
        called.each("accept", [listener, out], |[listener, out]| {
            call!(self, ACCEPT, listener => Pointer, out => Pointer, null => Pointer)
        });
    }
}
