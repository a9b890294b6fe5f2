//! Properties of a device, in the layout of each version.

use crate::abi::{
    MAX_MERGED_V11, MAX_MERGED_V12, Merged, PropertiesV8, PropertiesV9, PropertiesV11,
    PropertiesV12, Status,
};
use crate::calls::give;
use crate::devices::Device;
use crate::guard::guard;
use crate::plugin;
use polyrail::p2p::MAX_BUFFERS;
use std::ffi::c_int;
use std::ptr;

/// Maximum number of connections of a process.
const MAX_COMMS: c_int = 1 << 16;

/// Maximum length of a message.
const MAX_BYTES: usize = 1 << 30;

/// No code on the GPU.
const NO_DEVICE_CODE: c_int = 0;

/// Returns the properties in the layout of version 12, from which the others are made.
fn properties(device: &Device, always_flush: bool) -> PropertiesV12 {
    let description = &device.description;
    let devices = [0; MAX_MERGED_V12];
    let mut merged = Merged { count: device.parts.len() as c_int, devices };
    merged.devices.iter_mut().zip(&device.parts).for_each(|(to, part)| *to = *part as c_int);
    PropertiesV12 {
        name: device.name.as_ptr(),
        pci_path: device.pci_path.map_or(ptr::null(), |path| path.as_ptr()),
        guid: description.guid,
        ptr_support: device.ptr_support(),
        reg_is_global: 1,
        force_flush: always_flush.into(),
        speed_mbps: c_int::try_from(description.speed_mbps).unwrap_or(c_int::MAX),
        port: description.port.into(),
        // 0: NCCL uses its own estimate.
        latency_us: 0.0,
        max_comms: MAX_COMMS,
        max_recvs: MAX_BUFFERS as c_int,
        net_device_type: NO_DEVICE_CODE,
        net_device_version: NO_DEVICE_CODE,
        merged,
        max_p2p_bytes: MAX_BYTES,
        max_coll_bytes: MAX_BYTES,
        max_multi_request_size: 1,
        rail_id: device.rail_ids.rail,
        plane_id: device.rail_ids.plane,
    }
}

/// Version 12 may have merged more NICs than this layout has room for: the first ones are reported.
fn v9(p: PropertiesV12) -> PropertiesV9 {
    let mut devices = [0; MAX_MERGED_V11];
    devices.copy_from_slice(&p.merged.devices[..MAX_MERGED_V11]);
    PropertiesV9 {
        name: p.name,
        pci_path: p.pci_path,
        guid: p.guid,
        ptr_support: p.ptr_support,
        reg_is_global: p.reg_is_global,
        force_flush: p.force_flush,
        speed_mbps: p.speed_mbps,
        port: p.port,
        latency_us: p.latency_us,
        max_comms: p.max_comms,
        max_recvs: p.max_recvs,
        net_device_type: p.net_device_type,
        net_device_version: p.net_device_version,
        merged: Merged { count: p.merged.count.min(MAX_MERGED_V11 as c_int), devices },
        max_p2p_bytes: p.max_p2p_bytes,
        max_coll_bytes: p.max_coll_bytes,
    }
}

fn v8(p: PropertiesV12) -> PropertiesV8 {
    PropertiesV8 {
        name: p.name,
        pci_path: p.pci_path,
        guid: p.guid,
        ptr_support: p.ptr_support,
        reg_is_global: p.reg_is_global,
        speed_mbps: p.speed_mbps,
        port: p.port,
        latency_us: p.latency_us,
        max_comms: p.max_comms,
        max_recvs: p.max_recvs,
        net_device_type: p.net_device_type,
        net_device_version: p.net_device_version,
    }
}

/// # Safety
///
/// The pointer is null or valid for writes.
unsafe fn get_properties<P>(device: c_int, to: *mut P, form: fn(PropertiesV12) -> P) -> Status {
    guard("getProperties", || {
        let always_flush = plugin::always_flushes()?;
        let found =
            plugin::with_devices(|devices| Ok(properties(devices.get(device)?, always_flush)))?;
        // SAFETY: guaranteed by the caller.
        unsafe { give(to, "the properties", form(found)) }
    })
}

pub(crate) unsafe extern "C" fn get_properties_v12(
    device: c_int,
    to: *mut PropertiesV12,
) -> Status {
    // SAFETY: guaranteed by the caller.
    unsafe { get_properties(device, to, |properties| properties) }
}

pub(crate) unsafe extern "C" fn get_properties_v11(
    device: c_int,
    to: *mut PropertiesV11,
) -> Status {
    let form =
        |p| PropertiesV11 { before: v9(p), max_multi_request_size: p.max_multi_request_size };
    // SAFETY: guaranteed by the caller.
    unsafe { get_properties(device, to, form) }
}

pub(crate) unsafe extern "C" fn get_properties_v9(device: c_int, to: *mut PropertiesV9) -> Status {
    // SAFETY: guaranteed by the caller.
    unsafe { get_properties(device, to, v9) }
}

pub(crate) unsafe extern "C" fn get_properties_v8(device: c_int, to: *mut PropertiesV8) -> Status {
    // SAFETY: guaranteed by the caller.
    unsafe { get_properties(device, to, v8) }
}
