//! The plugin begins and ends, and describes its devices.

use super::{Logger, Pointer, Properties, Status, Table, call};
use std::ffi::{CStr, c_char, c_int};
use std::ptr;

/// Bytes that are enough for the properties of every version.
const PROPERTIES: usize = 256;

impl Table {
    /// Starts the plugin; the context is null where there are none.
    pub(crate) fn init(&self, logger: Logger, traffic_class: c_int) -> Result<Pointer, Status> {
        let mut context = ptr::null_mut();
        let config = traffic_class;
        let status = match self.version {
            8 | 9 => call!(self, INIT, logger => Logger),
            10 => call!(self, INIT, logger => Logger, ptr::null_mut() => Pointer),
            _ => call!(self, INIT,
                &mut context => *mut Pointer,
                0x0123_4567_89ab_cdef => u64,
                &config => *const c_int,
                logger => Logger,
                ptr::null_mut() => Pointer,
            ),
        };
        if status == 0 { Ok(context) } else { Err(status) }
    }

    pub(crate) fn finalize(&self, context: Pointer) -> Status {
        if self.has_contexts() { call!(self, FINALIZE, context => Pointer) } else { 0 }
    }

    pub(crate) fn devices(&self) -> Result<c_int, Status> {
        let mut count = -1;
        let status = call!(self, DEVICES, &mut count => *mut c_int);
        if status == 0 { Ok(count) } else { Err(status) }
    }

    pub(crate) fn properties(&self, device: c_int) -> Result<Properties, Status> {
        let mut bytes = [0xa5u8; PROPERTIES];
        let status = call!(self, GET_PROPERTIES, device => c_int, bytes.as_mut_ptr() => *mut u8);
        if status != 0 {
            return Err(status);
        }
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let int = |at: usize| i32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let short = |at: usize| i16::from_le_bytes(bytes[at..at + 2].try_into().unwrap());
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
            // Behind two sizes and the number of requests.
            rail_ids: if self.version == 12 { [124, 126].map(short) } else { [-1; 2] },
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
            call!(self, MAKE_V_DEVICE, &mut made => *mut c_int, merged.as_ptr() => *const c_int);
        if status == 0 { Ok(made) } else { Err(status) }
    }
}
