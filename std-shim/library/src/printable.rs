//! Text from others, such as names of files and what peers send, made safe to print.
//!
//! A terminal obeys control characters: they move the cursor, or hide what was printed before.
//! Format characters change the order in which others are shown, or are not shown at all, so that a
//! name looks like another one.

/// Whether a character does nothing but show itself: it is not in the categories Cc (control), Cf
/// (format), Zl and Zp (separators of lines and paragraphs) of Unicode 16.
pub const fn is_printable(c: char) -> bool {
    !matches!(
        c,
        '\0'..='\u{1f}'
            | '\u{7f}'..='\u{9f}'
            | '\u{ad}'
            | '\u{600}'..='\u{605}'
            | '\u{61c}'
            | '\u{6dd}'
            | '\u{70f}'
            | '\u{890}'..='\u{891}'
            | '\u{8e2}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{2064}'
            | '\u{2066}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{110bd}'
            | '\u{110cd}'
            | '\u{13430}'..='\u{1343f}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0001}'
            | '\u{e0020}'..='\u{e007f}'
    )
}

/// The text with every character that is not printable written as Rust writes it: `\u{202e}`, `\n`.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if is_printable(c) {
            escaped.push(c);
        } else {
            escaped.extend(c.escape_default());
        }
    }
    escaped
}

/// The text with every character that is not printable replaced: for text whose exact characters do
/// not matter.
pub fn replaced(text: &str) -> String {
    text.replace(|c| !is_printable(c), "\u{fffd}")
}

/// Returns the longest front of the text that has at most `max_bytes` and ends between two
/// characters. (`str::floor_char_boundary` needs Rust 1.91.)
pub fn cut(text: &str, max_bytes: usize) -> &str {
    let end = (0..=max_bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    // 0 is a boundary.
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_between_characters() {
        let text = "a\u{e9}\u{1f600}b";
        let fronts = ["", "a", "a", "a\u{e9}", "a\u{e9}", "a\u{e9}", "a\u{e9}"];
        for (max_bytes, front) in fronts.iter().enumerate() {
            assert_eq!(cut(text, max_bytes), *front);
        }
        assert_eq!(cut(text, 7), "a\u{e9}\u{1f600}");
        assert_eq!((cut(text, 8), cut(text, usize::MAX), cut("", 9)), (text, text, ""));
    }

    #[test]
    fn what_a_terminal_would_obey_or_hide_is_not_printable() {
        let safe = "plain ümläut, 漢字, العربية, e\u{301}, 👍";
        assert_eq!(escaped(safe), safe);
        assert_eq!(replaced(safe), safe);
        for c in [
            '\u{1b}',
            '\u{9b}',
            '\u{7f}',
            '\u{202e}',
            '\u{2066}',
            '\u{200b}',
            '\u{feff}',
            '\u{e0041}',
            '\u{2028}',
        ] {
            assert!(!is_printable(c), "{c:?}");
        }
        assert_eq!(escaped("a\u{202e}gpj\nb\u{1b}[2J"), "a\\u{202e}gpj\\nb\\u{1b}[2J");
        assert_eq!(replaced("a\u{202e}b\nc"), "a\u{fffd}b\u{fffd}c");
    }
}
