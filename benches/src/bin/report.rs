//! Prints how fast the engine is beside the same work done raw and beside the C++ design
//! that it replaces.

use clap::Parser;
use clap::builder::PossibleValuesParser;
use polyrail::progress;
use polyrail_benches::allocations::{CountingAllocator, allocations};
use polyrail_benches::engine::WRS;
use polyrail_benches::handles::{self, Handles, Rates};
use polyrail_benches::handover::{self, Handover};
use polyrail_benches::many;
use polyrail_benches::measure::{MIN_REPEATS, Measured, measure};
use polyrail_benches::null::NullQp;
use polyrail_benches::rows::ROWS;
use polyrail_benches::software::{self, Ways};
use polyrail_benches::workload::DEPTH;
use polyrail_core::virtual_qp::{RailEventKind, Scheme, VirtualQp};
use polyrail_program::fault::Side;
use polyrail_program::perf::{
    self, Cause, Limit, Mark, Measurement, PerfConfig, PerfProgress, Timeline,
};
use serde::Serialize;
use std::error::Error;
use std::io::{self, Write};
use std::num::NonZero;
use std::time::Duration;
use std::{env, fs, thread};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Floor, baseline and engine on a null device, measured alternately in one run.
#[derive(Debug, Parser)]
struct Options {
    /// Print an array of {"name","floor_ns","baseline_ns","engine_ns","allocs_per_op"} only.
    #[arg(long)]
    json: bool,

    /// Turns of each contender, of which the median is taken.
    #[arg(long, default_value_t = 101, value_parser = clap::value_parser!(u32).range(i64::from(MIN_REPEATS)..))]
    repeats: u32,

    /// Measure this row only; may be given more than once.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(names()))]
    only: Vec<String>,
}

/// Names of all rows.
fn names() -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|row| row.name).chain([
        handover::NAME,
        handles::NAME,
        software::NAME,
        many::NAME,
    ])
}

const _: () = assert!(handover::REQUEST_BYTES == progress::REQUEST_BYTES);

/// A row of `--json`.
#[derive(Debug, Serialize)]
struct JsonRow {
    name: &'static str,
    floor_ns: f64,
    baseline_ns: f64,
    engine_ns: f64,
    allocs_per_op: f64,
}

impl From<&Measured> for JsonRow {
    fn from(measured: &Measured) -> Self {
        Self {
            name: measured.row.name,
            floor_ns: measured.floor.ns,
            baseline_ns: measured.baseline.ns,
            engine_ns: measured.engine.ns,
            allocs_per_op: measured.engine.allocs_per_op,
        }
    }
}

impl From<&Handover> for JsonRow {
    fn from(handover: &Handover) -> Self {
        Self {
            name: handover::NAME,
            floor_ns: handover.floor().1.ns,
            baseline_ns: handover.baseline.ns,
            engine_ns: handover.ours.ns,
            allocs_per_op: handover.ours.allocs_per_op,
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|o| o == name);
    // First: see there.
    let set = (wanted(many::NAME) && !options.json).then(many::measure);
    let rows = ROWS.into_iter().filter(|row| wanted(row.name));
    let mut allocating = Vec::new();
    let measured = rows.map(|row| measure(row, options.repeats, allocations)).inspect(|measured| {
        if measured.engine.allocs_per_op != 0.0 {
            allocating.push(measured.row.name);
        }
    });
    let handover = || handover::measure(options.repeats, allocations);
    let handover = wanted(handover::NAME).then(handover);
    let out = &mut io::stdout().lock();
    if options.json {
        let rows = measured.map(|measured| JsonRow::from(&measured));
        let rows: Vec<_> = rows.chain(handover.as_ref().map(JsonRow::from)).collect();
        serde_json::to_writer_pretty(&mut *out, &rows)?;
        writeln!(out)?;
    } else {
        print_rows(out, measured)?;
        handover.map_or(Ok(()), |handover| print_handover(out, &handover))?;
        if wanted(handles::NAME) {
            print_handles(out, &handles::measure(options.repeats, allocations))?;
        }
        set.map_or(Ok(()), |set| print_set(out, &set))?;
        if wanted(software::NAME) {
            print_software(out, &software::measure(options.repeats, allocations))?;
        }
        if options.only.is_empty() {
            print_sizes(out)?;
            print_copy_rate(out)?;
            print_failures(out)?;
        }
        print_machine(out, options.repeats)?;
    }
    // Times are for people to judge. This does not depend on the machine.
    if allocating.is_empty() {
        Ok(())
    } else {
        Err(format!("the engine allocates in {}", allocating.join(", ")).into())
    }
}

fn print_rows(out: &mut impl Write, rows: impl Iterator<Item = Measured>) -> io::Result<()> {
    writeln!(
        out,
        "{:<19} {:>8} {:>9} {:>8}  {:>7} {:>5}  {:>10} {:>6}  {:>7} {:>9}  holds",
        "ns per operation",
        "floor",
        "baseline",
        "engine",
        "x floor",
        "limit",
        "x baseline",
        "limit",
        "allocs",
        "(baseline)",
    )?;
    for measured in rows {
        let Measured { row, floor, baseline, engine } = &measured;
        let time_limit = row.time_limit.map_or(String::new(), |limit| format!("{limit:.2}"));
        let limit = row.baseline_limit.map_or(String::new(), |limit| format!("{limit:.3}"));
        writeln!(
            out,
            "{:<19} {:>8.2} {:>9.2} {:>8.2}  {:>7.2} {time_limit:>5}  {:>10.3} {limit:>6}  {:>7.3} {:>9.3}  {:<5}  {}",
            row.name,
            floor.ns,
            baseline.ns,
            engine.ns,
            measured.floor_ratio(),
            measured.baseline_ratio(),
            engine.allocs_per_op,
            baseline.allocs_per_op,
            if measured.holds() { "yes" } else { "NO" },
            row.work,
        )?;
        out.flush()?;
    }
    Ok(())
}

fn print_handover(out: &mut impl Write, handover: &Handover) -> io::Result<()> {
    let Handover { crates, baseline, ours } = handover;
    writeln!(
        out,
        "\n{}: a request of {} bytes to another thread, ns one way (at most {:.2} times the cheapest crate)",
        handover::NAME,
        handover::REQUEST_BYTES,
        handover::LIMIT,
    )?;
    for (name, figures) in crates.iter().chain([&("std channel", *baseline)]) {
        writeln!(out, "  {name:<12} {:>7.2}", figures.ns)?;
    }
    let (cheapest, _) = handover.floor();
    let holds = if handover.holds() { "yes" } else { "NO" };
    let ratio = handover.ratio();
    writeln!(out, "  {:<12} {:>7.2}   {ratio:.2} of {cheapest}   {holds}", "polyrail", ours.ns)
}

/// What a progress thread costs.
fn print_handles(out: &mut impl Write, handles: &Handles) -> io::Result<()> {
    let verdict = |holds| if holds { "yes" } else { "NO" };
    writeln!(
        out,
        "\n{}: requests through a handle to a progress thread, beside the same posted directly, ns a request\n\
         (at least {:.2} of the direct rate, or at most {:.2} of the least that two threads could do)",
        handles::NAME,
        handles::RATE_LIMIT,
        handles::LEAST_LIMIT,
    )?;
    for Rates { work, direct, ways } in &handles.rates {
        writeln!(out, "  {work:<18} {:>8.2} direct", direct.ns)?;
        for way in ways {
            writeln!(
                out,
                "    {:<16} {:>8.2}   {:.2} of the rate   {:.2} of the least {:.0}   {:.3} allocs   {}",
                way.name,
                way.handle.ns,
                way.rate(direct),
                way.of_least(),
                way.least,
                way.handle.allocs_per_op,
                verdict(way.holds(direct)),
            )?;
        }
    }
    let (extra, limit) = (handles.doorbell_extra(), handles::DOORBELL_LIMIT_NS);
    writeln!(
        out,
        "  to the doorbell    {:>8.0} direct {:>8.0} handle   {extra:.0} ns more, of at most {limit:.0}   {}",
        handles.doorbells[0],
        handles.doorbells[1],
        verdict(extra <= limit),
    )?;
    writeln!(out, "  from a completion to the task that waits, both threads asleep, us")?;
    for (name, times) in
        ["the least: two wake-ups", "through the thread"].iter().zip(&handles.wakes)
    {
        write!(out, "    {name:<24}")?;
        for (percentile, quantile) in [("50%", 0.5), ("90%", 0.9), ("99%", 0.99)] {
            write!(
                out,
                " {percentile} {:>7.1}",
                times.value_at_quantile(quantile) as f64 / 1000.0
            )?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn print_set(out: &mut impl Write, set: &many::Set) -> io::Result<()> {
    let megabytes = |bytes| bytes as f64 / 1e6;
    writeln!(
        out,
        "\n{}: {} virtual queue pairs of four rails over two devices of the software NIC\n  \
         made in {:.0?}; {:.0} MB, of which {:.0} MB are the virtual queue pairs",
        many::NAME,
        many::MEMBERS,
        set.time,
        megabytes(set.resident),
        megabytes(set.engine),
    )
}

/// What several threads gain on the software NIC.
fn print_software(out: &mut impl Write, ways: &[Ways]) -> io::Result<()> {
    writeln!(
        out,
        "\n{}: WRITEs of {} bytes with a notification each, ns a request and of the rate of one thread",
        software::NAME,
        software::LENGTH,
    )?;
    for Ways { rails, one_thread, two_threads, rings, handles } in ways {
        writeln!(
            out,
            "  {rails} rails   one thread {:>7.0}   two threads {:>7.0} {:.2} (at least 1, rings {:.0})   handles {:>7.0} {:.2}",
            one_thread.ns,
            two_threads.ns,
            one_thread.ns / two_threads.ns,
            rings.ns,
            handles.ns,
            one_thread.ns / handles.ns,
        )?;
    }
    Ok(())
}

fn print_sizes(out: &mut impl Write) -> io::Result<()> {
    const fn size<const RAILS: usize>() -> usize {
        size_of::<VirtualQp<NullQp, RAILS, DEPTH, WRS>>()
    }
    let small = size_of::<VirtualQp<NullQp, 4, 64, 64>>();
    writeln!(
        out,
        "\nsize_of VirtualQp, {DEPTH} deep, {WRS} requests (a queue pair handle of {} bytes)",
        size_of::<NullQp>()
    )?;
    for (rails, bytes) in [(2, size::<2>()), (4, size::<4>()), (8, size::<8>())] {
        writeln!(out, "  {rails} rails {bytes:>7} bytes ({:.1} KiB)", bytes as f64 / 1024.0)?;
    }
    writeln!(
        out,
        "64 deep, 64 requests\n  4 rails {small:>7} bytes ({:.1} KiB)",
        small as f64 / 1024.0
    )?;
    Ok(())
}

/// What `polyrail copy` reaches without the files, beside memcpy of the same bytes.
fn print_copy_rate(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    writeln!(out, "\ncopy path, 1 MiB messages over 4 rails of the software NIC (at least 0.5)")?;
    for (name, scheme) in [("SPRAY", Scheme::Spray), ("DQPLB", Scheme::Dqplb)] {
        let config = PerfConfig { scheme, ..PerfConfig::default() };
        let measured = perf::measure(&config, &PerfProgress::default())?;
        let Measurement { all, relative_to_memcpy, .. } = measured;
        let rate = all.gigabytes_per_second;
        writeln!(out, "  {name}   {relative_to_memcpy:.2} of memcpy ({rate:.1} GB/s)")?;
    }
    Ok(())
}

/// What a rail's failure costs for as long as it lasts, and afterwards. The devices share the
/// processors, so they have a line rate that these can keep up with.
fn print_failures(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    writeln!(
        out,
        "\none of 4 rails is cut for a second, 1 MiB messages over the software NIC at 64 MiB/s a rail: goodput\n\
         of before, without it (at least 0.72) and after its return (at least 0.95); from the first\n\
         sign until both ends know what arrived (under 1 ms); from the link's return to the rail's"
    )?;
    for (name, scheme) in [("SPRAY", Scheme::Spray), ("DQPLB", Scheme::Dqplb)] {
        let config = PerfConfig {
            scheme,
            line_rate: NonZero::new(64 << 20),
            limit: Limit::Time(Duration::from_secs(4)),
            ..PerfConfig::default()
        };
        let progress = PerfProgress::default();
        let fault = "2:1s:cut:1s".parse()?;
        let timeline = perf::measure_over_time(&config, None, &[fault], &progress, || ())?;
        // A machine that is busy with something else may miss what lasts for a second.
        let told = failure(&timeline, &progress)
            .unwrap_or_else(|missing| format!("not measured: {missing}"));
        writeln!(out, "  {name}   {told}")?;
    }
    Ok(())
}

/// What the failure of a rail cost in a measurement, or what was not seen of it.
fn failure(timeline: &Timeline, progress: &PerfProgress) -> Result<String, &'static str> {
    let goodput = timeline.goodput_around_marks().ok_or("no failure was seen")?;
    let after = goodput.after_ratio().ok_or("the rail did not return")?;
    let out_for = |kind: fn(&RailEventKind) -> bool| {
        let near = progress.rails.all().into_iter().filter(|item| item.side == Side::Near);
        let mut times = near.filter(|item| kind(&item.event.event.kind));
        times.next().map(|item| item.event.out_for).ok_or("an event is missing")
    };
    let fenced = out_for(|kind| matches!(kind, RailEventKind::Fenced { .. }))?;
    let ended = progress.faults.take().iter().map(|event| event.at).max().unwrap_or_default();
    let is_back = |mark: &&Mark| !mark.begins && matches!(mark.cause, Cause::Rail(_));
    let back = timeline.marks.iter().find(is_back).map(|mark| mark.at).unwrap_or_default();
    let during = goodput.during_ratio();
    Ok(format!("{during:.2}, {after:.2}; {fenced:.1?}; {:.1?}", back.saturating_sub(ended)))
}

fn print_machine(out: &mut impl Write, repeats: u32) -> io::Result<()> {
    writeln!(
        out,
        "\nMedians of {repeats} interleaved repeats. A row holds if its ratios are within their"
    )?;
    writeln!(out, "limits and the engine allocates nothing. {}.", machine())?;
    if cfg!(debug_assertions) {
        writeln!(out, "Built without optimisation: these figures mean nothing. Use --release.")?;
    }
    Ok(())
}

/// Returns processor, cores and system, as far as they are known.
fn machine() -> String {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let cpu_info = read("/proc/cpuinfo");
    let model = cpu_info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("unknown processor", |(_, name)| name.trim());
    let cores = thread::available_parallelism().map_or(0, NonZero::get);
    let os = env::consts::OS;
    let arch = env::consts::ARCH;
    format!("{model}, {cores} cores, {os} {} {arch}", read("/proc/sys/kernel/osrelease").trim())
}
