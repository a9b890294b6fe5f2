//! Owners over libibverbs, and polyrail-core's hardware traits on them.
//!
//! Thin, and without policy: every type is one verbs object, destroyed when it is dropped, after
//! everything that was made from it. What a driver leaves to chance (a full queue, a send in a wrong
//! state, an inline request that is too long) has one answer here.
//!
//! # Reading order
//!
//! 1. `owned`: destroying, and failing to; `error`: what a failed call says;
//! 2. [`DeviceList`], [`Context`], [`PortAttributes`], [`GidEntry`]: what there is;
//! 3. [`ProtectionDomain`], [`MemoryRegion`]: memory;
//! 4. [`CompletionQueue`], [`ExtendedCompletionQueue`], [`CompletionChannel`]: completions;
//! 5. [`QueuePair`] with its transitions, [`SharedReceiveQueue`], [`AddressHandle`];
//! 6. `chain`, `recv`, `qp::send`: the way of a request;
//! 7. [`AsyncEvent`]: what happens beside.
mod attributes;
mod chain;
mod channel;
mod context;
mod cq;
mod device;
mod error;
mod event;
mod gid;
mod mr;
mod owned;
mod path;
mod pd;
mod port;
mod qp;
mod recv;
mod srq;
mod sys;

pub use attributes::{AtomicCap, DeviceAttributes};
pub use channel::CompletionChannel;
pub use context::Context;
pub use cq::{
    CompletionQueue, CqHandle, CqInit, ExtendedCompletion, ExtendedCompletionQueue, Timestamps,
};
pub use device::{Device, DeviceList, NodeType, Transport};
pub use error::{Argument, DeviceName, Result, VerbsError};
pub use event::{AsyncEvent, SrqId};
pub use gid::{Gid, GidEntry, GidType};
pub use mr::MemoryRegion;
pub use owned::{CloseError, DestroyHook, set_destroy_hook};
pub use path::{AddressHandle, Grh, Path, Route};
pub use pd::ProtectionDomain;
pub use port::{LinkLayer, Mtu, PortAttributes, PortState};
pub use qp::{
    Connected, DatagramBatch, DatagramToInit, DatagramToRtr, ModifyError, PostMode, QpAttributes,
    QpCap, QpInit, QpState, QueuePair, Rc, Resume, SendBatch, Service, ToErr, ToInit, ToReset,
    ToRtr, ToRts, ToSqd, Transition, Uc, Ud, UnreliableToRtr, UnreliableToRts,
};
pub use recv::RecvBatch;
pub use srq::{SharedReceiveQueue, SrqAttributes};
