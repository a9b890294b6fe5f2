//! Settings that are wrong, or do not match.

use crate::ranks::{LOGGER, Pair, logged};
use crate::table::{INVALID_USAGE, Pointer};
use crate::{Plugin, VERSIONS, cases};
use std::env;

cases! {
    an_unknown_or_malformed_variable_is_named,
    variables_of_kubernetes_are_ignored_with_one_warning,
    settings_are_read_again_when_nothing_is_open,
    nothing_is_logged_if_nothing_is_to_be: &[("POLYRAIL_LOG_LEVEL", "none")],
}

fn an_unknown_or_malformed_variable_is_named(plugin: &Plugin) {
    for version in VERSIONS {
        let table = plugin.table(version);
        for (name, value) in
            [("POLYRAIL_RIALS", "2"), ("POLYRAIL_RAILS", "many"), ("POLYRAIL_HEALING", "maybe")]
        {
            // SAFETY: there is one thread.
            unsafe { env::set_var(name, value) };
            logged();
            assert_eq!(table.init(LOGGER, -1), Err(INVALID_USAGE), "{name}");
            let words = logged().join("\n");
            assert!(words.contains("init: ") && words.contains(name), "{words}");
            assert!(table.devices().is_err(), "there is nothing without settings");
            // SAFETY: likewise.
            unsafe { env::remove_var(name) };
        }
    }
    let table = plugin.table(12);
    let context = table.init(LOGGER, -1).unwrap();
    assert_eq!(table.devices(), Ok(4));
    assert_eq!(table.finalize(context), 0);
}

/// A Service that is called `polyrail`.
fn variables_of_kubernetes_are_ignored_with_one_warning(plugin: &Plugin) {
    let variables = [
        ("POLYRAIL_SERVICE_HOST", "10.96.0.7"),
        ("POLYRAIL_PORT", "tcp://10.96.0.7:7471"),
        ("POLYRAIL_PORT_7471_TCP_ADDR", "10.96.0.7"),
    ];
    // SAFETY: there is one thread.
    variables.iter().for_each(|(name, value)| unsafe { env::set_var(name, value) });
    let table = plugin.table(12);
    logged();
    let contexts = [(); 2].map(|()| table.init(LOGGER, -1).unwrap());
    let logged = logged();
    let warnings: Vec<_> = logged.iter().filter(|line| line.contains("Kubernetes")).collect();
    assert_eq!(warnings.len(), 1, "{logged:?}");
    assert!(variables.iter().all(|(name, _)| warnings[0].contains(name)), "{warnings:?}");
    assert_eq!(contexts.map(|context| table.finalize(context)), [0, 0]);
}

fn settings_are_read_again_when_nothing_is_open(plugin: &Plugin) {
    let table = plugin.table(12);
    let first = table.init(LOGGER, -1).unwrap();
    // SAFETY: no other thread reads the environment.
    unsafe { env::set_var("POLYRAIL_DEVICES", "s0,s1") };
    let second = table.init(LOGGER, -1).unwrap();
    assert_eq!(table.devices(), Ok(4), "another communicator is there");
    // One that is no communicator's, and ends with none.
    let pair = Pair::new(plugin.table(10), Pointer::default(), 0, 1);
    assert_eq!((table.finalize(first), table.finalize(second)), (0, 0));
    let third = table.init(LOGGER, -1).unwrap();
    assert_eq!(table.devices(), Ok(4), "a connection is there");
    pair.close();
    assert_eq!(table.finalize(third), 0);
    let fourth = table.init(LOGGER, -1).unwrap();
    assert_eq!(table.devices(), Ok(2));
    assert_eq!(table.finalize(fourth), 0);
}

fn nothing_is_logged_if_nothing_is_to_be(plugin: &Plugin) {
    let table = plugin.table(8);
    table.init(LOGGER, -1).unwrap();
    logged();
    assert!(table.properties(77).is_err());
    assert_eq!(logged(), Vec::<String>::new());
}
