//! What calls return.

/// Result of a call: 0, "not now", or a negative error. The message of an error is kept for the
/// thread that made the call: see `polyrail_last_error`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Code {
    /// Done.
    Ok = 0,
    /// Not now: there is no room, or nothing has arrived yet. Nothing changed; poll, and call
    /// again. Not an error.
    NotNow = 1,
    /// A required pointer is NULL.
    Null = -1,
    /// A handle that was closed, or never existed.
    Handle = -2,
    /// A handle of another kind; or peers for messages in a call for requests, or vice versa.
    Kind = -3,
    /// Another thread is in a call with the same object.
    Busy = -4,
    /// An earlier call with this object returned POLYRAIL_CODE_PANIC: it can only be closed.
    Poisoned = -5,
    /// An internal error of this library. The object of the call can only be closed.
    Panic = -6,
    /// An invalid argument, option or flag.
    Argument = -7,
    /// The `size` of a structure does not fit any version of it.
    Size = -8,
    /// Offset and length do not lie within the memory.
    Range = -9,
    /// The caller's memory is too short for the result. The required number of bytes was stored in
    /// `length`.
    TooShort = -10,
    /// Too many bytes, buffers, peers or objects.
    TooMany = -11,
    /// Unknown peer number, or the peer was removed.
    Peer = -12,
    /// Unknown request, or the request has ended.
    Request = -13,
    /// Invalid in this state: not connected yet, connected already, or no completion channel.
    State = -14,
    /// The connection to the peer failed. Remove the peer, or replace it.
    Failed = -15,
    /// The memory was registered without the access that the request requires.
    Access = -16,
    /// The memory is not registered with a device that the request uses: it belongs to another
    /// domain.
    Keys = -17,
    /// Not supported by this build, backend or device.
    Unsupported = -18,
    /// Unknown device, or the device cannot be used.
    NoDevice = -19,
    /// A device or its driver refused.
    Device = -20,
    /// The system has no memory, file descriptor or thread left.
    System = -21,
    /// A device may still access the memory until the process ends: do not reuse the memory.
    StillAccessed = -22,
    /// The peer's address does not match this side's options, or the two sides do not have the same
    /// token.
    Mismatch = -23,
    /// Malformed bytes from a peer.
    Protocol = -24,
    /// A link could not be made, or broke.
    Link = -25,
    /// The object belongs to the process that this one is a fork of. Nothing was released or sent.
    Forked = -26,
    /// This side or the peer took the message back. Its memory belongs to the caller again; that of
    /// a receive may have been written in part.
    TakenBack = -27,
}
