//! Notifications of the kernel that interfaces or addresses have changed. Their contents do not
//! matter: whoever is notified looks at the interfaces.

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use std::os::fd::OwnedFd;

/// Links, and addresses of both families (`RTMGRP_LINK`, `RTMGRP_IPV4_IFADDR`,
/// `RTMGRP_IPV6_IFADDR` of `linux/rtnetlink.h`).
const GROUPS: u32 = 0x1 | 0x10 | 0x100;

/// Opens a socket that is readable after a change.
pub(crate) fn open() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // No protocol is NETLINK_ROUTE.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
    Ok(socket)
}

/// Forgets what was notified.
pub(crate) fn drain(socket: &OwnedFd) {
    let mut message = [0; 4096];
    // A message that is lost because there are too many (ENOBUFS) is a notification, too.
    while matches!(
        recv(socket, &mut message, RecvFlags::empty()),
        Ok(_) | Err(Errno::INTR | Errno::NOBUFS)
    ) {}
}
