//! Making a queue pair of either end.

use crate::backend::{Connect, ConnectOptions, DeviceError, Domain, Port, QpCap};
use crate::endpoint::most_requests;
use polyrail_core::hardware::CompletionQueue;

/// What all queue pairs of an endpoint are made with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Bytes that an inline request can have.
    pub(super) max_inline_data: u32,
    pub(super) options: ConnectOptions,
}

impl Shape {
    /// A queue pair in INIT on this port of a device, whose receives come from `srq`; without one, it has as good
    /// as none.
    pub(super) fn make<D: Domain>(
        &self,
        (domain, port): (&D, &Port),
        cqs: &[D::Cq],
        srq: Option<&D::Srq>,
    ) -> Result<D::Qp, DeviceError> {
        let max_send_wr = most_requests(domain.max_qp_wr());
        let cap = QpCap { max_send_wr, max_recv_wr: 1, max_inline_data: self.max_inline_data };
        let is_its_own = |cq: &&D::Cq| cq.device() == domain.device_id();
        let cq = cqs.iter().find(is_its_own).ok_or(DeviceError::NoDevice)?;
        let qp = match srq {
            Some(srq) => domain.create_qp_with_srq(cq, srq, cap),
            None => domain.create_qp(cq, cap),
        }?;
        qp.init(port, &self.options)?;
        Ok(qp)
    }
}
