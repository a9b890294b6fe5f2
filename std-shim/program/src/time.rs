//! Times as people write them: `200ms`, `1.5s`.

use std::time::Duration;

/// Longest time that is accepted: a day.
const MAX_SECONDS: f64 = 86_400.0;

/// Parses a time: decimal digits, with a point or without, and one of the units `us`, `ms` and `s`.
///
/// ```
/// # use polyrail_program::time::parse_time;
/// # use std::time::Duration;
/// assert_eq!(parse_time("200ms"), Ok(Duration::from_millis(200)));
/// assert_eq!(parse_time("1.5s"), Ok(Duration::from_millis(1500)));
/// assert!(parse_time("1").is_err());
/// ```
///
/// # Errors
///
/// The text is not a time, or more than a day; [`TimeError`] quotes it.
pub fn parse_time(text: &str) -> Result<Duration, TimeError> {
    let error = |reason| TimeError { text: text.chars().take(40).collect(), reason };
    let (number, per_second) = split(text).ok_or_else(|| error("it needs a unit: us, ms or s"))?;
    let is_decimal = |c: char| c.is_ascii_digit() || c == '.';
    let units = number.chars().all(is_decimal).then(|| number.parse::<f64>().ok()).flatten();
    let seconds = units.ok_or_else(|| error("it does not begin with a number"))? / per_second;
    if seconds > MAX_SECONDS {
        return Err(error("it is more than a day"));
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| error("it is more than a day"))
}

/// Returns the number before the unit, and the number of units per second.
fn split(text: &str) -> Option<(&str, f64)> {
    [("us", 1e6), ("ms", 1e3), ("s", 1.0)]
        .into_iter()
        .find_map(|(unit, per_second)| Some((text.strip_suffix(unit)?, per_second)))
}

/// Text that is not a valid time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a time: {reason}")]
pub struct TimeError {
    /// The text, shortened if it is long.
    pub text: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_and_fractions() {
        let times: [(&str, u64); 6] = [
            ("0s", 0),
            ("5us", 5),
            ("200ms", 200_000),
            ("1s", 1_000_000),
            ("0.25s", 250_000),
            ("86400s", 86_400_000_000),
        ];
        for (text, micros) in times {
            assert_eq!(parse_time(text), Ok(Duration::from_micros(micros)), "{text}");
        }
    }

    #[test]
    fn text_that_is_not_a_time_is_named() {
        for text in
            ["", "s", "1", "-1s", "+1s", "1e3s", "infs", "nans", "1 s", "1.2.3s", "1min", "86401s"]
        {
            let error = parse_time(text).unwrap_err();
            assert!(error.to_string().starts_with(&format!("{text:?} is not a time")), "{error}");
        }
        assert!(parse_time(&"9".repeat(1000)).unwrap_err().to_string().len() < 120);
    }
}
