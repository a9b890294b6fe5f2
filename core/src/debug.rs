//! Lists in `Debug` output.

use core::fmt;

/// Shows the items of the iterator that its function makes. `fmt::from_fn` would do, but needs
/// Rust 1.93.
pub(crate) struct List<F>(pub(crate) F);

impl<F, I> fmt::Debug for List<F>
where
    F: Fn() -> I,
    I: IntoIterator<Item: fmt::Debug>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries((self.0)()).finish()
    }
}
