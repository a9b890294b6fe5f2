//! Looks for seeds whose two ends break a promise of re-routing.
use polyrail_tests::ends::search::{attempt, capture_panics, kind};
use polyrail_tests::ends::{Shape, Summary, Troubles};
use std::collections::BTreeMap;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let num = |at: usize, default: u64| args.get(at).map_or(default, |a| a.parse().unwrap());
    let (first, count, steps) = (num(1, 1), num(2, 1), num(3, 600));
    let keep_going = args.get(4).is_some();
    let without = std::env::var("WITHOUT").unwrap_or_default();
    let change = |shape: &mut Shape| {
        let t = &mut shape.troubles;
        for word in without.split(',') {
            match word {
                "" => {}
                "all" => *t = Troubles::default(),
                "failures" => t.failures = 0,
                "losses" => t.losses = 0,
                "cqs" => t.broken_cqs = 0,
                "breaks" => t.breaks = 0,
                "connects" => t.failed_connects = 0,
                "refusals" => t.refusals = 0,
                "surrenders" => t.surrenders = 0,
                "spray" => shape.scheme = polyrail_core::virtual_qp::Scheme::Dqplb,
                other => panic!("{other}"),
            }
        }
    };
    capture_panics();
    let mut total = Summary::default();
    let mut kinds: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for seed in first..first + count {
        match attempt(seed, steps, &change) {
            Ok(summary) => total += summary,
            Err(failure) if keep_going => {
                let key = kind(&failure.message);
                kinds.entry(key).or_default().push(seed);
            }
            Err(failure) => {
                println!("seed {seed}: {}", failure.message);
                let failure = failure.shortest();
                println!("{:?}", failure.shape);
                println!("\nshortest: {}", failure.message);
                failure.actions.iter().for_each(|action| println!("  {action:?}"));
                println!();
                failure.show();
                return;
            }
        }
    }
    for (kind, seeds) in &kinds {
        println!("{} seeds: {kind}: {:?}", seeds.len(), &seeds[..seeds.len().min(8)]);
    }
    println!("{total:?}");
}
