//! NCCL's own loader, of the library that its wheel has, takes every table; and what it makes of
//! the older ones moves messages.

use crate::elf::Symbols;
use crate::ranks::{LOGGER, Pair};
use crate::table::Table;
use crate::{Plugin, VERSIONS, cases, text, traffic};
use std::ffi::c_void;
use std::path::Path;

cases! {
    nccls_own_loader_takes_every_table,
}

fn nccls_own_loader_takes_every_table(_: &Plugin) {
    let Some(path) = std::env::var_os("NCCL_LIBRARY") else {
        println!("skipped: NCCL_LIBRARY does not say where libnccl.so.2 is");
        return;
    };
    let symbols =
        Symbols::load(Path::new(&path), "ncclGetVersion").expect("a library with symbols");
    // SAFETY: the plugin has nothing that runs when it is loaded.
    let plugin = unsafe { libloading::os::unix::Library::new(Plugin::path()) }.unwrap().into_raw();
    for version in VERSIONS {
        let name = format!("getNcclNet_v{version}");
        let loader = symbols.find(&format!("_Z{}{name}Pv", name.len())).expect("a loader");
        // SAFETY: it takes what dlopen gives, and returns a table of NCCL's newest version.
        let loader = unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(*mut c_void) -> *const c_void>(loader)
        };
        let found = loader(plugin);
        assert!(!found.is_null(), "NCCL does not find version {version}");
        // SAFETY: that is what it returns.
        let table = unsafe { Table::new(found, 12) };
        assert_eq!(text(table.name()), "polyrail");
        let context = table.init(LOGGER, -1).unwrap();
        assert_eq!(table.devices(), Ok(4));
        assert_eq!(table.properties(2).unwrap().name, "s2");
        let pair = Pair::new(table, context, 0, 1);
        traffic::run(&pair, 50, version.into(), &mut ());
        pair.close();
        assert_eq!(table.finalize(context), 0);
    }
}
