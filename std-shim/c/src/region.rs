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
use polyrail::verbs::AccessFlags;
use std::ffi::c_void;
use std::os::fd::BorrowedFd;

/// Registered memory.
pub(crate) enum Registered {
    Software(ForeignBuffer),
    #[cfg(feature = "verbs")]
    Verbs(ForeignBuffer<VerbsRegion>),
}

impl Object for Region {
    const KIND: Kind = Kind::Region;
    const NAME: &str = "polyrail_region";
    type Value = Registered;
}

impl Object for Remote {
    const KIND: Kind = Kind::Remote;
    const NAME: &str = "polyrail_remote";
    /// All of it is in the words.
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
        let words = format_args!(
            "access {access:#x}: peers may write or change only what requests of this side may write, too"
        );
        return refuse(Code::Argument, words);
    }
    Ok(AccessFlags::from_bits_retain(access))
}

/// The code of a device's refusal.
pub(crate) fn device_failure(error: &DeviceError) -> Failure {
    let code = match error {
        DeviceError::NoDmaBuf { .. } | DeviceError::NoOnDemandPaging { .. } => Code::Unsupported,
        DeviceError::Deregister { .. } => Code::StillAccessed,
        DeviceError::Memory(_) => Code::System,
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
    };
    table::insert(registered, &local.words())
}

/// Registers `length` bytes from `start` on with every device of the domain. The memory stays allocated until
/// the region is closed. While requests or peers may write parts of it, nobody else touches those; while they may
/// read, nobody writes. `access` is POLYRAIL_ACCESS_ bits. Memory may be registered any number of times.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_region_register(
    domain: *mut Domain,
    start: *mut c_void,
    length: usize,
    access: u32,
    region: *mut *mut Region,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(region, "region") }?;
        if start.is_null() {
            return refuse(Code::Null, "start is NULL");
        }
        if length == 0 || start.addr().checked_add(length).is_none() {
            let words = format_args!("{length} bytes from {start:p} on cannot be registered");
            return refuse(Code::Argument, words);
        }
        let flags = access_flags(access)?;
        let start = start.cast();
        // SAFETY: the caller's promise.
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
            }
        };
        place.write(put(registered, access, false)?);
        Ok(())
    })
}

/// Registers a part of a dma-buf, such as memory of a GPU. `iova` is an address that has the same place in its page
/// as `offset` has; usually the one that it has there. The file may be closed afterwards. Not with the software NIC.
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
        // SAFETY: the caller's promise.
        let place = unsafe { out(region, "region") }?;
        if fd < 0 {
            return refuse(Code::Argument, format_args!("{fd} is not a file descriptor"));
        }
        if length == 0 || iova.checked_add(length as u64).is_none() {
            let words = format_args!("{length} bytes at {iova:#x} cannot be registered");
            return refuse(Code::Argument, words);
        }
        let flags = access_flags(access)?;
        // SAFETY: the caller's promise; one that is closed is refused by the kernel.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let part = DmaBuf { fd, offset, length, iova };
        // SAFETY: the caller's promise; inline requests of it are refused.
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
            }
        };
        place.write(put(registered, access, true)?);
        Ok(())
    })
}

/// What a peer needs to reach the region, as bytes that travel by whatever way: at most POLYRAIL_REMOTE_BYTES.
/// Stores how many in `length`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_region_export(
    region: *mut Region,
    bytes: *mut c_void,
    capacity: usize,
    length: *mut usize,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let answer = unsafe { Answer::new(bytes, capacity, length) }?;
        let local = Local::from_words(&table::words(region)?);
        answer.give(&local.for_peers().encode())
    })
}

/// Deregisters the memory, which is the caller's again; what names it and is under way fails. With
/// POLYRAIL_CODE_STILL_ACCESSED it never is the caller's again, and the handle is closed all the same.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_region_close(region: *mut Region) -> Code {
    call(|| {
        let closed = match *table::remove(region)? {
            Registered::Software(buffer) => buffer.close(),
            #[cfg(feature = "verbs")]
            Registered::Verbs(buffer) => buffer.close(),
        };
        Ok(closed.map_err(|error| device_failure(&error))?)
    })
}

/// Memory of a peer's, from the bytes that polyrail_region_export made there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_remote_import(
    bytes: *const c_void,
    length: usize,
    remote: *mut *mut Remote,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(remote, "remote") }?;
        // SAFETY: the caller's promise.
        let bytes = unsafe { self::bytes(bytes, length, "bytes") }?;
        let far = Far::decode(bytes)?;
        place.write(table::insert((), &far.words())?);
        Ok(())
    })
}

/// Forgets it.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_remote_close(remote: *mut Remote) -> Code {
    call(|| table::remove(remote).map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_a_device_keeps_has_a_code_of_its_own() {
        let kept = DeviceError::Deregister { device: "mlx5_0".into(), errno: 16 };
        let failure = device_failure(&kept);
        assert_eq!(failure.code, Code::StillAccessed);
        assert!(failure.words.contains("mlx5_0 may still access memory"), "{}", failure.words);
    }
}
