//! Registered memory without `unsafe`.

use super::range::OutOfRange;
use super::registration::Registration;
use crate::backend::{DeviceError, Domain, DomainRef, Region, listed};
use polyrail_core::verbs::{AccessFlags, LocalBuffer};
use polyrail_software_nic::{MemoryRegion, Pages, Span};
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::sync::Arc;

/// Page-aligned zeroed memory, which is allocated here and registered with one or more devices.
///
/// Devices may write the bytes at any time, so they are never exposed as references, but copied in
/// and out. A race with a device gives torn data, but is not undefined behaviour.
///
/// # Buffer ownership
///
/// A [`LocalBuffer`] from [`local`](Self::local) may outlive the buffer. Dropping the buffer waits
/// for accesses in progress and deregisters it. Later requests that name it fail with LOC_PROT_ERR
/// or REM_ACCESS_ERR; an INLINE request reads zeros.
#[derive(Debug)]
pub struct RegisteredBuffer<R = MemoryRegion> {
    // Before `pages`: deregistered first, although the regions share the pages anyway.
    registration: Registration<R>,
    pages: Arc<Pages>,
}

impl<R: Region> RegisteredBuffer<R> {
    /// Allocates `length` zero bytes, and registers them with the same access in each of the
    /// domains.
    ///
    /// # Errors
    ///
    /// Those of [`Domain::register_pages`]; no memory; an empty list of domains;
    /// [`DeviceError::NoOnDemandPaging`].
    pub fn new<'d, D: Domain<Region = R>>(
        length: usize,
        access: AccessFlags,
        domains: impl IntoIterator<Item: DomainRef<'d, D>>,
    ) -> Result<Self, DeviceError> {
        let pages = Arc::new(Pages::new(length)?);
        let place = (pages.addr(), pages.len());
        let register = |domain: &D| domain.register_pages(&pages, access);
        let registration = Registration::new(place, access, &listed(domains), register)?;
        Ok(Self { registration, pages })
    }
}

impl<R> RegisteredBuffer<R> {
    /// Describes `length` bytes from `offset`, for requests.
    ///
    /// # Errors
    ///
    /// The range is not within the buffer.
    pub fn local(&self, offset: usize, length: u32) -> Result<LocalBuffer, OutOfRange> {
        let local = self.pages.local(offset, length);
        local.ok_or(OutOfRange { offset, length: length as usize, size: self.len() })
    }

    /// Copies `bytes` into the buffer.
    ///
    /// # Errors
    ///
    /// The range is not within the buffer; nothing was copied.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfRange> {
        self.span(offset, bytes.len())?.write(bytes);
        Ok(())
    }

    /// Copies bytes out of the buffer.
    ///
    /// # Errors
    ///
    /// The range is not within the buffer; nothing was copied.
    pub fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<(), OutOfRange> {
        self.span(offset, bytes.len())?.read(bytes);
        Ok(())
    }

    /// Sets `length` bytes to `byte`.
    ///
    /// # Errors
    ///
    /// The range is not within the buffer; nothing was written.
    pub fn fill(&self, offset: usize, length: usize, byte: u8) -> Result<(), OutOfRange> {
        self.span(offset, length)?.fill(byte);
        Ok(())
    }

    fn span(&self, offset: usize, length: usize) -> Result<Span<'_>, OutOfRange> {
        self.registration.at(offset, length)?;
        Ok(self.pages.span(offset, length))
    }
}

impl<R> Deref for RegisteredBuffer<R> {
    type Target = Registration<R>;

    fn deref(&self) -> &Registration<R> {
        &self.registration
    }
}

/// File I/O without an intermediate copy. Positions are offsets in the file. Like `pread` and
/// `pwrite`, the methods may transfer fewer bytes than requested; reading returns 0 at the end of
/// the file.
#[cfg(unix)]
impl<R> RegisteredBuffer<R> {
    /// Reads from `file` into `length` bytes from `offset`; returns the number of bytes read.
    ///
    /// # Errors
    ///
    /// Errors of `pread`; [`OutOfRange`] as `InvalidInput`.
    pub fn read_from_file(
        &self,
        offset: usize,
        length: usize,
        file: &File,
        position: u64,
    ) -> io::Result<usize> {
        use std::os::fd::AsRawFd;
        let span = self.span(offset, length)?;
        let fd = file.as_raw_fd();
        let target = span.as_ptr().cast();
        // SAFETY: the kernel writes at most the span's bytes, which are allocated and to which no
        // references exist.
        retry(|| unsafe { libc::pread(fd, target, span.len(), position as libc::off_t) })
    }

    /// Writes `length` bytes from `offset` to `file`; returns the number of bytes written.
    ///
    /// # Errors
    ///
    /// Errors of `pwrite`; [`OutOfRange`] as `InvalidInput`.
    pub fn write_to_file(
        &self,
        offset: usize,
        length: usize,
        file: &File,
        position: u64,
    ) -> io::Result<usize> {
        use std::os::fd::AsRawFd;
        let span = self.span(offset, length)?;
        let fd = file.as_raw_fd();
        let source = span.as_ptr().cast();
        // SAFETY: the kernel reads at most the span's bytes, which are allocated.
        retry(|| unsafe { libc::pwrite(fd, source, span.len(), position as libc::off_t) })
    }
}

/// Repeats a system call that a signal interrupted.
#[cfg(unix)]
fn retry(mut call: impl FnMut() -> libc::ssize_t) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(bytes) => return Ok(bytes),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail_software_nic::{DeviceConfig, Fabric};

    #[test]
    fn a_region_is_as_long_as_its_buffer_and_no_longer() {
        let fabric = Fabric::threaded();
        let domain = fabric.create_device(DeviceConfig::named("a")).alloc_pd().unwrap();
        let buffer = |length| RegisteredBuffer::new(length, AccessFlags::LOCAL_WRITE, &[&domain]);
        for length in [1, 4096, 5000] {
            let buffer = buffer(length).unwrap();
            let region = &buffer.regions()[0];
            assert_eq!((region.addr(), region.len()), (buffer.addr(), length));
            assert_eq!(buffer.len(), length);
        }
        assert!(buffer(0).is_err(), "devices refuse empty regions");
    }
}
