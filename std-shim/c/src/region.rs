//! Memory of the caller's, and of peers.

use crate::arguments::{Answer, bytes, out};
use crate::call::call;
use crate::code::Code;
use crate::domain::{Devices, devices};
use crate::error::{Failure, Refusal, refuse};
use crate::keys::{Far, Local};
use crate::table::{self, Kind, Object};
use crate::types::{
    Domain, POLYRAIL_ACCESS_LOCAL_WRITE, POLYRAIL_ACCESS_ON_DEMAND,
    POLYRAIL_ACCESS_RELAXED_ORDERING, POLYRAIL_ACCESS_REMOTE_ATOMIC, POLYRAIL_ACCESS_REMOTE_READ,
    POLYRAIL_ACCESS_REMOTE_WRITE, Region, Remote,
};
use polyrail::backend::{DeviceError, DmaBuf};
use polyrail::memory::ForeignBuffer;
#[cfg(feature = "verbs")]
use polyrail::rdma::VerbsRegion;
#[cfg(feature = "tcp")]
use polyrail::tcp;
use polyrail::verbs::AccessFlags;
use std::ffi::c_void;
use std::os::fd::BorrowedFd;

/// Registered memory.
pub(crate) enum Registered {
    Software(ForeignBuffer),
    #[cfg(feature = "verbs")]
    Verbs(ForeignBuffer<VerbsRegion>),
    #[cfg(feature = "tcp")]
    Tcp(ForeignBuffer<tcp::MemoryRegion>),
}

impl Object for Region {
    const KIND: Kind = Kind::Region;
    const NAME: &str = "polyrail_region";
    type Value = Registered;
}

impl Object for Remote {
    const KIND: Kind = Kind::Remote;
    const NAME: &str = "polyrail_remote";
    /// The words describe all of it.
    type Value = ();
}

const ACCESS: u32 = POLYRAIL_ACCESS_LOCAL_WRITE
    | POLYRAIL_ACCESS_REMOTE_WRITE
    | POLYRAIL_ACCESS_REMOTE_READ
    | POLYRAIL_ACCESS_REMOTE_ATOMIC
    | POLYRAIL_ACCESS_ON_DEMAND
    | POLYRAIL_ACCESS_RELAXED_ORDERING;

fn access_flags(access: u32) -> Result<AccessFlags, Refusal> {
    let unknown = access & !ACCESS;
    if unknown != 0 {
        return refuse(Code::Argument, format_args!("unknown bits {unknown:#x} of access"));
    }
    let written = POLYRAIL_ACCESS_REMOTE_WRITE | POLYRAIL_ACCESS_REMOTE_ATOMIC;
    if access & written != 0 && access & POLYRAIL_ACCESS_LOCAL_WRITE == 0 {
        let words = format!(
            "access {access:#x}: remote write and remote atomic access require local write access"
        );
        return refuse(Code::Argument, words);
    }
    Ok(AccessFlags::from_bits_retain(access))
}

/// Returns the code of a device's refusal.
pub(crate) fn device_failure(error: &DeviceError) -> Failure {
    let code = match error {
        DeviceError::NoDmaBuf { .. }
        | DeviceError::NoOnDemandPaging { .. }
        | DeviceError::RegionTooLong { .. } => Code::Unsupported,
        DeviceError::Deregister { .. } => Code::StillAccessed,
        DeviceError::Memory(_) => Code::System,
        DeviceError::Forked(_) => Code::Forked,
        _ => Code::Device,
    };
    Failure::of(code, error)
}

fn put(
    registered: Result<Registered, DeviceError>,
    access: u32,
    is_dma_buf: bool,
) -> Result<*mut Region, Refusal> {
    let registered = registered.map_err(|error| device_failure(&error))?;
    let local = match &registered {
        Registered::Software(buffer) => Local::of(buffer, access, is_dma_buf),
        #[cfg(feature = "verbs")]
        Registered::Verbs(buffer) => Local::of(buffer, access, is_dma_buf),
        #[cfg(feature = "tcp")]
        Registered::Tcp(buffer) => Local::of(buffer, access, is_dma_buf),
    };
    table::insert(registered, &local.words())
}

/// Registers `length` bytes from `start` with every device of the domain. The memory must stay
/// allocated until the region is closed. The program must not access parts that requests or peers
/// may write, and must not write parts that they may read. `access` is POLYRAIL_ACCESS_ bits.
/// Memory may be registered any number of times.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_region_register(
    domain: *mut Domain,
    start: *mut c_void,
    length: usize,
    access: u32,
    region: *mut *mut Region,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let place = unsafe { out(region, "region") }?;
        if start.is_null() {
            return refuse(Code::Null, "start is NULL");
        }
        if length == 0 || start.addr().checked_add(length).is_none() {
            let words = format!("cannot register {length} bytes from {start:p}");
            return refuse(Code::Argument, words);
        }
        let flags = access_flags(access)?;
        let start = start.cast();
        // SAFETY: guaranteed by the caller.
        let registered = unsafe {
            match devices(domain)? {
                Devices::Software(domains) => {
                    let domains: Vec<_> = domains.iter().collect();
                    ForeignBuffer::new(start, length, flags, &domains).map(Registered::Software)
                }
                #[cfg(feature = "verbs")]
                Devices::Verbs(domains) => {
                    let domains: Vec<_> = domains.iter().collect();
                    ForeignBuffer::new(start, length, flags, &domains).map(Registered::Verbs)
                }
                #[cfg(feature = "tcp")]
                Devices::Tcp(domains) => {
                    let domains: Vec<_> = domains.iter().collect();
                    ForeignBuffer::new(start, length, flags, &domains).map(Registered::Tcp)
                }
            }
        };
        place.write(put(registered, access, false)?);
        Ok(())
    })
}

/// Registers a part of a dma-buf, such as memory of a GPU. `iova` is the address by which requests
/// name the first byte, usually the GPU's own. It must have the same offset within its page as
/// `offset`. The file may be closed afterwards. Real NICs only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_region_register_dmabuf(
    domain: *mut Domain,
    fd: i32,
    offset: u64,
    length: usize,
    iova: u64,
    access: u32,
    region: *mut *mut Region,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let place = unsafe { out(region, "region") }?;
        if fd < 0 {
            return refuse(Code::Argument, format_args!("{fd} is not a file descriptor"));
        }
        if length == 0 || iova.checked_add(length as u64).is_none() {
            let words = format!("cannot register {length} bytes at {iova:#x}");
            return refuse(Code::Argument, words);
        }
        let flags = access_flags(access)?;
        // SAFETY: guaranteed by the caller; the kernel refuses a closed descriptor.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let part = DmaBuf { fd, offset, length, iova };
        // SAFETY: guaranteed by the caller; inline requests from this memory are refused.
        let registered = unsafe {
            match devices(domain)? {
                Devices::Software(domains) => {
                    let domains: Vec<_> = domains.iter().collect();
                    ForeignBuffer::of_dma_buf(&part, flags, &domains).map(Registered::Software)
                }
                #[cfg(feature = "verbs")]
                Devices::Verbs(domains) => {
                    let domains: Vec<_> = domains.iter().collect();
                    ForeignBuffer::of_dma_buf(&part, flags, &domains).map(Registered::Verbs)
                }
                #[cfg(feature = "tcp")]
                Devices::Tcp(domains) => {
                    let domains: Vec<_> = domains.iter().collect();
                    ForeignBuffer::of_dma_buf(&part, flags, &domains).map(Registered::Tcp)
                }
            }
        };
        place.write(put(registered, access, true)?);
        Ok(())
    })
}

/// Exports what a peer needs to access the region: at most POLYRAIL_REMOTE_BYTES, which the program
/// sends to the peer. Stores their number in `length`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_region_export(
    region: *mut Region,
    bytes: *mut c_void,
    capacity: usize,
    length: *mut usize,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let answer = unsafe { Answer::new(bytes, capacity, length) }?;
        let local = Local::from_words(&table::words(region)?);
        answer.give(&local.for_peers().encode())
    })
}

/// Deregisters the memory, which then belongs to the caller again. Requests in progress that use it
/// fail. POLYRAIL_CODE_STILL_ACCESSED: devices may still access the memory until the process ends;
/// the handle is closed nevertheless.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_region_close(region: *mut Region) -> Code {
    call(|| {
        let closed = match *table::remove(region)? {
            Registered::Software(buffer) => buffer.close(),
            #[cfg(feature = "verbs")]
            Registered::Verbs(buffer) => buffer.close(),
            #[cfg(feature = "tcp")]
            Registered::Tcp(buffer) => buffer.close(),
        };
        Ok(closed.map_err(|error| device_failure(&error))?)
    })
}

/// Makes a handle for a peer's memory from the bytes that polyrail_region_export made there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_remote_import(
    bytes: *const c_void,
    length: usize,
    remote: *mut *mut Remote,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let place = unsafe { out(remote, "remote") }?;
        // SAFETY: guaranteed by the caller.
        let bytes = unsafe { self::bytes(bytes, length, "bytes") }?;
        let far = Far::decode(bytes)?;
        place.write(table::insert((), &far.words())?);
        Ok(())
    })
}

/// Closes the handle of a peer's memory.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_remote_close(remote: *mut Remote) -> Code {
    call(|| table::remove(remote).map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_too_long_for_a_device_is_refused_with_the_limit() {
        let source = Box::new(DeviceError::NoDevice);
        let device = "irdma0".into();
        let too_long = DeviceError::RegionTooLong { device, length: 9, limit: 8, source };
        let failure = device_failure(&too_long);
        assert_eq!(failure.code, Code::Unsupported);
        let words = "device irdma0 cannot register 9 bytes as one region: its limit is 8";
        assert!(failure.words.starts_with(words), "{}", failure.words);
    }

    #[test]
    fn memory_that_a_device_keeps_has_a_code_of_its_own() {
        let kept = DeviceError::Deregister { device: "mlx5_0".into(), errno: 16 };
        let failure = device_failure(&kept);
        assert_eq!(failure.code, Code::StillAccessed);
        assert!(failure.words.contains("mlx5_0 may still access memory"), "{}", failure.words);
    }
}
