//! Worlds of two requests and one failure, or one request that is taken back, which are explored in
//! every order.

use super::World;
use super::action::Action;
use super::shape::{Job, Kind, Shape, Troubles};
use crate::search::{Every, Fingerprint, Small, SmallWorld};
use polyrail_core::virtual_qp::Scheme;

/// Two rails, the requests of one end, one failure of a queue pair.
fn small(scheme: Scheme, jobs: &[Job]) -> Shape {
    let mut shape = Shape::small(scheme);
    shape.jobs[0] = jobs.to_vec();
    shape.is_brief = true;
    shape
}

const WRITE: Job = Job::new(Kind::Write, 1);
const IMM: Job = Job::new(Kind::WriteImm, 1);
const TWO: Job = Job::new(Kind::WriteImm, 2);
const SEND: Job = Job::new(Kind::Send, 1);
const READ: Job = Job::new(Kind::Read, 1);

fn worlds() -> Vec<Shape> {
    use Scheme::{Dqplb, Spray};
    let spray: &[&[Job]] = &[
        &[IMM],
        &[SEND],
        &[IMM, IMM],
        &[TWO, WRITE],
        &[WRITE, IMM],
        &[WRITE, SEND],
        &[SEND, SEND],
        &[SEND, IMM],
        &[WRITE, WRITE.fenced()],
        &[WRITE, READ.fenced()],
    ];
    let dqplb: &[&[Job]] = &[
        &[IMM],
        &[TWO],
        &[IMM, IMM],
        &[TWO, IMM],
        &[WRITE, IMM],
        &[READ, IMM],
        &[WRITE, WRITE.fenced()],
    ];
    let spray = spray.iter().map(|jobs| small(Spray, jobs));
    let dqplb = dqplb.iter().map(|jobs| small(Dqplb, jobs));
    let standby = [(Spray, [TWO, WRITE]), (Dqplb, [TWO, IMM])];
    // Rail 1 stands by.
    let standby = standby.map(|(scheme, jobs)| Shape { standby: [2; 2], ..small(scheme, &jobs) });
    // Requests that are taken back, without a failure and with one.
    let cancels: [(Scheme, &[Job], u32); 10] = [
        (Spray, &[TWO], 0),
        (Spray, &[IMM, IMM], 0),
        (Spray, &[WRITE, IMM], 1),
        (Spray, &[READ, WRITE.fenced()], 0),
        (Spray, &[READ], 1),
        (Dqplb, &[TWO], 0),
        (Dqplb, &[TWO], 1),
        (Dqplb, &[TWO, IMM], 0),
        (Dqplb, &[IMM, TWO], 0),
        (Dqplb, &[WRITE, IMM], 1),
    ];
    let cancels = cancels.map(|(scheme, jobs, failures)| Shape {
        troubles: Troubles { failures, cancels: 1, ..Troubles::default() },
        ..small(scheme, jobs)
    });
    spray.chain(dqplb).chain(standby).chain(cancels).collect()
}

impl Small for Shape {
    fn all_small() -> Vec<Self> {
        worlds()
    }

    fn describe(&self) -> String {
        let standby = if self.standby == [0; 2] { "" } else { " with a standby rail" };
        let Troubles { cancels, failures, .. } = self.troubles;
        let cancels = match (cancels, failures) {
            (0, _) => "",
            (_, 0) => ", one taken back,",
            _ => ", one taken back and a failure,",
        };
        format!("{:?}{standby}{cancels} {:?}", self.scheme, self.jobs[0])
    }

    fn build_small(&self) -> SmallWorld<Self> {
        Box::new(World::new(self.clone()))
    }
}

impl Every for World {
    fn possible(&self) -> Vec<Action> {
        self.possible()
    }

    fn is_trouble(&self, action: &Action) -> bool {
        match action {
            Action::Fail(name, _) => !self.nics.borrow().is_unanswered(self.at(*name)),
            Action::Break { .. }
            | Action::FailConnect { .. }
            | Action::Distrust { .. }
            | Action::Remove(_)
            | Action::BreakCq { .. }
            | Action::Refuse { .. }
            | Action::Surrender(_)
            | Action::Serve { in_service: false, .. }
            | Action::Cancel { .. }
            | Action::Reserve { .. } => true,
            _ => false,
        }
    }

    fn fingerprint(&self) -> u64 {
        let Self { nics, ends, cqs, may_report, directions, links, attempts, left, .. } = self;
        Fingerprint::of(format_args!(
            "{nics:?}{ends:?}{cqs:?}{may_report:?}{directions:?}{links:?}{attempts:?}{left:?}"
        ))
    }
}
