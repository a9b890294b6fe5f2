//! NCCL's interface of network plugins, versions 8 to 12, as its public headers describe it: memory
//! layouts and constants, without behaviour.

use std::ffi::{c_char, c_int, c_ulong, c_void};

/// Size of a listening end's handle in bytes.
pub(crate) const HANDLE_BYTES: usize = 128;

/// Receives that a connection must support at the same time.
pub(crate) const MAX_REQUESTS: usize = 32;

/// Kinds of memory, as a set of bits: host memory.
pub(crate) const PTR_HOST: c_int = 1;
/// Memory of a GPU.
pub(crate) const PTR_CUDA: c_int = 2;
/// Memory of a GPU through a dma-buf.
pub(crate) const PTR_DMABUF: c_int = 4;

/// The value that NCCL stores in the request before `irecv` if it does not wait for the completion.
pub(crate) const OPTIONAL_COMPLETION: usize = 1;

/// No traffic class was chosen.
pub(crate) const TRAFFIC_CLASS_UNDEFINED: c_int = -1;

/// No rail, and no plane.
pub(crate) const ID_UNDEFINED: i16 = -1;

/// Maximum number of NICs in a merged device, before version 12.
pub(crate) const MAX_MERGED_V11: usize = 4;

/// Maximum number of NICs in a merged device, in version 12.
pub(crate) const MAX_MERGED_V12: usize = 8;

/// Result code of a function.
pub(crate) type Status = c_int;

/// NCCL's logger: level, subsystems, file or function, line, format, and the format's arguments.
pub(crate) type Logger =
    unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);

/// NCCL's profiler, which this plugin does not call.
pub(crate) type Profiler =
    unsafe extern "C" fn(*mut *mut c_void, c_int, *mut c_void, i64, *mut c_void) -> Status;

/// NICs to be merged into one device.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Merged<const MOST: usize> {
    pub(crate) count: c_int,
    pub(crate) devices: [c_int; MOST],
}

/// Settings of a communicator.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct CommConfig {
    pub(crate) traffic_class: c_int,
}

/// Properties of a device, up to version 8.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PropertiesV8 {
    pub(crate) name: *const c_char,
    pub(crate) pci_path: *const c_char,
    pub(crate) guid: u64,
    pub(crate) ptr_support: c_int,
    pub(crate) reg_is_global: c_int,
    pub(crate) speed_mbps: c_int,
    pub(crate) port: c_int,
    pub(crate) latency_us: f32,
    pub(crate) max_comms: c_int,
    pub(crate) max_recvs: c_int,
    pub(crate) net_device_type: c_int,
    pub(crate) net_device_version: c_int,
}

/// Properties of a device, in versions 9 and 10.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PropertiesV9 {
    pub(crate) name: *const c_char,
    pub(crate) pci_path: *const c_char,
    pub(crate) guid: u64,
    pub(crate) ptr_support: c_int,
    pub(crate) reg_is_global: c_int,
    pub(crate) force_flush: c_int,
    pub(crate) speed_mbps: c_int,
    pub(crate) port: c_int,
    pub(crate) latency_us: f32,
    pub(crate) max_comms: c_int,
    pub(crate) max_recvs: c_int,
    pub(crate) net_device_type: c_int,
    pub(crate) net_device_version: c_int,
    pub(crate) merged: Merged<MAX_MERGED_V11>,
    pub(crate) max_p2p_bytes: usize,
    pub(crate) max_coll_bytes: usize,
}

/// Properties of a device, in version 11.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PropertiesV11 {
    pub(crate) before: PropertiesV9,
    pub(crate) max_multi_request_size: c_int,
}

/// Properties of a device, in version 12.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PropertiesV12 {
    pub(crate) name: *const c_char,
    pub(crate) pci_path: *const c_char,
    pub(crate) guid: u64,
    pub(crate) ptr_support: c_int,
    pub(crate) reg_is_global: c_int,
    pub(crate) force_flush: c_int,
    pub(crate) speed_mbps: c_int,
    pub(crate) port: c_int,
    pub(crate) latency_us: f32,
    pub(crate) max_comms: c_int,
    pub(crate) max_recvs: c_int,
    pub(crate) net_device_type: c_int,
    pub(crate) net_device_version: c_int,
    pub(crate) merged: Merged<MAX_MERGED_V12>,
    pub(crate) max_p2p_bytes: usize,
    pub(crate) max_coll_bytes: usize,
    pub(crate) max_multi_request_size: c_int,
    pub(crate) rail_id: i16,
    pub(crate) plane_id: i16,
}

// Functions whose arguments are the same in all versions, or from one version on.
pub(crate) type Devices = unsafe extern "C" fn(*mut c_int) -> Status;
pub(crate) type Listen = unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void) -> Status;
pub(crate) type ListenIn =
    unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut *mut c_void) -> Status;
pub(crate) type ConnectPlain =
    unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void, *mut *mut c_void) -> Status;
pub(crate) type ConnectWith = unsafe extern "C" fn(
    c_int,
    *const CommConfig,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> Status;
pub(crate) type ConnectIn = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> Status;
pub(crate) type Accept =
    unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut *mut c_void) -> Status;
pub(crate) type RegMr =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, *mut *mut c_void) -> Status;
pub(crate) type RegMrDmaBuf = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    c_int,
    u64,
    c_int,
    *mut *mut c_void,
) -> Status;
pub(crate) type OnTwo = unsafe extern "C" fn(*mut c_void, *mut c_void) -> Status;
pub(crate) type IsendV8 = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    c_int,
    c_int,
    *mut c_void,
    *mut *mut c_void,
) -> Status;
pub(crate) type IrecvV8 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *const *mut c_void,
    *const c_int,
    *const c_int,
    *const *mut c_void,
    *mut *mut c_void,
) -> Status;
pub(crate) type IsendV9 = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    c_int,
    *mut c_void,
    *mut *mut c_void,
) -> Status;
pub(crate) type IrecvV9 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *const *mut c_void,
    *const usize,
    *const c_int,
    *const *mut c_void,
    *mut *mut c_void,
) -> Status;
pub(crate) type IsendV10 = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut *mut c_void,
) -> Status;
pub(crate) type IrecvV10 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *const *mut c_void,
    *const usize,
    *const c_int,
    *const *mut c_void,
    *const *mut c_void,
    *mut *mut c_void,
) -> Status;
pub(crate) type Iflush = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *const *mut c_void,
    *const c_int,
    *const *mut c_void,
    *mut *mut c_void,
) -> Status;
pub(crate) type Test = unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int) -> Status;
pub(crate) type On = unsafe extern "C" fn(*mut c_void) -> Status;
pub(crate) type GetDeviceMr =
    unsafe extern "C" fn(*mut c_void, *mut c_void, *mut *mut c_void) -> Status;
pub(crate) type Consumed = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> Status;
pub(crate) type MakeVDevice<const MOST: usize> =
    unsafe extern "C" fn(*mut c_int, *const Merged<MOST>) -> Status;
pub(crate) type GetProperties<P> = unsafe extern "C" fn(c_int, *mut P) -> Status;
pub(crate) type InitV8 = unsafe extern "C" fn(Option<Logger>) -> Status;
pub(crate) type InitV10 = unsafe extern "C" fn(Option<Logger>, Option<Profiler>) -> Status;
pub(crate) type InitV11 = unsafe extern "C" fn(
    *mut *mut c_void,
    u64,
    *const CommConfig,
    Option<Logger>,
    Option<Profiler>,
) -> Status;

/// The functions of a plugin, in the order of the headers. Optional functions are `Option`s.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Table<Init, Props, Listen, Connect, Isend, Irecv, Tail> {
    pub(crate) name: *const c_char,
    pub(crate) init: Init,
    pub(crate) devices: Devices,
    pub(crate) get_properties: GetProperties<Props>,
    pub(crate) listen: Listen,
    pub(crate) connect: Connect,
    pub(crate) accept: Accept,
    pub(crate) reg_mr: RegMr,
    pub(crate) reg_mr_dma_buf: RegMrDmaBuf,
    pub(crate) dereg_mr: OnTwo,
    pub(crate) isend: Isend,
    pub(crate) irecv: Irecv,
    pub(crate) iflush: Iflush,
    pub(crate) test: Test,
    pub(crate) close_send: On,
    pub(crate) close_recv: On,
    pub(crate) close_listen: On,
    pub(crate) get_device_mr: Option<GetDeviceMr>,
    pub(crate) irecv_consumed: Option<Consumed>,
    pub(crate) tail: Tail,
}

// SAFETY: contains only functions and a constant name.
unsafe impl<I, P, L, C, S, R, T> Sync for Table<I, P, L, C, S, R, T> {}

/// Further functions of versions 9 and 10.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct TailV9 {
    pub(crate) make_v_device: MakeVDevice<MAX_MERGED_V11>,
}

/// Further functions of versions 11 and 12.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct TailV11<const MOST: usize> {
    pub(crate) make_v_device: MakeVDevice<MOST>,
    pub(crate) finalize: On,
    pub(crate) set_net_attr: Option<OnTwo>,
}

/// Nothing follows.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct NoTail;

pub(crate) type TableV8 =
    Table<InitV8, PropertiesV8, Listen, ConnectPlain, IsendV8, IrecvV8, NoTail>;
pub(crate) type TableV9 =
    Table<InitV8, PropertiesV9, Listen, ConnectPlain, IsendV9, IrecvV9, TailV9>;
pub(crate) type TableV10 =
    Table<InitV10, PropertiesV9, Listen, ConnectWith, IsendV10, IrecvV10, TailV9>;
pub(crate) type TableV11 =
    Table<InitV11, PropertiesV11, ListenIn, ConnectIn, IsendV10, IrecvV10, TailV11<MAX_MERGED_V11>>;
pub(crate) type TableV12 =
    Table<InitV11, PropertiesV12, ListenIn, ConnectIn, IsendV10, IrecvV10, TailV11<MAX_MERGED_V12>>;
