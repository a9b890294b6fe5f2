//! Devices and the objects made from them.

use super::{FORK_INITS, call, create, destroy, extended, join_owner, queues, set_errno, with};
use rdma_sys::*;
use std::ffi::{c_char, c_int, c_void};
use std::mem::zeroed;
use std::ptr;
use std::sync::atomic::Ordering;

/// The number of every queue pair.
pub(crate) const QP_NUM: u32 = 77;

/// The device's GUID.
pub(crate) const GUID: u64 = 0x0102_0304_0506_0708;

/// Arguments of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Registered {
    Memory { addr: usize, length: usize, iova: u64, access: u32 },
    DmaBuf { offset: u64, length: usize, iova: u64, fd: c_int, access: u32 },
}

macro_rules! exported {
    ($(fn $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)? $body:block)*) => {
        $(unsafe extern "C" fn $name($($arg: $type),*) $(-> $result)? $body)*

        /// Returns the function of this name.
        pub(super) fn find(name: &str) -> Option<*mut std::ffi::c_void> {
            match name {
                $(stringify!($name) => {
                    let function: unsafe extern "C" fn($($type),*) $(-> $result)? = $name;
                    Some(function as *mut std::ffi::c_void)
                })*
                _ => None,
            }
        }
    };
}
pub(super) use exported;

exported! {
    fn ibv_fork_init() -> c_int {
        FORK_INITS.fetch_add(1, Ordering::Relaxed);
        call("ibv_fork_init")
    }

    fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
        let mut device: ibv_device = zeroed();
        for (to, from) in device.name.iter_mut().zip(b"fake0") {
            *to = *from as c_char;
        }
        let devices = [Box::into_raw(Box::new(device)), ptr::null_mut()];
        let list = create("ibv_get_device_list", "list", &[], devices);
        *count = c_int::from(!list.is_null());
        if list.is_null() {
            drop(Box::from_raw(devices[0]));
        }
        list.cast()
    }

    fn ibv_free_device_list(list: *mut *mut ibv_device) {
        let list = list.cast::<[*mut ibv_device; 2]>();
        let [device, _] = *list;
        destroy("ibv_free_device_list", list);
        drop(Box::from_raw(device));
    }

    fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
        (&raw const (*device).name).cast()
    }

    fn ibv_get_device_guid(_device: *mut ibv_device) -> u64 {
        GUID.to_be()
    }

    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
        let mut whole: verbs_context = zeroed();
        whole.sz = size_of::<verbs_context>();
        whole.query_port = Some(query_port);
        whole.query_device_ex = Some(query_device_ex);
        whole.create_cq_ex = Some(create_cq_ex);
        whole.create_qp_ex = Some(create_qp_ex);
        whole.modify_cq = Some(modify_cq);
        // The context keeps the device after the list is freed.
        whole.context.device = Box::into_raw(Box::new(device.read()));
        whole.context.abi_compat = ptr::without_provenance_mut(usize::MAX);
        whole.context.async_fd = event_fd();
        queues::fill(&mut whole.context.ops);
        let fd = whole.context.async_fd;
        let device = whole.context.device;
        let whole = create("ibv_open_device", "context", &[], whole);
        if whole.is_null() {
            libc::close(fd);
            drop(Box::from_raw(device));
            return ptr::null_mut();
        }
        &raw mut (*whole).context
    }

    fn ibv_close_device(context: *mut ibv_context) -> c_int {
        let ibv_context { async_fd, device, .. } = *context;
        let returned = destroy("ibv_close_device", extended(context));
        if returned == 0 {
            libc::close(async_fd);
            drop(Box::from_raw(device));
        }
        returned
    }

    fn ibv_query_device(_context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
        (*attr).vendor_id = with(|state| state.vendor_id);
        (*attr).phys_port_cnt = 2;
        (*attr).max_qp_wr = 1000;
        call("ibv_query_device")
    }

    // Not called: the devices here have the newer operation in their context.
    fn ibv_query_port(
        _context: *mut ibv_context, _port: u8, _attr: *mut _compat_ibv_port_attr
    ) -> c_int {
        libc::EOPNOTSUPP
    }

    fn ibv_query_port_speed(_context: *mut ibv_context, _port: u32, speed: *mut u64) -> c_int {
        let Some(reported) = with(|state| state.port_speed) else { return libc::EOPNOTSUPP };
        *speed = reported;
        call("ibv_query_port_speed")
    }

    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
        let pd = ibv_pd { context, handle: 0 };
        create("ibv_alloc_pd", "pd", &[extended(context).addr()], pd)
    }

    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
        destroy("ibv_dealloc_pd", pd)
    }

    fn ibv_reg_mr_iova2(
        pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: u32
    ) -> *mut ibv_mr {
        let memory = Registered::Memory { addr: addr.addr(), length, iova, access };
        with(|state| state.registered = Some(memory));
        let context = (*pd).context;
        let mr = ibv_mr { context, pd, addr, length, handle: 0, lkey: 5, rkey: 6 };
        create("ibv_reg_mr", "mr", &[pd.addr()], mr)
    }

    fn ibv_reg_dmabuf_mr(
        pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int
    ) -> *mut ibv_mr {
        let access = access as u32;
        let buffer = Registered::DmaBuf { offset, length, iova, fd, access };
        with(|state| state.registered = Some(buffer));
        let context = (*pd).context;
        let addr = ptr::null_mut();
        let mr = ibv_mr { context, pd, addr, length, handle: 0, lkey: 7, rkey: 8 };
        create("ibv_reg_dmabuf_mr", "mr", &[pd.addr()], mr)
    }

    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
        destroy("ibv_dereg_mr", mr)
    }

    fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
        let fd = event_fd();
        let parents = [extended(context).addr()];
        let channel = ibv_comp_channel { context, fd, refcnt: 0 };
        let channel = create("ibv_create_comp_channel", "channel", &parents, channel);
        if channel.is_null() {
            libc::close(fd);
        }
        channel
    }

    fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
        let fd = (*channel).fd;
        let returned = destroy("ibv_destroy_comp_channel", channel);
        if returned == 0 {
            libc::close(fd);
        }
        returned
    }

    fn ibv_create_cq(
        context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void,
        channel: *mut ibv_comp_channel, _vector: c_int
    ) -> *mut ibv_cq {
        let cq = new_cq(context, cqe, cq_context, channel);
        let parents = [extended(context).addr(), channel.addr()];
        create("ibv_create_cq", "cq", &parents, cq).cast()
    }

    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
        destroy("ibv_destroy_cq", cq.cast::<ibv_cq_ex>())
    }

    fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
        let returned = super::call("ibv_resize_cq");
        if returned == 0 {
            (*cq).cqe = cqe;
        }
        returned
    }

    fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
        with(|state| state.srq_attr = Some((*init).attr));
        let mut srq: ibv_srq = zeroed();
        srq.context = (*pd).context;
        srq.srq_context = (*init).srq_context;
        create("ibv_create_srq", "srq", &[pd.addr()], srq)
    }

    fn ibv_modify_srq(_srq: *mut ibv_srq, _attr: *mut ibv_srq_attr, _mask: c_int) -> c_int {
        call("ibv_modify_srq")
    }

    fn ibv_query_srq(_srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
        *attr = ibv_srq_attr { max_wr: 15, max_sge: 3, srq_limit: 4 };
        call("ibv_query_srq")
    }

    fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
        destroy("ibv_destroy_srq", srq)
    }

    fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
        with(|state| state.ah = Some(attr.read()));
        let ah = ibv_ah { context: (*pd).context, pd, handle: 0 };
        create("ibv_create_ah", "ah", &[pd.addr()], ah)
    }

    fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
        destroy("ibv_destroy_ah", ah)
    }

    fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
        let ibv_qp_init_attr { send_cq, recv_cq, srq, cap, qp_type, qp_context, .. } = *init;
        with(|state| (state.cap, state.sq_sig_all) = (Some(cap), (*init).sq_sig_all));
        let parents = [send_cq.addr(), recv_cq.addr(), srq.addr()];
        new_qp("ibv_create_qp", pd, qp_type, qp_context, parents)
    }

    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
        destroy("ibv_destroy_qp", qp.cast::<ibv_qp_ex>())
    }

    fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
        if call("ibv_qp_to_qp_ex") == 0 { qp.cast() } else { ptr::null_mut() }
    }

    fn ibv_query_qp(
        qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int, init: *mut ibv_qp_init_attr
    ) -> c_int {
        let (cap, sq_sig_all) = with(|state| (state.cap, state.sq_sig_all));
        (*init).cap = cap.expect("a queue pair was made");
        (*init).sq_sig_all = sq_sig_all;
        (*init).srq = (*qp).srq;
        // The attributes of a queue pair in a driver; only requested ones are written.
        let asked = |attribute: ibv_qp_attr_mask| mask as u32 & attribute.0 != 0;
        (*attr).qp_state = ibv_qp_state::IBV_QPS_SQE;
        if asked(ibv_qp_attr_mask::IBV_QP_CUR_STATE) {
            (*attr).cur_qp_state = ibv_qp_state::IBV_QPS_RTS;
        }
        let set = with(|state| state.modified);
        if let Some((_, set)) = set.filter(|_| asked(ibv_qp_attr_mask::IBV_QP_AV)) {
            (*attr).ah_attr = set.ah_attr;
        }
        if let Some((_, set)) = set.filter(|_| asked(ibv_qp_attr_mask::IBV_QP_PATH_MTU)) {
            (*attr).path_mtu = set.path_mtu;
        }
        call("ibv_query_qp")
    }

    fn _ibv_query_gid_table(
        _context: *mut ibv_context, entries: *mut ibv_gid_entry, most: usize, _flags: u32,
        size: usize
    ) -> isize {
        assert_eq!((most, size), (2 * GIDS, size_of::<ibv_gid_entry>()));
        entries.write(gid_entry(2, 1));
        let errno = call("ibv_query_gid_table");
        if errno == 0 { 1 } else { -(errno as isize) }
    }

    fn _ibv_query_gid_ex(
        _context: *mut ibv_context, port: u32, index: u32, entry: *mut ibv_gid_entry, _flags: u32,
        size: usize
    ) -> c_int {
        assert_eq!(size, size_of::<ibv_gid_entry>());
        entry.write(gid_entry(port, index));
        call("ibv_query_gid_ex")
    }

    fn ibv_query_pkey(_context: *mut ibv_context, port: u8, index: c_int, pkey: *mut u16) -> c_int {
        *pkey = (u16::from(port) << 8 | index as u16).to_be();
        let errno = call("ibv_query_pkey");
        set_errno(errno);
        if errno == 0 { 0 } else { -1 }
    }

    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
        join_owner(qp.addr());
        let to_rtr = (*attr).qp_state == ibv_qp_state::IBV_QPS_RTR;
        let search = with(|state| {
            state.modified = Some((mask as u32, attr.read()));
            state.search.take_if(|_| to_rtr)
        });
        let errno = call("ibv_modify_qp");
        search.map_or(errno, |search| search.recv().unwrap())
    }
}

/// A file descriptor for events; -1, which no call takes, if `fcntl` is to fail.
unsafe fn event_fd() -> c_int {
    if call("fcntl") == 0 { libc::eventfd(0, 0) } else { -1 }
}

/// Entries in each port's table of addresses.
const GIDS: usize = 3;

fn gid_entry(port_num: u32, gid_index: u32) -> ibv_gid_entry {
    let raw = [port_num as u8; 16];
    let gid = ibv_gid { raw };
    ibv_gid_entry { gid, gid_index, port_num, gid_type: IBV_GID_TYPE_ROCE_V2, ndev_ifindex: 0 }
}

unsafe extern "C" fn modify_cq(_cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    let ibv_modify_cq_attr { attr_mask, moderate, .. } = attr.read();
    let seen = (attr_mask, moderate.cq_count, moderate.cq_period);
    with(|state| state.moderated = Some(seen));
    call("ibv_modify_cq")
}

unsafe extern "C" fn query_device_ex(
    _context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    length: usize,
) -> c_int {
    assert_eq!((input, length), (ptr::null(), size_of::<ibv_device_attr_ex>()));
    if let Some(caps) = with(|state| state.odp_caps) {
        (*attr).odp_caps = caps;
    }
    call("ibv_query_device_ex")
}

/// The code of `active_speed_ex`.
pub(crate) const XDR: u32 = 256;

/// `IBV_LINK_LAYER_ETHERNET` of infiniband/verbs.h.
const ETHERNET: u8 = 2;

unsafe extern "C" fn query_port(
    _context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    length: usize,
) -> c_int {
    match with(|state| state.ethernet) {
        Some((speed, width)) => {
            (*attr).link_layer = ETHERNET;
            ((*attr).active_speed, (*attr).active_width) = (speed, width);
        }
        // 4 lanes of a speed whose code is too long for `active_speed`, which has the fastest that
        // it can: `active_speed_ex` is behind the end of the older struct.
        None => {
            (*attr).active_width = 2;
            (*attr).active_speed = 128;
            if length >= size_of::<ibv_port_attr>() + size_of::<u32>() {
                attr.add(1).cast::<u32>().write(XDR);
            }
        }
    }
    (*attr).gid_tbl_len = GIDS as c_int;
    (*attr).max_msg_sz = 1 << (30 - u32::from(port));
    call("ibv_query_port")
}

unsafe fn new_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
) -> ibv_cq_ex {
    let mut cq: ibv_cq_ex = zeroed();
    cq.context = context;
    cq.cqe = cqe;
    cq.cq_context = cq_context;
    cq.channel = channel;
    queues::fill_cq(&mut cq);
    cq
}

unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    let ibv_cq_init_attr_ex { cqe, cq_context, channel, wc_flags, .. } = *init;
    with(|state| state.wc_flags = wc_flags);
    let cq = new_cq(context, cqe as c_int, cq_context, channel);
    create("ibv_create_cq_ex", "cq", &[extended(context).addr(), channel.addr()], cq)
}

unsafe fn new_qp(
    name: &'static str,
    pd: *mut ibv_pd,
    qp_type: ibv_qp_type::Type,
    qp_context: *mut c_void,
    parents: [usize; 3],
) -> *mut ibv_qp {
    let mut qp: ibv_qp_ex = zeroed();
    qp.qp_base.context = (*pd).context;
    qp.qp_base.qp_num = QP_NUM;
    qp.qp_base.qp_context = qp_context;
    qp.qp_base.qp_type = qp_type;
    queues::fill_qp(&mut qp);
    let [send_cq, recv_cq, srq] = parents;
    qp.qp_base.srq = ptr::without_provenance_mut(srq);
    create(name, "qp", &[pd.addr(), send_cq, recv_cq, srq], qp).cast()
}

unsafe extern "C" fn create_qp_ex(
    _context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    let ibv_qp_init_attr_ex { pd, send_cq, recv_cq, srq, cap, qp_type, qp_context, .. } = *init;
    with(|state| (state.cap, state.sq_sig_all) = (Some(cap), (*init).sq_sig_all));
    if pd.is_null() {
        set_errno(libc::EINVAL);
        return ptr::null_mut();
    }
    let parents = [send_cq.addr(), recv_cq.addr(), srq.addr()];
    new_qp("ibv_create_qp_ex", pd, qp_type, qp_context, parents)
}
