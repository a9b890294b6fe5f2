//! How large queue pairs are made.

use super::sizes::most_requests;
use crate::backend::QpCap;

/// What all queue pairs of an endpoint are made with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Bytes that an inline request can have.
    pub(super) max_inline_data: u32,
    /// Buffers that a request or receive can have, if the device takes as many.
    pub(super) max_sge: u32,
    /// Requests that each queue holds at least.
    pub(super) queue_depth: u32,
}

impl Shape {
    /// Requests that a queue is asked to hold, on a device that takes `max_qp_wr`.
    pub(super) fn requests(self, max_qp_wr: u32) -> u32 {
        most_requests(max_qp_wr).max(self.queue_depth)
    }

    /// What to ask a device for that takes no more requests in a queue, and buffers of a request.
    pub(super) fn cap(self, max_qp_wr: u32, max_sge: u32) -> QpCap {
        let most = self.requests(max_qp_wr);
        let buffers = self.max_sge.min(max_sge).max(1);
        QpCap {
            max_send_wr: most,
            max_recv_wr: most,
            max_inline_data: self.max_inline_data,
            max_send_sge: buffers,
            max_recv_sge: buffers,
        }
    }
}
