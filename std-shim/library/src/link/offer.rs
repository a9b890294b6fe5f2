//! The devices that the side that listens offers, so that the side that connects can choose among
//! its own before it makes an endpoint.

use super::error::HandshakeError;
use super::field::Place;
use crate::interfaces::IpNet;
use serde::{Serialize, Serializer};

/// Limit of the interfaces in an offer.
pub const MAX_OFFERED_INTERFACES: usize = 32;

/// Limit of the addresses of an interface in an offer.
pub const MAX_OFFERED_ADDRESSES: usize = 4;

/// The devices that a side offers to its peer.
///
/// ```
/// use polyrail::link::{Message, Offer};
///
/// let tcp = vec![vec!["10.0.0.2/24".parse()?, "fd00::2/64".parse()?], vec!["10.0.1.2/24".parse()?]];
/// let offer: Message = Message::Offer(Offer { verbs: false, tcp });
/// let json = br#"{"offer":{"verbs":false,"tcp":[["10.0.0.2/24","fd00::2/64"],["10.0.1.2/24"]]}}"#;
/// assert_eq!(Message::from_json(json)?, offer);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Offer {
    /// Whether there are RDMA devices with an active port.
    pub verbs: bool,
    /// Addresses of network interfaces for queue pairs over TCP: a list for each interface. At most
    /// [`MAX_OFFERED_INTERFACES`], each with 1 to [`MAX_OFFERED_ADDRESSES`].
    #[serde(serialize_with = "as_text")]
    pub tcp: Vec<Vec<IpNet>>,
}

impl Offer {
    pub(super) fn read(place: &Place<'_>) -> Result<Self, HandshakeError> {
        let fields = place.object(&["verbs", "tcp"])?;
        let interfaces = fields.field("tcp")?.list(0, MAX_OFFERED_INTERFACES)?;
        let addresses = |interface: &Place<'_>| {
            interface.list(1, MAX_OFFERED_ADDRESSES)?.iter().map(address).collect()
        };
        Ok(Self {
            verbs: fields.field("verbs")?.flag()?,
            tcp: interfaces.iter().map(addresses).collect::<Result<_, HandshakeError>>()?,
        })
    }
}

fn address(place: &Place<'_>) -> Result<IpNet, HandshakeError> {
    let address = place.text()?.parse();
    address.map_err(|_| place.wrong("an IP address with a prefix, such as 10.0.0.2/24"))
}

fn as_text<S: Serializer>(interfaces: &[Vec<IpNet>], serializer: S) -> Result<S::Ok, S::Error> {
    let text = |addresses: &Vec<IpNet>| addresses.iter().map(IpNet::to_string).collect::<Vec<_>>();
    serializer.collect_seq(interfaces.iter().map(text))
}
