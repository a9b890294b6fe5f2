//! While it goes on: the progress bar, on terminals only.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use polyrail::transfer::Progress;
use std::sync::atomic::Ordering;

/// Shows how far a copy is, or nothing if it is to be quiet or stderr is no terminal.
pub(super) struct Bar(ProgressBar);

impl Bar {
    pub(super) fn new(quiet: bool) -> Self {
        let target =
            if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(None, target);
        // Fits into 80 columns.
        let template = "{bar:20} {percent:>3}%  {binary_bytes} of {binary_total_bytes}  \
                        {binary_bytes_per_sec}  {eta} left";
        // The template is ours, and right.
        bar.set_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        Self(bar)
    }

    pub(super) fn show(&self, progress: &Progress) {
        self.0.set_length(progress.total.load(Ordering::Relaxed));
        self.0.set_position(progress.written.load(Ordering::Relaxed));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
