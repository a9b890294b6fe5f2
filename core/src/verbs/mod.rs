//! The verbs API as plain data: opcodes, statuses, flags, buffers, requests and completions. The
//! numbers are those of `infiniband/verbs.h`, so that a binding can pass them through.

mod buffer;
mod completion;
mod flags;
mod opcode;
mod request;
mod status;

pub use buffer::{DEVICE_ADDRESSES, DeviceId, DeviceKeys, LocalBuffer, Sge};
pub use completion::{Completion, Imm, ImmOrder};
pub use flags::{AccessFlags, SendFlags, WcFlags};
pub use opcode::{Opcode, WcOpcode};
pub use request::{LocalPart, RecvRequest, RecvWr, ReportOrder, SendRequest, SendWr};
pub use status::WcStatus;
