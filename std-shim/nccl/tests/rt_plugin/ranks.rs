//! Two ranks and a connection between them, as NCCL's proxies drive it: every call is repeated
//! until its result changes.

use crate::table::{HANDLE, Logger, Pointer, Status, Table};
use std::ffi::{CStr, c_char, c_int, c_ulong};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long anything may take. Only a test that hangs comes near it.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// How long a call that must not block may take, on a machine that does other things too.
pub(crate) const AT_ONCE: Duration = Duration::from_secs(2);

static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A logger, as NCCL's, that keeps every line.
pub(crate) extern "C" fn logger(
    level: c_int,
    _: c_ulong,
    _: *const c_char,
    _: c_int,
    format: *const c_char,
    words: *const c_char,
) {
    // SAFETY: texts of C.
    let (format, words) = unsafe { (CStr::from_ptr(format), CStr::from_ptr(words)) };
    let line = format.to_string_lossy().replacen("%s", &words.to_string_lossy(), 1);
    if std::env::var_os("TELL").is_some() {
        eprintln!("{level} {line}");
    }
    LOGGED.lock().unwrap().push(line);
}

pub(crate) const LOGGER: Logger = logger;

/// What was logged since the last time.
pub(crate) fn logged() -> Vec<String> {
    std::mem::take(&mut LOGGED.lock().unwrap())
}

/// How many of the words that were logged since the last time have these in them.
pub(crate) fn count_logged(words: &str) -> usize {
    count_lines(|line| line.contains(words))
}

/// How many of the lines that were logged since the last time are like that.
pub(crate) fn count_lines(is_it: impl Fn(&str) -> bool) -> usize {
    LOGGED.lock().unwrap().iter().filter(|line| is_it(line)).count()
}

/// The last one of them with these in it.
pub(crate) fn last_logged(words: &str) -> Option<String> {
    LOGGED.lock().unwrap().iter().rfind(|line| line.contains(words)).cloned()
}

/// Calls until there is something.
pub(crate) fn until<T>(what: &str, mut call: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(something) = call() {
            return something;
        }
        assert!(begin.elapsed() < LONG, "{what}: not within {LONG:?}; logged: {:?}", logged());
        std::thread::yield_now();
    }
}

/// A call that must not block.
pub(crate) fn at_once<T>(call: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let result = call();
    let took = begin.elapsed();
    assert!(took < AT_ONCE, "a call took {took:?}");
    result
}

/// Bytes of a rank's, registered with a connection.
pub(crate) struct Memory {
    pub(crate) bytes: Vec<u8>,
    pub(crate) handle: Pointer,
}

impl Memory {
    pub(crate) fn new(table: &Table, connection: Pointer, length: usize) -> Self {
        let mut bytes = vec![0u8; length];
        let handle = table.reg_mr(connection, bytes.as_mut_ptr().cast(), length, 1).unwrap();
        Self { bytes, handle }
    }

    /// A part of it, as the calls take it.
    pub(crate) fn at(&mut self, offset: usize) -> Pointer {
        self.bytes[offset..].as_mut_ptr().cast()
    }
}

/// A connection of two ranks of this process.
pub(crate) struct Pair {
    pub(crate) table: Table,
    pub(crate) context: Pointer,
    pub(crate) send: Pointer,
    pub(crate) recv: Pointer,
}

impl Pair {
    /// From device `from` to device `to`.
    pub(crate) fn new(table: Table, context: Pointer, from: c_int, to: c_int) -> Self {
        let pair = Self::try_new(table, context, from, to);
        pair.unwrap_or_else(|status| panic!("{status}: {:?}", logged()))
    }

    pub(crate) fn try_new(
        table: Table,
        context: Pointer,
        from: c_int,
        to: c_int,
    ) -> Result<Self, Status> {
        let mut handle = [0u8; HANDLE];
        let listener = table.listen(context, to, handle.as_mut_ptr().cast())?;
        let met = Self::meet(table, context, from, listener, &mut handle);
        assert_eq!(table.close_listen(listener), 0);
        let (send, recv) = met?;
        Ok(Self { table, context, send, recv })
    }

    fn meet(
        table: Table,
        context: Pointer,
        from: c_int,
        listener: Pointer,
        handle: &mut [u8; HANDLE],
    ) -> Result<(Pointer, Pointer), Status> {
        let (mut send, mut recv) = (Pointer::default(), Pointer::default());
        let begin = Instant::now();
        while send.is_null() || recv.is_null() {
            if send.is_null() {
                send = at_once(|| table.connect(context, from, handle.as_mut_ptr().cast()))?;
            }
            if recv.is_null() {
                recv = at_once(|| table.accept(listener))?;
            }
            assert!(begin.elapsed() < LONG, "not connected: {:?}", logged());
        }
        Ok((send, recv))
    }

    /// Memory of this many bytes at the sender and at the receiver.
    pub(crate) fn memories(&self, bytes: usize) -> [Memory; 2] {
        [self.send, self.recv].map(|connection| Memory::new(&self.table, connection, bytes))
    }

    pub(crate) fn isend(
        &self,
        data: (Pointer, usize),
        tag: c_int,
        memory: Pointer,
    ) -> Option<Pointer> {
        let request = at_once(|| self.table.isend(self.send, data, tag, memory));
        some(request.unwrap_or_else(|status| panic!("isend: {status}, {:?}", logged())))
    }

    pub(crate) fn irecv(&self, buffers: &[(Pointer, usize, c_int, Pointer)]) -> Option<Pointer> {
        let request = at_once(|| self.table.irecv(self.recv, buffers, false));
        some(request.unwrap_or_else(|status| panic!("irecv: {status}, {:?}", logged())))
    }

    pub(crate) fn test(&self, request: Pointer) -> Option<[c_int; 8]> {
        let done = at_once(|| self.table.test(request));
        done.unwrap_or_else(|status| panic!("test: {status}, {:?}", logged()))
    }

    /// Sends this many bytes from the start of one memory to the start of the other, until both are
    /// done.
    pub(crate) fn send_through(&self, from: &mut Memory, to: &mut Memory, bytes: usize) {
        let whole = to.bytes.len();
        let receive = until("irecv", || self.irecv(&[(to.at(0), whole, 1, to.handle)]));
        let send = until("isend", || self.isend((from.at(0), bytes), 1, from.handle));
        let (mut sent, mut came) = (None, None);
        until("a message", || {
            sent = sent.or_else(|| self.test(send));
            came = came.or_else(|| self.test(receive));
            sent.and(came)
        });
        assert_eq!((sent.unwrap()[0], came.unwrap()[0]), (bytes as c_int, bytes as c_int));
        assert!(from.bytes[..bytes] == to.bytes[..bytes]);
    }

    pub(crate) fn close(self) {
        assert_eq!(self.table.close_send(self.send), 0);
        assert_eq!(self.table.close_recv(self.recv), 0);
    }
}

pub(crate) fn some(pointer: Pointer) -> Option<Pointer> {
    (!pointer.is_null()).then_some(pointer)
}
