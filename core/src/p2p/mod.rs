//! Messages between two processes, receiver driven: isend, irecv, test.

mod entry;
mod immediate;
mod mask;
mod record;
mod split;

pub use entry::{ENTRY_BYTES, Entry, EntryError, EntryForm, MAX_BUFFERS};
pub use immediate::{ImmLayout, Immediate, MAX_SLOTS, SIZE_UNIT, Told};
pub use mask::Mask;
pub use record::{RECORD_BYTES, RecordError};
pub use split::{Parts, SplitPolicy};
