//! What programs ask of queue pairs and paths, and a device may not have.

use crate::fixture::{GID_INDEX, Rails};
use polyrail::backend::{ConnectOptions, Domain, Mtu};
use polyrail::chain::Chain;
use polyrail::endpoint::{EndpointBuilder, connect_endpoints};
use polyrail::rdma::{OpenOptions, VerbsDomain, open_devices};

fn domain(name: &str) -> VerbsDomain {
    let options = OpenOptions { gid_index: Some(GID_INDEX), ..OpenOptions::default() };
    open_devices(&[name.parse().unwrap()], &options).unwrap().remove(0)
}

pub(super) fn what_a_device_does_not_have_is_refused_in_words(_: &Rails) {
    let [near, far] = ["rxeA0", "rxeB0"].map(domain);
    let builder = EndpointBuilder::new().rails(1);
    let said = |builder: EndpointBuilder| Chain(&builder.build(&[&near]).unwrap_err()).to_string();
    builder.max_inline_data(256).queue_depth(1000).build(&[&near]).unwrap();
    let inline = said(builder.max_inline_data(1 << 16));
    assert!(
        inline.starts_with(
            "device rxeA0: 65536 bytes of inline data exceed what the device supports: ibv_create_qp"
        ),
        "{inline}"
    );
    let deep = said(builder.queue_depth(1 << 30));
    assert!(deep.starts_with("the queue depth is 1073741824, but device rxeA0 allows"), "{deep}");

    let port = near.ports().unwrap()[0];
    let exactly = |mtu| builder.connect_options(ConnectOptions::default().with_path_mtu(mtu));
    for mtu in Mtu::ALL {
        if mtu > port.mtu {
            let (asked, most) = (mtu.bytes(), port.mtu.bytes());
            let words = format!("port 1 supports an MTU of at most {most} bytes, not {asked}");
            assert_eq!(said(exactly(mtu)), format!("device rxeA0: {words}"));
            continue;
        }
        let mut ends = [&near, &far].map(|domain| exactly(mtu).build(&[domain]).unwrap());
        let [here, there] = &mut ends;
        connect_endpoints(here, there).unwrap();
        let qp = here.virtual_qp().rails().next().unwrap();
        assert_eq!(qp.query().unwrap().path_mtu.map(polyrail_ffi::Mtu::bytes), Some(mtu.bytes()));
    }
}
