//! Batches of requests.

use super::dispatch::{any, each};
use crate::nic;
#[cfg(feature = "tcp")]
use crate::tcp;
use polyrail_core::hardware::{CommitError, RecvBatch, SendBatch};
use polyrail_core::verbs::{RecvRequest, SendRequest, Sge};

any! {
    /// A batch of send requests for a queue pair.
    #[derive(Debug)]
    AnySendBatch<'q>:
        nic::SendBatch<'q>,
        tcp::SendBatch<'q>,
        polyrail_ffi::SendBatch<'q, polyrail_ffi::Rc>
}

any! {
    /// A batch of receives for a queue pair.
    #[derive(Debug)]
    AnyRecvBatch<'q>:
        nic::RecvBatch<'q>,
        tcp::RecvBatch<'q>,
        polyrail_ffi::RecvBatch<'q>
}

any! {
    /// A batch of receives for a shared receive queue.
    #[derive(Debug)]
    AnySharedRecvBatch<'q>:
        nic::RecvBatch<'q>,
        tcp::SharedRecvBatch<'q>,
        polyrail_ffi::RecvBatch<'q>
}

impl SendBatch for AnySendBatch<'_> {
    #[inline]
    fn add(&mut self, request: &SendRequest) {
        each!(AnySendBatch, self, batch => batch.add(request));
    }

    #[inline]
    fn add_list(&mut self, request: &SendRequest, buffers: &[Sge]) {
        each!(AnySendBatch, self, batch => batch.add_list(request, buffers));
    }

    #[inline]
    fn commit(self) -> Result<(), CommitError> {
        each!(AnySendBatch, self, batch => batch.commit())
    }
}

macro_rules! recv_batch {
    ($name:ident) => {
        impl RecvBatch for $name<'_> {
            #[inline]
            fn add(&mut self, request: &RecvRequest) {
                each!($name, self, batch => batch.add(request));
            }

            #[inline]
            fn add_list(&mut self, wr_id: u64, buffers: &[Sge]) {
                each!($name, self, batch => batch.add_list(wr_id, buffers));
            }

            #[inline]
            fn commit(self) -> Result<(), CommitError> {
                each!($name, self, batch => batch.commit())
            }
        }
    };
}

recv_batch!(AnyRecvBatch);
recv_batch!(AnySharedRecvBatch);
