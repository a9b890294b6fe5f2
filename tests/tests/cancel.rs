//! The model of taking requests back: its rules are enough, and none is superfluous.

use polyrail_tests::cancel::{Rules, World, explore, worlds};

/// More states than any of the worlds has.
const MOST: usize = 100_000;

#[test]
fn a_report_is_true_and_stays_true_in_every_order() {
    for world in worlds() {
        match explore(&world, MOST) {
            Ok(explored) => println!("{explored:?}: {world:?}"),
            Err(broken) => panic!("{broken}\nin {world:?}"),
        }
    }
}

#[test]
fn each_rule_is_needed_for_its_promise() {
    for (name, promise, rules) in Rules::each_broken() {
        let broken = worlds().into_iter().find_map(|world| {
            let world = World { rules, ..world };
            explore(&world, MOST).err().map(|broken| (broken, world))
        });
        let (broken, world) = broken.unwrap_or_else(|| panic!("without {name}, nothing breaks"));
        assert_eq!(broken.fault.promise(), promise, "without {name}: {broken}");
        println!("without {name}: {broken}\n  in {:?} {:?}", world.scheme, world.jobs);
    }
}
