//! A secret of both sides, and proofs that they have it.

use super::error::LinkError;
use crate::hex::Hex;
use hmac::{Hmac, KeyInit, Mac};
use rustix::io::Errno;
use sha2::Sha256;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A secret of both sides of a link. A peer that does not prove that it has the token is sent
/// nothing but its refusal. The token never travels.
///
/// ```
/// use polyrail::link::{Arrivals, Link, Listener, NoPurpose, Timeouts, Token};
///
/// let token = Token::new("correct horse battery staple")?;
/// let listener = Listener::bind("127.0.0.1:0")?.with_token(token.clone());
/// let address = listener.local_addr()?.to_string();
/// let timeouts = Timeouts::default();
/// let peer = std::thread::spawn(move || {
///     Link::<NoPurpose>::connect_with_token(&address, &timeouts, Some(&token)).map(drop)
/// });
/// let mut arrivals = Arrivals::<NoPurpose>::default();
/// while !peer.is_finished() {
///     arrivals.step(&listener, &timeouts, |_, _| ())?;
/// }
/// peer.join().unwrap()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Token(Hmac<Sha256>);

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// It is too short to be a secret.
    #[error("a token of {bytes} bytes is too short: it needs at least {}", Token::MIN_BYTES)]
    Short {
        /// Its length in bytes.
        bytes: usize,
    },
    /// Its file cannot be read.
    #[error("cannot read the token in {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Which side proves something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prover {
    /// The side that connected.
    Connects,
    /// The side that listened.
    Listens,
}

/// A number that is drawn for one proof, so that no proof is good a second time.
pub type Nonce = Hex<16>;

/// Proves that its sender has the token: HMAC-SHA-256, keyed with the token, of the side's name and
/// both nonces. The nonce of the side that connected comes first.
pub type Proof = Hex<32>;

/// The nonces of the side that connected and of the side that listened.
pub(super) type Nonces = [Nonce; 2];

impl Token {
    /// Bytes of the shortest token: who sees a proof can try all short ones.
    pub const MIN_BYTES: usize = 16;

    /// A token of these bytes; at least [`MIN_BYTES`](Self::MIN_BYTES).
    ///
    /// # Errors
    ///
    /// There are fewer.
    pub fn new(secret: impl AsRef<[u8]>) -> Result<Self, TokenError> {
        let secret = secret.as_ref();
        let bytes = secret.len();
        if bytes < Self::MIN_BYTES {
            return Err(TokenError::Short { bytes });
        }
        // Any length is a key.
        Hmac::new_from_slice(secret).map(Self).map_err(|_| TokenError::Short { bytes })
    }

    /// The token in a file, without white space around it, such as `openssl rand -hex 32` writes.
    /// The system may let other users read a new file, unless it is made with `umask 077`.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or has too little in it.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let failed = |source| TokenError::File { path: path.to_owned(), source };
        Self::new(fs::read(path).map_err(failed)?.trim_ascii())
    }

    /// What the prover sends.
    pub(super) fn proof(&self, prover: Prover, nonces: &Nonces) -> Proof {
        Hex(self.mac(prover, nonces).finalize().into_bytes().into())
    }

    /// Whether it is the prover's proof; in a time that does not depend on what is wrong with it.
    pub(super) fn is_proved(&self, prover: Prover, nonces: &Nonces, proof: &Proof) -> bool {
        self.mac(prover, nonces).verify_slice(&proof.0).is_ok()
    }

    fn mac(&self, prover: Prover, nonces: &Nonces) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(match prover {
            Prover::Connects => b"polyrail connects",
            Prover::Listens => b"polyrail listens ",
        });
        nonces.iter().for_each(|nonce| mac.update(&nonce.0));
        mac
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Draws 128 bits that cannot be guessed.
pub(super) fn random() -> Result<Hex<16>, LinkError> {
    let failed =
        |errno: Errno| LinkError::Io { doing: "asking for random bytes", source: errno.into() };
    polyrail_nic_parts::random::random().map(Hex).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCES: Nonces = [Hex([1; 16]), Hex([2; 16])];

    #[test]
    fn a_proof_is_of_one_token_one_side_and_one_pair_of_nonces() {
        let token = Token::new([7; 32]).unwrap();
        let proof = token.proof(Prover::Connects, &NONCES);
        assert!(token.is_proved(Prover::Connects, &NONCES, &proof));
        assert!(!token.is_proved(Prover::Listens, &NONCES, &proof), "its echo");
        let [a, b] = NONCES;
        assert!(!token.is_proved(Prover::Connects, &[b, a], &proof));
        assert!(!Token::new([8; 32]).unwrap().is_proved(Prover::Connects, &NONCES, &proof));
        for bit in 0..256 {
            let mut other = proof;
            other.0[bit / 8] ^= 1 << (bit % 8);
            assert!(!token.is_proved(Prover::Connects, &NONCES, &other));
        }
    }

    #[test]
    fn a_proof_is_the_documented_function() {
        // python3: hmac.new(bytes(range(32)), b"polyrail connects" + b"\1"*16 + b"\2"*16, "sha256")
        let token = Token::new((0..32).collect::<Vec<u8>>()).unwrap();
        let proof = token.proof(Prover::Connects, &NONCES).to_string();
        assert_eq!(proof, "9144801ff7329262fd76127b394ba3568c0458bdefea4fe04e6487cbf243fc2d");
    }

    #[test]
    fn short_secrets_are_none_and_a_file_may_end_in_a_line_break() {
        assert!(matches!(Token::new([0; 15]), Err(TokenError::Short { bytes: 15 })));
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        assert!(matches!(Token::read(&path), Err(TokenError::File { .. })));
        fs::write(&path, "  0123456789abcdef\r\n").unwrap();
        let proof = |token: Token| token.proof(Prover::Connects, &NONCES);
        let token = Token::new("0123456789abcdef").unwrap();
        assert_eq!(proof(Token::read(&path).unwrap()), proof(token));
        fs::write(&path, "0123456789abcde\n").unwrap();
        assert!(matches!(Token::read(&path), Err(TokenError::Short { bytes: 15 })));
    }

    #[test]
    fn a_token_is_not_printed() {
        assert_eq!(format!("{:?}", Token::new([65; 16]).unwrap()), "Token(..)");
    }
}
