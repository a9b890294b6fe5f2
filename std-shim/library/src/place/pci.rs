//! Addresses of PCI functions.

use std::fmt;
use std::str::FromStr;

/// The address of a PCI function, such as that of a GPU: domain, bus, device and function.
///
/// ```
/// use polyrail::place::PciAddress;
///
/// let gpu: PciAddress = "00000000:3B:00.0".parse()?; // as nvidia-smi and CUDA write it
/// assert_eq!(gpu, "3b:00.0".parse()?); // as lspci writes it
/// assert_eq!(gpu.to_string(), "0000:3b:00.0"); // as sysfs writes it
/// # Ok::<(), polyrail::place::PciAddressError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

/// Text that is not the address of a PCI function.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not the address of a PCI function, such as 0000:3b:00.0")]
pub struct PciAddressError {
    /// The text.
    pub text: String,
}

impl FromStr for PciAddress {
    type Err = PciAddressError;

    fn from_str(text: &str) -> Result<Self, PciAddressError> {
        parsed(text).ok_or_else(|| PciAddressError { text: text.to_owned() })
    }
}

/// Without a domain, it is domain 0.
fn parsed(text: &str) -> Option<PciAddress> {
    let (slot, function) = text.split_once('.')?;
    let mut parts = slot.rsplit(':');
    let device = hex(parts.next()?, 2, 0x1f)?;
    let bus = hex(parts.next()?, 2, 0xff)?;
    let domain = parts.next().map_or(Some(0), |domain| hex(domain, 8, u32::MAX))?;
    if parts.next().is_some() {
        return None;
    }
    let function = hex(function, 1, 7)?;
    Some(PciAddress { domain, bus: bus as u8, device: device as u8, function: function as u8 })
}

/// Returns a number of up to `digits` hexadecimal digits that is at most `max`.
fn hex(text: &str, digits: usize, max: u32) -> Option<u32> {
    let is_hex = (1..=digits).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
    if !is_hex {
        return None;
    }
    u32::from_str_radix(text, 16).ok().filter(|number| *number <= max)
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_address_is_refused_with_its_text() {
        for text in [
            "",
            "gpu0",
            "3b:00",
            "3b.0",
            "0000:3b:20.0",
            "0000:3b:00.8",
            "0000:3b:00.00",
            "0000:+b:00.0",
            "100000000:3b:00.0",
            "0:0000:3b:00.0",
            "0000:3b:00.0 ",
        ] {
            let error = text.parse::<PciAddress>().unwrap_err();
            assert_eq!(error, PciAddressError { text: text.into() });
        }
    }

    #[test]
    fn every_notation_means_the_same_function() {
        for (text, written) in [
            ("ffff:FF:1f.7", "ffff:ff:1f.7"),
            ("10000:01:00.0", "10000:01:00.0"),
            ("00000018:01:00.0", "0018:01:00.0"),
            ("1:0.0", "0000:01:00.0"),
        ] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), written, "{text}");
        }
    }
}
