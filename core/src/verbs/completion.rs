//! The physical completion, and its immediate.

use core::fmt;

use super::{WcFlags, WcOpcode, WcStatus};

/// Immediate data in the representation of the verbs structs: the four bytes on the wire, in wire
/// order.
///
/// Verbs defines it as network byte order, but applications may put any bytes there. Users of
/// polyrail pass plain numbers, and [`ImmOrder`] determines their byte order on the wire. DQPLB's
/// sequence numbers are sent in the order of the reference implementation, whatever the order of
/// users' immediates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Imm(u32);

impl Imm {
    /// Makes an immediate whose wire bytes are `number`, most significant first.
    #[inline]
    pub const fn from_number(number: u32) -> Self {
        Self(number.to_be())
    }

    /// Returns the wire bytes as a number, most significant first.
    #[inline]
    pub const fn number(self) -> u32 {
        u32::from_be(self.0)
    }

    /// Makes an immediate with these bytes on the wire.
    #[inline]
    pub const fn from_wire(bytes: [u8; 4]) -> Self {
        Self(u32::from_ne_bytes(bytes))
    }

    /// Returns the bytes on the wire.
    #[inline]
    pub const fn wire(self) -> [u8; 4] {
        self.0.to_ne_bytes()
    }
}

/// Byte order of users' immediates on the wire. Both ends must use the same order, so that a number
/// arrives as it was sent.
///
/// ```
/// use polyrail_core::verbs::ImmOrder;
///
/// assert_eq!(ImmOrder::BigEndian.encode(0x0102_0304).wire(), [1, 2, 3, 4]);
/// assert_eq!(ImmOrder::LittleEndian.encode(0x0102_0304).wire(), [4, 3, 2, 1]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ImmOrder {
    /// Most significant byte first: network byte order, which programs that use `htonl` send.
    #[default]
    BigEndian,
    /// Least significant byte first. Programs on little-endian hosts that store the number without
    /// conversion send this order, such as the reference implementation.
    LittleEndian,
}

impl ImmOrder {
    /// Returns the immediate to send for `number`.
    #[inline]
    pub const fn encode(self, number: u32) -> Imm {
        let big = matches!(self, Self::BigEndian);
        Imm(if big { number.to_be() } else { number.to_le() })
    }

    /// Returns the number that was sent.
    #[inline]
    pub const fn decode(self, imm: Imm) -> u32 {
        let big = matches!(self, Self::BigEndian);
        if big { u32::from_be(imm.0) } else { u32::from_le(imm.0) }
    }
}

impl fmt::Display for ImmOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BigEndian => "big endian",
            Self::LittleEndian => "little endian",
        })
    }
}

/// One entry of a physical completion queue, with the layout of `struct ibv_wc`.
///
/// If [`status`](Self::status) is not SUCCESS, only `wr_id`, `status`, `qp_num` and `vendor_err`
/// are valid: verbs leaves the other fields undefined, and drivers write arbitrary values there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Completion {
    /// The `wr_id` of the request.
    pub wr_id: u64,
    /// Completion status.
    pub status: WcStatus,
    /// Opcode of the completion; undefined on failure.
    pub opcode: WcOpcode,
    /// Vendor-specific error code.
    pub vendor_err: u32,
    /// Number of bytes received; receives only.
    pub byte_len: u32,
    /// Immediate data, if `wc_flags` has [`WcFlags::WITH_IMM`].
    pub imm: Imm,
    /// The local queue pair.
    pub qp_num: u32,
    /// The remote queue pair (UD only).
    pub src_qp: u32,
    /// Flags that say which other fields are valid.
    pub wc_flags: WcFlags,
    /// P_Key index (GSI only).
    pub pkey_index: u16,
    /// Source LID (UD on InfiniBand only).
    pub slid: u16,
    /// Service level (UD only).
    pub sl: u8,
    /// Destination path bits (UD on InfiniBand only).
    pub dlid_path_bits: u8,
}

// Bindings poll directly into memory of this type, so it must have the layout of `struct ibv_wc`.
static_assertions::const_assert_eq!(size_of::<Completion>(), 48);
static_assertions::const_assert_eq!(core::mem::offset_of!(Completion, imm), 24);
static_assertions::const_assert_eq!(core::mem::offset_of!(Completion, qp_num), 28);
static_assertions::const_assert_eq!(core::mem::offset_of!(Completion, dlid_path_bits), 45);

impl Completion {
    /// Makes a successful completion without immediate, byte count or addressing.
    pub const fn success(qp_num: u32, wr_id: u64, opcode: WcOpcode) -> Self {
        Self {
            wr_id,
            status: WcStatus::SUCCESS,
            opcode,
            vendor_err: 0,
            byte_len: 0,
            imm: Imm(0),
            qp_num,
            src_qp: 0,
            wc_flags: WcFlags::empty(),
            pkey_index: 0,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
        }
    }

    /// Makes a failed completion; every field that verbs leaves undefined is zero.
    pub const fn failure(qp_num: u32, wr_id: u64, status: WcStatus, vendor_err: u32) -> Self {
        Self { status, vendor_err, ..Self::success(qp_num, wr_id, WcOpcode(0)) }
    }

    /// Returns the immediate, if the completion is successful and has one.
    #[inline]
    pub const fn imm(&self) -> Option<Imm> {
        let has_imm = self.status.is_success() && self.wc_flags.contains(WcFlags::WITH_IMM);
        if has_imm { Some(self.imm) } else { None }
    }
}
