//! Pointers of C programs, checked as far as they can be.

use crate::code::Code;
use crate::error::{Refusal, refuse};
use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::slice;

fn check<T>(pointer: *const T, what: &str) -> Result<(), Refusal> {
    if pointer.is_null() {
        return refuse(Code::Null, format_args!("{what} is NULL"));
    }
    if !pointer.is_aligned() {
        return refuse(Code::Argument, format_args!("{what} is {pointer:p}, which is not aligned"));
    }
    Ok(())
}

/// Where a result goes.
///
/// # Safety
///
/// Unless it is NULL or misaligned, only this call uses the memory.
pub(crate) unsafe fn out<'a, T>(
    pointer: *mut T,
    what: &str,
) -> Result<&'a mut MaybeUninit<T>, Refusal> {
    check(pointer, what)?;
    // SAFETY: guaranteed by the caller; any bytes are a `MaybeUninit`.
    Ok(unsafe { &mut *pointer.cast() })
}

/// Where `count` results go; NULL if `count` is 0.
///
/// # Safety
///
/// As [`out`], of all of them.
pub(crate) unsafe fn out_list<'a, T>(
    pointer: *mut T,
    count: usize,
    what: &str,
) -> Result<&'a mut [MaybeUninit<T>], Refusal> {
    if count == 0 {
        return Ok(&mut []);
    }
    check(pointer, what)?;
    check_count::<T>(count, what)?;
    // SAFETY: guaranteed by the caller; any bytes are `MaybeUninit`s.
    Ok(unsafe { slice::from_raw_parts_mut(pointer.cast(), count) })
}

/// What the caller gives.
///
/// # Safety
///
/// Unless it is NULL or misaligned, it is a `T` that does not change during the call.
pub(crate) unsafe fn given<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Refusal> {
    check(pointer, what)?;
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { &*pointer })
}

/// A list that the caller gives; NULL if it is empty.
///
/// # Safety
///
/// As [`given`], of all of them.
pub(crate) unsafe fn list<'a, T>(
    pointer: *const T,
    count: usize,
    what: &str,
) -> Result<&'a [T], Refusal> {
    if count == 0 {
        return Ok(&[]);
    }
    check(pointer, what)?;
    check_count::<T>(count, what)?;
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { slice::from_raw_parts(pointer, count) })
}

/// Bytes that the caller gives.
///
/// # Safety
///
/// As [`list`].
pub(crate) unsafe fn bytes<'a>(
    pointer: *const c_void,
    length: usize,
    what: &str,
) -> Result<&'a [u8], Refusal> {
    // SAFETY: guaranteed by the caller.
    unsafe { list(pointer.cast(), length, what) }
}

fn check_count<T>(count: usize, what: &str) -> Result<(), Refusal> {
    let most = isize::MAX as usize / size_of::<T>().max(1);
    if count > most {
        return refuse(
            Code::Argument,
            format_args!("{what}: {count} elements are longer than the address space"),
        );
    }
    Ok(())
}

/// Text that the caller gives; `None` for NULL.
///
/// # Safety
///
/// Unless it is NULL, it ends with a 0 and does not change during the call.
pub(crate) unsafe fn text<'a>(
    pointer: *const c_char,
    what: &str,
) -> Result<Option<&'a str>, Refusal> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: guaranteed by the caller.
    match unsafe { CStr::from_ptr(pointer) }.to_str() {
        Ok(text) => Ok(Some(text)),
        Err(error) => refuse(Code::Argument, format_args!("{what} is not UTF-8: {error}")),
    }
}

/// Text that has to be there.
///
/// # Safety
///
/// As [`text`].
pub(crate) unsafe fn needed_text<'a>(
    pointer: *const c_char,
    what: &str,
) -> Result<&'a str, Refusal> {
    // SAFETY: guaranteed by the caller.
    match unsafe { text(pointer, what) }? {
        Some(text) => Ok(text),
        None => refuse(Code::Null, format_args!("{what} is NULL")),
    }
}

/// The caller's memory for a result of any length.
pub(crate) struct Answer<'a> {
    room: &'a mut [MaybeUninit<u8>],
    length: &'a mut MaybeUninit<usize>,
}

impl<'a> Answer<'a> {
    /// # Safety
    ///
    /// As [`out_list`] and [`out`].
    pub(crate) unsafe fn new(
        pointer: *mut c_void,
        capacity: usize,
        length: *mut usize,
    ) -> Result<Self, Refusal> {
        // SAFETY: guaranteed by the caller.
        let length = unsafe { out(length, "length") }?;
        // SAFETY: guaranteed by the caller.
        let room = unsafe { out_list(pointer.cast(), capacity, "the memory for the result") }?;
        Ok(Self { room, length })
    }

    /// Refuses if there is room for fewer bytes: of an answer that can be had once.
    pub(crate) fn check_room(&mut self, most: usize) -> Result<(), Refusal> {
        match self.room.len() {
            room if room < most => {
                self.length.write(most);
                refuse(
                    Code::TooShort,
                    format_args!("room for {room} bytes, but up to {most} may arrive"),
                )
            }
            _ => Ok(()),
        }
    }

    /// Stores the result and its length, or the required length if there is too little room.
    pub(crate) fn give(self, answer: &[u8]) -> Result<(), Refusal> {
        self.give_with(answer, &[])
    }

    /// Like [`give`](Self::give), with the bytes of `behind` stored after the answer. The stored
    /// length does not count them.
    pub(crate) fn give_with(self, answer: &[u8], behind: &[u8]) -> Result<(), Refusal> {
        let Self { room, length } = self;
        let needed = answer.len() + behind.len();
        let Some(room) = room.get_mut(..needed) else {
            length.write(needed);
            let words =
                format!("{needed} bytes are needed, but there is room for only {}", room.len());
            return refuse(Code::TooShort, words);
        };
        length.write(answer.len());
        for (room, byte) in room.iter_mut().zip(answer.iter().chain(behind)) {
            room.write(*byte);
        }
        Ok(())
    }
}

/// A list that the caller has room for, or for a part of it.
///
/// # Safety
///
/// As [`out_list`] and [`out`].
pub(crate) unsafe fn give_list<T: Copy>(
    (pointer, capacity): (*mut T, usize),
    count: *mut usize,
    all: &[T],
) -> Result<(), Refusal> {
    // SAFETY: guaranteed by the caller.
    let count = unsafe { out(count, "count") }?;
    // SAFETY: guaranteed by the caller.
    let room = unsafe { out_list(pointer, capacity, "the list") }?;
    count.write(all.len());
    for (room, one) in room.iter_mut().zip(all) {
        room.write(*one);
    }
    Ok(())
}

/// Refuses more than `most` bytes.
pub(crate) fn check_length(length: usize, most: usize) -> Result<(), Refusal> {
    match length > most {
        true => refuse(Code::TooMany, format_args!("{length} bytes, but the limit is {most}")),
        false => Ok(()),
    }
}
