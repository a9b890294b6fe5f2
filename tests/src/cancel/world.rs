//! Small worlds to explore.

use super::rules::Rules;
use polyrail_core::virtual_qp::Scheme;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A WRITE.
    Write,
    /// A WRITE_WITH_IMM.
    WriteWithImm,
    /// A READ.
    Read,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// What it does.
    pub kind: Kind,
    /// Number of its fragments, 1 or 2.
    pub fragments: usize,
}

/// A world: what is posted, and what may happen to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct World {
    /// How the peer is notified.
    pub scheme: Scheme,
    /// Rails for data, 1 or 2. SPRAY has one more queue pair, for notifications.
    pub rails: usize,
    /// The requests, in order, at most 3.
    pub jobs: Vec<Job>,
    /// Whether each of them may be taken back.
    pub cancels: Vec<bool>,
    /// Queue pairs that may fail by themselves.
    pub faults: u8,
    /// Whether the link between the two ends may be lost for good.
    pub loses_link: bool,
    /// The rules that the sending end keeps.
    pub rules: Rules,
}

impl World {
    fn new(scheme: Scheme, rails: usize, jobs: &[(Kind, usize)], cancels: &[usize]) -> Self {
        let job = |&(kind, fragments)| Job { kind, fragments };
        Self {
            scheme,
            rails,
            jobs: jobs.iter().map(job).collect(),
            cancels: (0..jobs.len()).map(|at| cancels.contains(&at)).collect(),
            faults: 0,
            loses_link: false,
            rules: Rules::ALL,
        }
    }
}

/// Worlds that are explored to the end within seconds, small ones first.
pub fn worlds() -> Vec<World> {
    use Kind::{Read, Write, WriteWithImm};
    /// Rails, requests with their fragments, those that may be taken back, and faults.
    type Shape = (usize, &'static [(Kind, usize)], &'static [usize], u8);
    const SHAPES: [Shape; 9] = [
        (1, &[(WriteWithImm, 1)], &[0], 2),
        (2, &[(WriteWithImm, 1), (Write, 1), (WriteWithImm, 1)], &[0], 0),
        (2, &[(Read, 2)], &[0], 1),
        (2, &[(WriteWithImm, 1), (WriteWithImm, 1)], &[0, 1], 1),
        (2, &[(WriteWithImm, 2)], &[0], 2),
        (2, &[(Write, 2)], &[0], 2),
        (2, &[(WriteWithImm, 2), (WriteWithImm, 1)], &[0], 1),
        (2, &[(WriteWithImm, 1), (WriteWithImm, 2)], &[1], 1),
        (2, &[(Write, 2), (WriteWithImm, 1)], &[0], 1),
    ];
    let mut worlds = Vec::new();
    for (rails, jobs, cancels, faults) in SHAPES {
        for scheme in [Scheme::Spray, Scheme::Dqplb] {
            worlds.push(World { faults, ..World::new(scheme, rails, jobs, cancels) });
        }
    }
    for scheme in [Scheme::Spray, Scheme::Dqplb] {
        let world = World::new(scheme, 2, &[(WriteWithImm, 2), (Write, 1)], &[0, 1]);
        worlds.push(World { loses_link: true, ..world });
    }
    worlds
}
