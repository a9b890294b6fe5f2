//! The options of devices, queue pairs and connections.

use crate::address::Mtu;
use polyrail_core::verbs::AccessFlags;
use std::num::NonZeroU64;

/// What is asked of a new queue pair (`struct ibv_qp_cap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCap {
    /// Send requests that may be outstanding; rounded up to a power of two.
    pub max_send_wr: u32,
    /// Receives that may be outstanding; rounded up to a power of two. Ignored with a shared
    /// receive queue.
    pub max_recv_wr: u32,
    /// Bytes of an inline request; rounded up to a multiple of 16.
    pub max_inline_data: u32,
    /// Buffers of one send request, at least 1.
    pub max_send_sge: u32,
    /// Buffers of one receive, at least 1. Ignored with a shared receive queue, whose receives have one.
    pub max_recv_sge: u32,
}

impl Default for QpCap {
    /// 128 requests each way of one buffer each, 64 bytes inline.
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

/// Attributes of a connection that both sides usually share. The software NIC has no network to which
/// [`service_level`](Self::service_level) and what follows it would mean anything: it ignores them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    /// What the peer may do.
    pub access: AccessFlags,
    /// Payload bytes of a packet; in an endpoint, at most, since ports limit it, too, unless it is
    /// [`exact`](Self::exact_mtu).
    pub path_mtu: Mtu,
    /// Whether an endpoint refuses ports, its own and the peer's, that take only smaller packets than
    /// [`path_mtu`](Self::path_mtu). Not by default: then the smaller of the two ends' counts. The software NIC
    /// itself has no use for it.
    pub exact_mtu: bool,
    /// Code of the time that the peer waits before it retries when no receive was posted, 0 to 31
    /// (see [`rnr_delay`](crate::rnr_delay)).
    pub min_rnr_timer: u8,
    /// The acknowledgement timeout is 4.096 us * 2^timeout, and a device may wait longer; 0 waits
    /// forever, at most 31. A request whose answer is late is sent again though nothing was lost, so
    /// the timeout should be longer than any delay of the path.
    pub timeout: u8,
    /// Retries before an unanswered request fails, 0 to 7.
    pub retry_cnt: u8,
    /// Retries while the peer has no receive posted, 0 to 6; 7 means forever, and then the software NIC does not
    /// let all of the time pass if a receive is posted before.
    pub rnr_retry: u8,
    /// READs and atomics outstanding, in either direction; in an endpoint, at most, since devices limit
    /// it, too.
    pub max_rd_atomic: u8,
    /// Place of the partition key in the port's table; the software NIC has only 0.
    pub pkey_index: u16,
    /// Service level, 0 to 15: on InfiniBand it chooses the virtual lane, on RoCE the priority.
    pub service_level: u8,
    /// Traffic class of the packets; on RoCE v2 the IP header's, which is the DSCP times 4, plus two bits for
    /// congestion marks. Within an InfiniBand subnet packets do not carry it, nor what follows.
    pub traffic_class: u8,
    /// Flow label, 20 bits, by which routers may keep packets of one connection on one path.
    pub flow_label: u32,
    /// Routers that a packet may pass, from 1 on. On RoCE v2 Linux takes what its own route to the peer says
    /// instead.
    pub hop_limit: u8,
}

impl Default for ConnectOptions {
    /// Everything is permitted; packets of 4096 bytes; an unanswered request fails after 8 times
    /// 1.07 s, sooner than a rail without progress is taken for dead; a missing receive is waited
    /// for, in steps of 0.64 ms. The default partition, nothing that tells packets from others, and 64
    /// routers.
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
    /// The same with packets of exactly so many bytes, and no ports that take only smaller ones.
    ///
    /// ```
    /// use polyrail_software_nic::{ConnectOptions, Mtu};
    ///
    /// let options = ConnectOptions::default().with_path_mtu(Mtu::Mtu1024);
    /// assert_eq!((options.path_mtu.bytes(), options.exact_mtu), (1024, true));
    /// ```
    #[must_use]
    pub const fn with_path_mtu(self, path_mtu: Mtu) -> Self {
        Self { path_mtu, exact_mtu: true, ..self }
    }

    /// Refuses what does not fit the fields of a packet. Drivers would cut it off, or refuse with EINVAL, and the
    /// software NIC would ignore it.
    ///
    /// # Errors
    ///
    /// The first such option.
    ///
    /// ```
    /// use polyrail_software_nic::ConnectOptions;
    ///
    /// let usual = ConnectOptions::default();
    /// assert_eq!(usual.check(), Ok(()));
    /// let error = ConnectOptions { hop_limit: 0, ..usual }.check().unwrap_err();
    /// assert_eq!(error.to_string(), "hop_limit of 0, but 1 to 255 are allowed");
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
#[error("{option} of {value}, but {least} to {most} are allowed")]
pub struct ConnectOptionError {
    /// The option.
    pub option: &'static str,
    /// What it was to be.
    pub value: u32,
    /// The least that is allowed.
    pub least: u32,
    /// The most that is allowed.
    pub most: u32,
}

/// What a device can do (`struct ibv_device_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Requests of one queue of a queue pair.
    pub max_qp_wr: u32,
    /// Completions in one completion queue.
    pub max_cqe: u32,
    /// Receives in one shared receive queue.
    pub max_srq_wr: u32,
    /// Bytes of an inline request.
    pub max_inline_data: u32,
    /// Buffers of a request.
    pub max_sge: u32,
    /// Bytes of a message; at most 2^31.
    pub max_msg_size: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Bytes of a memory region.
    pub max_mr_size: u64,
    /// Whether it takes [`ON_DEMAND`](AccessFlags::ON_DEMAND). Nothing else depends on it: the device pins no
    /// memory, so the system brings pages in when it touches them.
    pub on_demand_paging: bool,
    /// READs and atomics outstanding on one queue pair, as initiator or as target.
    pub max_qp_rd_atom: u8,
}

impl Default for DeviceLimits {
    fn default() -> Self {
        Self {
            max_qp_wr: 32_768,
            max_cqe: 1 << 22,
            max_srq_wr: 32_768,
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

/// The options of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceConfig {
    /// Its name, for people.
    pub name: String,
    /// Number of ports, at least 1 (0 counts as 1); all come up active.
    pub ports: u8,
    /// What it can do.
    pub limits: DeviceLimits,
    /// Line rate: payload bytes a second that its queue pairs may move, all together, READs included;
    /// `None`: as fast as memory is. The peer's rate does not count.
    pub bytes_per_second: Option<NonZeroU64>,
    /// Payload bytes of the longest packet that its ports take (`active_mtu`).
    pub mtu: Mtu,
}

impl DeviceConfig {
    /// One port, the default limits, no line rate, and packets of up to 4096 bytes.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ports: 1,
            limits: DeviceLimits::default(),
            bytes_per_second: None,
            mtu: Mtu::default(),
        }
    }
}
