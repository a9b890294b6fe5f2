//! Limits, which are the lengths of arrays in programs.

/// Maximum length of a device's name in bytes, including the terminating 0.
pub const POLYRAIL_NAME_BYTES: usize = 64;

/// Maximum length of a device's PCI path in bytes, including the terminating 0.
pub const POLYRAIL_PATH_BYTES: usize = 128;

/// Maximum number of devices in a domain, and of rails in a connection.
pub const POLYRAIL_MAX_DEVICES: usize = 8;

/// Maximum number of buffers of a message.
pub const POLYRAIL_MAX_BUFFERS: usize = 8;

/// Maximum number of parts of a request.
pub const POLYRAIL_MAX_PARTS: usize = 16;

/// Maximum length of an exported region in bytes: see polyrail_region_export.
pub const POLYRAIL_REMOTE_BYTES: usize = 64;

/// Maximum length of a connection card in bytes.
pub const POLYRAIL_CARD_BYTES: usize = 16384;

/// Maximum length of the caller's part of a hello in bytes.
pub const POLYRAIL_HELLO_BYTES: usize = 2048;

/// Maximum length of a message over a link in bytes.
pub const POLYRAIL_MESSAGE_BYTES: usize = 4096;

/// Maximum number of addresses that polyrail_addresses stores.
pub const POLYRAIL_MAX_ADDRESSES: usize = 128;

/// Maximum length of these addresses as text in bytes, including the terminating 0.
pub const POLYRAIL_ADDRESSES_BYTES: usize = 8192;

/// Maximum length of a text in bytes, including the terminating 0.
pub const POLYRAIL_WORDS_BYTES: usize = 256;
