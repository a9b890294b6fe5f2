//! Registering NCCL's memory with a device, without locking the connection that it is for.

use crate::abi::{PTR_CUDA, PTR_HOST};
use crate::devices::Device;
use crate::guard::{Code, Refusal};
use crate::rails::Registered;
use polyrail::backend::DmaBuf;
use polyrail::chain::Chain;
use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;

/// Registers memory of NCCL.
///
/// # Safety
///
/// The memory stays allocated until it is deregistered.
pub(crate) unsafe fn register(
    device: &Device,
    (data, length): (*mut c_void, usize),
    kind: c_int,
) -> Result<Registered, Refusal> {
    check_range(data, length)?;
    let is_gpu = match kind {
        PTR_HOST => false,
        PTR_CUDA if device.description.gpu.by_address => true,
        _ => {
            let name = &device.description.name;
            let words = format!("device {name} does not reach memory of kind {kind}");
            return Err(Refusal::argument(words));
        }
    };
    // SAFETY: guaranteed by the caller.
    let registered = unsafe { device.nics.register(data.cast(), length, is_gpu) };
    registered.map_err(|error| {
        Refusal::new(
            Code::System,
            format!("cannot register {length} bytes at {data:p}: {}", Chain(&error)),
        )
    })
}

/// Registers memory behind a dma-buf.
///
/// # Safety
///
/// As [`register`].
pub(crate) unsafe fn register_dma_buf(
    device: &Device,
    (data, length): (*mut c_void, usize),
    (fd, offset): (BorrowedFd<'_>, u64),
) -> Result<Registered, Refusal> {
    check_range(data, length)?;
    let dma_buf = DmaBuf { fd, offset, length, iova: data.addr() as u64 };
    // SAFETY: guaranteed by the caller.
    let registered = unsafe { device.nics.register_dma_buf(&dma_buf) };
    registered.map_err(|error| {
        let words =
            format!("cannot register a dma-buf of {length} bytes at {data:p}: {}", Chain(&error));
        Refusal::new(Code::System, words)
    })
}

/// Refuses ranges that cannot be memory.
fn check_range(data: *mut c_void, length: usize) -> Result<(), Refusal> {
    if data.is_null() || length == 0 || data.addr().checked_add(length).is_none() {
        return Err(Refusal::argument(format!(
            "{length} bytes at {data:p} are not a valid range of memory"
        )));
    }
    Ok(())
}
