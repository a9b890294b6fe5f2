//! Makes the bindings that `polyrail-rdma-sys` contains, and compares them with the header.
//!
//! The build script translates the installed `infiniband/verbs.h`. The program writes the result
//! into `src/generated` of `polyrail-rdma-sys`; the test `header` compares the two:
//!
//! ```text
//! cargo run -p polyrail-verbs-header
//! cargo test -p polyrail-verbs-header
//! ```
//!
//! Headers of other releases than [`RELEASE`] give other text, for example new fields at the end
//! of structs. With these, only the layouts of requests and completions are compared.

/// The release of rdma-core whose header was translated, as pkg-config names libibverbs': that of
/// Debian 12.
pub const RELEASE: &str = "1.14.44.0";

/// The installed release.
pub const INSTALLED: &str = env!("LIBIBVERBS_VERSION");

/// The directory of the bindings.
pub const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/generated");

/// The bindings, by the names of their files.
pub const BINDINGS: [(&str, &str); 2] = [
    ("verbs.rs", include_str!(concat!(env!("OUT_DIR"), "/verbs.rs"))),
    ("functions.rs", include_str!(concat!(env!("OUT_DIR"), "/functions.rs"))),
];
