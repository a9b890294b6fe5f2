//! Rail events as lines for standard error.

use polyrail::printable;
use polyrail_program::fault::Side;
use polyrail_program::session::RailNews;
use std::fmt::Write as _;

/// Returns the rail events since the last call as lines that begin with `about`, or `None` if there
/// are none.
pub(super) fn news(news: &RailNews, about: &str) -> Option<String> {
    let mut text = String::new();
    for item in news.take() {
        let side = match item.side {
            Side::Near => "near",
            Side::Far => "far",
        };
        let event = printable::escaped(&item.event.to_string());
        // Writing to a string cannot fail.
        _ = writeln!(text, "polyrail: {about}{side}: {event}");
    }
    (!text.is_empty()).then_some(text)
}
