//! What calls return.

/// What a call returns: 0, "not now", or a negative error. The words of an error are kept for the thread
/// that made the call: see `polyrail_last_error`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    /// Done.
    Ok = 0,
    /// Not now, and nothing changed: poll, and call again. Back-pressure, or nothing came yet. Not an error.
    NotNow = 1,
    /// A pointer is NULL that must not be.
    Null = -1,
    /// A handle that was closed, or never was one.
    Handle = -2,
    /// A handle of another kind; or peers for messages in a call for requests, or the other way round.
    Kind = -3,
    /// Another call is under way with the same object, in another thread.
    Busy = -4,
    /// An earlier call with this object returned POLYRAIL_CODE_PANIC: it can only be closed.
    Poisoned = -5,
    /// A fault of this library. The object of the call can only be closed.
    Panic = -6,
    /// An argument, an option or a flag has a value that it cannot have.
    Argument = -7,
    /// The `size` of a structure is none that this library knows.
    Size = -8,
    /// Offset and length do not lie within the memory.
    Range = -9,
    /// The caller's memory is too short for the answer. How many bytes it takes was stored where its length goes.
    TooShort = -10,
    /// More bytes, buffers, peers or objects than there may be.
    TooMany = -11,
    /// There is no such peer here, or not any more.
    Peer = -12,
    /// There is no such request, or not any more.
    Request = -13,
    /// It cannot be called now: not connected yet, connected already, no completion channel.
    State = -14,
    /// The connection to the peer failed. Remove the peer, or replace it.
    Failed = -15,
    /// The memory was registered without the access that the request needs.
    Access = -16,
    /// The memory is not registered with a device that the request needs: it is of another domain.
    Keys = -17,
    /// This build, this backend or this device cannot do it.
    Unsupported = -18,
    /// There is no such device, or it cannot be used.
    NoDevice = -19,
    /// A device or its driver refused.
    Device = -20,
    /// The system gave no memory, file or thread.
    System = -21,
    /// A device may still access the memory, for as long as the process has it open: do not use the memory again.
    StillAccessed = -22,
    /// The peer's address does not go together with this side's options.
    Mismatch = -23,
    /// Bytes of a peer that are not what they should be.
    Protocol = -24,
    /// A link cannot be made, or broke.
    Link = -25,
}
