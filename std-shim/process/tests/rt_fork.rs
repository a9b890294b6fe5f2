//! Forks for real.

#![cfg(not(miri))]

mod in_fork;

use in_fork::in_fork;
use polyrail_process::{Forked, PerProcess, Process};

#[test]
fn a_child_does_not_own_what_its_parent_made_and_owns_what_it_makes() {
    let parent = Process::current();
    in_fork(|| {
        let child = Process::current();
        let forked = Forked { owner: parent.id(), current: std::process::id() };
        assert_eq!((parent.check(), child.check()), (Err(forked), Ok(())));
        in_fork(|| {
            assert!(!parent.is_current() && !child.is_current());
            assert!(Process::current().is_current());
        });
    });
    assert_eq!(parent.check(), Ok(()));
    assert_eq!(parent, Process::current());
    a_child_waits_for_no_value_of_its_parent();
}

fn a_child_waits_for_no_value_of_its_parent() {
    static NUMBER: PerProcess<u32> = PerProcess::new();
    let number = NUMBER.get_or_make(|| {
        in_fork(|| assert_eq!(*NUMBER.get_or_make(|| 2), 2));
        1
    });
    assert_eq!(*number, 1);
    in_fork(|| {
        assert_eq!(*NUMBER.get_or_make(|| 3), 3);
        assert_eq!(*NUMBER.get_or_make(|| unreachable!()), 3);
    });
    assert_eq!(*NUMBER.get_or_make(|| unreachable!()), 1);
}
