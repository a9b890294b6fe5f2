//! Devices of one backend, opened together.

use crate::arguments::{Answer, give_list, out, text};
use crate::call::call;
use crate::code::Code;
use crate::devices::{self, info_of_software};
use crate::error::{Failure, Refusal, refuse};
use crate::sized::read;
use crate::table::{self, Kind, Object, WORDS};
use crate::types::{
    Backend, DeviceInfo, Domain, DomainOptions, POLYRAIL_DOMAIN_GID_INDEX, POLYRAIL_MAX_DEVICES,
};
#[cfg(any(feature = "tcp", feature = "verbs"))]
use polyrail::chain::Chain;
use polyrail::nic::{DeviceConfig, Fabric, ProtectionDomain};
use polyrail::place::{Near, NearError};
#[cfg(any(feature = "tcp", feature = "verbs", test))]
use polyrail::printable;
#[cfg(feature = "verbs")]
use polyrail::rdma::VerbsDomain;
#[cfg(feature = "tcp")]
use polyrail::tcp;
use polyrail_process::PerProcess;
use std::ffi::c_char;
#[cfg(any(feature = "tcp", feature = "verbs", test))]
use std::fmt::Display;
use std::num::NonZeroU64;
use std::sync::Arc;

/// The devices of a domain. Cloning is cheap.
#[derive(Clone)]
pub(crate) enum Devices {
    /// Software NICs.
    Software(Arc<Vec<ProtectionDomain>>),
    /// Real NICs.
    #[cfg(feature = "verbs")]
    Verbs(Arc<Vec<VerbsDomain>>),
    /// Network interfaces.
    #[cfg(feature = "tcp")]
    Tcp(Arc<Vec<tcp::ProtectionDomain>>),
}

/// The value of a domain.
pub(crate) struct Opened {
    devices: Devices,
    /// One line for each device and port that was not named and is not used.
    not_used: String,
}

impl Object for Domain {
    const KIND: Kind = Kind::Domain;
    const NAME: &str = "polyrail_domain";
    type Value = Opened;
}

/// The fabric of all software devices in this process. It is global because peers outlive their
/// domain, and reach peers of other domains. A fork of the process has its own.
static FABRIC: PerProcess<Fabric> = PerProcess::new();

/// Returns the devices of a domain.
pub(crate) fn devices(domain: *mut Domain) -> Result<Devices, Refusal> {
    alone(|| table::exclusive(domain).map(|opened| opened.devices.clone()))
}

/// Repeats a call that is refused because another thread uses the domain. That takes nanoseconds,
/// because the other thread only clones a handle.
fn alone<T>(mut what: impl FnMut() -> Result<T, Refusal>) -> Result<T, Refusal> {
    loop {
        match what() {
            Err(Refusal::Failure(Failure { code: Code::Busy, .. })) => std::thread::yield_now(),
            done => return done,
        }
    }
}

/// Returns the backend with this number.
pub(crate) fn backend(number: u32) -> Result<Backend, Refusal> {
    const VERBS: u32 = Backend::Verbs as u32;
    const SOFTWARE: u32 = Backend::Software as u32;
    const TCP: u32 = Backend::Tcp as u32;
    match number {
        0 | VERBS => Ok(Backend::Verbs),
        SOFTWARE => Ok(Backend::Software),
        TCP => Ok(Backend::Tcp),
        _ => refuse(Code::Argument, format_args!("unknown backend {number}")),
    }
}

/// The checked options of a domain.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    names: Vec<&'a str>,
    gid_index: Option<u8>,
    bytes_per_second: Option<NonZeroU64>,
    tcp_port: u16,
    /// `None` is the default of RDMA devices.
    near: Option<Near>,
}

fn plan<'a>(
    options: &DomainOptions,
    names: Option<&'a str>,
    near: Option<&str>,
) -> Result<Plan<'a>, Refusal> {
    let unknown = options.flags & !POLYRAIL_DOMAIN_GID_INDEX;
    if unknown != 0 {
        return refuse(Code::Argument, format_args!("unknown flags {unknown:#x} of a domain"));
    }
    let gid_index = match (options.flags, options.gid_index) {
        (0, 0) => None,
        (0, index) => {
            let words = format!("gid_index is {index} without POLYRAIL_DOMAIN_GID_INDEX");
            return refuse(Code::Argument, words);
        }
        (_, index) => match u8::try_from(index) {
            Ok(index) => Some(index),
            Err(_) => return refuse(Code::Argument, format_args!("gid_index is {index}")),
        },
    };
    let names: Vec<&str> = match names {
        None | Some("") => Vec::new(),
        Some(names) => names.split(',').map(str::trim).collect(),
    };
    if names.len() > POLYRAIL_MAX_DEVICES {
        let words = format!("{} devices, but the limit is {POLYRAIL_MAX_DEVICES}", names.len());
        return refuse(Code::TooMany, words);
    }
    let bytes_per_second = NonZeroU64::new(options.software_bytes_per_second);
    let Ok(tcp_port) = u16::try_from(options.tcp_port) else {
        let words = format!("tcp_port is {}, but the limit is {}", options.tcp_port, u16::MAX);
        return refuse(Code::Argument, words);
    };
    let near = match near {
        None | Some("") => None,
        Some(near) => Some(near.parse().map_err(|error: NearError| {
            Failure::new(Code::Argument, format_args!("near: {error}"))
        })?),
    };
    if near.is_some_and(|near| near != Near::Nothing) && !names.is_empty() {
        return refuse(Code::Argument, "near is set, but devices are named: leave one of them out");
    }
    if options.reserved != 0 {
        let words = format!("the reserved field of a domain's options is {}", options.reserved);
        return refuse(Code::Argument, words);
    }
    Ok(Plan { names, gid_index, bytes_per_second, tcp_port, near })
}

impl Plan<'_> {
    /// Refuses options of the software NIC.
    #[cfg(any(feature = "tcp", feature = "verbs"))]
    fn check_not_of_software(&self) -> Result<(), Refusal> {
        match self.bytes_per_second {
            None => Ok(()),
            Some(_) => {
                refuse(Code::Unsupported, "software_bytes_per_second is for the software NIC only")
            }
        }
    }

    /// Refuses options of RDMA devices; `what` are other devices.
    fn check_not_of_verbs(&self, what: &str) -> Result<(), Refusal> {
        if self.gid_index.is_some() {
            return refuse(Code::Unsupported, format_args!("{what} has no table of addresses"));
        }
        match self.near {
            None | Some(Near::Nothing) => Ok(()),
            Some(_) => refuse(Code::Unsupported, "near is for RDMA devices only"),
        }
    }

    /// Refuses options of devices over TCP.
    fn check_not_of_tcp(&self) -> Result<(), Refusal> {
        match self.tcp_port {
            0 => Ok(()),
            _ => refuse(Code::Unsupported, "tcp_port is for devices over TCP only"),
        }
    }
}

fn open_software(plan: &Plan<'_>) -> Result<Opened, Refusal> {
    plan.check_not_of_tcp()?;
    plan.check_not_of_verbs("the software NIC")?;
    let names = if plan.names.is_empty() { &["soft0"] } else { &plan.names[..] };
    let fabric = FABRIC.get_or_make(Fabric::threaded);
    let mut domains = Vec::with_capacity(names.len());
    for (at, name) in names.iter().enumerate() {
        if name.is_empty() || name.len() >= crate::types::POLYRAIL_NAME_BYTES {
            return refuse(Code::NoDevice, format_args!("{name:?} is not a device's name"));
        }
        if names[..at].contains(name) {
            return refuse(Code::NoDevice, format_args!("device {name} is named twice"));
        }
        let config =
            DeviceConfig { bytes_per_second: plan.bytes_per_second, ..DeviceConfig::named(*name) };
        let opened = fabric.create_device(config).alloc_pd();
        domains.push(opened.map_err(|error| Failure::of(Code::Device, &error))?);
    }
    Ok(Opened { devices: Devices::Software(Arc::new(domains)), not_used: String::new() })
}

#[cfg(feature = "verbs")]
fn open_verbs(plan: &Plan<'_>) -> Result<Opened, Refusal> {
    use polyrail::backend::DeviceName;
    use polyrail::rdma::{OpenOptions, open_devices_with};
    plan.check_not_of_software()?;
    plan.check_not_of_tcp()?;
    let failed = |error: &(dyn std::error::Error + 'static)| Failure::of(Code::NoDevice, error);
    let names = plan.names.iter().map(|name| name.parse::<DeviceName>());
    let names: Vec<_> = names.collect::<Result<_, _>>().map_err(|error| failed(&error))?;
    let options = OpenOptions { gid_index: plan.gid_index, near: plan.near.unwrap_or_default() };
    let mut not_used = String::new();
    let opened = open_devices_with(&names, &options, |device, reason| {
        add_line(&mut not_used, device, &Chain(reason));
    });
    let devices = Devices::Verbs(Arc::new(opened.map_err(|error| failed(&error))?));
    Ok(Opened { devices, not_used })
}

#[cfg(feature = "tcp")]
fn open_tcp(plan: &Plan<'_>) -> Result<Opened, Refusal> {
    use tcp::{DeviceOptions, OpenDevicesError, OpenError, open_devices, open_usable_devices};
    plan.check_not_of_verbs("a device over TCP")?;
    plan.check_not_of_software()?;
    let options = DeviceOptions { port: plan.tcp_port, ..DeviceOptions::default() };
    let mut not_used = String::new();
    let opened = match plan.names.is_empty() {
        true => open_usable_devices(&options, |device, reason| {
            add_line(&mut not_used, device, &Chain(reason));
        }),
        false => open_devices(&plan.names, &options),
    };
    let domains = opened.map_err(|error| {
        let code = match &error {
            OpenDevicesError::TooMany { .. } => Code::TooMany,
            OpenDevicesError::Open {
                source: OpenError::List(_) | OpenError::Thread(_) | OpenError::Random(_),
                ..
            } => Code::System,
            OpenDevicesError::Domain { .. } => Code::Device,
            OpenDevicesError::Advertised { .. }
            | OpenDevicesError::Open { source: OpenError::Advertised { .. }, .. } => Code::Argument,
            _ => Code::NoDevice,
        };
        Failure::of(code, &error)
    })?;
    Ok(Opened { devices: Devices::Tcp(Arc::new(domains)), not_used })
}

#[cfg(not(feature = "tcp"))]
fn open_tcp(_: &Plan<'_>) -> Result<Opened, Refusal> {
    devices::without_tcp()
}

/// Adds the line of a device that is not used. Names and reasons come from drivers; a line must
/// stay one.
#[cfg(any(feature = "tcp", feature = "verbs", test))]
fn add_line(not_used: &mut String, device: &str, reason: &dyn Display) {
    if !not_used.is_empty() {
        not_used.push('\n');
    }
    *not_used += &printable::escaped(&format!("{device}: {reason}"));
}

#[cfg(not(feature = "verbs"))]
fn open_verbs(_: &Plan<'_>) -> Result<Opened, Refusal> {
    devices::without_verbs()
}

/// Returns the devices of this machine for a polyrail_backend, without those that cannot be opened.
/// Stores up to `capacity` of them, and their total number in `count`. POLYRAIL_CODE_UNSUPPORTED:
/// this library was built without real NICs, or without TCP.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_devices(
    backend: u32,
    devices: *mut DeviceInfo,
    capacity: usize,
    count: *mut usize,
) -> Code {
    call(|| {
        let all = match self::backend(backend)? {
            Backend::Software => vec![devices::software()],
            Backend::Tcp => devices::tcp()?,
            Backend::Default | Backend::Verbs => devices::verbs()?,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { give_list((devices, capacity), count, &all) }
    })
}

/// Opens devices. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_domain_open(
    options: *const DomainOptions,
    domain: *mut *mut Domain,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let place = unsafe { out(domain, "domain") }?;
        // SAFETY: guaranteed by the caller.
        let options = unsafe { read(options) }?;
        // SAFETY: guaranteed by the caller.
        let names = unsafe { text(options.devices, "devices") }?;
        // SAFETY: guaranteed by the caller.
        let near = unsafe { text(options.near, "near") }?;
        let plan = plan(&options, names, near)?;
        let opened = match backend(options.backend)? {
            Backend::Software => open_software(&plan),
            Backend::Tcp => open_tcp(&plan),
            Backend::Default | Backend::Verbs => open_verbs(&plan),
        }?;
        place.write(table::insert(opened, &[0; WORDS])?);
        Ok(())
    })
}

/// Returns the devices of a domain, in their order. Stores up to `capacity` of them, and their
/// total number in `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_domain_devices(
    domain: *mut Domain,
    devices: *mut DeviceInfo,
    capacity: usize,
    count: *mut usize,
) -> Code {
    call(|| {
        let all: Vec<DeviceInfo> = match self::devices(domain)? {
            Devices::Software(domains) => {
                domains.iter().map(|domain| info_of_software(domain.device())).collect()
            }
            #[cfg(feature = "verbs")]
            Devices::Verbs(domains) => devices::infos_of_verbs(&domains)?,
            #[cfg(feature = "tcp")]
            Devices::Tcp(domains) => devices::infos_of_tcp(&domains)?,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { give_list((devices, capacity), count, &all) }
    })
}

/// Stores one line for each device and active port of this machine that was not named, and that the
/// domain leaves out because it cannot be used, or because there are more than
/// POLYRAIL_MAX_DEVICES: `mlx5_1: ` and the reason. Empty if there is none. Devices without an
/// active port, and interfaces without carrier, are not among them. The stored text ends with a 0
/// byte, which `length` does not count. POLYRAIL_CODE_TOO_SHORT: `length` is the capacity that is
/// needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_domain_not_used(
    domain: *mut Domain,
    lines: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let answer = unsafe { Answer::new(lines.cast(), capacity, length) }?;
        let not_used = alone(|| table::exclusive(domain).map(|opened| opened.not_used.clone()))?;
        answer.give_with(not_used.as_bytes(), &[0])
    })
}

/// Closes a domain. Objects made from it stay valid, and keep the devices open.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_domain_close(domain: *mut Domain) -> Code {
    call(|| alone(|| table::remove(domain)).map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn not_used(domain: *mut Domain, room: &mut [u8]) -> (Code, usize) {
        let mut length = 0;
        // SAFETY: the pointers are valid for the lengths beside them.
        let code = unsafe {
            polyrail_domain_not_used(domain, room.as_mut_ptr().cast(), room.len(), &raw mut length)
        };
        (code, length)
    }

    #[test]
    fn a_domain_names_what_it_leaves_out() {
        let plan = Plan {
            names: vec![],
            gid_index: None,
            bytes_per_second: None,
            tcp_port: 0,
            near: None,
        };
        let mut opened = open_software(&plan).unwrap_or_else(|_| panic!("the software NIC"));
        add_line(&mut opened.not_used, "mlx5_1", &"port 1 has no address");
        add_line(&mut opened.not_used, "bad\n", &"refused");
        let text = "mlx5_1: port 1 has no address\nbad\\n: refused";
        let domain = table::insert(opened, &[0; WORDS]).unwrap_or_else(|_| panic!("a handle"));
        let mut room = [0x55; 64];
        assert_eq!(not_used(domain, &mut room), (Code::Ok, text.len()));
        assert_eq!(room[..=text.len()], *[text.as_bytes(), &[0]].concat());
        assert_eq!(not_used(domain, &mut room[..text.len()]), (Code::TooShort, text.len() + 1));
        assert_eq!(polyrail_domain_close(domain), Code::Ok);
        assert_eq!(not_used(domain, &mut room).0, Code::Handle);
    }
}
