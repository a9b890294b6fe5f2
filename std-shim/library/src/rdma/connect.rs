//! Connects queue pairs.

use crate::backend::{
    Connect, ConnectOptions, ConnectSteps, Connecting, DeviceError, Gid, Mtu, Port, RemoteQp,
};
use polyrail_ffi::{Grh, Path, QueuePair, Route, ToErr, ToInit, ToRtr, ToRts};
use std::thread;

/// [`gone`](Connect::gone) never returns a proof. Verbs reports the end of a device by one event,
/// [`DeviceFatal`](polyrail_ffi::AsyncEvent::DeviceFatal), in two cases that cannot be
/// distinguished:
///
/// - The device was removed. The kernel destroys all its objects, before or after the event,
///   depending on its version. From then on no memory is accessed, and every call that reaches the
///   kernel fails with EIO.
/// - The driver considers the device failed. Its objects still exist, requests in progress may
///   still access memory, and calls may fail with EIO as well.
///
/// Memory that such a queue pair can reach is therefore not returned until its owner has other
/// proof.
impl Connect for QueuePair {
    fn init(&self, port: &Port, options: &ConnectOptions) -> Result<(), DeviceError> {
        Ok(self.modify(&to_init(port, options))?)
    }

    fn ready_to_receive(
        &self,
        port: &Port,
        peer: &RemoteQp,
        options: &ConnectOptions,
    ) -> Result<(), DeviceError> {
        Ok(self.modify(&to_rtr(port, peer, options)?)?)
    }

    fn ready_to_send(&self, psn: u32, options: &ConnectOptions) -> Result<(), DeviceError> {
        Ok(self.modify(&to_rts(psn, options))?)
    }

    fn fail(&self) -> Result<(), DeviceError> {
        Ok(self.modify(&ToErr)?)
    }

    /// On another thread: for RTR the kernel resolves the peer's address, for a second or more if
    /// the peer does not answer, and would block all other rails and peers meanwhile.
    fn connect_aside(&self, steps: &ConnectSteps) -> Connecting<()> {
        let ConnectSteps { port, peer, receives, psn, sends } = steps;
        let made = self.connector().map_err(DeviceError::from);
        let made = made.and_then(|made| Ok((made, to_rtr(port, peer, receives)?)));
        let to_rts = to_rts(*psn, sends);
        match made {
            Ok((made, to_rtr)) => Connecting::aside(move || Ok(made.connect(&to_rtr, &to_rts)?)),
            Err(error) => Connecting::done(Err(error)),
        }
    }

    /// On a new thread: a driver may wait for all its packets, which a port that is down may hold
    /// for seconds, and would block all other rails meanwhile.
    fn retire(self) {
        // If the thread cannot be started, the queue pair is dropped here.
        _ = thread::Builder::new().name("polyrail-retire".to_owned()).spawn(move || drop(self));
    }
}

fn to_init(port: &Port, options: &ConnectOptions) -> ToInit {
    ToInit { port_num: port.number, pkey_index: options.pkey_index, access: options.access }
}

fn to_rtr(port: &Port, peer: &RemoteQp, options: &ConnectOptions) -> Result<ToRtr, DeviceError> {
    Ok(ToRtr {
        path: path(port, peer, options)?,
        path_mtu: mtu(options.path_mtu),
        dest_qp_num: peer.qp_num,
        rq_psn: peer.psn,
        max_dest_rd_atomic: options.max_rd_atomic,
        min_rnr_timer: options.min_rnr_timer,
    })
}

fn to_rts(psn: u32, options: &ConnectOptions) -> ToRts {
    ToRts {
        sq_psn: psn,
        timeout: options.timeout,
        retry_cnt: options.retry_cnt,
        rnr_retry: options.rnr_retry,
        max_rd_atomic: options.max_rd_atomic,
    }
}

/// Returns the path from a port to a peer: by LID between InfiniBand ports, with a GRH if they are
/// in different subnets; by GID between Ethernet ports.
fn path(port: &Port, peer: &RemoteQp, options: &ConnectOptions) -> Result<Path, DeviceError> {
    let grh = Grh {
        dgid: polyrail_ffi::Gid(peer.gid.0),
        sgid_index: port.gid_index,
        hop_limit: options.hop_limit,
        traffic_class: options.traffic_class,
        flow_label: options.flow_label,
    };
    let route = match (port.lid, peer.lid) {
        (0, 0) => Route::Roce(grh),
        (0, _) | (_, 0) => return Err(DeviceError::LinkLayers { infiniband: port.lid != 0 }),
        (_, dlid) => {
            let grh = (subnet(port.gid) != subnet(peer.gid)).then_some(grh);
            Route::Infiniband { dlid, src_path_bits: 0, grh }
        }
    };
    Ok(Path { port_num: port.number, route, service_level: options.service_level })
}

/// Returns the subnet prefix of an InfiniBand GID.
fn subnet(gid: Gid) -> [u8; 8] {
    std::array::from_fn(|byte| gid.0[byte])
}

const fn mtu(mtu: Mtu) -> polyrail_ffi::Mtu {
    match mtu {
        Mtu::Mtu256 => polyrail_ffi::Mtu::Mtu256,
        Mtu::Mtu512 => polyrail_ffi::Mtu::Mtu512,
        Mtu::Mtu1024 => polyrail_ffi::Mtu::Mtu1024,
        Mtu::Mtu2048 => polyrail_ffi::Mtu::Mtu2048,
        Mtu::Mtu4096 => polyrail_ffi::Mtu::Mtu4096,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(lid: u16, gid: &str) -> Port {
        let gid = gid.parse().unwrap();
        Port { number: 2, gid_index: 3, gid, lid, mtu: Mtu::Mtu4096, max_rd_atomic: 1 }
    }

    fn peer(lid: u16, gid: &str) -> RemoteQp {
        RemoteQp { gid: gid.parse().unwrap(), lid, qp_num: 1, psn: 0, meeting: None }
    }

    fn plain(port: &Port, peer: &RemoteQp) -> Result<Path, DeviceError> {
        path(port, peer, &ConnectOptions::default())
    }

    #[test]
    fn ethernet_goes_by_address_and_infiniband_by_lid() {
        let roce = plain(&port(0, "fe80::1"), &peer(0, "fe80::2")).unwrap();
        let Route::Roce(grh) = roce.route else { panic!("{roce:?}") };
        assert_eq!((roce.port_num, grh.sgid_index, grh.dgid.0[15]), (2, 3, 2));
        let near = plain(&port(5, "fe80::1"), &peer(7, "fe80::2")).unwrap();
        assert_eq!(near, Path::infiniband(2, 7));
    }

    #[test]
    fn a_routing_header_goes_along_to_another_subnet_only() {
        let far = plain(&port(5, "fe80::1"), &peer(7, "fe80:0:0:1::2")).unwrap();
        let Route::Infiniband { dlid: 7, grh: Some(grh), .. } = far.route else {
            panic!("{far:?}")
        };
        assert_eq!((grh.sgid_index, grh.dgid.0[15]), (3, 2));
    }

    #[test]
    fn what_tells_packets_from_others_is_handed_over() {
        let options = ConnectOptions {
            pkey_index: 3,
            service_level: 4,
            traffic_class: 106,
            flow_label: 0xabcde,
            hop_limit: 7,
            ..ConnectOptions::default()
        };
        assert_eq!(to_init(&port(0, "fe80::1"), &options).pkey_index, 3);
        let expected = Grh {
            hop_limit: 7,
            traffic_class: 106,
            flow_label: 0xabcde,
            ..Grh::new(polyrail_ffi::Gid(peer(0, "fe80:0:0:1::2").gid.0), 3)
        };
        let to = |lid| path(&port(lid, "fe80::1"), &peer(lid, "fe80:0:0:1::2"), &options).unwrap();
        assert_eq!((to(0).route, to(0).service_level), (Route::Roce(expected), 4));
        let route = Route::Infiniband { dlid: 7, src_path_bits: 0, grh: Some(expected) };
        assert_eq!((to(7).route, to(7).service_level), (route, 4));
    }

    #[test]
    fn two_kinds_of_link_do_not_meet() {
        let mixed = |own, other| plain(&port(own, "fe80::1"), &peer(other, "fe80::2"));
        assert_eq!(mixed(0, 7), Err(DeviceError::LinkLayers { infiniband: false }));
        assert_eq!(mixed(7, 0), Err(DeviceError::LinkLayers { infiniband: true }));
    }

    #[test]
    fn packets_keep_their_size() {
        assert!(Mtu::ALL.iter().all(|&size| mtu(size).bytes() == size.bytes()));
    }
}
