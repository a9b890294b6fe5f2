//! Tests over real verbs. Needs two rails of rxe devices, as `tests/rxe/run.sh` sets them up in a
//! guest; prints the result of each behaviour, and fails if one fails. Arguments are names of
//! behaviours; then only those are run.

mod fixture;
mod memory;
mod verbs;

use fixture::Rails;
use polyrail_ffi::PostMode;
use polyrail_tests::allocations::CountingAllocator;
use polyrail_tests::behaviours;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() -> ExitCode {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let mut failed = Vec::new();
    for (title, post_mode) in [("classic", PostMode::Classic), ("extended", PostMode::Extended)] {
        let rails = Rails::open(post_mode);
        let mut list = behaviours::list();
        list.extend(verbs::list());
        list.retain(|(name, _)| names.is_empty() || names.iter().any(|wanted| wanted == name));
        failed.extend(behaviours::run(title, &list, &rails));
    }
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("failed: {failed:?}");
    ExitCode::FAILURE
}
