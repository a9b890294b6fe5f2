//! What it costs that the backend is chosen when the program runs.

use super::Row;
use crate::contender::{Contender, whole};
use crate::software::{Ends, domains};
use crate::workload::OUTSTANDING;
use polyrail::any::AnyDomain;
use polyrail::backend::Domain;

pub(super) const SOFTWARE: Row = Row {
    name: "any_software_nic",
    work: "1 rail of a device of any backend, notified WRITE, to both reports",
    operations: OUTSTANDING,
    floor: || carrying(domains()),
    baseline: || carrying(domains()),
    engine: || carrying(domains().map(AnyDomain::from)),
    instruction_limit: 1.1,
    time_limit: None,
    baseline_limit: None,
};

fn carrying<D: Domain + 'static>(domains: [D; 2]) -> Box<dyn Contender> {
    let mut ends = Ends::ready(domains, 1);
    whole(move || ends.carry(OUTSTANDING))
}
