//! Progress bars, on terminals only.

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use polyrail_program::transfer::CopyProgress;
use std::sync::atomic::Ordering;

/// The progress bar of a copy; hidden if the command is quiet or stderr is not a terminal.
pub(super) struct Bar(ProgressBar);

impl Bar {
    pub(super) fn new(quiet: bool) -> Self {
        Self(styled(ProgressBar::with_draw_target(None, target(quiet))))
    }

    pub(super) fn show(&self, progress: &CopyProgress) {
        self.0.set_length(progress.total.load(Ordering::Relaxed));
        self.0.set_position(progress.written.load(Ordering::Relaxed));
    }

    /// Hides the bar while `print` writes to the terminal.
    pub(super) fn beside(&self, print: impl FnOnce()) {
        self.0.suspend(print);
    }
}

/// The progress bars of several copies, one below the other.
pub(super) struct Bars(MultiProgress);

impl Bars {
    pub(super) fn new(quiet: bool) -> Self {
        Self(MultiProgress::with_draw_target(target(quiet)))
    }

    /// Adds a bar, which is shown until it is dropped.
    pub(super) fn add(&self) -> Bar {
        Bar(self.0.add(styled(ProgressBar::no_length())))
    }

    /// Hides the bars while `print` writes to the terminal.
    pub(super) fn beside<T>(&self, print: impl FnOnce() -> T) -> T {
        self.0.suspend(print)
    }
}

fn target(quiet: bool) -> ProgressDrawTarget {
    if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() }
}

fn styled(bar: ProgressBar) -> ProgressBar {
    // Its text fits into 80 columns.
    let template = "{bar:20} {percent:>3}%  {binary_bytes} of {binary_total_bytes}  \
                    {binary_bytes_per_sec}  {eta} left";
    // The template is a valid constant, so the default is never used.
    bar.with_style(
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
    )
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
