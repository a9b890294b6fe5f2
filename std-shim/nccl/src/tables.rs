//! The tables that NCCL looks for, one for each version of its interface. Versions differ only in
//! their arguments.

use crate::abi::*;
use crate::calls::*;
use crate::properties::*;

/// Makes a table from the functions in which versions differ and those that they share.
const fn table<I, P, L, C, S, R, T>(
    init: I,
    get_properties: GetProperties<P>,
    (listen, connect): (L, C),
    (isend, irecv): (S, R),
    tail: T,
) -> Table<I, P, L, C, S, R, T>
where
    L: Copy,
    C: Copy,
    S: Copy,
    R: Copy,
{
    Table {
        name: c"polyrail".as_ptr(),
        init,
        devices,
        get_properties,
        listen,
        connect,
        accept,
        reg_mr,
        reg_mr_dma_buf,
        dereg_mr,
        isend,
        irecv,
        iflush,
        test,
        close_send,
        close_recv,
        close_listen,
        get_device_mr: None,
        irecv_consumed: None,
        tail,
    }
}

#[unsafe(export_name = "ncclNetPlugin_v12")]
static V12: TableV12 = table(
    init_v11,
    get_properties_v12,
    (listen_in, connect_in),
    (isend_v10, irecv_v10),
    TailV11 { make_v_device, finalize, set_net_attr: None },
);

#[unsafe(export_name = "ncclNetPlugin_v11")]
static V11: TableV11 = table(
    init_v11,
    get_properties_v11,
    (listen_in, connect_in),
    (isend_v10, irecv_v10),
    TailV11 { make_v_device, finalize, set_net_attr: None },
);

#[unsafe(export_name = "ncclNetPlugin_v10")]
static V10: TableV10 = table(
    init_v10,
    get_properties_v9,
    (listen, connect_with),
    (isend_v10, irecv_v10),
    TailV9 { make_v_device },
);

#[unsafe(export_name = "ncclNetPlugin_v9")]
static V9: TableV9 = table(
    init_v8,
    get_properties_v9,
    (listen, connect_plain),
    (isend_v9, irecv_v9),
    TailV9 { make_v_device },
);

#[unsafe(export_name = "ncclNetPlugin_v8")]
static V8: TableV8 =
    table(init_v8, get_properties_v8, (listen, connect_plain), (isend_v8, irecv_v8), NoTail);
