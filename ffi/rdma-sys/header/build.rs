//! Translates the installed `infiniband/verbs.h` with the installed libclang.

use bindgen::{Builder, CodegenConfig};
use std::env;
use std::path::PathBuf;

/// The first release that has everything named here (rdma-core 34).
const OLDEST: &str = "1.12.34";

/// Exported functions. The signatures in `src/library.rs` are compared with them.
const FUNCTIONS: &[&str] = &[
    "_ibv_query_gid_ex",
    "_ibv_query_gid_table",
    "ibv_ack_async_event",
    "ibv_ack_cq_events",
    "ibv_alloc_pd",
    "ibv_close_device",
    "ibv_create_ah",
    "ibv_create_comp_channel",
    "ibv_create_cq",
    "ibv_create_qp",
    "ibv_create_srq",
    "ibv_dealloc_pd",
    "ibv_dereg_mr",
    "ibv_destroy_ah",
    "ibv_destroy_comp_channel",
    "ibv_destroy_cq",
    "ibv_destroy_qp",
    "ibv_destroy_srq",
    "ibv_fork_init",
    "ibv_free_device_list",
    "ibv_get_async_event",
    "ibv_get_cq_event",
    "ibv_get_device_guid",
    "ibv_get_device_list",
    "ibv_get_device_name",
    "ibv_modify_qp",
    "ibv_modify_srq",
    "ibv_open_device",
    "ibv_qp_to_qp_ex",
    "ibv_query_device",
    "ibv_query_pkey",
    "ibv_query_port",
    "ibv_query_qp",
    "ibv_query_srq",
    "ibv_reg_dmabuf_mr",
    "ibv_reg_mr_iova2",
    "ibv_resize_cq",
];

/// Types to translate; the types that they refer to follow.
const TYPES: &[&str] = &[
    "__be16",
    "_compat_ibv_port_attr",
    "ibv_ah_attr",
    "ibv_async_event",
    "ibv_cq_ex",
    "ibv_device_attr",
    "ibv_device_attr_ex",
    "ibv_gid_entry",
    "ibv_qp_attr",
    "ibv_qp_ex",
    "ibv_qp_init_attr",
    "ibv_srq_init_attr",
    "verbs_context",
];

/// Enums whose values are sets of bits: translated to types with `|`.
const FLAGS: &[&str] = &[
    "ibv_access_flags",
    "ibv_cq_attr_mask",
    "ibv_create_cq_wc_flags",
    "ibv_odp_general_caps",
    "ibv_odp_transport_cap_bits",
    "ibv_qp_attr_mask",
    "ibv_qp_create_send_ops_flags",
    "ibv_qp_init_attr_mask",
    "ibv_send_flags",
    "ibv_srq_attr_mask",
    "ibv_wc_flags",
];

/// Enums that the kernel or a driver fills in: translated to modules of numbers, since a newer
/// kernel may return values that the header lacks.
const NUMBERS: &[&str] = &[
    "ibv_atomic_cap",
    "ibv_mig_state",
    "ibv_mtu",
    "ibv_mw_type",
    "ibv_node_type",
    "ibv_port_state",
    "ibv_qp_state",
    "ibv_qp_type",
    "ibv_transport_type",
    "ibv_wc_opcode",
    "ibv_wc_status",
    "ibv_wr_opcode",
];

/// Structs with unions that have no name in C: `src/verbs.rs` defines them, with names.
const REQUESTS: &[&str] = &["ibv_send_wr", "ibv_wc"];

fn main() {
    println!("cargo::rerun-if-env-changed=LIBCLANG_PATH");
    println!("libclang: {}", bindgen::clang_version().full);
    let library =
        pkg_config::Config::new().atleast_version(OLDEST).cargo_metadata(false).probe("libibverbs");
    let library = library.unwrap_or_else(|error| {
        panic!("cannot find the headers of libibverbs {OLDEST} or later; install libibverbs-dev: {error}")
    });
    let include: Vec<_> =
        library.include_paths.iter().map(|path| format!("-I{}", path.display())).collect();

    let allow = |builder: Builder| {
        let all = FUNCTIONS.iter().fold(builder, |builder, name| builder.allowlist_function(name));
        let types = TYPES.iter().chain(FLAGS).chain(NUMBERS).chain(&["ibv_gid_type"]);
        types.fold(all, |builder, name| builder.allowlist_type(name))
    };
    let functions = CodegenConfig::FUNCTIONS;
    let types = CodegenConfig::all() - functions;

    // Sizes and offsets of types of the C library depend on the processor.
    let named = || {
        let all = allow(builder(&include)).layout_tests(false).blocklist_type("__pthread_.*");
        REQUESTS.iter().fold(all, |builder, name| builder.blocklist_type(name))
    };
    write(named().with_codegen_config(types), "verbs.rs");
    write(named().with_codegen_config(functions), "functions.rs");

    let all = allow(builder(&include)).with_codegen_config(types);
    let all = REQUESTS.iter().fold(all, |builder, name| builder.allowlist_type(name));
    write(all, "layouts.rs");

    println!("cargo::rustc-env=LIBIBVERBS_VERSION={}", library.version);
}

fn builder(include: &[String]) -> Builder {
    let builder = bindgen::builder()
        .header_contents("polyrail.h", "#include <infiniband/verbs.h>")
        .clang_args(include)
        .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()))
        // Types of the C library, which crate libc defines.
        .blocklist_type("pthread_(mutex|cond)_t")
        .rustified_enum("ibv_event_type")
        .prepend_enum_name(false)
        .derive_debug(false)
        .generate_comments(false);
    let builder = FLAGS.iter().fold(builder, |builder, name| builder.bitfield_enum(name));
    NUMBERS.iter().fold(builder, |builder, name| builder.constified_enum_module(name))
}

fn write(builder: Builder, file: &str) {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join(file);
    let bindings = builder.generate().unwrap_or_else(|error| panic!("infiniband/verbs.h: {error}"));
    bindings.write_to_file(&out).unwrap_or_else(|error| panic!("{}: {error}", out.display()));
}
