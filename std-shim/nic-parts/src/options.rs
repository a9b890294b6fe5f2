//! The options of devices, queue pairs and connections.

use crate::address::{Mtu, RemoteQp};
use crate::error::NicError;
use crate::state::QpAttributes;
use polyrail_core::verbs::AccessFlags;

/// Capacities of a new queue pair (`struct ibv_qp_cap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCap {
    /// Maximum number of outstanding send requests; rounded up to a power of two.
    pub max_send_wr: u32,
    /// Maximum number of outstanding receives; rounded up to a power of two. Ignored with a shared
    /// receive queue.
    pub max_recv_wr: u32,
    /// Maximum length of an inline request in bytes; rounded up to a multiple of 16.
    pub max_inline_data: u32,
    /// Maximum number of scatter/gather entries of a send request, at least 1.
    pub max_send_sge: u32,
    /// Maximum number of scatter/gather entries of a receive, at least 1. Ignored with a shared
    /// receive queue, whose receives have one.
    pub max_recv_sge: u32,
}

impl Default for QpCap {
    /// 128 requests of one buffer each in either direction, 64 bytes inline.
    fn default() -> Self {
        Self {
            max_send_wr: 128,
            max_recv_wr: 128,
            max_inline_data: 64,
            max_send_sge: 1,
            max_recv_sge: 1,
        }
    }
}

impl QpCap {
    /// Refuses capacities of 0 or over the limits of a device. Those of receives do not count if
    /// they come from a shared queue.
    ///
    /// # Errors
    ///
    /// The first such capacity.
    pub fn check(&self, limits: &DeviceLimits, has_shared_receives: bool) -> Result<(), NicError> {
        in_limits("max_send_wr", self.max_send_wr, limits.max_qp_wr)?;
        if !has_shared_receives {
            in_limits("max_recv_wr", self.max_recv_wr, limits.max_qp_wr)?;
            in_limits("max_recv_sge", self.max_recv_sge, limits.max_sge)?;
        }
        in_limits("max_send_sge", self.max_send_sge, limits.max_sge)?;
        in_limits("max_inline_data", self.max_inline_data.max(1), limits.max_inline_data)
    }
}

/// Attributes of a connection, which usually are equal at both ends. The software NIC has no
/// network, and ignores [`service_level`](Self::service_level) and all options after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    /// Operations that the peer may perform.
    pub access: AccessFlags,
    /// Payload bytes of a packet. In an endpoint this is a maximum, because ports also limit the
    /// MTU, unless it is [`exact`](Self::exact_mtu).
    pub path_mtu: Mtu,
    /// Whether an endpoint refuses ports, its own or the peer's, with a smaller MTU than
    /// [`path_mtu`](Self::path_mtu). False by default: the smaller MTU of the two ends is used. The
    /// software NIC itself ignores it.
    pub exact_mtu: bool,
    /// Code of the time that the peer waits before it retries when no receive was posted, 0 to 31
    /// (see [`rnr_delay`](crate::state::rnr_delay)).
    pub min_rnr_timer: u8,
    /// The acknowledgement timeout is 4.096 us * 2^timeout, and a device may wait longer. 0 waits
    /// forever; the maximum is 31. A request whose answer is late is sent again although nothing
    /// was lost, so the timeout should be longer than any delay of the path.
    pub timeout: u8,
    /// Retries before an unanswered request fails, 0 to 7.
    pub retry_cnt: u8,
    /// Retries while the peer has no receive posted, 0 to 6; 7 means forever. With 7, the software
    /// NIC retries as soon as a receive is posted, without waiting for the timer.
    pub rnr_retry: u8,
    /// Outstanding READs and atomics, in either direction. In an endpoint this is a maximum,
    /// because devices also limit the number.
    pub max_rd_atomic: u8,
    /// Index of the partition key in the port's table; the software NIC has only 0.
    pub pkey_index: u16,
    /// Service level, 0 to 15, which selects the virtual lane on InfiniBand and the priority on
    /// RoCE.
    pub service_level: u8,
    /// Traffic class of the packets. On RoCE v2 it is in the IP header: the DSCP times 4, plus the
    /// two ECN bits. Packets within an InfiniBand subnet have no such header, so they contain
    /// neither the traffic class nor the flow label nor the hop limit.
    pub traffic_class: u8,
    /// Flow label, 20 bits, by which routers may keep packets of one connection on one path.
    pub flow_label: u32,
    /// Hop limit of packets, at least 1. On RoCE v2, Linux uses the hop limit of its route to the
    /// peer instead.
    pub hop_limit: u8,
}

impl Default for ConnectOptions {
    /// All operations are permitted. Packets have 4096 bytes. An unanswered request fails after 8
    /// times 1.07 s, which is sooner than the stall timeout of rails. A missing receive is retried
    /// without limit, every 0.64 ms. The default partition, service level and traffic class, and a
    /// hop limit of 64.
    fn default() -> Self {
        Self {
            access: AccessFlags::LOCAL_WRITE
                | AccessFlags::REMOTE_WRITE
                | AccessFlags::REMOTE_READ
                | AccessFlags::REMOTE_ATOMIC,
            path_mtu: Mtu::Mtu4096,
            exact_mtu: false,
            min_rnr_timer: 12,
            timeout: 18,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 16,
            pkey_index: 0,
            service_level: 0,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
        }
    }
}

impl ConnectOptions {
    /// Sets the exact path MTU: ports with a smaller MTU are refused.
    ///
    /// ```
    /// # use polyrail_nic_parts::{address::Mtu, options::ConnectOptions};
    /// let options = ConnectOptions::default().with_path_mtu(Mtu::Mtu1024);
    /// assert_eq!((options.path_mtu.bytes(), options.exact_mtu), (1024, true));
    /// ```
    #[must_use]
    pub const fn with_path_mtu(self, path_mtu: Mtu) -> Self {
        Self { path_mtu, exact_mtu: true, ..self }
    }

    /// Refuses values that do not fit the fields of a packet. Drivers would truncate them or refuse
    /// with EINVAL, and the software NIC would ignore them.
    ///
    /// # Errors
    ///
    /// The first such option.
    ///
    /// ```
    /// # use polyrail_nic_parts::options::ConnectOptions;
    /// let usual = ConnectOptions::default();
    /// assert_eq!(usual.check(), Ok(()));
    /// let error = ConnectOptions { hop_limit: 0, ..usual }.check().unwrap_err();
    /// assert_eq!(error.to_string(), "hop_limit is 0, but must be from 1 to 255");
    /// ```
    pub fn check(&self) -> Result<(), ConnectOptionError> {
        let Self { service_level, flow_label, hop_limit, .. } = *self;
        for (option, value, least, most) in [
            ("service_level", service_level.into(), 0, 15),
            ("flow_label", flow_label, 0, (1 << 20) - 1),
            ("hop_limit", hop_limit.into(), 1, 255),
        ] {
            if !(least..=most).contains(&value) {
                return Err(ConnectOptionError { option, value, least, most });
            }
        }
        Ok(())
    }
}

/// A value of the [`ConnectOptions`] does not fit its field in packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option} is {value}, but must be from {least} to {most}")]
pub struct ConnectOptionError {
    /// The option.
    pub option: &'static str,
    /// Its value.
    pub value: u32,
    /// The minimum.
    pub least: u32,
    /// The maximum.
    pub most: u32,
}

/// Limits of a device (`struct ibv_device_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Maximum number of requests in each queue of a queue pair.
    pub max_qp_wr: u32,
    /// Maximum number of completions in a completion queue.
    pub max_cqe: u32,
    /// Maximum number of receives in a shared receive queue.
    pub max_srq_wr: u32,
    /// Maximum length of an inline request in bytes.
    pub max_inline_data: u32,
    /// Maximum number of scatter/gather entries of a request.
    pub max_sge: u32,
    /// Maximum length of a message in bytes; at most 2^31.
    pub max_msg_size: u32,
    /// Maximum number of memory regions.
    pub max_mr: u32,
    /// Maximum length of a memory region in bytes.
    pub max_mr_size: u64,
    /// Whether it accepts [`ON_DEMAND`](AccessFlags::ON_DEMAND). The flag has no other effect,
    /// because the device never pins memory, and the system loads pages on access.
    pub on_demand_paging: bool,
    /// Maximum number of outstanding READs and atomics of a queue pair, as initiator or as target.
    pub max_qp_rd_atom: u8,
}

impl Default for DeviceLimits {
    /// 32,768 requests in a queue, 2^20 receives in a shared queue, 2^22 completions, 512 bytes
    /// inline, 30 buffers of a request, messages of 1 GiB, 65,536 regions of up to 1 TiB, 16 READs
    /// and atomics; no on-demand paging. Queues get memory as they fill, so a high limit costs
    /// nothing.
    fn default() -> Self {
        Self {
            max_qp_wr: 32_768,
            max_cqe: 1 << 22,
            max_srq_wr: 1 << 20,
            max_inline_data: 512,
            max_sge: 30,
            max_msg_size: 1 << 30,
            max_mr: 1 << 16,
            max_mr_size: 1 << 40,
            on_demand_paging: false,
            max_qp_rd_atom: 16,
        }
    }
}

impl ConnectOptions {
    /// Returns the attributes of the transition from RESET to INIT, on port 1.
    pub fn to_init(&self) -> QpAttributes {
        QpAttributes {
            pkey_index: Some(self.pkey_index),
            port_num: Some(1),
            access: Some(self.access),
            ..QpAttributes::default()
        }
    }

    /// Returns the attributes of the transition from INIT to RTR, to receive from `remote`.
    pub fn to_rtr(&self, remote: &RemoteQp) -> QpAttributes {
        QpAttributes {
            gid: Some(remote.gid),
            path_mtu: Some(self.path_mtu),
            dest_qp_num: Some(remote.qp_num),
            rq_psn: Some(remote.psn),
            max_dest_rd_atomic: Some(self.max_rd_atomic),
            min_rnr_timer: Some(self.min_rnr_timer),
            ..QpAttributes::default()
        }
    }

    /// Returns the attributes of the transition from RTR to RTS. `local_psn` is the 24-bit number
    /// that the peer received.
    pub fn to_rts(&self, local_psn: u32) -> QpAttributes {
        QpAttributes {
            timeout: Some(self.timeout),
            retry_cnt: Some(self.retry_cnt),
            rnr_retry: Some(self.rnr_retry),
            sq_psn: Some(local_psn),
            max_rd_atomic: Some(self.max_rd_atomic),
            ..QpAttributes::default()
        }
    }
}

/// Checks a size or count of a new resource. `what` names it in errors.
///
/// # Errors
///
/// It is 0 or over the limit.
pub fn in_limits(what: &'static str, asked: u32, limit: u32) -> Result<(), NicError> {
    match asked {
        0 => Err(NicError::Zero { what }),
        _ if asked > limit => {
            Err(NicError::Limit { what, asked: asked.into(), limit: limit.into() })
        }
        _ => Ok(()),
    }
}
