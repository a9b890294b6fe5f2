//! `polyrail copy`.

use super::args::CopyArguments;
use super::exit::Failure;
use super::faults::Announcer;
use super::hosts::with_domains;
use super::output;
use super::places::Places;
use super::print;
use super::progress::Bar;
use super::signals::interrupts;
use super::{faults, hosts, report};
use polyrail::endpoint::RailWeights;
use polyrail::virtual_qp::RailFailure;
use polyrail_program::devices::OpenedDevices;
use polyrail_program::job::Shape;
use polyrail_program::session::ServerAddress;
use polyrail_program::transfer::{
    CopyError, CopyOptions, CopyProgress, CopyReport, TreeReport, copy_file, copy_tree, pull_tree,
    send_to, send_tree_to,
};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

pub(super) fn run(arguments: &CopyArguments) -> Result<(), Failure> {
    let result = copy(arguments);
    if arguments.json
        && let Err(failure) = &result
    {
        failure.print_json();
    }
    result
}

fn copy(arguments: &CopyArguments) -> Result<(), Failure> {
    let places = Places::new(arguments)?;
    let to = places.server();
    arguments.host_devices.refuse_without(to)?;
    arguments.token.refuse_without(to)?;
    faults::refuse_with(to, &arguments.faults.fault)?;
    if to.is_some()
        && (arguments.requests.devices.is_some() || arguments.requests.line_rate.is_some())
    {
        let why = "--devices and --line-rate are about the software NIC, and cannot be combined with \
                   another host";
        return Err(Failure::usage(why));
    }
    let rail_weights = arguments.connection.rail_weights();
    let rail_repair = arguments.connection.rail_repair(arguments.failure.rail_failure.into());
    let is_rerouted = rail_repair.rail_failure == RailFailure::Reroute;
    if arguments.requests.rails > 1 && rail_weights == RailWeights::Measured && !is_rerouted {
        let why = "--rail-weights measured requires --rail-failure reroute, because only rails that \
                   are rerouted are measured";
        return Err(Failure::usage(why));
    }
    let copying = Copying {
        arguments,
        options: CopyOptions {
            rails: arguments.requests.rails,
            devices: arguments.requests.devices,
            scheme: arguments.scheme.into(),
            max_msg_size: arguments.requests.max_msg_size,
            message_size: arguments.message_size,
            window: arguments.window,
            line_rate: arguments.requests.line_rate,
            faults: arguments.faults.fault.clone(),
            qp_timeout: arguments.connection.qp_timeout(to.is_some()),
            quality: arguments.host_devices.quality(),
            rail_weights,
            rail_repair,
            timeouts: arguments.timeouts.timeouts(),
            overwrite: !arguments.no_overwrite,
            sync: arguments.sync,
        },
        progress: CopyProgress { interrupted: interrupts(), ..CopyProgress::default() },
    };
    copying.run(&places)
}

/// A copy that is under way.
struct Copying<'a> {
    arguments: &'a CopyArguments,
    options: CopyOptions,
    progress: CopyProgress,
}

impl Copying<'_> {
    fn run(&self, places: &Places) -> Result<(), Failure> {
        let Self { options, progress, .. } = self;
        match places {
            Places::File { source, destination } => {
                let shape = self.shape_here();
                let report =
                    self.watched(|watch| copy_file(source, destination, options, progress, watch))?;
                self.show(source, destination, shape, &report)
            }
            Places::Directory { sources, destination } => {
                let shape = self.shape_here();
                let report = self
                    .watched(|watch| copy_tree(sources, destination, options, progress, watch))?;
                self.show_tree(sources, destination, shape, &report)
            }
            Places::FileTo { source, server, name } => {
                let (server, devices) = self.reach(server)?;
                let shape = self.shape_over(&devices);
                let name = name.as_deref().map(Path::as_os_str);
                let report = self.watched(|watch| {
                    with_domains!(&devices, domains => {
                        send_to(source, name, server, domains, options, progress, watch)
                    })
                })?;
                let name = name.or(source.file_name()).unwrap_or_default();
                self.show(source, Path::new(name), shape, &report)
            }
            Places::DirectoryTo { sources, server } => {
                let (server, devices) = self.reach(server)?;
                let shape = self.shape_over(&devices);
                let address = server.address.clone();
                let report = self.watched(|watch| {
                    with_domains!(&devices, domains => {
                        send_tree_to(sources, server, domains, options, progress, watch)
                    })
                })?;
                self.show_tree(sources, Path::new(&address), shape, &report)
            }
            Places::From { server, path, destination } => {
                let (server, devices) = self.reach(server)?;
                let shape = self.shape_over(&devices);
                let source = PathBuf::from(format!("{}:{path}", server.address));
                let report = self.watched(|watch| {
                    with_domains!(&devices, domains => {
                        pull_tree(path, destination, server, domains, options, progress, watch)
                    })
                })?;
                self.show_tree(&[source], destination, shape, &report)
            }
        }
    }

    /// Returns how requests are sent within this process.
    fn shape_here(&self) -> Shape {
        let devices = self.options.devices.unwrap_or(self.options.rails);
        self.note_unused(devices);
        self.options.shape(devices)
    }

    /// Returns how requests are sent over devices of this host.
    fn shape_over(&self, devices: &OpenedDevices) -> Shape {
        let count = devices.names().len();
        self.note_unused(count);
        self.options.shape(count)
    }

    fn note_unused(&self, devices: usize) {
        if !self.arguments.quiet {
            hosts::note_unused(devices, self.options.rails);
        }
    }

    /// Returns a server, and the devices of this host that reach it.
    fn reach(&self, server: &str) -> Result<(ServerAddress, OpenedDevices), Failure> {
        let CopyArguments { token, host_devices, quiet, .. } = self.arguments;
        let server = hosts::server(server, token)?;
        let CopyOptions { rails, timeouts, .. } = &self.options;
        let devices = hosts::reach(&server, host_devices, *rails, timeouts, *quiet)?;
        Ok((server, devices))
    }

    /// Copies, with a progress bar, and prints the events of rails and faults.
    fn watched<T>(
        &self,
        copy: impl FnOnce(&mut dyn FnMut()) -> Result<T, CopyError>,
    ) -> Result<T, Failure> {
        let Self { arguments, options, progress } = self;
        let bar = Bar::new(arguments.quiet || arguments.json);
        let announcer = Announcer::new(&progress.faults, &progress.rails, arguments.quiet);
        let mut watch = || {
            bar.show(progress);
            if let Some(news) = announcer.news() {
                bar.beside(|| output::tell(&news));
            }
        };
        let copied = copy(&mut watch);
        drop(bar);
        announcer.news().inspect(|news| output::tell(news));
        let report = copied.map_err(|error| self.failure(error))?;
        output::tell(&announcer.absent(&options.faults, "copy"));
        Ok(report)
    }

    /// Returns the failure of a copy. Of the paths after --to, `scp` would take the last one for
    /// the destination.
    fn failure(&self, error: CopyError) -> Failure {
        let CopyArguments { paths, to, .. } = self.arguments;
        let is_missing = match &error {
            CopyError::Source { path, source } => {
                source.kind() == ErrorKind::NotFound && paths.contains(path)
            }
            _ => false,
        };
        let failure = Failure::from(error);
        if is_missing && to.is_some() && paths.len() > 1 {
            failure.with("; with --to every path is a source")
        } else {
            failure
        }
    }

    fn show(
        &self,
        source: &Path,
        destination: &Path,
        shape: Shape,
        report: &CopyReport,
    ) -> Result<(), Failure> {
        if self.arguments.json {
            print::print_json(&report::CopyJson::new(Some(source), destination, shape, report))
        } else if self.arguments.quiet {
            Ok(())
        } else {
            print::print(report::copy_text(shape, report).as_bytes())
        }
    }

    fn show_tree(
        &self,
        sources: &[PathBuf],
        destination: &Path,
        shape: Shape,
        report: &TreeReport,
    ) -> Result<(), Failure> {
        if !self.arguments.quiet {
            output::tell(&report::skipped_text(report));
        }
        if self.arguments.json {
            print::print_json(&report::TreeJson::new(sources, Some(destination), shape, report))
        } else if self.arguments.quiet {
            Ok(())
        } else {
            print::print(report::tree_text(shape, report).as_bytes())
        }
    }
}
