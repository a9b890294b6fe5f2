//! The devices of a server.

use super::choice::DeviceChoice;
use super::error::DevicesError;
use super::interfaces::{self, route};
use super::opened::{OpenedDevices, open_verbs};
use super::pairing::{Unpaired, partners};
use crate::job::Hello;
use crate::serve::{Devices, Offers, ServeError, ServeOptions, Served, Visitor};
use crate::session::{Backend, SessionError};
use crate::transfer::CopyProgress;
#[cfg(any(feature = "verbs", test))]
use polyrail::backend::Domain;
use polyrail::chain::Chain;
use polyrail::endpoint::RailAddress;
use polyrail::interfaces::{InterfaceError, IpNet, LocalAddress};
#[cfg(any(feature = "verbs", test))]
use polyrail::link::Reach;
use polyrail::link::{MAX_OFFERED_ADDRESSES, MAX_OFFERED_INTERFACES, Offer};
#[cfg(any(feature = "verbs", test))]
use polyrail::pairing::{PairingError, positions_in_pairs_or_in_order};
use polyrail::tcp::{DeviceOptions, OpenDevicesError, ProtectionDomain, open_devices};
use std::error::Error;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

/// The devices that a server offers: RDMA devices, network interfaces, or both.
#[derive(Debug)]
pub struct Offered {
    verbs: Option<OpenedDevices>,
    tcp: Option<Interfaces>,
    why_no_verbs: Option<String>,
    #[cfg_attr(not(feature = "verbs"), expect(dead_code, reason = "reports RDMA devices alone"))]
    not_used: NoteNotUsed,
}

/// Network interfaces as devices.
#[derive(Debug)]
enum Interfaces {
    /// Those that were named.
    Named(Vec<Interface>),
    /// All of this host. When a peer comes, the devices of new addresses are opened, and those of
    /// addresses that are gone are closed.
    All { found: Mutex<Found>, options: DeviceOptions, not_used: NoteNotUsed },
}

/// Called with the name of a device that is not used, and the reason.
type NoteNotUsed = fn(&str, &dyn Error);

/// What is known of the network interfaces of this host.
#[derive(Debug, Default)]
struct Found {
    opened: Vec<Interface>,
    /// Addresses whose devices could not be opened, which was reported.
    refused: Vec<IpAddr>,
    /// Whether the interfaces could not be listed, which was reported.
    is_unlisted: bool,
}

/// An open network interface. Clones are its users.
#[derive(Clone, Debug)]
struct Interface {
    own: LocalAddress,
    domain: Arc<ProtectionDomain>,
}

impl Interface {
    fn new(own: LocalAddress, domain: ProtectionDomain) -> Self {
        Self { own, domain: Arc::new(domain) }
    }

    fn has_ip(&self, ip: IpAddr) -> bool {
        self.own.net.ip() == ip
    }
}

impl Offered {
    /// Opens the devices that were chosen. Without a choice, those of both backends; network
    /// interfaces alone if no RDMA device can be used. Calls `not_used` with the name of each
    /// device that was not named and cannot be used, and the reason; also later, when a peer comes
    /// and an interface with a new address cannot be opened, or RDMA devices cannot be used in
    /// pairs with the peer's.
    ///
    /// # Errors
    ///
    /// See [`DevicesError`].
    pub fn open(
        choice: &DeviceChoice,
        not_used: fn(&str, &dyn Error),
    ) -> Result<Self, DevicesError> {
        match choice.backend()? {
            Some(Backend::Verbs) => {
                let verbs = Some(open_verbs(choice, &mut { not_used })?);
                Ok(Self { verbs, tcp: None, why_no_verbs: None, not_used })
            }
            Some(Backend::Tcp) => {
                let tcp = Some(Interfaces::open(choice, not_used)?);
                Ok(Self { verbs: None, tcp, why_no_verbs: None, not_used })
            }
            None => {
                let verbs = open_verbs(choice, &mut { not_used });
                let tcp = Some(Interfaces::open(choice, not_used)?);
                let why_no_verbs = verbs.as_ref().err().map(|why| Chain(why).to_string());
                Ok(Self { verbs: verbs.ok(), tcp, why_no_verbs, not_used })
            }
        }
    }

    /// Returns why there are no RDMA devices, if the user did not choose that.
    pub fn why_no_verbs(&self) -> Option<&str> {
        self.why_no_verbs.as_deref()
    }

    /// Returns the names of the devices.
    pub fn names(&self) -> Vec<String> {
        let verbs = self.verbs.iter().flat_map(OpenedDevices::names).map(ToOwned::to_owned);
        verbs.chain(self.tcp.iter().flat_map(Interfaces::names)).collect()
    }

    /// Returns the interfaces to use with those of a peer.
    fn partners(&self, visitor: &Visitor) -> Result<Vec<Interface>, SessionError> {
        let tcp = self.tcp.as_ref().ok_or_else(|| self.not_offered(Backend::Tcp))?;
        let present = tcp.present();
        let own: Vec<_> = present.iter().map(|interface| interface.own.clone()).collect();
        let met = visitor.local_ip()?;
        let theirs = addresses(visitor.hello());
        let partners = partners(&own, &theirs, visitor.hello().reach.rails().len(), met, route);
        let partners = partners.map_err(|unpaired| match unpaired {
            Unpaired::Unreachable(address) => SessionError::NoPartner { address, own: tcp.names() },
            Unpaired::NotInTurn(places) => {
                let own = places.into_iter().map(|at| own[at].net.ip()).collect();
                SessionError::NotInTurn { theirs, own }
            }
        })?;
        Ok(partners.into_iter().map(|at| present[at].clone()).collect())
    }

    fn not_offered(&self, asked: Backend) -> SessionError {
        SessionError::NotOffered { asked, offered: self.names() }
    }
}

impl Devices for Offered {
    fn serve(
        &self,
        visitor: Visitor,
        options: &ServeOptions,
        progress: &CopyProgress,
        watch: impl FnMut(),
    ) -> Result<Served, ServeError> {
        match (backend(visitor.hello()), &self.verbs) {
            #[cfg(feature = "verbs")]
            (Backend::Verbs, Some(OpenedDevices::Verbs(domains))) => {
                let peer = (visitor.address, &visitor.hello().reach);
                let domains = paired(domains, peer, self.not_used);
                visitor.serve(&domains, options, progress, watch)
            }
            (Backend::Verbs, _) => Err(visitor.refuse(self.not_offered(Backend::Verbs))),
            (Backend::Tcp, _) => match self.partners(&visitor) {
                Ok(interfaces) => {
                    let domains =
                        interfaces.iter().map(|open| ProtectionDomain::clone(&open.domain));
                    visitor.serve(&domains.collect::<Vec<_>>(), options, progress, watch)
                }
                Err(error) => Err(visitor.refuse(error)),
            },
        }
    }
}

impl Offers for Offered {
    fn offer(&self, peer: SocketAddr) -> Offer {
        let mut tcp: Vec<(String, Vec<IpNet>)> = Vec::new();
        let offered = self.tcp.iter().flat_map(|tcp| tcp.offered_to(peer.ip()));
        for LocalAddress { interface, net, .. } in offered {
            match tcp.iter_mut().find(|(name, _)| *name == interface) {
                Some((_, nets)) => nets.push(net),
                None => tcp.push((interface, vec![net])),
            }
        }
        Offer { verbs: self.verbs.is_some(), tcp: tcp.into_iter().map(|(_, nets)| nets).collect() }
    }
}

impl Interfaces {
    fn open(choice: &DeviceChoice, not_used: NoteNotUsed) -> Result<Self, DevicesError> {
        let options = choice.tcp_options();
        let names = choice.tcp_names();
        if !names.is_empty() {
            let interface = |domain| -> Result<Interface, DevicesError> {
                let own = interfaces::local_address(&domain)?;
                Ok(Interface::new(own, domain))
            };
            let opened = open_devices(&names, &options)?;
            return Ok(Self::Named(opened.into_iter().map(interface).collect::<Result<_, _>>()?));
        }
        let mut found = Found::default();
        let mut refused = None;
        let usable = fitting(interfaces::usable()?);
        for own in &usable {
            match interfaces::open(own, &usable, &options) {
                Ok(domain) => found.opened.push(Interface::new(own.clone(), domain)),
                Err(error) => {
                    found.refuse(own, &error, not_used);
                    refused = Some(error);
                }
            }
        }
        match refused {
            Some(error) if found.opened.is_empty() => Err(error.into()),
            _ => Ok(Self::All { found: Mutex::new(found), options, not_used }),
        }
    }

    /// Returns the names of the devices; of several addresses of an interface, one name.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for Interface { own, domain } in self.present() {
            let name = match self {
                Self::Named(_) => domain.device().name().to_owned(),
                Self::All { .. } => format!("tcp:{}", own.interface),
            };
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// Returns the interfaces that have their addresses now; all that were opened if the system
    /// does not list addresses.
    fn present(&self) -> Vec<Interface> {
        match self {
            Self::Named(named) => named.clone(),
            Self::All { found, options, not_used } => {
                let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                found.present(interfaces::usable(), options, *not_used)
            }
        }
    }

    /// Returns the addresses to offer to a peer: loopback only if it is named, or if the peer is on
    /// this host.
    fn offered_to(&self, peer: IpAddr) -> Vec<LocalAddress> {
        let present = self.present();
        let is_here =
            peer.is_loopback() || present.iter().any(|Interface { own, .. }| own.net.ip() == peer);
        let with_loopback = is_here || matches!(self, Self::Named(_));
        let offered = present.into_iter().map(Interface::for_peers);
        offered.filter(|own| with_loopback || !own.net.ip().is_loopback()).collect()
    }
}

impl Interface {
    /// Returns the address at which peers reach it. If it is not its own, nothing is known of the
    /// network of that address.
    fn for_peers(self) -> LocalAddress {
        match self.domain.device().advertised().ip() {
            ip if ip == self.own.net.ip() => self.own,
            ip => LocalAddress { net: ip.into(), ..self.own },
        }
    }
}

impl Found {
    /// Reports that the device of an address cannot be opened, once.
    fn refuse(&mut self, own: &LocalAddress, error: &OpenDevicesError, not_used: NoteNotUsed) {
        let ip = own.net.ip();
        if !self.refused.contains(&ip) {
            self.refused.push(ip);
            not_used(&format!("tcp:{ip}"), error);
        }
    }

    /// Returns the interfaces of these addresses. Opens the devices of new addresses, and closes
    /// those of addresses that are not there if no peer uses them. A device that a peer uses has
    /// the port, so it stays for the time when its address is back.
    fn present(
        &mut self,
        usable: Result<Vec<LocalAddress>, InterfaceError>,
        options: &DeviceOptions,
        not_used: NoteNotUsed,
    ) -> Vec<Interface> {
        let usable = match usable {
            Ok(usable) => fitting(usable),
            Err(error) => {
                if !self.is_unlisted {
                    self.is_unlisted = true;
                    not_used("new network interfaces", &error);
                }
                return self.opened.clone();
            }
        };
        self.is_unlisted = false;
        self.refused.retain(|ip| usable.iter().any(|own| own.net.ip() == *ip));
        self.opened.retain(|open| {
            let is_present = usable.iter().any(|own| open.has_ip(own.net.ip()));
            is_present || Arc::strong_count(&open.domain) > 1
        });
        let mut present = Vec::new();
        for own in &usable {
            // The interface of an address may change, and its device follows it.
            if let Some(open) = self.opened.iter_mut().find(|open| open.has_ip(own.net.ip())) {
                open.own = own.clone();
                present.push(open.clone());
                continue;
            }
            match interfaces::open(own, &usable, options) {
                Ok(domain) => {
                    let open = Interface::new(own.clone(), domain);
                    self.refused.retain(|ip| *ip != own.net.ip());
                    self.opened.push(open.clone());
                    present.push(open);
                }
                Err(error) => self.refuse(own, &error, not_used),
            }
        }
        present
    }
}

/// Returns the devices in pairs with those of a peer. If rails cannot use them in pairs, returns
/// them in their order, because routers may connect them, and reports it.
#[cfg(any(feature = "verbs", test))]
fn paired<D: Domain>(
    domains: &[D],
    (address, reach): (SocketAddr, &Reach),
    not_used: NoteNotUsed,
) -> Vec<D> {
    let note = |why: &PairingError| {
        let pairs =
            format!("pairs with the devices of {address} (devices are used in their order)");
        not_used(&pairs, why);
    };
    let positions = positions_in_pairs_or_in_order(domains, reach, note);
    // If devices cannot reach each other, connecting names the rail.
    let positions = positions.unwrap_or_else(|_| (0..domains.len()).collect());
    positions.into_iter().map(|at| domains[at].clone()).collect()
}

/// Returns the addresses that fit into an offer, those that several interfaces have once. Loopback,
/// which is last, does.
fn fitting(usable: Vec<LocalAddress>) -> Vec<LocalAddress> {
    let mut fitting: Vec<LocalAddress> = Vec::new();
    let mut interfaces: Vec<String> = Vec::new();
    for own in usable {
        if fitting.iter().any(|other| other.net.ip() == own.net.ip()) {
            continue;
        }
        let is_known = interfaces.contains(&own.interface);
        let has_place = interfaces.len() + 1 < MAX_OFFERED_INTERFACES || own.net.ip().is_loopback();
        let others = fitting.iter().filter(|other| other.interface == own.interface);
        if (is_known || has_place) && others.count() < MAX_OFFERED_ADDRESSES {
            if !is_known {
                interfaces.push(own.interface.clone());
            }
            fitting.push(own);
        }
    }
    fitting
}

/// Returns the backend of a peer.
fn backend(hello: &Hello) -> Backend {
    // Connections over TCP have a port and a key, others have none.
    let is_tcp = hello.reach.queue_pairs().iter().any(|rail| rail.meeting.is_some());
    if is_tcp { Backend::Tcp } else { Backend::Verbs }
}

/// Returns the IP addresses of a peer's network interfaces, in the order of its devices.
fn addresses(hello: &Hello) -> Vec<IpAddr> {
    let rails = hello.reach.queue_pairs();
    let of = |device| rails.iter().find(|rail| usize::from(rail.device) == device);
    let address = |rail: &RailAddress| Ipv6Addr::from(rail.gid.0).to_canonical();
    (0..hello.buffer.rkeys.len()).filter_map(of).map(address).collect()
}

#[cfg(test)]
mod rt_tests;
