//! The first frame: who connects proves that NCCL sent it, and says what the connection is to be like.
//!
//! ```text
//!  bytes 0       version, 3
//!        1..4    terms
//!        4       1: software NICs
//!        5..21   token
//!        21..29  number of the process
//!        29..    address
//! ```

use super::handle::Token;
use super::secret;
use super::site::Site;
use super::terms::Terms;

/// 2: addresses go one way. 3: who listened says where it is found again. Who speaks an older one cannot read that.
const VERSION: u8 = 3;
const HEAD: usize = 29;

/// The first frame, but for the terms, which the listening end has to like.
#[derive(Debug)]
pub(super) struct Hello<'b> {
    pub(super) terms: [u8; 3],
    pub(super) software: bool,
    pub(super) process: u64,
    pub(super) address: &'b [u8],
}

/// Writes it.
pub(super) fn encode(site: &Site, token: &Token, terms: Terms, address: &str) -> Vec<u8> {
    let mut body = Vec::with_capacity(HEAD + address.len());
    body.push(VERSION);
    body.extend(terms.encode());
    body.push(site.is_software().into());
    body.extend(token);
    body.extend(site.process.to_le_bytes());
    body.extend(address.as_bytes());
    body
}

/// Reads one of somebody who knows the token.
pub(super) fn decode<'b>(body: &'b [u8], token: &Token) -> Option<Hello<'b>> {
    let (head, address) = body.split_first_chunk::<HEAD>()?;
    let [version, terms_0, terms_1, terms_2, software, ref rest @ ..] = *head;
    let (theirs, process) = rest.split_first_chunk()?;
    let process = u64::from_le_bytes(process.try_into().ok()?);
    let terms = [terms_0, terms_1, terms_2];
    (version == VERSION && secret::is_same(theirs, token) && software <= 1).then_some(Hello {
        terms,
        software: software == 1,
        process,
        address,
    })
}
