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
            call!(self, LISTEN,
                context => Pointer,
                device => c_int,
                handle => Pointer,
                &mut listener => *mut Pointer,
            )
        } else {
            call!(self, LISTEN, device => c_int, handle => Pointer, &mut listener => *mut Pointer)
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
            call!(self, CONNECT,
                context => Pointer,
                device => c_int,
                handle => Pointer,
                to => *mut Pointer,
                &mut offload => *mut Pointer,
            )
        } else if self.version == 10 {
            let config: c_int = -1;
            call!(self, CONNECT,
                device => c_int,
                &config => *const c_int,
                handle => Pointer,
                to => *mut Pointer,
                &mut offload => *mut Pointer,
            )
        } else {
            call!(self, CONNECT,
                device => c_int,
                handle => Pointer,
                to => *mut Pointer,
                &mut offload => *mut Pointer,
            )
        };
        if status == 0 { Ok(connection) } else { Err(status) }
    }

    pub(crate) fn accept(&self, listener: Pointer) -> Result<Pointer, Status> {
        let (mut connection, mut offload) = (ptr::null_mut(), ptr::null_mut());
        let status = call!(self, ACCEPT,
            listener => Pointer,
            &mut connection => *mut Pointer,
            &mut offload => *mut Pointer,
        );
        if status == 0 { Ok(connection) } else { Err(status) }
    }

    pub(crate) fn close_send(&self, connection: Pointer) -> Status {
        call!(self, CLOSE_SEND, connection => Pointer)
    }

    pub(crate) fn close_recv(&self, connection: Pointer) -> Status {
        call!(self, CLOSE_RECV, connection => Pointer)
    }

    pub(crate) fn close_listen(&self, listener: Pointer) -> Status {
        call!(self, CLOSE_LISTEN, listener => Pointer)
    }
}
