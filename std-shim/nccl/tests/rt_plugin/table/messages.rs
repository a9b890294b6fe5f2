//! Memory is registered, and messages are sent and received.

use super::{Pointer, Status, Table, call};
use std::ffi::c_int;
use std::ptr;

impl Table {
    pub(crate) fn reg_mr(
        &self,
        connection: Pointer,
        data: Pointer,
        length: usize,
        kind: c_int,
    ) -> Result<Pointer, Status> {
        let mut memory = ptr::null_mut();
        let status = call!(self, REG_MR,
            connection => Pointer,
            data => Pointer,
            length => usize,
            kind => c_int,
            &mut memory => *mut Pointer,
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
        let status = call!(self, REG_MR_DMA_BUF,
            connection => Pointer,
            data => Pointer,
            length => usize,
            kind => c_int,
            0 => u64,
            fd => c_int,
            &mut memory => *mut Pointer,
        );
        if status == 0 { Ok(memory) } else { Err(status) }
    }

    pub(crate) fn dereg_mr(&self, connection: Pointer, memory: Pointer) -> Status {
        call!(self, DEREG_MR, connection => Pointer, memory => Pointer)
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
            8 => call!(self, ISEND,
                connection => Pointer,
                data => Pointer,
                length as c_int => c_int,
                tag => c_int,
                memory => Pointer,
                &mut request => *mut Pointer,
            ),
            9 => call!(self, ISEND,
                connection => Pointer,
                data => Pointer,
                length => usize,
                tag => c_int,
                memory => Pointer,
                &mut request => *mut Pointer,
            ),
            _ => call!(self, ISEND,
                connection => Pointer,
                data => Pointer,
                length => usize,
                tag => c_int,
                memory => Pointer,
                ptr::null_mut() => Pointer,
                &mut request => *mut Pointer,
            ),
        };
        if status == 0 { Ok(request) } else { Err(status) }
    }

    /// The request, null for "not now". With `optional`, the caller does not wait for the
    /// completion.
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
            8 => call!(self, IRECV,
                connection => Pointer,
                n => c_int,
                data.as_ptr() => *const Pointer,
                ints.as_ptr() => *const c_int,
                tags.as_ptr() => *const c_int,
                memories.as_ptr() => *const Pointer,
                &mut request => *mut Pointer,
            ),
            9 => call!(self, IRECV,
                connection => Pointer,
                n => c_int,
                data.as_ptr() => *const Pointer,
                lengths.as_ptr() => *const usize,
                tags.as_ptr() => *const c_int,
                memories.as_ptr() => *const Pointer,
                &mut request => *mut Pointer,
            ),
            _ => call!(self, IRECV,
                connection => Pointer,
                n => c_int,
                data.as_ptr() => *const Pointer,
                lengths.as_ptr() => *const usize,
                tags.as_ptr() => *const c_int,
                memories.as_ptr() => *const Pointer,
                ptr::null() => *const Pointer,
                &mut request => *mut Pointer,
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
        let status = call!(self, IFLUSH,
            connection => Pointer,
            buffers.len() as c_int => c_int,
            data.as_ptr() => *const Pointer,
            sizes.as_ptr() => *const c_int,
            memories.as_ptr() => *const Pointer,
            &mut request => *mut Pointer,
        );
        if status == 0 { Ok(request) } else { Err(status) }
    }

    /// The sizes, if it is done; -1 for sizes that were not reported.
    pub(crate) fn test(&self, request: Pointer) -> Result<Option<[c_int; 8]>, Status> {
        let (mut done, mut sizes) = (-1, [-1; 8]);
        let status = call!(self, TEST,
            request => Pointer,
            &mut done => *mut c_int,
            sizes.as_mut_ptr() => *mut c_int,
        );
        match (status, done) {
            (0, 0) => Ok(None),
            (0, 1) => Ok(Some(sizes)),
            (0, other) => panic!("done is {other}"),
            (status, _) => Err(status),
        }
    }
}
