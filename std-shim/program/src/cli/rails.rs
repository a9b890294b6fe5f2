//! Tells what happened to rails, as lines for stderr.

use polyrail::printable;
use polyrail_program::fault::Side;
use polyrail_program::session::RailNews;
use std::fmt::Write as _;

/// Returns what happened since the last time, if anything did; `about` begins each line.
pub(super) fn news(news: &RailNews, about: &str) -> Option<String> {
    let mut text = String::new();
    for item in news.take() {
        let side = match item.side {
            Side::Near => "near",
            Side::Far => "far",
        };
        let event = printable::escaped(&item.event.to_string());
        // Writing to a string succeeds.
        _ = writeln!(text, "polyrail: {about}{side}: {event}");
    }
    (!text.is_empty()).then_some(text)
}
