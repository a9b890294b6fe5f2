//! Errors of verbs calls: the call, its errno, its most relevant argument, and a hint.

use crate::qp_state::QpState;
use arrayvec::ArrayString;
use polyrail_core::hardware::{CommitError, CqError, Refusal};
use polyrail_process::Process;
use std::fmt;

/// A device's name (`IBV_SYSFS_NAME_MAX` is 64).
pub type DeviceName = ArrayString<64>;

/// The errno of calls with an object of the process that this one is a fork of. No call reaches the
/// driver: it may have mapped its queues for the parent only, and whatever it did would be done to
/// the parent's object.
pub(crate) const FORKED: i32 = libc::EPERM;

/// The refusal of a post with an object of the process that this one is a fork of.
pub(crate) const REFUSED_FORKED: Refusal = Refusal::Driver(FORKED);

/// The most relevant argument of a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Argument {
    /// No argument adds information.
    None,
    /// A device.
    Device(DeviceName),
    /// The dynamic linker's message about a library, or what the library lacks.
    Library(&'static str),
    /// A number, with its name in the header.
    Number(&'static str, u64),
    /// The target state of a queue pair.
    State(QpState),
    /// The process that made the object, which a fork of it cannot use.
    Process(u32),
}

/// A verbs call that failed. The call changed nothing, unless its documentation says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbsError {
    /// The function of libibverbs.
    pub call: &'static str,
    /// Its `errno`.
    pub errno: i32,
    /// The most relevant argument.
    pub argument: Argument,
}

/// Result of a verbs call.
pub type Result<T> = std::result::Result<T, VerbsError>;

impl VerbsError {
    pub(crate) const fn new(call: &'static str, errno: i32, argument: Argument) -> Self {
        Self { call, errno, argument }
    }

    /// Refuses a call with an object that `process` made, if the calling process is a fork of it.
    #[inline]
    pub(crate) fn check_process(process: Process, call: &'static str) -> Result<()> {
        if process.is_current() { Ok(()) } else { Err(Self::forked(process, call)) }
    }

    #[cold]
    fn forked(process: Process, call: &'static str) -> Self {
        Self::new(call, FORKED, Argument::Process(process.id()))
    }

    /// Makes the error of a call that returns a null pointer and sets `errno`.
    pub(crate) fn last(call: &'static str, argument: Argument) -> Self {
        Self::new(call, crate::sys::errno(), argument)
    }

    /// Checks the return value of a call that returns 0 or an errno.
    pub(crate) fn check(
        returned: libc::c_int,
        call: &'static str,
        argument: Argument,
    ) -> Result<()> {
        match returned {
            0 => Ok(()),
            code => Err(Self::new(call, crate::sys::errno_of(code), argument)),
        }
    }

    /// Makes the error of a batch of send requests. Its argument is the index in the batch of the
    /// first request that was not accepted.
    pub fn of_send(error: CommitError) -> Self {
        Self::of_post("ibv_post_send", error)
    }

    /// Makes the error of a batch of receives, as [`of_send`](Self::of_send) does for sends.
    pub fn of_recv(error: CommitError) -> Self {
        Self::of_post("ibv_post_recv", error)
    }

    fn of_post(call: &'static str, CommitError { accepted, refusal }: CommitError) -> Self {
        let errno = match refusal {
            Refusal::QueueFull => libc::ENOMEM,
            Refusal::Driver(errno) => errno,
        };
        Self::new(call, errno, Argument::Number("request", accepted.into()))
    }

    /// Returns the usual cause of a failed call, and the cure where there is one.
    pub fn hint(&self) -> Option<&'static str> {
        use libc::{
            EACCES, EBUSY, EFAULT, EHOSTUNREACH, EINVAL, ENETUNREACH, ENOENT, ENOMEM, ENOSPC,
            ENOSYS, EOPNOTSUPP, EPERM, ETIMEDOUT,
        };
        if matches!(self.argument, Argument::Process(_)) {
            return Some(
                "this process is a fork of that one, and cannot use its objects: open the device again",
            );
        }
        let to_init = self.argument == Argument::State(QpState::Init);
        let to_rtr = self.argument == Argument::State(QpState::Rtr);
        Some(match (self.call, self.errno) {
            ("dlopen", _) => "install packages libibverbs1 and ibverbs-providers",
            ("ibv_get_device_list", ENOSYS) => {
                "the kernel module ib_uverbs is not loaded: modprobe ib_uverbs"
            }
            ("ibv_fork_init", EINVAL) => {
                "another component of this process registered memory before: set RDMAV_FORK_SAFE=1"
            }
            ("ibv_open_device", EACCES | EPERM) => {
                "no permission to open /dev/infiniband/uverbs*: check the owner and mode of the file"
            }
            ("ibv_open_device", ENOENT) => "the device is gone, or its driver is not loaded",
            ("ibv_open_device", ENOMEM) => {
                "the kernel is out of memory, or the limit of locked memory is too low (ulimit -l \
                 unlimited, or memlock in /etc/security/limits.conf)"
            }
            ("ibv_reg_mr", ENOMEM | EPERM) => {
                "the limit of locked memory is too low (ulimit -l unlimited, or memlock in \
                 /etc/security/limits.conf), or the range is not mapped"
            }
            ("ibv_reg_mr", EINVAL) => {
                "check the access flags: remote write and remote atomic need local write"
            }
            ("ibv_reg_mr", EFAULT) => "the range is not mapped, or not writable",
            ("ibv_create_qp" | "ibv_create_qp_ex", ENOSPC | ENOMEM) => {
                "too many queue pairs (max_qp), or the limit of locked memory is too low (ulimit -l)"
            }
            ("ibv_create_qp" | "ibv_create_qp_ex" | "ibv_create_srq", EINVAL) => {
                "a capability is over the device's limits, or an object belongs to another device"
            }
            ("ibv_create_cq" | "ibv_create_cq_ex", EINVAL) => {
                "cqe is over max_cqe, or the completion vector or the channel is not the device's"
            }
            ("ibv_modify_qp", EINVAL) if to_init => {
                "check the queue pair's state, the port, the P_Key index and the access flags"
            }
            ("ibv_modify_qp", EINVAL) if to_rtr => {
                "check dest_qp_num, the remote LID or GID, the GID index and the path MTU"
            }
            ("ibv_modify_qp", ETIMEDOUT | ENETUNREACH | EHOSTUNREACH) => {
                "no route or no neighbour for the remote GID: check the GID index and the addresses"
            }
            ("ibv_modify_qp", EBUSY) => "another thread is connecting the queue pair",
            ("ibv_modify_qp", EINVAL) => "the queue pair's state does not allow the transition",
            ("ibv_create_ah", EINVAL | ETIMEDOUT | ENETUNREACH | EHOSTUNREACH) => {
                "check the remote LID or GID and the GID index"
            }
            ("ibv_post_send" | "ibv_post_recv" | "ibv_poll_cq", FORKED) => {
                "this process is a fork of the process that made the queue, and cannot use it"
            }
            ("ibv_post_send", EINVAL) => {
                "the queue pair is not in RTS, or a field of the request is invalid: inline data over \
                 the limit, a length, an object of another device"
            }
            ("ibv_post_recv", EINVAL) => {
                "the queue pair is in RESET, or has a shared receive queue: post to that queue instead"
            }
            ("ibv_post_send" | "ibv_post_recv", ENOMEM) => {
                "the queue is full: poll for completions, then post again"
            }
            ("ibv_post_send", EOPNOTSUPP) => {
                "the queue pair's service or post mode does not support the operation"
            }
            ("ibv_poll_cq", _) => {
                "the completion queue is broken: it overran because more requests were outstanding \
                 than it can hold, or the device is gone"
            }
            ("ibv_reg_dmabuf_mr", _) if matches!(self.argument, Argument::Library(_)) => {
                "install libibverbs1 of rdma-core 34 or later"
            }
            (_, EBUSY) => "objects made from it still exist",
            (_, EOPNOTSUPP | ENOSYS) => "the device or its driver does not support this",
            _ => return None,
        })
    }
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Device(name) => write!(f, "{name}"),
            Self::Library(why) => f.write_str(why),
            Self::Number(name, value) => write!(f, "{name} {value}"),
            Self::State(state) => write!(f, "to {state}"),
            Self::Process(process) => write!(f, "object of process {process}"),
        }
    }
}

impl fmt::Display for VerbsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = std::io::Error::from_raw_os_error(self.errno);
        write!(f, "{}({}): {why}", self.call, self.argument)?;
        match self.hint() {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for VerbsError {}

impl From<CqError> for VerbsError {
    fn from(CqError { cq, errno, .. }: CqError) -> Self {
        Self::new("ibv_poll_cq", errno, Argument::Number("cq", cq.0))
    }
}

impl From<VerbsError> for std::io::Error {
    fn from(error: VerbsError) -> Self {
        let kind = std::io::Error::from_raw_os_error(error.errno).kind();
        Self::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail_core::hardware::CqId;
    use polyrail_core::verbs::DeviceId;

    #[test]
    fn an_error_names_call_argument_errno_and_what_to_look_at() {
        let length = Argument::Number("length", 1 << 30);
        let error = VerbsError::new("ibv_reg_mr", libc::ENOMEM, length);
        assert_eq!(
            error.to_string(),
            "ibv_reg_mr(length 1073741824): Cannot allocate memory (os error 12); the limit of \
             locked memory is too low (ulimit -l unlimited, or memlock in \
             /etc/security/limits.conf), or the range is not mapped"
        );
    }

    #[test]
    fn a_kernel_without_verbs_gets_the_module_that_has_them() {
        let error = VerbsError::new("ibv_get_device_list", libc::ENOSYS, Argument::None);
        assert!(
            error
                .to_string()
                .ends_with("; the kernel module ib_uverbs is not loaded: modprobe ib_uverbs")
        );
    }

    /// A driver maps device pages when it opens a device, and these count as locked.
    #[test]
    fn a_device_that_cannot_be_opened_for_want_of_memory_names_the_limit() {
        let device = Argument::Device("mlx5_0".parse().unwrap_or_default());
        let error = VerbsError::new("ibv_open_device", libc::ENOMEM, device);
        assert!(error.to_string().starts_with("ibv_open_device(mlx5_0): Cannot allocate memory"));
        assert!(error.hint().is_some_and(|hint| hint.contains("ulimit -l")));
    }

    #[test]
    fn the_hint_of_a_transition_depends_on_where_it_leads() {
        let to = |state| VerbsError::new("ibv_modify_qp", libc::EINVAL, Argument::State(state));
        assert!(to(QpState::Rtr).hint().is_some_and(|hint| hint.contains("GID")));
        assert!(to(QpState::Rts).hint().is_some_and(|hint| hint.contains("state")));
        assert!(to(QpState::Init).hint().is_some_and(|hint| hint.contains("P_Key index")));
        assert_eq!(VerbsError::new("ibv_alloc_pd", libc::EIO, Argument::None).hint(), None);
    }

    #[test]
    fn a_refused_post_says_which_request_why_and_what_to_look_at() {
        let of = |accepted, refusal| VerbsError::of_send(CommitError { accepted, refusal });
        assert_eq!(
            of(2, Refusal::Driver(libc::EINVAL)).to_string(),
            "ibv_post_send(request 2): Invalid argument (os error 22); the queue pair is not in RTS, \
             or a field of the request is invalid: inline data over the limit, a length, an object \
             of another device"
        );
        assert!(of(0, Refusal::QueueFull).to_string().contains("poll for completions"));
        let lacking = of(0, Refusal::Driver(libc::EOPNOTSUPP));
        assert!(lacking.hint().is_some_and(|hint| hint.contains("operation")));
        let refusal = Refusal::Driver(libc::EINVAL);
        let receive = VerbsError::of_recv(CommitError { accepted: 0, refusal });
        assert!(receive.hint().is_some_and(|hint| hint.contains("RESET")));
    }

    #[test]
    fn a_broken_completion_queue_says_so_in_words() {
        let error = CqError { cq: CqId(7), device: DeviceId(1), errno: libc::EIO };
        let text = VerbsError::from(error).to_string();
        assert!(text.starts_with("ibv_poll_cq(cq 7): Input/output error"), "{text}");
        assert!(text.contains("overran"), "{text}");
    }
}
