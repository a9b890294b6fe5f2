//! Failures of links, for C programs.

use crate::code::Code;
use crate::error::Failure;
use polyrail::link::LinkError;

/// Returns the failure of a link, with its code.
pub(super) fn link_failure(error: &LinkError) -> Failure {
    let code = match error {
        LinkError::Handshake(_) => Code::Protocol,
        _ if error.is_about_token() => Code::Mismatch,
        _ if error.lacks_resources() => Code::System,
        _ => Code::Link,
    };
    Failure::of(code, error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail::link::Reason;
    use std::io;

    #[test]
    fn a_token_that_differs_is_a_mismatch() {
        let reason = Reason::new("another token");
        for error in [LinkError::WrongToken, LinkError::TokenRefused { reason }] {
            assert_eq!(link_failure(&error).code, Code::Mismatch, "{error}");
        }
        assert_eq!(link_failure(&LinkError::HungUp { pending: 0 }).code, Code::Link);
    }

    #[test]
    fn a_lack_of_descriptors_is_no_failure_of_the_peer() {
        const EMFILE: i32 = 24;
        const ECONNREFUSED: i32 = 111;
        let code = |number| {
            let source = io::Error::from_raw_os_error(number);
            link_failure(&LinkError::Connect { address: "10.0.0.2:7471".into(), source }).code
        };
        assert_eq!((code(EMFILE), code(ECONNREFUSED)), (Code::System, Code::Link));
    }
}
