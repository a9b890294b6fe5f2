//! What applications post.

use super::World;
use super::direction::{DataReceive, PLACES, READABLE, RECEIVE, RECEIVES, SOURCE, STRIDE};
use super::shape::{FRAGMENT, Job, Kind, LONGEST_SEND, peer};
use polyrail_core::verbs::{
    DeviceKeys, LocalBuffer, LocalPart, RecvWr, ReportOrder, SendFlags, SendWr,
};
use polyrail_core::virtual_qp::{PostError, PostSendError};

impl World {
    /// Posts the next request, or with one call a run of at most this many.
    pub(super) fn post(&mut self, end: usize, run: usize) {
        let job = self.shape.jobs[end][self.ends[end].next_job];
        if run == 0 || job.list > 0 {
            self.post_alone(end, job)
        } else {
            self.post_run(end, run)
        }
        self.touched(end);
    }

    fn post_alone(&mut self, end: usize, job: Job) {
        let direction = &self.directions[end];
        let (number, place) = (direction.requests.len(), direction.free_places(&[job])[0]);
        let this = &mut self.ends[end];
        let wr = request(job, number, place, &this.keys);
        let posted = if job.list == 0 {
            this.qp.post_send(&wr)
        } else {
            this.qp.post_list(&wr, &in_parts(wr.local, &job.parts(), &this.keys))
        };
        match posted {
            Ok(()) => self.accepted(end, job, place),
            Err(error) => self.refused(end, job, error),
        }
    }

    /// The requests, none of them with a list, that are next.
    fn post_run(&mut self, end: usize, run: usize) {
        let next = self.shape.jobs[end][self.ends[end].next_job..].iter().take(run);
        let jobs: Vec<_> = next.take_while(|job| job.list == 0).copied().collect();
        let direction = &self.directions[end];
        let (first, places) = (direction.requests.len(), direction.free_places(&jobs));
        let this = &mut self.ends[end];
        let all = (first..).zip(jobs.iter().zip(&places));
        let wrs: Vec<_> =
            all.map(|(number, (job, place))| request(*job, number, *place, &this.keys)).collect();
        let (posted, refused) = match this.qp.post_many(&wrs) {
            Ok(()) => (jobs.len(), None),
            Err(some) => (some.posted, Some(some.error)),
        };
        self.summary.shared += if posted > 1 { posted as u64 } else { 0 };
        for (job, place) in jobs.iter().zip(&places).take(posted) {
            self.accepted(end, *job, *place);
        }
        if let Some(error) = refused {
            let job = jobs.get(posted).expect("a request that is refused is none of those posted");
            self.refused(end, *job, error);
        }
    }

    fn accepted(&mut self, end: usize, job: Job, place: usize) {
        let has_rail = job.is_fragmented() || self.ends[end].wanted[0];
        assert!(
            has_rail || self.is_in_error(end),
            "{job:?} is accepted, and rail 0 out of service"
        );
        self.directions[end].accepted(job, place);
        self.ends[end].next_job += 1;
        self.summary.requests += 1;
    }

    fn refused(&self, end: usize, job: Job, error: PostSendError) {
        let number = self.directions[end].requests.len();
        let is_down = error == PostSendError::RailDown && !job.is_fragmented();
        let in_maintenance = is_down && !self.ends[end].wanted[0];
        assert!(
            in_maintenance || self.may_refuse(end, error.into()),
            "request {number} ({job:?}) was refused: {error}"
        );
    }

    /// Whether an engine may refuse a request: it has no room, or a driver does not take it.
    fn may_refuse(&self, end: usize, error: PostError) -> bool {
        let driver = error.driver_refusal().is_some() && self.summary.failures > 0;
        error.is_back_pressure() || driver || self.is_in_error(end)
    }

    pub(super) fn post_receive(&mut self, end: usize, data: bool) {
        let direction = &self.directions[peer(end)];
        let at = if data { direction.data_receives.len() } else { direction.notification_receives };
        let wr_id = RECEIVE | (at as u64) << 1 | u64::from(data);
        // SAFETY: these NICs touch no memory but their own.
        let local =
            unsafe { LocalBuffer::new(RECEIVES + at as u64 * STRIDE, LONGEST_SEND * FRAGMENT) };
        let buffers = (at % (usize::from(self.shape.sge) + 1)) as u32;
        let this = &mut self.ends[end];
        let posted = if !data {
            this.qp.post_recv(&RecvWr::notification(wr_id))
        } else if buffers == 0 {
            this.qp.post_recv(&RecvWr::data(wr_id, local, &this.keys))
        } else {
            let mut lengths = vec![1; buffers as usize - 1];
            lengths.push(LONGEST_SEND * FRAGMENT + 1 - buffers);
            this.qp.post_recv_list(wr_id, &in_parts(local, &lengths, &this.keys))
        };
        match posted {
            Ok(()) => {
                let direction = &mut self.directions[peer(end)];
                if data {
                    direction.data_receives.push(DataReceive { holds: None, is_reported: false });
                } else {
                    direction.notification_receives += 1;
                }
                self.summary.receives += 1;
            }
            Err(error) => {
                assert!(self.may_refuse(end, error.into()), "receive {at} was refused: {error}")
            }
        }
        self.touched(end);
    }

    /// Applications post everything that they have.
    pub(super) fn post_all(&mut self) {
        for end in self.all_ends() {
            for data in [false, true] {
                while self.wants_receive(end, data) {
                    self.post_receive(end, data);
                }
            }
        }
        for end in self.all_ends() {
            while self.ends[end].next_job < self.shape.jobs[end].len() {
                self.post(end, 0);
            }
        }
    }
}

/// The work request of a job.
fn request(job: Job, number: usize, place: usize, keys: &[DeviceKeys]) -> SendWr<'_> {
    let id = number as u64;
    // SAFETY: these NICs touch no memory but their own.
    let local = unsafe { LocalBuffer::new(SOURCE + id * STRIDE, job.length) };
    let target = PLACES + place as u64 * STRIDE;
    let readable = READABLE + id * STRIDE;
    let wr = match job.kind {
        Kind::Write => SendWr::write(id, local, target, keys),
        Kind::WriteImm => SendWr::write_with_imm(id, local, target, number as u32, keys),
        Kind::Read => SendWr::read(id, local, readable, keys),
        Kind::Send => SendWr::send(id, local, keys),
        Kind::FetchAdd => SendWr::fetch_add(id, local, readable, 1, keys),
    };
    let mut flags = SendFlags::empty();
    flags.set(SendFlags::SIGNALED, job.signaled);
    flags.set(SendFlags::FENCE, job.fence);
    flags.set(SendFlags::SOLICITED, job.solicited);
    let order = if job.when_done { ReportOrder::WhenDone } else { ReportOrder::InOrder };
    wr.with_flags(flags).reported(order)
}

/// A buffer in pieces of these lengths.
fn in_parts<'k>(whole: LocalBuffer, lengths: &[u32], keys: &'k [DeviceKeys]) -> Vec<LocalPart<'k>> {
    let mut from = 0;
    let part = |length: &u32| {
        let local = whole.slice(from, *length).expect("within the buffer");
        from += length;
        LocalPart { local, keys }
    };
    lengths.iter().map(part).collect()
}
