//! Handles, and the objects behind them.
//!
//! A handle is not an address: it names a slot of a table that is never freed, and a generation of
//! that slot. A handle that was closed, made up, or is of another kind is therefore detected before
//! memory is touched. An object is used by one call at a time; a second call is refused at once
//! ([`slot`]). Calls on the data path look up three handles. The polling object costs one atomic
//! exchange; the few words that describe registered memory are read without one
//! ([`words`](mod@words)).

mod guard;
mod handle;
mod kind;
mod slot;
mod slots;
mod words;

pub(crate) use guard::Exclusive;
pub(crate) use kind::{Kind, Object};
pub(crate) use words::{WORDS, Words};

use crate::code::Code;
use crate::error::{Failure, Refusal};
use handle::Handle;
use kind::Misuse;
use slot::Slot;
use std::ptr;

fn find<O: Object>(pointer: *mut O) -> Result<(Handle, &'static Slot), Misuse> {
    if pointer.is_null() {
        return Err(Misuse::Null);
    }
    let handle = Handle::of(pointer.addr()).ok_or(Misuse::Closed)?;
    Ok((handle, slots::slot(handle.index).ok_or(Misuse::Closed)?))
}

/// Puts an object into the table, with words that can be read without entering the object.
pub(crate) fn insert<O: Object>(value: O::Value, words: &Words) -> Result<*mut O, Refusal> {
    let Some((index, slot)) = slots::take() else {
        let words = format!("{} objects are open, which is the limit", slots::MOST);
        return Err(Failure::new(Code::TooMany, words).into());
    };
    let generation = slot.put(O::KIND, Box::into_raw(Box::new(value)).cast(), words);
    Ok(ptr::without_provenance_mut(Handle { index, generation }.encode()))
}

/// Returns the object, for this call only.
#[inline]
pub(crate) fn exclusive<O: Object>(pointer: *mut O) -> Result<Exclusive<O::Value>, Refusal> {
    let entered = find(pointer).and_then(|(handle, slot)| {
        slot.check_process(handle.generation)?;
        let held = slot.enter(handle.generation, O::KIND)?;
        // SAFETY: an object of this kind has this type, and only this call uses it until it leaves.
        Ok(unsafe { Exclusive::new(slot, held, slot.value().cast()) })
    });
    entered.map_err(|misuse| misuse.refusal(pointer))
}

/// Returns the words that came with the object. Always inlined, as is what it calls, because
/// otherwise the words would be copied several times.
#[inline(always)]
pub(crate) fn words<O: Object>(pointer: *mut O) -> Result<Words, Refusal> {
    let read = find(pointer).and_then(|(handle, slot)| slot.words(handle.generation, O::KIND));
    read.map_err(|misuse| misuse.refusal(pointer))
}

/// Takes the object out of the table, which invalidates its handle. Poisoned objects can be
/// removed, too, but not in a fork of the process that made them.
pub(crate) fn remove<O: Object>(pointer: *mut O) -> Result<Box<O::Value>, Refusal> {
    let removed = find(pointer).and_then(|(handle, slot)| {
        slot.check_process(handle.generation)?;
        let value = slot.take(handle.generation, O::KIND)?;
        slots::give_back(handle.index);
        // SAFETY: `insert` made it of a box of this type, and the slot does not have it any more.
        Ok(unsafe { Box::from_raw(value.cast::<O::Value>()) })
    });
    removed.map_err(|misuse| misuse.refusal(pointer))
}

#[cfg(test)]
mod tests;
