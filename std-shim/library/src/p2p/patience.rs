//! How long rails may fail and come back without having carried anything: the peer answers, so each of them gets its new
//! queue pair, but what is sent gets lost on all of them.

use std::time::{Duration, Instant};

/// Since when what was in flight on rails that failed was lost, and nothing else got through.
#[derive(Debug, Default)]
pub(super) struct Patience(Option<Since>);

#[derive(Debug)]
struct Since {
    at: Instant,
    /// What had completed by then.
    completed: u64,
}

impl Patience {
    /// What was in flight on a rail that failed was lost, after so much had completed. Returns whether nothing else has
    /// been heard of for too long.
    pub(super) fn lost(&mut self, now: Instant, completed: u64, limit: Option<Duration>) -> bool {
        match &self.0 {
            Some(since) if since.completed == completed => {
                limit.is_some_and(|limit| now.saturating_duration_since(since.at) >= limit)
            }
            _ => {
                self.0 = Some(Since { at: now, completed });
                false
            }
        }
    }

    /// Something of it had arrived.
    pub(super) fn arrived(&mut self) {
        self.0 = None;
    }
}
