//! What can be asked about peers.

use super::object::{PeersOn, on_backend};
use crate::arguments::give_list;
use crate::call::call;
use crate::code::Code;
use crate::devices::fixed;
use crate::error::Refusal;
use crate::numbers::Numbers;
use crate::sized::place;
use crate::table::exclusive;
use crate::types::{POLYRAIL_RAIL_NOTIFY, PeerInfo, Peers, RailInfo, RailState};
use polyrail::backend::Domain;
use polyrail::endpoint::RailReport;
use polyrail::virtual_qp::{self, QpState};

/// Where a rail stands, in C.
pub(crate) fn rail_state(state: virtual_qp::RailState) -> RailState {
    match state {
        virtual_qp::RailState::InService => RailState::InService,
        virtual_qp::RailState::Draining => RailState::Draining,
        virtual_qp::RailState::Fenced => RailState::Fenced,
        virtual_qp::RailState::Down => RailState::Down,
        virtual_qp::RailState::Joining => RailState::Joining,
    }
}

fn rail_info(report: &RailReport) -> RailInfo {
    RailInfo {
        device: fixed(&report.device),
        // The others have numbers.
        rail: report.rail.parse().unwrap_or(POLYRAIL_RAIL_NOTIFY),
        state: rail_state(report.state) as u32,
        qp_num: report.qp_num,
        generation: report.generation.into(),
        bytes: report.bytes,
        requests: report.send_requests,
        doorbells: report.doorbells,
        completions: report.completions,
        errors: report.errors,
        failures: report.failures,
        posted_again: report.posted_again,
        reserved: [0; 2],
    }
}

impl<D: Domain> PeersOn<D> {
    fn info(&mut self, peer: u64) -> Result<PeerInfo, Refusal> {
        let place = self.numbers.place(peer)?;
        // Ends are noticed there.
        self.drive_one(place, peer);
        let kept = &self.kept[place];
        let qp = Numbers::found(self.set.get(place), peer)?;
        let first_error = || qp.first_error().map(|error| error.to_string());
        let words = kept.end.clone().or_else(first_error).unwrap_or_default();
        let state = kept.state(qp.state() == QpState::Error, qp.state() == QpState::Degraded);
        let reports = qp.rail_reports();
        let rails = reports.iter().map(rail_info).filter(|rail| rail.rail != POLYRAIL_RAIL_NOTIFY);
        let in_service = |rail: &RailInfo| rail.state == RailState::InService as u32;
        Ok(PeerInfo {
            size: 0,
            state: state as u32,
            rails: rails.clone().count() as u32,
            rails_in_service: rails.filter(in_service).count() as u32,
            unreported: qp.unreported() as u32,
            has_link: kept.link.is_some().into(),
            words: fixed(&words),
        })
    }

    fn rails(&self, peer: u64) -> Result<Vec<RailInfo>, Refusal> {
        let place = self.numbers.place(peer)?;
        let qp = Numbers::found(self.set.get(place), peer)?;
        Ok(qp.rail_reports().iter().map(rail_info).collect())
    }
}

/// Where a connection stands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_info(
    peers: *mut Peers,
    peer: u64,
    info: *mut PeerInfo,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { place(info) }?;
        place.put(&on_backend!(&mut *exclusive(peers)?, peers => peers.info(peer)?));
        Ok(())
    })
}

/// What every rail of a connection did. Stores up to `capacity`, and in `count` how many there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_rails(
    peers: *mut Peers,
    peer: u64,
    rails: *mut RailInfo,
    capacity: usize,
    count: *mut usize,
) -> Code {
    call(|| {
        let all = on_backend!(&mut *exclusive(peers)?, peers => peers.rails(peer)?);
        // SAFETY: the caller's promise.
        unsafe { give_list((rails, capacity), count, &all) }
    })
}
