//! Writing to standard output and standard error.

use polyrail::printable;
use serde::Serialize;
use std::io::{self, Write};

/// Writes to stdout, and returns whether it is still open. A closed pipe is not an error: readers
/// such as `head` close it early.
pub(super) fn write(bytes: &[u8]) -> io::Result<bool> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes to stderr. Ignores errors: a closed or full stderr should not make the command fail.
pub(super) fn tell(text: &str) {
    _ = io::stderr().write_all(text.as_bytes());
}

/// Writes a value as JSON to stdout, with a line end.
pub(super) fn write_json(value: &impl Serialize) -> io::Result<bool> {
    write((json(value)? + "\n").as_bytes())
}

/// Returns a value as JSON. Control characters are escaped, so that names in it cannot control a
/// terminal; the escaped JSON has the same value.
pub(super) fn json(value: &impl Serialize) -> io::Result<String> {
    Ok(json_escaped(&serde_json::to_string_pretty(value)?))
}

/// Escapes control characters except line ends. Outside of strings, JSON has no other control
/// characters, so every escape is within a string.
fn json_escaped(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        if printable::is_printable(c) || c == '\n' {
            escaped.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                escaped += &format!("\\u{unit:04x}");
            }
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_json_keeps_its_value() {
        let value = serde_json::json!({ "name \u{9b}": ["a\u{202e}b\u{1b}\n", "\u{e0041} 漢字"] });
        let text = serde_json::to_string_pretty(&value).unwrap();
        let escaped = json_escaped(&text);
        assert!(escaped.chars().all(|c| c == '\n' || printable::is_printable(c)), "{escaped}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
    }
}
