//! Explores one small world: SCHEME JOBS STATES [two] ...
use polyrail_core::virtual_qp::{PassThroughOrder, Scheme};
use polyrail_tests::ends::search::capture_panics;
use polyrail_tests::ends::*;
fn job(text: &str) -> Job {
    let (kind, rest) = text.split_at(1);
    let kind = match kind {
        "w" => Kind::Write,
        "i" => Kind::WriteImm,
        "r" => Kind::Read,
        "s" => Kind::Send,
        "a" => Kind::FetchAdd,
        _ => panic!("{text}"),
    };
    let job = Job::new(kind, rest.trim_end_matches('f').parse().unwrap_or(1));
    if rest.ends_with('f') { job.fenced() } else { job }
}
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let scheme = if args[1] == "spray" { Scheme::Spray } else { Scheme::Dqplb };
    let mut shape = Shape::small(scheme);
    shape.is_brief = true;
    for (end, jobs) in args[2].split('/').enumerate() {
        shape.jobs[end] = jobs.split(',').filter(|j| !j.is_empty()).map(job).collect();
    }
    for word in &args[4..] {
        match word.split_once('=').unwrap_or((word, "1")) {
            ("f", n) => shape.troubles.failures = n.parse().unwrap(),
            ("l", n) => shape.troubles.losses = n.parse().unwrap(),
            ("b", n) => shape.troubles.breaks = n.parse().unwrap(),
            ("r", n) => shape.troubles.refusals = n.parse().unwrap(),
            ("s", n) => shape.troubles.surrenders = n.parse().unwrap(),
            ("m", n) => shape.max_msgs_per_qp = n.parse().unwrap(),
            ("weak", n) => shape.weak = n.parse().unwrap(),
            ("un", _) => shape.order = PassThroughOrder::Unordered,
            ("keep", _) => shape.replaces = false,
            other => panic!("{other:?}"),
        }
    }
    capture_panics();
    let t = std::time::Instant::now();
    match explore(&shape, args[3].parse().unwrap()) {
        Ok(explored) => {
            println!("{} {} {:?}: {explored:?} {:.1?}", args[1], args[2], &args[4..], t.elapsed())
        }
        Err(failure) => {
            let failure = failure.shortest();
            println!("{} {} {:?}: {}", args[1], args[2], &args[4..], failure.message);
            failure.actions.iter().for_each(|action| println!("  {action:?}"));
            failure.show();
        }
    }
}
