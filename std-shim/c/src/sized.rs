//! Structures that begin with their size, so that programs and libraries of different versions work
//! together: fields that one of the two does not have are 0 for the other.

use crate::code::Code;
use crate::error::{Refusal, refuse};
use crate::types::{DomainOptions, EndpointOptions, Event, LinkOptions, MessageInfo, PeerInfo};
use std::mem::offset_of;
use std::ops::Range;
use std::ptr;

/// No structure of any version is longer.
const LONGEST: u32 = 4096;

/// A structure that begins with its size.
///
/// # Safety
///
/// It is `repr(C)`, begins with a `u32`, has no padding, and any bytes are a valid value of it.
pub(crate) unsafe trait SizedFirst: Copy {
    /// Its name in C.
    const NAME: &str;

    /// The bytes of each field that is longer than a `u32`. No version of the structure ends within
    /// one: half of a pointer would be one to somewhere else.
    const WIDE: &[Range<usize>];
}

/// `$wide`: the fields that are longer than a `u32`.
macro_rules! sized_first {
    ($($type:ident $name:literal { $($wide:ident),* })*) => {
        $(
            // SAFETY: numbers and raw pointers, laid out without padding (see the test of the
            // layout).
            unsafe impl SizedFirst for $type {
                const NAME: &str = $name;
                const WIDE: &[Range<usize>] = &[
                    $(offset_of!($type, $wide)..offset_of!($type, $wide) + field_size(|it: &$type| &it.$wide)),*
                ];
            }
        )*
    };
}

const fn field_size<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

sized_first! {
    DomainOptions "polyrail_domain_options" { devices, software_bytes_per_second, near }
    EndpointOptions "polyrail_endpoint_options" {
        heal_first_ms, heal_longest_ms, stall_timeout_ms, rail_timeout_ms, fence_timeout_ms,
        device_mbps
    }
    LinkOptions "polyrail_link_options" { token }
    PeerInfo "polyrail_peer_info" { words }
    Event "polyrail_event" { peer, length }
    MessageInfo "polyrail_message_info" { lengths }
}

/// Returns the size that the caller states.
unsafe fn size<T: SizedFirst>(pointer: *const T) -> Result<usize, Refusal> {
    if !pointer.is_aligned() {
        let words = format!("a {} at {pointer:p}, which is not aligned", T::NAME);
        return refuse(Code::Argument, words);
    }
    // SAFETY: it is not NULL, it is aligned, and a `u32` is at its beginning.
    let size = unsafe { pointer.cast::<u32>().read() };
    let cuts = |wide: &Range<usize>| wide.start < size as usize && (size as usize) < wide.end;
    if !(size_of::<u32>() as u32..=LONGEST).contains(&size)
        || size % 4 != 0
        || T::WIDE.iter().any(cuts)
    {
        let own = size_of::<T>();
        let words = format!("{}.size is {size}, but must be its sizeof, such as {own}", T::NAME);
        return refuse(Code::Size, words);
    }
    Ok(size as usize)
}

/// Reads the caller's structure; zeros for NULL.
///
/// # Safety
///
/// Unless it is NULL or misaligned, it has as many bytes as its first field states.
pub(crate) unsafe fn read<T: SizedFirst>(pointer: *const T) -> Result<T, Refusal> {
    // SAFETY: any bytes are a value.
    let mut value: T = unsafe { std::mem::zeroed() };
    if pointer.is_null() {
        return Ok(value);
    }
    // SAFETY: guaranteed by the caller.
    let size = unsafe { size(pointer) }?;
    let known = size.min(size_of::<T>());
    // SAFETY: both are that long, and any bytes are a value.
    unsafe { ptr::copy_nonoverlapping(pointer.cast::<u8>(), (&raw mut value).cast(), known) };
    for at in known..size {
        // SAFETY: guaranteed by the caller.
        let byte = unsafe { pointer.cast::<u8>().add(at).read() };
        if byte != 0 {
            let words = format!(
                "{}: byte {at} is {byte}, but this version of the library has only {known} bytes",
                T::NAME
            );
            return refuse(Code::Size, words);
        }
    }
    Ok(value)
}

/// Reads the caller's structure; `None` for NULL.
///
/// # Safety
///
/// As [`read`].
pub(crate) unsafe fn given<T: SizedFirst>(pointer: *const T) -> Result<Option<T>, Refusal> {
    // SAFETY: guaranteed by the caller.
    (!pointer.is_null()).then(|| unsafe { read(pointer) }).transpose()
}

/// Where a structure goes.
pub(crate) struct Place<T> {
    pointer: *mut T,
    size: usize,
}

/// Checks the memory where a result goes.
///
/// # Safety
///
/// As [`read`], and only this call uses those bytes.
pub(crate) unsafe fn place<T: SizedFirst>(pointer: *mut T) -> Result<Place<T>, Refusal> {
    if pointer.is_null() {
        return refuse(Code::Null, format_args!("the {} is NULL", T::NAME));
    }
    // SAFETY: guaranteed by the caller.
    let size = unsafe { size(pointer.cast_const()) }?;
    Ok(Place { pointer, size })
}

impl<T: SizedFirst> Place<T> {
    /// Stores the value, except for its size. Fields that only the caller's version has are set to
    /// 0.
    pub(crate) fn put(&self, value: &T) {
        let Self { pointer, size } = *self;
        let first = size_of::<u32>();
        let known = size.min(size_of::<T>());
        let (to, from) = (pointer.cast::<u8>(), ptr::from_ref(value).cast::<u8>());
        // SAFETY: the caller of `place` guarantees `size` bytes; a value has no padding.
        unsafe {
            ptr::copy_nonoverlapping(from.add(first), to.add(first), known - first);
            to.add(known).write_bytes(0, size - known);
        }
    }
}
