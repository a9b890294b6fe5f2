//! Messages between two processes, receiver driven: isend, irecv, test.

mod card;
mod control;
mod entry;
mod error;
mod immediate;
mod lane;
mod lanes;
mod mask;
mod memory;
mod pool;
mod queue;
mod receiver;
mod record;
mod sender;
mod split;

pub use card::{Ports, ReceiverCard, RemoteMemory, SenderCard};
pub use control::Control;
pub use entry::{ENTRY_BYTES, Entry, EntryError, EntryForm, MAX_BUFFERS};
pub use error::{BuildError, CallError, CardError, Failure, NotNow, ProtocolError};
pub use immediate::{ImmLayout, Immediate, MAX_SLOTS, SIZE_UNIT, Told};
pub use mask::Mask;
pub use memory::{Region, TooManyKeys, Words};
pub use pool::{Account, POOL_WR_ID, Pool, PoolError};
pub use receiver::{FlushHandle, Received, Receiver, ReceiverConfig, RecvBuffer, RecvHandle};
pub use record::{RECORD_BYTES, RecordError};
pub use sender::{SendHandle, Sender, SenderConfig};
pub use split::{Parts, SplitPolicy};
