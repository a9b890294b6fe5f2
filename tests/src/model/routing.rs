//! The routing table beside a hash map.

use crate::choices::{Bytes, Choices};
use polyrail_core::internals::{Reserved, Role, Route, RoutingTable};
use polyrail_core::verbs::DeviceId;
use polyrail_core::virtual_cq::RouteError;
use std::collections::HashMap;

type Table = RoutingTable<32>;

/// Adds, removes and looks up the routes that `bytes` choose in both tables.
///
/// # Panics
///
/// If they disagree.
pub fn routing(bytes: &[u8]) {
    let mut bytes = Bytes::new(bytes);
    let mut table = Table::new();
    let mut map = HashMap::new();
    while !bytes.is_empty() {
        let device = DeviceId(bytes.below(3));
        let qp_num = bytes.below(24) << bytes.below(9);
        match bytes.below(8) {
            0..=3 => insert(&mut table, &mut map, device, qp_num, bytes.below(5) as u16),
            4..=6 => assert_eq!(table.remove(device, qp_num), map.remove(&(device, qp_num))),
            _ => {
                let index = bytes.below(5) as u16;
                let before = map.len();
                map.retain(|_, route: &mut Route| route.index != index);
                assert_eq!(table.remove_index(index), before - map.len());
            }
        }
        table.invariants();
        assert_eq!(table.len(), map.len());
        assert_eq!(table.is_empty(), map.is_empty());
        assert_eq!(table.find(device, qp_num), map.get(&(device, qp_num)));
        for ((device, qp_num), route) in &map {
            assert_eq!(table.find(*device, *qp_num), Some(route));
        }
    }
}

fn insert(
    table: &mut Table,
    map: &mut HashMap<(DeviceId, u32), Route>,
    device: DeviceId,
    qp_num: u32,
    index: u16,
) {
    let role = [Role::Single, Role::Rail(index as u8), Role::Notify][index as usize % 3];
    let route = Route { index, role, virtual_qp_num: qp_num };
    let reserved = Reserved { entries: qp_num, ..Reserved::NOTHING };
    let inserted = table.insert(device, qp_num, route, reserved);
    if map.contains_key(&(device, qp_num)) {
        assert_eq!(inserted, Err(RouteError::Taken { device, qp_num }));
    } else if map.len() == Table::CAPACITY {
        assert_eq!(inserted, Err(RouteError::Full { capacity: Table::CAPACITY }));
    } else {
        assert_eq!(inserted, Ok(()));
        map.insert((device, qp_num), route);
    }
}
