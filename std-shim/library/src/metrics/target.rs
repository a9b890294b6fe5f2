//! Where metrics go: an address, or a folder.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Where metrics go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// `HOST:PORT`: served there over HTTP.
    Address(String),
    /// Written to a file in this folder.
    Folder(PathBuf),
}

/// Text that names neither an address nor a folder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The text is empty.
    #[error("neither HOST:PORT nor a folder is given")]
    Empty,
    /// The text has a colon, and is not `HOST:PORT`.
    #[error(
        "{0} is not HOST:PORT, such as 127.0.0.1:9470 or [::1]:9470 (a name with a colon cannot be a \
         folder)"
    )]
    Address(String),
}

/// Text with a colon is an address, other text a folder.
///
/// ```
/// use polyrail::metrics::Target;
///
/// assert_eq!("0.0.0.0:9470".parse(), Ok(Target::Address("0.0.0.0:9470".into())));
/// assert_eq!("/run/polyrail".parse(), Ok(Target::Folder("/run/polyrail".into())));
/// assert!("localhost:http".parse::<Target>().is_err());
/// ```
impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        if text.is_empty() {
            return Err(TargetError::Empty);
        }
        let Some((host, port)) = text.rsplit_once(':') else {
            return Ok(Self::Folder(text.into()));
        };
        let is_bracketed = host.starts_with('[') && host.ends_with(']') && host.len() > 2;
        let is_host = !host.is_empty() && !host.contains([':', '/', '[', ']']);
        if port.parse::<u16>().is_err() || !(is_bracketed || is_host) {
            return Err(TargetError::Address(text.to_owned()));
        }
        Ok(Self::Address(text.to_owned()))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => f.write_str(address),
            Self::Folder(folder) => write!(f, "{}", folder.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_makes_an_address() {
        for address in ["127.0.0.1:9470", "[::1]:0", "host.example:65535"] {
            assert_eq!(address.parse(), Ok(Target::Address(address.to_owned())));
        }
        for folder in ["metrics", "/var/lib/node_exporter", "."] {
            assert_eq!(folder.parse(), Ok(Target::Folder(folder.into())));
        }
        for bad in [":9470", "::1:9470", "[]:9470", "host:", "host:65536", "http://host:80", "a:b"]
        {
            let error = Target::from_str(bad).unwrap_err();
            assert!(error.to_string().starts_with(bad), "{error}");
        }
        assert_eq!("".parse::<Target>(), Err(TargetError::Empty));
    }
}
