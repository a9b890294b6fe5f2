//! The difference between numbered and unnumbered fragments, as a trait, so that the loop over
//! fragments is compiled once for each.

use crate::rail::{Batch, Content};
use crate::verbs::{Imm, Opcode, SendFlags};
use crate::virtual_qp::slot::SendSlot;

/// Assigns sequence numbers to fragments, or does not.
pub(in crate::virtual_qp) trait Numbering {
    /// The number of one fragment.
    type Number: Copy;

    /// The content of its batches.
    const CONTENT: Content;

    /// Returns how many of `wanted` fragments may be numbered now. `unacknowledged` returns the
    /// oldest unacknowledged number of each rail that has any.
    fn room<I: Iterator<Item = u32>>(
        &mut self,
        wanted: u32,
        unacknowledged: impl FnOnce() -> I,
    ) -> u32;

    /// Assigns numbers to `count` fragments, and returns the first number.
    fn take(&mut self, count: u32) -> Self::Number;

    /// Returns a number in the form in which a batch stores it.
    fn remembered(number: Self::Number) -> u32;

    /// Returns the number of fragment `index` of a batch.
    fn number_of(batch: &Batch, index: u32) -> Self::Number;

    /// Returns the number after this one.
    fn after(number: Self::Number) -> Self::Number;

    /// Returns the immediate of a fragment. `is_last`: the fragment ends its request.
    fn imm(number: Self::Number, is_last: bool) -> Imm;

    /// Returns the opcode of a fragment.
    fn opcode<const RAILS: usize>(slot: &SendSlot<RAILS>) -> Opcode;

    /// Returns the flags of fragments that do not end their request, except SIGNALED.
    fn inner_flags<const RAILS: usize>(slot: &SendSlot<RAILS>) -> SendFlags;
}

/// Fragments without numbers.
pub(in crate::virtual_qp) struct Unnumbered;

impl Numbering for Unnumbered {
    // A number without size: the loop over fragments then has no code for numbers.
    type Number = ();

    const CONTENT: Content = Content::Fragments;

    #[inline(always)]
    fn room<I: Iterator<Item = u32>>(&mut self, wanted: u32, _: impl FnOnce() -> I) -> u32 {
        wanted
    }

    #[inline(always)]
    fn take(&mut self, _: u32) {}

    #[inline(always)]
    fn remembered((): ()) -> u32 {
        0
    }

    #[inline(always)]
    fn number_of(_: &Batch, _: u32) {}

    #[inline(always)]
    fn after((): ()) {}

    #[inline(always)]
    fn imm((): (), _: bool) -> Imm {
        Imm::default()
    }

    #[inline(always)]
    fn opcode<const RAILS: usize>(slot: &SendSlot<RAILS>) -> Opcode {
        slot.fragment_opcode
    }

    #[inline(always)]
    fn inner_flags<const RAILS: usize>(_: &SendSlot<RAILS>) -> SendFlags {
        SendFlags::empty()
    }
}
