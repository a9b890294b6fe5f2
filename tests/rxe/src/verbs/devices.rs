//! Devices, ports, addresses and attributes.

use crate::fixture::{GID_INDEX, PORT, Rails};
use polyrail::backend::{DeviceName, Domain};
use polyrail::place::Near;
use polyrail::rdma::{OpenOptions, VerbsDomain, open_devices};
use polyrail_ffi::{
    AtomicCap, DeviceList, GidType, LinkLayer, Mtu, NodeType, PortState, QpState, Transport,
};
use polyrail_tests::behaviours::{ALL_ACCESS, End, Fixture, Pair, Retries};

pub(super) fn devices_report_their_identity(rails: &Rails) {
    let list = DeviceList::new().unwrap();
    assert_eq!(list.iter().len(), 2 * rails.rails());
    let mut guids: Vec<_> = list.iter().map(|device| device.guid()).collect();
    guids.sort_unstable();
    guids.dedup();
    assert_eq!(guids.len(), 2 * rails.rails(), "{guids:x?}");
    let device = list.find("rxeA0").unwrap();
    assert_eq!(device.node_type(), NodeType::ChannelAdapter);
    assert_eq!(device.transport(), Transport::Infiniband);
    assert!(list.find("rxeC0").is_none());
    let context = device.open().unwrap();
    drop(list);
    // In software, over one end of a veth pair: nowhere in the machine.
    let place = polyrail::place::Place::of("rxeA0");
    assert_eq!((place.parent.as_deref(), place.pci), (Some("a0"), None));
    // All devices are equally near to this thread.
    let of =
        |near| open_devices([] as [DeviceName; 0], &OpenOptions { near, ..OpenOptions::default() });
    let names = |domains: &[VerbsDomain]| -> Vec<String> {
        domains.iter().map(|domain| domain.device_name().to_owned()).collect()
    };
    let near = of(Near::ThisThread).unwrap();
    assert_eq!(names(&near), names(&of(Near::Nothing).unwrap()));
    let error = of(Near::Pci("ffff:ff:1f.7".parse().unwrap())).unwrap_err();
    assert!(error.to_string().contains("no PCI device ffff:ff:1f.7"), "{error}");
    let attributes = context.attributes();
    assert_eq!((context.name(), attributes.phys_port_cnt), ("rxeA0", 1));
    assert_eq!(attributes.atomic_cap, AtomicCap::Device);
    for limit in [attributes.max_qp, attributes.max_qp_wr, attributes.max_cqe, attributes.max_srq] {
        assert!(limit > 0, "{attributes:?}");
    }
    assert!(context.max_msg_size() >= 1 << 20);
    assert!(context.num_comp_vectors() > 0);
    context.close().unwrap();
}

pub(super) fn ports_and_addresses_can_be_looked_up(rails: &Rails) {
    let context = rails.context(End::Near, 0);
    let port = context.query_port(PORT).unwrap();
    assert_eq!((port.state, port.link_layer), (PortState::Active, LinkLayer::Ethernet));
    assert_eq!((port.active_mtu, port.lid), (Some(Mtu::Mtu4096), 0));
    assert!(port.width > 0 && port.speed_mbps > 0, "{port:?}");
    assert_eq!(context.query_port_speed(PORT), Ok(port.speed_mbps), "rxe reports no other speed");
    assert_eq!(context.query_port_speed(2).map_err(|error| error.errno), Err(libc::EINVAL));
    assert_eq!(context.query_port(2).map_err(|error| error.errno), Err(libc::EINVAL));
    assert_eq!(context.query_pkey(PORT, 0), Ok(0xffff));
    let table = context.gid_table().unwrap();
    assert!(table.iter().all(|entry| (entry.port, entry.gid_type) == (PORT, GidType::RoceV2)));
    let local = table.iter().find(|entry| entry.gid.is_link_local()).unwrap();
    assert_eq!(local.index, u32::from(GID_INDEX));
    assert_eq!(local.interface().as_deref(), Some("a0"));
    let ipv4 = table.iter().find(|entry| entry.gid.is_ipv4()).unwrap();
    assert_eq!(ipv4.gid.to_string(), "::ffff:10.0.0.1");
    assert_eq!(context.query_gid(PORT, ipv4.index), Ok(*ipv4));
    let empty = context.query_gid(PORT, port.gid_table_len - 1);
    assert_eq!(empty.map_err(|error| error.errno), Err(libc::ENODATA));
}

pub(super) fn a_queue_pair_reports_its_attributes(rails: &Rails) {
    let pair = Pair::on(rails, 0, Retries::FEW);
    let set = pair.near.qp.query().unwrap();
    assert_eq!((set.state, set.port_num, set.pkey_index), (QpState::Rts, PORT, 0));
    assert_eq!(set.dest_qp_num, pair.far.qp.qp_num());
    assert_eq!((set.timeout, set.retry_cnt, set.rnr_retry), (14, 2, 1));
    assert_eq!((set.min_rnr_timer, set.max_rd_atomic, set.max_dest_rd_atomic), (12, 16, 16));
    assert_eq!(set.access, ALL_ACCESS);
    // Not checked: `cur_state`, which rxe leaves at RESET.
    assert_eq!(set.path_mtu, Some(Mtu::Mtu4096));
    assert_eq!(set.path, Some(rails.path_from(End::Near, 0)));
    assert_eq!(set.sq_psn, pair.far.qp.query().unwrap().rq_psn);
    let granted = pair.near.qp.limits();
    // rxe rounds up, and reports that only to a query.
    assert!(set.cap.max_send_wr >= granted.max_send_wr, "{set:?}, {granted:?}");
    assert!(set.cap.max_inline_data >= granted.max_inline_data);
}

pub(super) fn a_shared_receive_queue_reports_its_attributes(rails: &Rails) {
    let mut srq = rails.create_srq(End::Far, 0, 8);
    srq.set_limit(3).unwrap();
    let set = srq.query().unwrap();
    assert_eq!(set.limit, 3);
    assert!(set.max_wr >= srq.capacity());
    let too_high = srq.set_limit(set.max_wr + 1).unwrap_err();
    assert_eq!((too_high.call, too_high.errno), ("ibv_modify_srq", libc::EINVAL));
}
