//! One end: a connection in each direction, and memory for the messages in flight.

use crate::elf;
use crate::options::Options;
use crate::table::{HANDLE, Logger, Pointer, Status, Table};
use crate::talk::Talk;
use std::env;
use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::path::Path;
use std::time::{Duration, Instant};

/// Time limit of each operation.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Messages in flight.
pub(crate) const WINDOW: usize = 8;

pub(crate) extern "C" fn logger(
    level: c_int,
    _: c_ulong,
    _: *const c_char,
    _: c_int,
    format: *const c_char,
    words: *const c_char,
) {
    const WARN: c_int = 2;
    if level > WARN && env::var_os("TELL").is_none() {
        return;
    }
    // SAFETY: C strings; a format of this plugin has one argument.
    let format = unsafe { CStr::from_ptr(format) }.to_string_lossy();
    if format == "NET/polyrail : %s" {
        // SAFETY: as before.
        let words = unsafe { CStr::from_ptr(words) }.to_string_lossy();
        eprintln!("polyrail: {words}");
    } else {
        eprintln!("{format}");
    }
}

/// The newest version of the table.
pub(crate) const NEWEST: u32 = 12;

/// Loads a plugin's function table, which stays loaded until the process ends. ncclNetIb has only
/// the newest version.
pub(crate) fn load(plugin: &str, version: u32) -> Result<Table, String> {
    let table = match plugin.strip_prefix("ncclNetIb:") {
        Some(path) => {
            let symbols = elf::Symbols::load(Path::new(path), "ncclGetVersion");
            let symbols = Box::leak(Box::new(symbols.ok_or("the library has no symbols")?));
            symbols.find("ncclNetIb").ok_or("the library has no ncclNetIb")?.cast_const()
        }
        None => {
            // SAFETY: a plugin runs no code when it is loaded.
            let library =
                unsafe { libloading::Library::new(plugin) }.map_err(|error| error.to_string())?;
            let library = Box::leak(Box::new(library));
            let name = format!("ncclNetPlugin_v{version}");
            // SAFETY: the headers say what it is.
            let table = unsafe { library.get::<*const c_void>(name.as_bytes()) };
            let table: *const c_void = *table.map_err(|error| error.to_string())?;
            table
        }
    };
    // SAFETY: it is of this version, and stays.
    Ok(unsafe { Table::new(table, version) })
}

/// Calls `call` until it returns a value, and yields in between, as NCCL's proxy thread does when
/// nothing progresses.
pub(crate) fn until<T>(
    what: &str,
    mut call: impl FnMut() -> Result<Option<T>, Status>,
) -> Result<T, String> {
    let begin = Instant::now();
    loop {
        match call() {
            Ok(Some(something)) => return Ok(something),
            Ok(None) if begin.elapsed() < PATIENCE => std::thread::yield_now(),
            Ok(None) => return Err(format!("{what}: not within {PATIENCE:?}")),
            Err(status) => return Err(format!("{what}: {status}")),
        }
    }
}

fn some(pointer: Pointer) -> Option<Pointer> {
    (!pointer.is_null()).then_some(pointer)
}

pub(crate) struct End {
    pub(crate) table: Table,
    context: Pointer,
    send: Pointer,
    recv: Pointer,
    pub(crate) from: Vec<u8>,
    pub(crate) to: Vec<u8>,
    from_memory: Pointer,
    to_memory: Pointer,
}

impl End {
    pub(crate) fn new(options: &Options, talk: &mut Talk) -> Result<Self, String> {
        let table = load(&options.plugin, NEWEST)?;
        Self::of(table, options.devices, WINDOW * options.bytes.max(8), talk)
    }

    /// Makes an end over this many devices, with this many bytes of memory for each direction.
    pub(crate) fn of(
        table: Table,
        devices: c_int,
        bytes: usize,
        talk: &mut Talk,
    ) -> Result<Self, String> {
        let code = |what: &'static str| move |status: Status| format!("{what}: {status}");
        let context = table.init(logger as Logger, -1).map_err(code("init"))?;
        let count = table.devices().map_err(code("devices"))?;
        if count < devices {
            return Err(format!("{count} devices, where {devices} are needed"));
        }
        let device = match devices {
            1 => 0,
            devices => {
                let parts: Vec<c_int> = (0..devices).collect();
                table.make_v_device(&parts).map_err(code("makeVDevice"))?
            }
        };
        let mut handle = [0u8; HANDLE];
        let listener =
            table.listen(context, device, handle.as_mut_ptr().cast()).map_err(code("listen"))?;
        let mut theirs = decode(&talk.swap(&encode(&handle))?)?;
        let (mut send, mut recv) = (Pointer::default(), Pointer::default());
        until("a connection", || {
            if send.is_null() {
                send = table.connect(context, device, theirs.as_mut_ptr().cast())?;
            }
            if recv.is_null() {
                recv = table.accept(listener)?;
            }
            Ok((!send.is_null() && !recv.is_null()).then_some(()))
        })?;
        table.close_listen(listener);
        let (mut from, mut to) = (vec![0u8; bytes], vec![0u8; bytes]);
        let register = |connection, memory: &mut Vec<u8>| {
            table.reg_mr(connection, memory.as_mut_ptr().cast(), bytes, 1).map_err(code("regMr"))
        };
        let (from_memory, to_memory) = (register(send, &mut from)?, register(recv, &mut to)?);
        Ok(Self { table, context, send, recv, from, to, from_memory, to_memory })
    }

    pub(crate) fn isend(&mut self, at: usize, bytes: usize) -> Result<Option<Pointer>, Status> {
        self.isend_tagged(at, bytes, 0)
    }

    pub(crate) fn isend_tagged(
        &mut self,
        at: usize,
        bytes: usize,
        tag: c_int,
    ) -> Result<Option<Pointer>, Status> {
        let data = self.from[at..].as_mut_ptr().cast();
        self.table.isend(self.send, (data, bytes), tag, self.from_memory).map(some)
    }

    pub(crate) fn irecv(&mut self, at: usize, bytes: usize) -> Result<Option<Pointer>, Status> {
        self.irecv_of(&[(at, bytes, 0)])
    }

    /// The address, length in bytes and tag of each buffer.
    pub(crate) fn irecv_of(
        &mut self,
        buffers: &[(usize, usize, c_int)],
    ) -> Result<Option<Pointer>, Status> {
        let buffer = |&(at, bytes, tag): &(usize, usize, c_int)| {
            (self.to[at..].as_mut_ptr().cast(), bytes, tag, self.to_memory)
        };
        let buffers: Vec<_> = buffers.iter().map(buffer).collect();
        self.table.irecv(self.recv, &buffers, false).map(some)
    }

    pub(crate) fn close(self) -> Result<(), String> {
        let statuses = [
            ("deregMr", self.table.dereg_mr(self.send, self.from_memory)),
            ("deregMr", self.table.dereg_mr(self.recv, self.to_memory)),
            ("closeSend", self.table.close_send(self.send)),
            ("closeRecv", self.table.close_recv(self.recv)),
            ("finalize", self.table.finalize(self.context)),
        ];
        match statuses.iter().find(|(_, status)| *status != 0) {
            Some((what, status)) => Err(format!("{what}: {status}")),
            None => Ok(()),
        }
    }
}

fn encode(handle: &[u8; HANDLE]) -> String {
    handle.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn decode(text: &str) -> Result<[u8; HANDLE], String> {
    let mut handle = [0; HANDLE];
    for (at, byte) in handle.iter_mut().enumerate() {
        let digits = text.get(2 * at..2 * at + 2).ok_or("a handle is too short")?;
        *byte = u8::from_str_radix(digits, 16).map_err(|error| error.to_string())?;
    }
    Ok(handle)
}

/// Returns the contents of a message.
pub(crate) fn fill(bytes: &mut [u8], number: usize) {
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = (at / 61 + at + 7 * number) as u8;
    }
}
