//! Connections are made and closed.

use super::{Pointer, Status, Table, call};
use std::ffi::c_int;
use std::ptr;

impl Table {
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
