//! `polyrail serve`.

use super::args::ServeArguments;
use super::exit::Failure;
use super::metrics::Export;
use super::output;
use super::print;
use super::progress::Bars;
use super::report::{TreeJson, plural};
use super::signals::interrupts;
use super::{hosts, rails, report};
use polyrail::printable;
use polyrail::virtual_qp::RailFailure;
use polyrail_program::devices::Offered;
use polyrail_program::job::Shape;
use polyrail_program::perf::Measured;
use polyrail_program::serve::{Devices, ServeError, ServeOptions, Served, Server, Visitor};
use polyrail_program::size::human_size;
use polyrail_program::transfer::{
    CopyProgress, GivenTree, Received, ReceivedTree, provide_destination,
};
use serde::Serialize;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub(super) fn run(arguments: &ServeArguments) -> Result<(), Failure> {
    let result = serve(arguments);
    if arguments.json
        && let Err(failure) = &result
    {
        failure.print_json();
    }
    result
}

fn serve(arguments: &ServeArguments) -> Result<(), Failure> {
    let token = arguments.token.read()?;
    let offered = Arc::new(Offered::open(&arguments.devices.choice(), hosts::note_not_used)?);
    let server = Server::bind(&hosts::with_port(&arguments.listen))?;
    let server = server.with_offers(Arc::<Offered>::clone(&offered));
    let server = match token {
        Some(token) => server.with_token(token),
        None => server,
    };
    let interrupted = interrupts();
    let what = served(arguments)?;
    if !arguments.quiet {
        if let Some(why) = offered.why_no_verbs() {
            let why = printable::escaped(why);
            output::tell(&format!("polyrail: no RDMA devices: {why}; only TCP is offered\n"));
        }
        output::tell(&what);
        let address = server.local_addr()?;
        let names = offered.names().join(", ");
        output::tell(&format!("polyrail: listening at {address}, on {names}\n"));
    }
    Serving::new(arguments, &interrupted).run(&server, &*offered)
}

/// Makes the directory to serve if it is missing and its name ends with `/`, and returns what is
/// served as a line.
fn served(arguments: &ServeArguments) -> Result<String, Failure> {
    let ServeArguments { destination, readable, sync, .. } = arguments;
    let yes = |yes| if yes { "yes" } else { "no" };
    let token = yes(arguments.token.is_given());
    let Some(path) = destination else {
        return Ok(format!("polyrail: serves measurements only; token: {token}\n"));
    };
    let is_directory = provide_destination(path, *sync)?;
    let verb = if is_directory { "serves directory" } else { "replaces file" };
    let path = printable::escaped(&path.to_string_lossy());
    // A file cannot be read by peers, whatever was chosen.
    let readable = yes(*readable && is_directory);
    Ok(format!("polyrail: {verb} {path}; readable: {readable}; token: {token}\n"))
}

/// State that the threads that serve peers share.
struct Serving<'a> {
    arguments: &'a ServeArguments,
    options: ServeOptions,
    interrupted: &'a Arc<AtomicBool>,
    bars: Bars,
    export: Export,
    /// The result of the command, set by the first peer that ends it.
    end: Mutex<Option<Result<(), Failure>>>,
}

impl<'a> Serving<'a> {
    fn new(arguments: &'a ServeArguments, interrupted: &'a Arc<AtomicBool>) -> Self {
        let options = ServeOptions {
            destination: arguments.destination.clone(),
            readable: arguments.readable,
            overwrite: !arguments.no_overwrite,
            max_file_size: arguments.max_file_size,
            max_memory: arguments.max_memory,
            qp_timeout: arguments.connection.qp_timeout(true),
            quality: arguments.devices.quality(),
            rail_weights: arguments.connection.rail_weights(),
            rail_repair: arguments.connection.rail_repair(RailFailure::Reroute),
            peers: if arguments.once { 1 } else { arguments.peers.into() },
            timeouts: arguments.timeouts.timeouts(),
            sync: arguments.sync,
        };
        let bars = Bars::new(arguments.quiet || arguments.json);
        let export = Export::start(arguments.metrics.as_ref(), arguments.quiet);
        Self { arguments, options, interrupted, bars, export, end: Mutex::new(None) }
    }

    fn run<D: Devices + ?Sized>(self, server: &Server, devices: &D) -> Result<(), Failure> {
        let stray = |address, error| {
            self.note(address, Failure::from(ServeError::Session(error)));
        };
        let attend = |visitor| self.attend(visitor, devices);
        server.run(&self.options, self.interrupted, attend, stray)?;
        let end = self.end.into_inner().unwrap_or_else(PoisonError::into_inner);
        // An interrupt ends a server without an error, unless --once has not served its peer.
        let unserved = if self.arguments.once { Err(Failure::interrupted()) } else { Ok(()) };
        end.unwrap_or(unserved)
    }

    /// Serves a peer. Breaks if it is the last one.
    fn attend<D: Devices + ?Sized>(&self, visitor: Visitor, devices: &D) -> ControlFlow<()> {
        let address = visitor.address;
        let (interrupted, rails) = (Arc::clone(self.interrupted), self.export.news("serve"));
        let progress = CopyProgress { interrupted, rails, ..CopyProgress::default() };
        let bar = self.bars.add();
        let tell_news = || {
            let about = format!("from {address}: ");
            let news = rails::news(&progress.rails, &about).filter(|_| !self.arguments.quiet);
            if let Some(news) = news {
                self.bars.beside(|| output::tell(&news));
            }
        };
        let watch = || {
            bar.show(&progress);
            tell_news();
        };
        let served = devices.serve(visitor, &self.options, &progress, watch);
        drop(bar);
        tell_news();
        let shown = match served {
            Ok(Served::Copy(received)) => {
                self.bars.beside(|| show_copy(self.arguments, address, &received))
            }
            Ok(Served::Tree(ReceivedTree { directory, shape, report })) => {
                let tree = TreeJson::new(&[], Some(&directory), shape, &report);
                self.bars
                    .beside(|| show_tree(self.arguments, address, "copied into", &directory, &tree))
            }
            Ok(Served::Pull(GivenTree { path, shape, report })) => {
                let tree = TreeJson::new(std::slice::from_ref(&path), None, shape, &report);
                self.bars.beside(|| show_tree(self.arguments, address, "read from", &path, &tree))
            }
            Ok(Served::Perf(measured)) => {
                self.bars.beside(|| show_perf(self.arguments, address, &measured))
            }
            Err(error) if self.arguments.once => Err(error.into()),
            Err(_) if self.interrupted.load(Ordering::Relaxed) => Err(Failure::interrupted()),
            Err(error) => {
                self.note(address, error.into());
                Ok(())
            }
        };
        if shown.is_ok() && !self.arguments.once {
            return ControlFlow::Continue(());
        }
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        end.get_or_insert(shown);
        ControlFlow::Break(())
    }

    /// Prints why a peer was not served.
    fn note(&self, address: SocketAddr, failure: Failure) {
        self.bars.beside(|| failure.note(&format!("from {address}")));
    }
}

fn show_copy(
    arguments: &ServeArguments,
    address: SocketAddr,
    received: &Received,
) -> Result<(), Failure> {
    let Received { path, shape, report } = received;
    if arguments.json {
        print::print_json(&report::CopyJson::new(None, path, *shape, report))
    } else if arguments.quiet {
        Ok(())
    } else {
        let text = report::copy_text(*shape, report);
        let path = printable::escaped(&path.to_string_lossy());
        print::print(format!("{address} copied to {path}: {text}\n").as_bytes())
    }
}

/// Shows what the peer at an address did with a path: `copied into` or `read from`.
fn show_tree(
    arguments: &ServeArguments,
    address: SocketAddr,
    way: &str,
    path: &Path,
    tree: &TreeJson<'_>,
) -> Result<(), Failure> {
    if !arguments.quiet {
        output::tell(&report::skipped_text(tree.report));
    }
    if arguments.json {
        print::print_json(tree)
    } else if arguments.quiet {
        Ok(())
    } else {
        let text = report::tree_text(tree.shape, tree.report);
        let path = printable::escaped(&path.to_string_lossy());
        print::print(format!("{address} {way} {path}: {text}\n").as_bytes())
    }
}

/// A measurement that was served, as JSON.
#[derive(Debug, Serialize)]
struct PerfJson {
    operation: &'static str,
    #[serde(flatten)]
    shape: Shape,
    requests: u64,
    seconds: f64,
}

fn show_perf(
    arguments: &ServeArguments,
    address: SocketAddr,
    measured: &Measured,
) -> Result<(), Failure> {
    if arguments.json {
        let Measured { operation, shape, requests, seconds } = *measured;
        print::print_json(&PerfJson { operation: operation.name(), shape, requests, seconds })
    } else if arguments.quiet {
        Ok(())
    } else {
        print::print(perf_text(address, measured).as_bytes())
    }
}

/// A measurement that was served, as a line of text.
fn perf_text(address: SocketAddr, measured: &Measured) -> String {
    let Measured { operation, shape, requests, seconds } = *measured;
    let Shape { rails, devices, message_size, .. } = shape;
    let scheme = match shape.scheme {
        None => String::new(),
        Some(_) => format!(" {}", shape.scheme_name()),
    };
    let arrived = if operation.is_received() { ", all arrived" } else { "" };
    format!(
        "{address} measured {}{scheme} of {} over {rails} rail{} on {devices} device{}: {requests} \
         requests{arrived}, {seconds:.2} s in all\n",
        operation.name(),
        human_size(message_size),
        plural(rails),
        plural(devices),
    )
}

#[cfg(test)]
mod rt_tests {
    use super::super::args::{Arguments, Command};
    use super::*;
    use clap::Parser;
    use polyrail::nic::{DeviceConfig, Fabric, ProtectionDomain};
    use polyrail_program::transfer::{CopyOptions, send_to};
    use std::io::Write;
    use std::net::TcpStream;
    use std::process::ExitCode;

    /// Runs `polyrail serve ARGUMENTS` on a software NIC, and `come` at the same time.
    fn serve_here(
        arguments: &[&str],
        interrupted: &Arc<AtomicBool>,
        come: impl FnOnce(&str, &ProtectionDomain) + Send,
    ) -> Result<(), Failure> {
        let command = ["polyrail", "serve", "--quiet"].iter().chain(arguments);
        let Command::Serve(arguments) = Arguments::parse_from(command).command else { panic!() };
        let fabric = Fabric::threaded();
        let domain = |name| fabric.create_device(DeviceConfig::named(name)).alloc_pd().unwrap();
        let here = domain("here");
        let there = domain("there");
        let server = Server::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap().to_string();
        std::thread::scope(|scope| {
            scope.spawn(|| come(&address, &here));
            Serving::new(&arguments, interrupted).run(&server, &[there][..])
        })
    }

    fn send(source: &Path, address: &str, domain: &ProtectionDomain, message_size: u64) -> bool {
        let options = CopyOptions { message_size, ..CopyOptions::default() };
        let domains = std::slice::from_ref(domain);
        let progress = CopyProgress::default();
        send_to(source, None, address, domains, &options, &progress, || ()).is_ok()
    }

    #[test]
    fn a_connection_that_asks_for_nothing_does_not_end_once() {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("source");
        let copy = directory.path().join("copy");
        std::fs::write(&source, [7; 5000]).unwrap();
        let arguments = ["--once", copy.to_str().unwrap()];
        serve_here(&arguments, &Arc::default(), |address, domain| {
            let silent = TcpStream::connect(address).unwrap();
            let mut garbage = TcpStream::connect(address).unwrap();
            garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            drop(TcpStream::connect(address).unwrap());
            assert!(send(&source, address, domain, 4096));
            drop((silent, garbage));
        })
        .unwrap();
        assert_eq!(std::fs::read(&copy).unwrap(), [7; 5000]);
    }

    #[test]
    fn once_fails_as_its_only_peer_does() {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("source");
        std::fs::write(&source, [7; 5000]).unwrap();
        let copy = directory.path().join("copy");
        let arguments = ["--once", "--max-memory", "1K", copy.to_str().unwrap()];
        let failure = serve_here(&arguments, &Arc::default(), |address, domain| {
            assert!(!send(&source, address, domain, 4096));
        });
        assert_eq!(
            format!("{:?}", failure.unwrap_err().report()),
            format!("{:?}", ExitCode::from(11))
        );
        assert!(!copy.exists());
    }

    #[test]
    fn an_interrupt_is_the_normal_end_unless_a_peer_was_expected() {
        let interrupted = Arc::new(AtomicBool::new(true));
        serve_here(&[], &interrupted, |_, _| ()).unwrap();
        let failure = serve_here(&["--once"], &interrupted, |_, _| ()).unwrap_err();
        assert_eq!(format!("{:?}", failure.report()), format!("{:?}", ExitCode::from(130)));
    }
}
