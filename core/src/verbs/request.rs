//! Work requests: those that users post to a virtual queue pair, and those that it posts to
//! physical ones.

use super::{DeviceKeys, Imm, LocalBuffer, Opcode, SendFlags, Sge};

/// When a WRITE or READ over several rails, with or without immediate, is reported. SENDs, atomics,
/// and requests over a single rail are reported when they are done, which is in posting order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReportOrder {
    /// In posting order: when the request and all earlier requests of this kind are done, and after
    /// those of them that are reported in order, too.
    #[default]
    InOrder = 0,
    /// As soon as it is done. It still counts as unreported until all earlier requests are done.
    /// (With SPRAY, a WRITE_WITH_IMM is done when its receiver is notified. The notification
    /// follows all earlier requests, so it is reported in posting order anyway.)
    WhenDone = 1,
}

/// A send work request for a virtual queue pair.
///
/// The constructors make signaled requests, which are reported in the queue pair's default order;
/// [`with_flags`](Self::with_flags) and [`reported`](Self::reported) change that.
///
/// ```
/// use polyrail_core::verbs::{DeviceId, DeviceKeys, LocalBuffer, SendWr};
///
/// let data = [7u8; 4096];
/// // SAFETY: `data` outlives the request and is not written meanwhile.
/// let local = unsafe { LocalBuffer::new(data.as_ptr() as u64, 4096) };
/// let keys = [DeviceKeys { device: DeviceId(0), lkey: 1, rkey: 2 }];
/// let wr = SendWr::write(42, local, 0x7f00_0000_0000, &keys);
/// assert_eq!(wr.wr_id, 42);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'k> {
    /// A value chosen by the caller, returned in the completion. It need not be unique.
    pub wr_id: u64,
    /// The operation.
    pub opcode: Opcode,
    /// The flags.
    pub flags: SendFlags,
    /// Immediate data of the `WithImm` opcodes, as a number. It is sent big endian, unless the
    /// queue pair's [`imm_order`](crate::virtual_qp::Config::imm_order) differs.
    pub imm: u32,
    /// The local buffer.
    pub local: LocalBuffer,
    /// First byte of the remote buffer; unused by SEND.
    pub remote_addr: u64,
    /// The value to compare with, or to add.
    pub compare_add: u64,
    /// The value to swap in.
    pub swap: u64,
    /// Keys of both buffers, for each device of the queue pair's rails.
    pub keys: &'k [DeviceKeys],
    /// When it is reported; `None` selects the queue pair's
    /// [`report_order`](crate::virtual_qp::Config::report_order).
    pub report_order: Option<ReportOrder>,
}

impl<'k> SendWr<'k> {
    const fn new(wr_id: u64, opcode: Opcode, local: LocalBuffer, keys: &'k [DeviceKeys]) -> Self {
        Self {
            wr_id,
            opcode,
            flags: SendFlags::SIGNALED,
            imm: 0,
            local,
            remote_addr: 0,
            compare_add: 0,
            swap: 0,
            keys,
            report_order: None,
        }
    }

    /// Makes an RDMA WRITE of `local` to `remote_addr`.
    #[inline]
    pub const fn write(
        wr_id: u64,
        local: LocalBuffer,
        remote_addr: u64,
        keys: &'k [DeviceKeys],
    ) -> Self {
        Self { remote_addr, ..Self::new(wr_id, Opcode::RdmaWrite, local, keys) }
    }

    /// Makes an RDMA WRITE of `local` to `remote_addr` that completes the peer's next notification
    /// receive.
    #[inline]
    pub const fn write_with_imm(
        wr_id: u64,
        local: LocalBuffer,
        remote_addr: u64,
        imm: u32,
        keys: &'k [DeviceKeys],
    ) -> Self {
        Self { remote_addr, imm, ..Self::new(wr_id, Opcode::RdmaWriteWithImm, local, keys) }
    }

    /// Makes a WRITE_WITH_IMM without data, which completes the peer's next notification receive
    /// after everything that was posted before. It needs no keys, since it names no memory.
    ///
    /// ```
    /// use polyrail_core::verbs::{Opcode, SendWr};
    ///
    /// let wr = SendWr::signal(7, 42);
    /// assert_eq!((wr.opcode, wr.imm, wr.local.length()), (Opcode::RdmaWriteWithImm, 42, 0));
    /// ```
    #[inline]
    pub const fn signal(wr_id: u64, imm: u32) -> Self {
        Self { imm, ..Self::new(wr_id, Opcode::RdmaWriteWithImm, LocalBuffer::EMPTY, &[]) }
    }

    /// Makes an RDMA READ from `remote_addr` into `local`.
    #[inline]
    pub const fn read(
        wr_id: u64,
        local: LocalBuffer,
        remote_addr: u64,
        keys: &'k [DeviceKeys],
    ) -> Self {
        Self { remote_addr, ..Self::new(wr_id, Opcode::RdmaRead, local, keys) }
    }

    /// Makes a SEND of `local` into the peer's next data receive.
    #[inline]
    pub const fn send(wr_id: u64, local: LocalBuffer, keys: &'k [DeviceKeys]) -> Self {
        Self::new(wr_id, Opcode::Send, local, keys)
    }

    /// Makes a [`send`](Self::send) with immediate data.
    #[inline]
    pub const fn send_with_imm(
        wr_id: u64,
        local: LocalBuffer,
        imm: u32,
        keys: &'k [DeviceKeys],
    ) -> Self {
        Self { imm, ..Self::new(wr_id, Opcode::SendWithImm, local, keys) }
    }

    /// Makes an atomic that adds `add` to the 8 bytes at `remote_addr` and writes the old value to
    /// `local` (8 bytes).
    #[inline]
    pub const fn fetch_add(
        wr_id: u64,
        local: LocalBuffer,
        remote_addr: u64,
        add: u64,
        keys: &'k [DeviceKeys],
    ) -> Self {
        Self { remote_addr, compare_add: add, ..Self::new(wr_id, Opcode::FetchAdd, local, keys) }
    }

    /// Makes an atomic that replaces the 8 bytes at `remote_addr` by `swap` if they equal
    /// `compare`, and writes the old value to `local` (8 bytes).
    #[inline]
    pub const fn compare_swap(
        wr_id: u64,
        local: LocalBuffer,
        remote_addr: u64,
        compare: u64,
        swap: u64,
        keys: &'k [DeviceKeys],
    ) -> Self {
        Self {
            remote_addr,
            compare_add: compare,
            swap,
            ..Self::new(wr_id, Opcode::CompareSwap, local, keys)
        }
    }

    /// Replaces the flags of the request.
    #[inline]
    pub const fn with_flags(self, flags: SendFlags) -> Self {
        Self { flags, ..self }
    }

    /// Sets the report order of the request, which overrides the queue pair's.
    ///
    /// ```
    /// use polyrail_core::verbs::{LocalBuffer, ReportOrder, SendWr};
    ///
    /// let wr = SendWr::write(7, LocalBuffer::EMPTY, 0x1000, &[]).reported(ReportOrder::WhenDone);
    /// assert_eq!(wr.report_order, Some(ReportOrder::WhenDone));
    /// ```
    #[inline]
    pub const fn reported(self, order: ReportOrder) -> Self {
        Self { report_order: Some(order), ..self }
    }
}

/// One of several buffers of a request, with its keys: see
/// [`post_list`](crate::virtual_qp::VirtualQp::post_list).
#[derive(Clone, Copy, Debug)]
pub struct LocalPart<'k> {
    /// The buffer.
    pub local: LocalBuffer,
    /// Keys of the buffer, for each device of the queue pair's rails. The rkeys are those of the
    /// request.
    pub keys: &'k [DeviceKeys],
}

/// A receive work request for a virtual queue pair.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'k> {
    /// A value chosen by the caller, returned in the completion.
    pub wr_id: u64,
    /// Buffer for a SEND. If it is empty, this is a notification receive, which a WRITE_WITH_IMM
    /// completes.
    pub local: LocalBuffer,
    /// Keys of the buffer; only the key of rail 0's device is used, and none for empty buffers.
    pub keys: &'k [DeviceKeys],
}

impl<'k> RecvWr<'k> {
    /// Makes a receive for the notification of one WRITE_WITH_IMM.
    #[inline]
    pub const fn notification(wr_id: u64) -> Self {
        Self { wr_id, local: LocalBuffer::EMPTY, keys: &[] }
    }

    /// Makes a receive for one SEND of at most the buffer's length.
    #[inline]
    pub const fn data(wr_id: u64, local: LocalBuffer, keys: &'k [DeviceKeys]) -> Self {
        Self { wr_id, local, keys }
    }
}

/// A send work request for a physical queue pair (`struct ibv_send_wr` with at most one buffer).
#[derive(Clone, Copy, Debug)]
pub struct SendRequest {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The operation.
    pub opcode: Opcode,
    /// The flags.
    pub flags: SendFlags,
    /// Immediate data of the `WithImm` opcodes.
    pub imm: Imm,
    /// The local buffer; its length is 0 for a request without one.
    pub sge: Sge,
    /// First byte of the remote buffer.
    pub remote_addr: u64,
    /// Key of the remote buffer; for the `Inv` opcodes, the key to invalidate.
    pub rkey: u32,
    /// The value to compare with, or to add.
    pub compare_add: u64,
    /// The value to swap in.
    pub swap: u64,
}

/// A receive work request for a physical queue pair or a shared receive queue.
#[derive(Clone, Copy, Debug)]
pub struct RecvRequest {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The buffer; its length is 0 for a receive that takes immediates only.
    pub sge: Sge,
}
