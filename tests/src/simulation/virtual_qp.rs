//! Virtual queue pairs of several sizes behind one type.

use polyrail::nic;
use polyrail_core::verbs::{LocalPart, RecvWr, SendWr};
use polyrail_core::virtual_cq::{CompletionTarget, TargetSet};
use polyrail_core::virtual_qp::{
    BuildError, Config, PeerWindow, PeerWindowError, PostManyError, PostRecvError, PostSendError,
    QpState, RailCounters, RailId, RailSet, VirtualQp,
};
use polyrail_faults::Faulty;

/// A physical queue pair, over a driver that has faults.
pub(super) type QueuePair = Faulty<nic::QueuePair>;

/// The interface of a virtual queue pair for the simulation, independent of its const parameters.
pub(super) trait AnyQp: CompletionTarget {
    fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError>;
    fn post_many(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostManyError>;
    fn post_list(&mut self, wr: &SendWr<'_>, parts: &[LocalPart<'_>]) -> Result<(), PostSendError>;
    fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostRecvError>;
    fn post_recv_list(&mut self, wr_id: u64, parts: &[LocalPart<'_>]) -> Result<(), PostRecvError>;
    fn prepare_receives(&mut self) -> Result<(), PostRecvError>;
    fn window(&self) -> PeerWindow;
    fn set_peer_window(&mut self, peer: PeerWindow) -> Result<(), PeerWindowError>;
    fn set_rail_in_service(&mut self, rail: u8, in_service: bool) -> bool;
    fn reserve_rail(&mut self, rail: u8, reserved: bool) -> bool;
    fn check_stalled(&mut self) -> RailSet;
    fn physical(&self, rail: RailId) -> Option<&nic::QueuePair>;
    /// # Safety
    ///
    /// As [`VirtualQp::physical_mut`].
    unsafe fn physical_mut(&mut self, rail: RailId) -> Option<&mut QueuePair>;
    fn counters(&mut self, rail: RailId) -> Option<RailCounters>;
    fn state(&self) -> QpState;
    fn protocol_errors(&self) -> u64;
    fn duplicates(&self) -> u64;
    fn unreported_sends(&self) -> usize;
    fn unreported_recvs(&self) -> usize;
    fn invariants(&self);
}

macro_rules! forward {
    ($($name:ident(&mut self $(, $arg:ident: $type:ty)*) -> $result:ty;)* ; $($get:ident -> $got:ty;)*) => {
        impl<const RAILS: usize, const DEPTH: usize, const WRS: usize> AnyQp
            for VirtualQp<QueuePair, RAILS, DEPTH, WRS>
        {
            $(fn $name(&mut self $(, $arg: $type)*) -> $result {
                VirtualQp::$name(self $(, $arg)*)
            })*
            $(fn $get(&self) -> $got {
                VirtualQp::$get(self)
            })*

            fn physical(&self, rail: RailId) -> Option<&nic::QueuePair> {
                VirtualQp::physical(self, rail).map(Faulty::inner)
            }

            unsafe fn physical_mut(&mut self, rail: RailId) -> Option<&mut QueuePair> {
                // SAFETY: the caller keeps to the contract.
                unsafe { VirtualQp::physical_mut(self, rail) }
            }
        }
    };
}

forward! {
    post_send(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError>;
    post_many(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostManyError>;
    post_list(&mut self, wr: &SendWr<'_>, parts: &[LocalPart<'_>]) -> Result<(), PostSendError>;
    post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostRecvError>;
    post_recv_list(&mut self, wr_id: u64, parts: &[LocalPart<'_>]) -> Result<(), PostRecvError>;
    prepare_receives(&mut self) -> Result<(), PostRecvError>;
    set_peer_window(&mut self, peer: PeerWindow) -> Result<(), PeerWindowError>;
    set_rail_in_service(&mut self, rail: u8, in_service: bool) -> bool;
    reserve_rail(&mut self, rail: u8, reserved: bool) -> bool;
    check_stalled(&mut self) -> RailSet;
    counters(&mut self, rail: RailId) -> Option<RailCounters>;
    ;
    window -> PeerWindow;
    state -> QpState;
    protocol_errors -> u64;
    duplicates -> u64;
    unreported_sends -> usize;
    unreported_recvs -> usize;
    invariants -> ();
}

/// The const parameters of a virtual queue pair: `RAILS`, `DEPTH` and `WRS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// 1, 8, 8.
    One,
    /// 2, 8, 4.
    Two,
    /// 4, 8, 8.
    Four,
    /// 8, 16, 32.
    Eight,
}

impl Size {
    pub(super) const ALL: [Self; 4] = [Self::One, Self::Two, Self::Four, Self::Eight];

    /// `RAILS`.
    pub const fn rails(self) -> usize {
        match self {
            Self::One => 1,
            Self::Two => 2,
            Self::Four => 4,
            Self::Eight => 8,
        }
    }

    /// `DEPTH`.
    pub const fn depth(self) -> u32 {
        if matches!(self, Self::Eight) { 16 } else { 8 }
    }

    /// `WRS`.
    pub const fn wrs(self) -> u32 {
        match self {
            Self::One | Self::Four => 8,
            Self::Two => 4,
            Self::Eight => 32,
        }
    }

    pub(super) fn build(
        self,
        config: Config,
        rails: Vec<QueuePair>,
        notify: Option<QueuePair>,
    ) -> Result<Box<dyn AnyQp>, BuildError> {
        Ok(match self {
            Self::One => Box::new(VirtualQp::<_, 1, 8, 8>::new(config, rails, notify)?),
            Self::Two => Box::new(VirtualQp::<_, 2, 8, 4>::new(config, rails, notify)?),
            Self::Four => Box::new(VirtualQp::<_, 4, 8, 8>::new(config, rails, notify)?),
            Self::Eight => Box::new(VirtualQp::<_, 8, 16, 32>::new(config, rails, notify)?),
        })
    }
}

/// The virtual queue pairs of a host, by the index under which they are attached.
#[derive(Default)]
pub(super) struct QpTable(pub(super) Vec<Option<Box<dyn AnyQp>>>);

impl TargetSet for QpTable {
    type Target = dyn AnyQp + 'static;

    fn target(&mut self, index: u16) -> Option<&mut (dyn AnyQp + 'static)> {
        self.0.get_mut(index as usize)?.as_deref_mut()
    }
}
