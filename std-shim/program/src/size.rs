//! Sizes as people write them: `64K`, `1M`, `1GiB`.

/// Parses a number of bytes: decimal digits and an optional unit.
///
/// `K`, `M`, `G`, `T`, also written `KiB` to `TiB`, are powers of 1024, as usual for buffers and
/// messages; `KB` to `TB` and lower case letters mean the same, and `B` is a byte.
///
/// ```
/// # use polyrail_program::size::parse_size;
/// assert_eq!(parse_size("64K"), Ok(65_536));
/// assert_eq!(parse_size("1GiB"), Ok(1 << 30));
/// assert!(parse_size("1.5M").is_err());
/// ```
///
/// # Errors
///
/// The text is not a size, or needs more than 64 bits; [`SizeError`] quotes it.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let error = |reason| SizeError { text: text.chars().take(40).collect(), reason };
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(error("it does not begin with a digit"));
    }
    let shift = match unit.trim_start_matches(' ').to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(error("its unit must be B, K, M, G or T (also KiB or KB)")),
    };
    let number: u64 = number.parse().map_err(|_| error("it needs more than 64 bits"))?;
    number.checked_mul(1 << shift).ok_or_else(|| error("it needs more than 64 bits"))
}

/// Text that is not a valid size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a size: {reason}")]
pub struct SizeError {
    /// The text, shortened if it is long.
    pub text: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

/// Formats a number of bytes in the largest unit that is not larger than it: `64 KiB`, `1.5 MiB`.
pub fn human_size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let unit = ((63 - bytes.leading_zeros()) / 10).min(4);
    let scaled = bytes as f64 / (1_u64 << (10 * unit)) as f64;
    let decimals = if scaled.fract() == 0.0 { 0 } else { 1 };
    format!("{scaled:.decimals$} {}", UNITS[unit as usize - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_and_their_spellings() {
        let sizes: [(&str, u64); 12] = [
            ("0", 0),
            ("1", 1),
            ("127B", 127),
            ("64K", 64 << 10),
            ("64k", 64 << 10),
            ("64KiB", 64 << 10),
            ("64 kb", 64 << 10),
            ("1M", 1 << 20),
            ("3G", 3 << 30),
            ("1GiB", 1 << 30),
            ("2T", 2 << 40),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in sizes {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn text_that_is_not_a_size_is_named() {
        let bad =
            ["", "K", "-1", "+1", "1.5M", "1X", "1KK", "0x10", "18446744073709551616", "99999999T"];
        for text in bad {
            let error = parse_size(text).unwrap_err();
            assert!(error.to_string().starts_with(&format!("{text:?} is not a size")), "{error}");
        }
        assert!(parse_size(&"9".repeat(1000)).unwrap_err().to_string().len() < 120);
    }

    #[test]
    fn sizes_for_people() {
        let sizes = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (1 << 20, "1 MiB"),
            ((1 << 30) + (1 << 29), "1.5 GiB"),
        ];
        for (bytes, text) in sizes {
            assert_eq!(human_size(bytes), text);
        }
        assert_eq!(human_size(u64::MAX), "16777216 TiB");
    }
}
