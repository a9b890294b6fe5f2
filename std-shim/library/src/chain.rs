//! Errors with their reasons.
//!
//! An error of this crate states what went wrong, and leaves the reason to its
//! [source](std::error::Error::source), so that nothing is repeated. [`Chain`] shows all of it.

use std::error::Error;
use std::fmt;

/// Shows an error and its sources, the outermost first, with colons between them.
///
/// ```
/// use polyrail::chain::Chain;
/// use polyrail::link::LinkError;
///
/// let source = std::io::ErrorKind::ConnectionRefused.into();
/// let error = LinkError::Connect { address: "10.0.0.2:7471".into(), source };
/// assert_eq!(error.to_string(), "cannot connect to 10.0.0.2:7471");
/// let all = "cannot connect to 10.0.0.2:7471: connection refused";
/// assert_eq!(Chain(&error).to_string(), all);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Chain<'e>(pub &'e dyn Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.0, f)?;
        std::iter::successors(self.0.source(), |&error| error.source())
            .try_for_each(|error| write!(f, ": {error}"))
    }
}
