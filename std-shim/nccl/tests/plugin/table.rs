//! A table of a network plugin, called as NCCL calls it, whatever its version. Declared here anew, from the public
//! headers: what the plugin believes of itself is not asked.

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::ptr;

pub(crate) type Status = c_int;
pub(crate) type Pointer = *mut c_void;

/// Bytes of a handle.
pub(crate) const HANDLE: usize = 128;

/// Bytes that are enough for the properties of every version.
const PROPERTIES: usize = 256;

pub(crate) const INVALID_ARGUMENT: Status = 4;
pub(crate) const INVALID_USAGE: Status = 5;
pub(crate) const INTERNAL: Status = 3;
pub(crate) const REMOTE: Status = 6;

/// Places of functions, behind the name.
pub(crate) mod place {
    pub(crate) const INIT: usize = 1;
    pub(crate) const DEVICES: usize = 2;
    pub(crate) const GET_PROPERTIES: usize = 3;
    pub(crate) const LISTEN: usize = 4;
    pub(crate) const CONNECT: usize = 5;
    pub(crate) const ACCEPT: usize = 6;
    pub(crate) const REG_MR: usize = 7;
    pub(crate) const REG_MR_DMA_BUF: usize = 8;
    pub(crate) const DEREG_MR: usize = 9;
    pub(crate) const ISEND: usize = 10;
    pub(crate) const IRECV: usize = 11;
    pub(crate) const IFLUSH: usize = 12;
    pub(crate) const TEST: usize = 13;
    pub(crate) const CLOSE_SEND: usize = 14;
    pub(crate) const CLOSE_RECV: usize = 15;
    pub(crate) const CLOSE_LISTEN: usize = 16;
    pub(crate) const MAKE_V_DEVICE: usize = 19;
    pub(crate) const FINALIZE: usize = 20;
}

/// NCCL's logger. The real one takes any number of arguments; this plugin passes one text.
pub(crate) type Logger =
    extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, *const c_char);

/// A table, and which version it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    pub(crate) functions: *const *const c_void,
    pub(crate) version: u32,
}

// SAFETY: functions that may be called from any thread.
unsafe impl Send for Table {}
// SAFETY: likewise.
unsafe impl Sync for Table {}

/// What a device says of itself, as far as tests ask.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Properties {
    pub(crate) name: String,
    pub(crate) pci_path: Option<String>,
    pub(crate) guid: u64,
    pub(crate) ptr_support: c_int,
    pub(crate) reg_is_global: c_int,
    pub(crate) force_flush: c_int,
    pub(crate) speed: c_int,
    pub(crate) port: c_int,
    pub(crate) latency: f32,
    pub(crate) max_comms: c_int,
    pub(crate) max_recvs: c_int,
    pub(crate) net_device_type: c_int,
    /// NICs that it is made of; none are told before version 9.
    pub(crate) parts: Vec<c_int>,
    pub(crate) max_p2p_bytes: usize,
}

/// Calls the function in a place as one of this type.
macro_rules! call {
    ($table:expr, $place:ident, fn($($type:ty),* $(,)?), $($argument:expr),* $(,)?) => {{
        // SAFETY: the headers say that the function is of this type.
        let function = unsafe {
            std::mem::transmute::<
                *const std::ffi::c_void,
                unsafe extern "C" fn($($type),*) -> $crate::table::Status,
            >(
                *$table.functions.add($crate::table::place::$place),
            )
        };
        // SAFETY: as NCCL calls it, or, where a test breaks the rules, as it is to be refused.
        unsafe { function($($argument),*) }
    }};
}

pub(crate) use call;

impl Table {
    /// # Safety
    ///
    /// It is a table of this version, for good.
    pub(crate) unsafe fn new(functions: *const c_void, version: u32) -> Self {
        Self { functions: functions.cast(), version }
    }

    pub(crate) fn name(&self) -> &'static CStr {
        // SAFETY: the first member is a text that stays.
        unsafe { CStr::from_ptr((*self.functions).cast()) }
    }

    pub(crate) const fn has_contexts(&self) -> bool {
        self.version >= 11
    }

    /// Starts the plugin; the context is null where there are none.
    pub(crate) fn init(&self, logger: Logger, traffic_class: c_int) -> Result<Pointer, Status> {
        let mut context = ptr::null_mut();
        let config = traffic_class;
        let status = match self.version {
            8 | 9 => call!(self, INIT, fn(Logger), logger),
            10 => call!(self, INIT, fn(Logger, Pointer), logger, ptr::null_mut()),
            _ => call!(
                self,
                INIT,
                fn(*mut Pointer, u64, *const c_int, Logger, Pointer),
                &mut context,
                0x0123_4567_89ab_cdef,
                &config,
                logger,
                ptr::null_mut()
            ),
        };
        if status == 0 { Ok(context) } else { Err(status) }
    }

    pub(crate) fn finalize(&self, context: Pointer) -> Status {
        if self.has_contexts() { call!(self, FINALIZE, fn(Pointer), context) } else { 0 }
    }

    pub(crate) fn devices(&self) -> Result<c_int, Status> {
        let mut count = -1;
        let status = call!(self, DEVICES, fn(*mut c_int), &mut count);
        if status == 0 { Ok(count) } else { Err(status) }
    }

    pub(crate) fn properties(&self, device: c_int) -> Result<Properties, Status> {
        let mut bytes = [0xa5u8; PROPERTIES];
        let status = call!(self, GET_PROPERTIES, fn(c_int, *mut u8), device, bytes.as_mut_ptr());
        if status != 0 {
            return Err(status);
        }
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let int = |at: usize| i32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let text = |at: usize| {
            let text = ptr::with_exposed_provenance::<c_char>(word(at) as usize);
            // SAFETY: a text, or null.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned())
        };
        // Version 8 has no `forceFlush`; 12 has room for 8 parts, 9 to 11 for 4.
        let flush = usize::from(self.version > 8);
        let behind = 32 + 4 * flush;
        let count = if flush == 1 { int(64) } else { 0 };
        let most = if self.version == 12 { 8 } else { 4 };
        Ok(Properties {
            name: text(0).unwrap(),
            pci_path: text(8),
            guid: word(16),
            ptr_support: int(24),
            reg_is_global: int(28),
            force_flush: if flush == 1 { int(32) } else { 0 },
            speed: int(behind),
            port: int(behind + 4),
            latency: f32::from_bits(int(behind + 8).cast_unsigned()),
            max_comms: int(behind + 12),
            max_recvs: int(behind + 16),
            net_device_type: int(behind + 20),
            parts: (0..count as usize).map(|at| int(68 + 4 * at)).collect(),
            max_p2p_bytes: if flush == 1 {
                word((68 + 4 * most + 7) & !7) as usize
            } else {
                1 << 30
            },
        })
    }

    /// Merges NICs; version 8 cannot.
    pub(crate) fn make_v_device(&self, parts: &[c_int]) -> Result<c_int, Status> {
        let mut merged = [0; 9];
        merged[0] = parts.len() as c_int;
        merged[1..=parts.len().min(8)].copy_from_slice(&parts[..parts.len().min(8)]);
        self.make_v_device_of(&merged)
    }

    pub(crate) fn make_v_device_of(&self, merged: &[c_int; 9]) -> Result<c_int, Status> {
        let mut made = -1;
        let status =
            call!(self, MAKE_V_DEVICE, fn(*mut c_int, *const c_int), &mut made, merged.as_ptr());
        if status == 0 { Ok(made) } else { Err(status) }
    }

    pub(crate) fn listen(
        &self,
        context: Pointer,
        device: c_int,
        handle: Pointer,
    ) -> Result<Pointer, Status> {
        let mut listener = ptr::null_mut();
        let status = if self.has_contexts() {
            call!(
                self,
                LISTEN,
                fn(Pointer, c_int, Pointer, *mut Pointer),
                context,
                device,
                handle,
                &mut listener
            )
        } else {
            call!(self, LISTEN, fn(c_int, Pointer, *mut Pointer), device, handle, &mut listener)
        };
        if status == 0 { Ok(listener) } else { Err(status) }
    }

    pub(crate) fn connect(
        &self,
        context: Pointer,
        device: c_int,
        handle: Pointer,
    ) -> Result<Pointer, Status> {
        let mut connection = ptr::null_mut();
        let mut offload = ptr::null_mut();
        let to = &mut connection;
        let status = if self.has_contexts() {
            call!(
                self,
                CONNECT,
                fn(Pointer, c_int, Pointer, *mut Pointer, *mut Pointer),
                context,
                device,
                handle,
                to,
                &mut offload
            )
        } else if self.version == 10 {
            let config: c_int = -1;
            call!(
                self,
                CONNECT,
                fn(c_int, *const c_int, Pointer, *mut Pointer, *mut Pointer),
                device,
                &config,
                handle,
                to,
                &mut offload
            )
        } else {
            call!(
                self,
                CONNECT,
                fn(c_int, Pointer, *mut Pointer, *mut Pointer),
                device,
                handle,
                to,
                &mut offload
            )
        };
        if status == 0 { Ok(connection) } else { Err(status) }
    }

    pub(crate) fn accept(&self, listener: Pointer) -> Result<Pointer, Status> {
        let (mut connection, mut offload) = (ptr::null_mut(), ptr::null_mut());
        let status = call!(
            self,
            ACCEPT,
            fn(Pointer, *mut Pointer, *mut Pointer),
            listener,
            &mut connection,
            &mut offload
        );
        if status == 0 { Ok(connection) } else { Err(status) }
    }

    pub(crate) fn reg_mr(
        &self,
        connection: Pointer,
        data: Pointer,
        length: usize,
        kind: c_int,
    ) -> Result<Pointer, Status> {
        let mut memory = ptr::null_mut();
        let status = call!(
            self,
            REG_MR,
            fn(Pointer, Pointer, usize, c_int, *mut Pointer),
            connection,
            data,
            length,
            kind,
            &mut memory
        );
        if status == 0 { Ok(memory) } else { Err(status) }
    }

    pub(crate) fn reg_mr_dma_buf(
        &self,
        connection: Pointer,
        (data, length): (Pointer, usize),
        kind: c_int,
        fd: c_int,
    ) -> Result<Pointer, Status> {
        let mut memory = ptr::null_mut();
        let status = call!(
            self,
            REG_MR_DMA_BUF,
            fn(Pointer, Pointer, usize, c_int, u64, c_int, *mut Pointer),
            connection,
            data,
            length,
            kind,
            0,
            fd,
            &mut memory
        );
        if status == 0 { Ok(memory) } else { Err(status) }
    }

    pub(crate) fn dereg_mr(&self, connection: Pointer, memory: Pointer) -> Status {
        call!(self, DEREG_MR, fn(Pointer, Pointer), connection, memory)
    }

    /// The request, null for "not now".
    pub(crate) fn isend(
        &self,
        connection: Pointer,
        (data, length): (Pointer, usize),
        tag: c_int,
        memory: Pointer,
    ) -> Result<Pointer, Status> {
        let mut request = ptr::null_mut();
        let status = match self.version {
            8 => call!(
                self,
                ISEND,
                fn(Pointer, Pointer, c_int, c_int, Pointer, *mut Pointer),
                connection,
                data,
                length as c_int,
                tag,
                memory,
                &mut request
            ),
            9 => call!(
                self,
                ISEND,
                fn(Pointer, Pointer, usize, c_int, Pointer, *mut Pointer),
                connection,
                data,
                length,
                tag,
                memory,
                &mut request
            ),
            _ => call!(
                self,
                ISEND,
                fn(Pointer, Pointer, usize, c_int, Pointer, Pointer, *mut Pointer),
                connection,
                data,
                length,
                tag,
                memory,
                ptr::null_mut(),
                &mut request
            ),
        };
        if status == 0 { Ok(request) } else { Err(status) }
    }

    /// The request, null for "not now". With `optional`, nobody waits for the completion.
    pub(crate) fn irecv(
        &self,
        connection: Pointer,
        buffers: &[(Pointer, usize, c_int, Pointer)],
        optional: bool,
    ) -> Result<Pointer, Status> {
        let data: Vec<Pointer> = buffers.iter().map(|buffer| buffer.0).collect();
        let lengths: Vec<usize> = buffers.iter().map(|buffer| buffer.1).collect();
        let ints: Vec<c_int> = lengths.iter().map(|length| *length as c_int).collect();
        let tags: Vec<c_int> = buffers.iter().map(|buffer| buffer.2).collect();
        let memories: Vec<Pointer> = buffers.iter().map(|buffer| buffer.3).collect();
        let n = buffers.len() as c_int;
        let mut request = if optional { ptr::without_provenance_mut(1) } else { ptr::null_mut() };
        let status = match self.version {
            8 => call!(
                self,
                IRECV,
                fn(
                    Pointer,
                    c_int,
                    *const Pointer,
                    *const c_int,
                    *const c_int,
                    *const Pointer,
                    *mut Pointer,
                ),
                connection,
                n,
                data.as_ptr(),
                ints.as_ptr(),
                tags.as_ptr(),
                memories.as_ptr(),
                &mut request
            ),
            9 => call!(
                self,
                IRECV,
                fn(
                    Pointer,
                    c_int,
                    *const Pointer,
                    *const usize,
                    *const c_int,
                    *const Pointer,
                    *mut Pointer,
                ),
                connection,
                n,
                data.as_ptr(),
                lengths.as_ptr(),
                tags.as_ptr(),
                memories.as_ptr(),
                &mut request
            ),
            _ => call!(
                self,
                IRECV,
                fn(
                    Pointer,
                    c_int,
                    *const Pointer,
                    *const usize,
                    *const c_int,
                    *const Pointer,
                    *const Pointer,
                    *mut Pointer,
                ),
                connection,
                n,
                data.as_ptr(),
                lengths.as_ptr(),
                tags.as_ptr(),
                memories.as_ptr(),
                ptr::null(),
                &mut request
            ),
        };
        if status == 0 { Ok(request) } else { Err(status) }
    }

    /// The request, null if there is nothing to do.
    pub(crate) fn iflush(
        &self,
        connection: Pointer,
        buffers: &[(Pointer, c_int, Pointer)],
    ) -> Result<Pointer, Status> {
        let data: Vec<Pointer> = buffers.iter().map(|buffer| buffer.0).collect();
        let sizes: Vec<c_int> = buffers.iter().map(|buffer| buffer.1).collect();
        let memories: Vec<Pointer> = buffers.iter().map(|buffer| buffer.2).collect();
        let mut request = ptr::null_mut();
        let status = call!(
            self,
            IFLUSH,
            fn(Pointer, c_int, *const Pointer, *const c_int, *const Pointer, *mut Pointer),
            connection,
            buffers.len() as c_int,
            data.as_ptr(),
            sizes.as_ptr(),
            memories.as_ptr(),
            &mut request
        );
        if status == 0 { Ok(request) } else { Err(status) }
    }

    /// The sizes, if it is done; -1 for those that were not told.
    pub(crate) fn test(&self, request: Pointer) -> Result<Option<[c_int; 8]>, Status> {
        let (mut done, mut sizes) = (-1, [-1; 8]);
        let status = call!(
            self,
            TEST,
            fn(Pointer, *mut c_int, *mut c_int),
            request,
            &mut done,
            sizes.as_mut_ptr()
        );
        match (status, done) {
            (0, 0) => Ok(None),
            (0, 1) => Ok(Some(sizes)),
            (0, other) => panic!("done is {other}"),
            (status, _) => Err(status),
        }
    }

    pub(crate) fn close_send(&self, connection: Pointer) -> Status {
        call!(self, CLOSE_SEND, fn(Pointer), connection)
    }

    pub(crate) fn close_recv(&self, connection: Pointer) -> Status {
        call!(self, CLOSE_RECV, fn(Pointer), connection)
    }

    pub(crate) fn close_listen(&self, listener: Pointer) -> Status {
        call!(self, CLOSE_LISTEN, fn(Pointer), listener)
    }
}
