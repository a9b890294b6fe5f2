//! The state of the process: settings, devices, and all objects for which NCCL has handles.

use crate::abi::{CommConfig, Logger, TRAFFIC_CLASS_UNDEFINED};
use crate::comm::{CONNECTIONS, Connection, Role, caretaker};
use crate::devices::{Device, Devices};
use crate::guard::{Code, Refusal};
use crate::log;
use crate::meet::{Attempt, Handle, Listener, Met, Site};
use crate::random::random;
use crate::settings::Settings;
use crate::slots::{Kind, Missing, Slot, Slots, decode, encode};
use std::ffi::{c_int, c_void};
use std::sync::{Arc, MutexGuard, OnceLock, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

static PLUGIN: RwLock<Option<Plugin>> = RwLock::new(None);
static CONTEXTS: Slots<Context> = Slots::new();
static LISTENERS: Slots<Owned<Listener>> = Slots::new();
static ATTEMPTS: Slots<Owned<Attempt>> = Slots::new();

struct Plugin {
    settings: Arc<Settings>,
    devices: Devices,
}

/// A communicator of NCCL.
#[derive(Clone, Copy, Debug)]
struct Context {
    traffic_class: Option<u8>,
}

/// An object that belongs to a communicator, identified by its serial number; 0 in versions without
/// communicators.
struct Owned<T> {
    context: u64,
    device: Arc<Device>,
    always_flush: bool,
    connect_timeout: Duration,
    thing: T,
    /// A connection that was made, and has to be registered with the caretaker.
    unregistered: Option<Unregistered>,
}

/// A connection that is not registered with the caretaker yet. It is closed when this is dropped.
struct Unregistered {
    connection: (u64, u16),
    /// When its end began to connect.
    since: Instant,
}

impl Drop for Unregistered {
    fn drop(&mut self) {
        take(self.connection).into_iter().for_each(end);
    }
}

/// The owner of a call's objects: a communicator, in versions that have them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scope {
    Process,
    Context(*mut c_void),
}

/// Starts the plugin. Settings are read if nothing is open. If they are unchanged, merged devices
/// stay, because NCCL versions without communicators keep device numbers as long as the process
/// lives.
pub(crate) fn init(logger: Option<Logger>) -> Result<(), Refusal> {
    start(logger, |_| {})
}

/// Starts the plugin. Calls `again` if it has these devices already and nothing is open.
fn start(logger: Option<Logger>, again: impl FnOnce(&mut Devices)) -> Result<(), Refusal> {
    log::use_logger(logger);
    let mut plugin = PLUGIN.write().map_err(|_| panicked())?;
    let in_use = CONTEXTS.len() + LISTENERS.len() + ATTEMPTS.len() + CONNECTIONS.len() > 0;
    if in_use && plugin.is_some() {
        return Ok(());
    }
    let settings = Settings::from_env().map_err(|error| Refusal::new(Code::Usage, error))?;
    log::set_level(settings.log_level);
    match &mut *plugin {
        Some(plugin) if *plugin.settings == settings => again(&mut plugin.devices),
        plugin => {
            *plugin = None;
            if !settings.ignored.is_empty() {
                let names = settings.ignored.join(", ");
                log::warn(&format!("variables of a Kubernetes Service are ignored: {names}"));
            }
            let devices = Devices::open(&settings)?;
            let name = |device: &Arc<Device>| {
                format!("{}{}", device.name.to_string_lossy(), device.rail_ids)
            };
            let names: Vec<_> = devices.all().iter().map(name).collect();
            let backend = settings.backend;
            log::info(&format!("{backend:?} devices: {}", names.join(", ")));
            *plugin = Some(Plugin { settings: Arc::new(settings), devices });
        }
    }
    Ok(())
}

/// Starts the plugin for a communicator, and returns its handle. The first communicator removes
/// earlier merged devices.
pub(crate) fn init_context(
    logger: Option<Logger>,
    config: Option<CommConfig>,
) -> Result<*mut c_void, Refusal> {
    start(logger, Devices::forget_merged)?;
    let traffic_class = config.map_or(Ok(None), traffic_class)?;
    let context = CONTEXTS.insert(|_| Context { traffic_class });
    let (serial, place) = context.ok_or_else(|| full("communicators"))?;
    Ok(encode(Kind::Context, serial, place))
}

/// Ends a communicator, and closes its remaining objects.
pub(crate) fn finalize(context: *mut c_void) -> Result<(), Refusal> {
    let handle = decode(Kind::Context, context).ok_or_else(|| no(Kind::Context))?;
    CONTEXTS.remove(handle).ok_or_else(|| no(Kind::Context))?;
    let owner = owner_of(handle);
    remove_of(&ATTEMPTS, owner);
    remove_of(&LISTENERS, owner);
    for handle in CONNECTIONS.find_all(|connection| connection.context == owner) {
        take(handle).into_iter().for_each(end);
    }
    Ok(())
}

pub(crate) fn traffic_class(config: CommConfig) -> Result<Option<u8>, Refusal> {
    match config.traffic_class {
        TRAFFIC_CLASS_UNDEFINED => Ok(None),
        class => u8::try_from(class).map(Some).map_err(|_| {
            Refusal::argument(format!("traffic class {class}: 0 to 255 are possible"))
        }),
    }
}

/// Returns the number of a context, from 1. No two contexts share a number.
fn owner_of((serial, place): (u64, u16)) -> u64 {
    serial << u16::BITS | u64::from(place)
}

/// Runs a closure with the devices.
pub(crate) fn with_devices<T>(
    call: impl FnOnce(&Devices) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    call(&plugin()?.as_ref().ok_or_else(not_started)?.devices)
}

/// Merges NICs.
pub(crate) fn merge(parts: &[c_int]) -> Result<c_int, Refusal> {
    let mut plugin = PLUGIN.write().map_err(|_| panicked())?;
    plugin.as_mut().ok_or_else(not_started)?.devices.merge(parts)
}

/// Returns whether receives in host memory are flushed, too.
pub(crate) fn always_flushes() -> Result<bool, Refusal> {
    Ok(plugin()?.as_ref().ok_or_else(not_started)?.settings.always_flush)
}

fn plugin() -> Result<RwLockReadGuard<'static, Option<Plugin>>, Refusal> {
    PLUGIN.read().map_err(|_| panicked())
}

/// Returns the site of a connection of this device, and its owner.
fn site(scope: Scope, place: c_int, class: Option<u8>) -> Result<(Site, u64), Refusal> {
    let (owner, chosen) = match scope {
        Scope::Process => (0, class),
        Scope::Context(context) => {
            let handle = decode(Kind::Context, context).ok_or_else(|| no(Kind::Context))?;
            let slot = CONTEXTS.get(handle).map_err(|missing| why(missing, Kind::Context))?;
            (owner_of(handle), slot.value.and_then(|context| context.traffic_class))
        }
    };
    let plugin = plugin()?;
    let Plugin { settings, devices } = plugin.as_ref().ok_or_else(not_started)?;
    let site = Site {
        settings: Arc::clone(settings),
        device: Arc::clone(devices.get(place)?),
        traffic_class: chosen.unwrap_or(settings.traffic_class),
        process: process()?,
    };
    Ok((site, owner))
}

/// Returns a random number that identifies this process.
fn process() -> Result<u64, Refusal> {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    if let Some(process) = PROCESS.get() {
        return Ok(*process);
    }
    let chosen = u64::from_le_bytes(random()?);
    Ok(*PROCESS.get_or_init(|| chosen))
}

fn owned<T>(site: &Site, context: u64, thing: T) -> Owned<T> {
    let Settings { always_flush, connect_timeout, .. } = *site.settings;
    let device = Arc::clone(&site.device);
    Owned { context, device, always_flush, connect_timeout, thing, unregistered: None }
}

/// Listens on a device.
///
/// # Safety
///
/// `handle` has room for 128 bytes.
pub(crate) unsafe fn listen(
    scope: Scope,
    device: c_int,
    handle: *mut c_void,
) -> Result<*mut c_void, Refusal> {
    let (site, context) = site(scope, device, None)?;
    let (listener, told) = Listener::new(site.clone())?;
    let listener = LISTENERS.insert(|_| owned(&site, context, listener));
    let (serial, place) = listener.ok_or_else(|| full("listening ends"))?;
    // SAFETY: guaranteed by the caller.
    unsafe { told.write(handle) };
    Ok(encode(Kind::Listener, serial, place))
}

/// Connects, or continues the attempt that is noted in the handle. Null: call again.
///
/// # Safety
///
/// `handle` is valid for 128 bytes, which contain a listening end's handle, and only this call uses
/// them.
pub(crate) unsafe fn connect(
    scope: Scope,
    device: c_int,
    class: Option<u8>,
    handle: *mut c_void,
) -> Result<*mut c_void, Refusal> {
    // SAFETY: guaranteed by the caller.
    let (told, noted) = unsafe { Handle::read(handle) }?;
    let (site, context) = site(scope, device, class)?;
    let noted = decode(Kind::Attempt, std::ptr::without_provenance_mut(noted as usize));
    let under_way = match noted {
        Some(attempt) => attempt,
        None => {
            remove_late();
            let attempt = Attempt::new(site.clone(), told)?;
            let attempt = ATTEMPTS.insert(|_| owned(&site, context, attempt));
            attempt.ok_or_else(|| full("attempts to connect"))?
        }
    };
    let made = {
        let mut slot = ATTEMPTS.get(under_way).map_err(|missing| why(missing, Kind::Attempt))?;
        let attempt = slot.value.as_mut().ok_or_else(|| no(Kind::Attempt))?;
        open_next(Role::Sender, attempt, Attempt::step)
    };
    let noted = match made {
        Ok(connection) if connection.is_null() => {
            encode(Kind::Attempt, under_way.0, under_way.1).addr() as u64
        }
        _ => {
            ATTEMPTS.remove(under_way);
            0
        }
    };
    // SAFETY: guaranteed by the caller.
    unsafe { Handle::note_attempt(handle, noted) };
    made
}

/// Returns the next connection of a listening end. Null: call again.
pub(crate) fn accept(listener: *mut c_void) -> Result<*mut c_void, Refusal> {
    let handle = decode(Kind::Listener, listener).ok_or_else(|| no(Kind::Listener))?;
    let mut slot = LISTENERS.get(handle).map_err(|missing| why(missing, Kind::Listener))?;
    let listener = slot.value.as_mut().ok_or_else(|| no(Kind::Listener))?;
    open_next(Role::Receiver, listener, Listener::accept)
}

/// Opens the next connection of two ends that have connected. Null: call again. An end that has
/// connected is kept while this host lacks something for the caretaker, such as a file descriptor
/// or a thread, for as long as connecting may take.
fn open_next<T>(
    role: Role,
    by: &mut Owned<T>,
    meet: impl FnOnce(&mut T) -> Result<Option<Met>, Refusal>,
) -> Result<*mut c_void, Refusal> {
    let unregistered = match by.unregistered.take() {
        Some(unregistered) => unregistered,
        None => match meet(&mut by.thing)? {
            Some(met) => open(role, met, by)?,
            None => return Ok(std::ptr::null_mut()),
        },
    };
    let (serial, place) = unregistered.connection;
    match caretaker::register(place) {
        Ok(()) => {
            std::mem::forget(unregistered);
            Ok(encode(kind_of(role), serial, place))
        }
        Err(_) if unregistered.since.elapsed() < by.connect_timeout => {
            by.unregistered = Some(unregistered);
            Ok(std::ptr::null_mut())
        }
        Err(refusal) => Err(refusal),
    }
}

/// Opens a connection of two ends that have connected.
fn open<T>(role: Role, met: Met, by: &Owned<T>) -> Result<Unregistered, Refusal> {
    let &Owned { context, ref device, always_flush, .. } = by;
    let since = met.since;
    let connection = CONNECTIONS
        .insert(|spent| Connection::new(role, met, (context, device), always_flush, spent));
    let connection = connection.ok_or_else(|| full("connections"))?;
    Ok(Unregistered { connection, since })
}

const fn kind_of(role: Role) -> Kind {
    match role {
        Role::Sender => Kind::Sender,
        Role::Receiver => Kind::Receiver,
    }
}

/// Stops listening.
pub(crate) fn close_listen(listener: *mut c_void) -> Result<(), Refusal> {
    let handle = decode(Kind::Listener, listener).ok_or_else(|| no(Kind::Listener))?;
    LISTENERS.remove(handle).map(drop).ok_or_else(|| no(Kind::Listener))
}

/// Ends a connection in any state.
pub(crate) fn close(role: Role, connection: *mut c_void) -> Result<(), Refusal> {
    let handle = decode(kind_of(role), connection).ok_or_else(|| no(kind_of(role)))?;
    take(handle).map(end).ok_or_else(|| no(kind_of(role)))
}

/// Removes a connection. Requests of the next connection in its place have other numbers.
fn take(handle: (u64, u16)) -> Option<Connection> {
    if let Ok(mut slot) = CONNECTIONS.get(handle)
        && let Some(connection) = &slot.value
    {
        slot.spent = connection.spent();
    }
    CONNECTIONS.remove(handle)
}

fn end(connection: Connection) {
    caretaker::unregister(&connection);
    connection.close();
}

/// Returns a connection of either kind, and its place.
fn find(connection: *mut c_void) -> Result<(MutexGuard<'static, Slot<Connection>>, u16), Refusal> {
    let sender = decode(Kind::Sender, connection);
    let kind = if sender.is_some() { Kind::Sender } else { Kind::Receiver };
    let handle = sender.or_else(|| decode(Kind::Receiver, connection)).ok_or_else(|| no(kind))?;
    let slot = CONNECTIONS.get(handle).map_err(|missing| why(missing, kind))?;
    Ok((slot, handle.1))
}

/// Runs a closure with a connection.
#[inline]
pub(crate) fn with_connection<T>(
    connection: *mut c_void,
    call: impl FnOnce(&mut Connection) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let (mut slot, _) = find(connection)?;
    call(slot.value.as_mut().ok_or_else(|| no(Kind::Sender))?)
}

/// Runs a closure that makes a request, and returns the request's handle, or null.
#[inline]
pub(crate) fn request(
    connection: *mut c_void,
    call: impl FnOnce(&mut Connection) -> Result<Option<u64>, Refusal>,
) -> Result<*mut c_void, Refusal> {
    let (mut slot, place) = find(connection)?;
    let made = call(slot.value.as_mut().ok_or_else(|| no(Kind::Sender))?)?;
    Ok(made.map_or(std::ptr::null_mut(), |serial| encode(Kind::Request, serial, place)))
}

/// Runs a closure with a request.
#[inline]
pub(crate) fn with_request<T>(
    request: *mut c_void,
    call: impl FnOnce(&mut Connection, u64) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let (serial, place) = decode(Kind::Request, request).ok_or_else(|| no(Kind::Request))?;
    let mut slot = CONNECTIONS.at(place).map_err(|missing| why(missing, Kind::Request))?;
    call(slot.value.as_mut().ok_or_else(|| no(Kind::Request))?, serial)
}

/// Removes the objects of a communicator.
fn remove_of<T>(slots: &Slots<Owned<T>>, owner: u64) {
    for handle in slots.find_all(|owned| owned.context == owner) {
        slots.remove(handle);
    }
}

/// Removes connection attempts that took too long and that no call is continuing.
fn remove_late() {
    for place in (0..ATTEMPTS.bound()).map(|place| place as u16) {
        let serial = ATTEMPTS.try_at(place).and_then(|slot| {
            let is_late = slot.value.as_ref().is_some_and(|attempt| attempt.thing.is_late());
            is_late.then_some(slot.serial)
        });
        serial.and_then(|serial| ATTEMPTS.remove((serial, place)));
    }
}

fn no(kind: Kind) -> Refusal {
    Refusal::argument(format!("not a handle of a {kind:?}, or already closed"))
}

fn why(missing: Missing, kind: Kind) -> Refusal {
    match missing {
        Missing::NoSuch => no(kind),
        Missing::Poisoned => panicked(),
    }
}

fn panicked() -> Refusal {
    Refusal::new(
        Code::Internal,
        "the plugin panicked in an earlier call with this object, which can no longer be used",
    )
}

fn not_started() -> Refusal {
    Refusal::new(Code::Internal, "init was not called, or failed")
}

fn full(what: &str) -> Refusal {
    Refusal::new(Code::System, format!("65536 {what} are open already"))
}
