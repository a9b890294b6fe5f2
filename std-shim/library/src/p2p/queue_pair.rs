//! Making a queue pair of either end.

use super::builder::P2pBuilder;
use crate::backend::{Connect, ConnectOptions, Connecting, DeviceError, Domain, Port, QpCap};
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
    pub(super) const fn of(builder: &P2pBuilder) -> Self {
        let P2pBuilder { max_inline_data, options, .. } = *builder;
        Self { max_inline_data, options }
    }

    /// A queue pair in INIT on this port of a device, whose receives come from `srq`; without one,
    /// it has as good as none.
    pub(super) fn make<D: Domain>(
        &self,
        (domain, port): (&D, &Port),
        cqs: &[D::Cq],
        srq: Option<&D::Srq>,
    ) -> Result<D::Qp, DeviceError> {
        let cap = self.cap(domain);
        let cq = cq_of(domain, cqs)?;
        let qp = match srq {
            Some(srq) => domain.create_qp_with_srq(cq, srq, cap),
            None => domain.create_qp(cq, cap),
        }?;
        qp.init(port, &self.options)?;
        Ok(qp)
    }

    /// Begins to [make](Self::make) a queue pair on this port as it is now.
    pub(super) fn make_aside<D: Domain>(
        &self,
        (domain, port): (&D, u8),
        cqs: &[D::Cq],
        srq: Option<&D::Srq>,
    ) -> Connecting<(D::Qp, Port)> {
        let cq = match cq_of(domain, cqs) {
            Ok(cq) => cq,
            Err(error) => return Connecting::done(Err(error)),
        };
        let options = self.options;
        domain.make_aside((cq, srq), self.cap(domain), port, move |qp, port| {
            qp.init(&port, &options)?;
            Ok(port)
        })
    }

    fn cap<D: Domain>(&self, domain: &D) -> QpCap {
        let max_send_wr = most_requests(domain.max_qp_wr());
        let max_inline_data = self.max_inline_data;
        QpCap { max_send_wr, max_recv_wr: 1, max_inline_data, ..QpCap::default() }
    }
}

/// The completion queue of a device.
fn cq_of<'c, D: Domain>(domain: &D, cqs: &'c [D::Cq]) -> Result<&'c D::Cq, DeviceError> {
    cqs.iter().find(|cq| cq.device() == domain.device_id()).ok_or(DeviceError::NoDevice)
}
