//! `polyrail serve`.

use super::args::ServeArguments;
use super::exit::Failure;
use super::progress::{Bar, interrupts};
use super::{hosts, report};
use polyrail::backend::Domain;
use polyrail::transfer::{CopyError, Progress, Received, Sender, ServeOptions, Server};
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(super) fn run(arguments: &ServeArguments) -> Result<(), Failure> {
    let result = serve(arguments);
    if arguments.json
        && let Err(failure) = &result
    {
        failure.print_json()?;
    }
    result
}

fn serve(arguments: &ServeArguments) -> Result<(), Failure> {
    let domains = hosts::open(&arguments.devices)?;
    let server = Server::bind(&hosts::with_port(&arguments.listen))?;
    let interrupted = interrupts();
    if !arguments.quiet {
        let names: Vec<&str> = domains.iter().map(Domain::device_name).collect();
        eprintln!("polyrail: listening at {}, on {}", server.local_addr()?, names.join(", "));
    }
    // An interrupt is how it is meant to end, unless a file was to come.
    while let Some(sender) = server.accept(&interrupted)? {
        let address = sender.address;
        let progress = Progress { interrupted: Arc::clone(&interrupted), ..Progress::default() };
        match receive(arguments, sender, &domains, &progress) {
            Ok(received) => show(arguments, &received)?,
            Err(error) if arguments.once => return Err(error.into()),
            Err(_) if interrupted.load(Ordering::Relaxed) => return Err(Failure::interrupted()),
            Err(error) => Failure::from(error).note(&format!("from {address}")),
        }
        if arguments.once {
            return Ok(());
        }
    }
    if arguments.once { Err(Failure::interrupted()) } else { Ok(()) }
}

fn receive<D: Domain + Sync>(
    arguments: &ServeArguments,
    sender: Sender,
    domains: &[D],
    progress: &Progress,
) -> Result<Received, CopyError> {
    let options = ServeOptions {
        max_memory: arguments.max_memory,
        stall_timeout: arguments.stall_timeout,
        idle_timeout: arguments.idle_timeout,
        sync: arguments.sync,
        ..ServeOptions::new(&arguments.destination)
    };
    let bar = Bar::new(arguments.quiet || arguments.json);
    sender.receive(domains, &options, progress, || bar.show(progress))
}

fn show(arguments: &ServeArguments, received: &Received) -> Result<(), Failure> {
    let Received { path, scheme, rails, devices, max_msg_size, message_size, window, report } =
        received;
    let shape = report::Shape {
        scheme: *scheme,
        rails: *rails,
        devices: *devices,
        max_msg_size: *max_msg_size,
        message_size: *message_size,
        window: *window,
    };
    if arguments.json {
        super::print_json(&report::CopyJson::new(None, path, shape, report))
    } else if arguments.quiet {
        Ok(())
    } else {
        let text = report::copy_text(shape, report);
        super::print(format!("{}: {text}\n", path.display()).as_bytes())
    }
}
