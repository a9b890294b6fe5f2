//! IP addresses with the networks that they belong to.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An IP address with the length of its network's prefix. As text: `10.0.0.2/24`.
///
/// ```
/// use polyrail::interfaces::IpNet;
///
/// let net: IpNet = "10.0.0.2/24".parse()?;
/// assert!(net.contains([10, 0, 0, 77].into()) && !net.contains([10, 0, 1, 77].into()));
/// assert_eq!(net.to_string(), "10.0.0.2/24");
/// # Ok::<(), polyrail::interfaces::IpNetError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IpNet {
    ip: IpAddr,
    prefix: u8,
}

/// Text that is not an [`IpNet`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an IP address with the length of its network's prefix, such as 10.0.0.2/24")]
pub struct IpNetError;

impl IpNet {
    /// Returns an address whose network has a prefix of this number of bits; `None` if addresses of
    /// its version of IP have fewer.
    pub fn new(ip: IpAddr, prefix: u8) -> Option<Self> {
        (prefix <= bits(ip)).then_some(Self { ip, prefix })
    }

    /// Returns an address with the prefix that a netmask selects; with the whole address if the
    /// mask is of the other version of IP, or has gaps.
    pub(crate) fn with_mask(ip: IpAddr, mask: IpAddr) -> Self {
        let (ones, zeros) = match mask {
            IpAddr::V4(mask) => (mask.to_bits().leading_ones(), mask.to_bits().trailing_zeros()),
            IpAddr::V6(mask) => (mask.to_bits().leading_ones(), mask.to_bits().trailing_zeros()),
        };
        let is_mask = mask.is_ipv4() == ip.is_ipv4() && ones + zeros == u32::from(bits(ip));
        Self { ip, prefix: if is_mask { ones as u8 } else { bits(ip) } }
    }

    /// Returns the address.
    pub const fn ip(&self) -> IpAddr {
        self.ip
    }

    /// Returns the length of the prefix in bits.
    pub const fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Returns the network: its first address, with the prefix. Addresses of one network have equal
    /// ones.
    pub fn network(&self) -> Self {
        let ip = match self.ip {
            IpAddr::V4(ip) => {
                let mask = !u32::MAX.checked_shr(self.prefix.into()).unwrap_or(0);
                Ipv4Addr::from_bits(ip.to_bits() & mask).into()
            }
            IpAddr::V6(ip) => {
                let mask = !u128::MAX.checked_shr(self.prefix.into()).unwrap_or(0);
                Ipv6Addr::from_bits(ip.to_bits() & mask).into()
            }
        };
        Self { ip, ..*self }
    }

    /// Returns whether another address belongs to the same network.
    pub fn contains(&self, other: IpAddr) -> bool {
        match (self.ip, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differing = own.to_bits() ^ other.to_bits();
                differing.leading_zeros() >= self.prefix.into()
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differing = own.to_bits() ^ other.to_bits();
                differing.leading_zeros() >= self.prefix.into()
            }
            _ => false,
        }
    }
}

/// Returns the number of bits of addresses of this version of IP.
const fn bits(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(_) => Ipv4Addr::BITS as u8,
        IpAddr::V6(_) => Ipv6Addr::BITS as u8,
    }
}

/// Returns an address alone in its network.
impl From<IpAddr> for IpNet {
    fn from(ip: IpAddr) -> Self {
        Self { ip, prefix: bits(ip) }
    }
}

impl fmt::Display for IpNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

impl FromStr for IpNet {
    type Err = IpNetError;

    fn from_str(text: &str) -> Result<Self, IpNetError> {
        let parse = || {
            let (ip, prefix) = text.split_once('/')?;
            // Numbers that begin with `+` or with zeros are not taken.
            let is_plain =
                prefix == "0" || prefix.starts_with(|digit| ('1'..='9').contains(&digit));
            Self::new(ip.parse().ok()?, prefix.parse().ok().filter(|_| is_plain)?)
        };
        parse().ok_or(IpNetError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_network_has_the_addresses_with_its_prefix() {
        for (network, inside, outside) in [
            ("10.0.0.2/24", "10.0.0.255", "10.0.1.0"),
            ("10.0.0.2/31", "10.0.0.3", "10.0.0.4"),
            ("10.0.0.2/32", "10.0.0.2", "10.0.0.3"),
            ("10.0.0.2/0", "192.0.2.1", "::1"),
            ("fd00:0:0:1::2/64", "fd00:0:0:1:ffff::1", "fd00:0:0:2::2"),
            ("fd00::2/128", "fd00::2", "fd00::3"),
            ("::/0", "fd00::3", "10.0.0.1"),
        ] {
            assert!(net(network).contains(ip(inside)), "{network} {inside}");
            assert!(!net(network).contains(ip(outside)), "{network} {outside}");
            assert_eq!(net(network).to_string(), network);
            let prefix = net(network).prefix();
            let there = IpNet::new(ip(inside), prefix).unwrap();
            assert_eq!(net(network).network(), there.network(), "{network} {inside}");
            assert!(there.network().contains(ip(inside)));
            if let Some(other) = IpNet::new(ip(outside), prefix) {
                assert_ne!(net(network).network(), other.network(), "{network} {outside}");
            }
        }
        assert_eq!(net("10.0.0.7/30").network(), net("10.0.0.4/30"));
        assert_eq!(net("fd00::1:2:3/112").network(), net("fd00::1:2:0/112"));
    }

    #[test]
    fn masks_become_prefixes() {
        for (mask, network) in [
            ("255.255.255.0", "10.0.0.2/24"),
            ("255.255.255.255", "10.0.0.2/32"),
            ("0.0.0.0", "10.0.0.2/0"),
            ("255.0.255.0", "10.0.0.2/32"),
            ("ffff::", "10.0.0.2/32"),
        ] {
            assert_eq!(IpNet::with_mask(ip("10.0.0.2"), ip(mask)), net(network), "{mask}");
        }
        let mask = ip("ffff:ffff:ffff:ffff::");
        assert_eq!(IpNet::with_mask(ip("fd00::2"), mask), net("fd00::2/64"));
    }

    #[test]
    fn text_that_is_no_network_is_refused() {
        for text in ["", "10.0.0.2", "10.0.0.2/", "10.0.0.2/33", "10.0.0.2/+8", "10.0.0.2/08"] {
            assert_eq!(text.parse::<IpNet>(), Err(IpNetError), "{text}");
        }
        for text in ["fd00::/129", "10.0.0/8", "a/8", "10.0.0.2/8/8", "10.0.0.2/ 8"] {
            assert_eq!(text.parse::<IpNet>(), Err(IpNetError), "{text}");
        }
    }
}
