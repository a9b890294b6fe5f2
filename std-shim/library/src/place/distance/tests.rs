//! Distances in three servers.

use super::*;
use crate::cpus::pin_thread;
use std::collections::BTreeSet;
use std::fs::{create_dir_all, write};
use std::os::unix::fs::symlink;
use std::thread;
use tempfile::TempDir;

/// A NUMA node: its processors, and its distances from all nodes.
type NumaNode = (u32, &'static str, &'static str);
/// A device: its NUMA node, -1 without one, and its path of PCI functions.
type Device = (&'static str, i32, String);

/// A sysfs of a server.
struct Server {
    sysfs: TempDir,
    nics: Vec<&'static str>,
}

const GPU: &str = "0x030200\n";
const NIC: &str = "0x020700\n";

impl Server {
    fn new(nodes: &[NumaNode], gpus: &[Device], nics: &[Device]) -> Self {
        let sysfs = tempfile::tempdir().unwrap();
        let root = sysfs.path();
        for directory in ["bus/pci/devices", "class/infiniband", "devices/system/node"] {
            create_dir_all(root.join(directory)).unwrap();
        }
        // Other entries of that directory.
        write(root.join("devices/system/node/online"), "0-1\n").unwrap();
        for (number, cpus, distances) in nodes {
            let node = directory(root, *number);
            create_dir_all(&node).unwrap();
            write(node.join("cpulist"), format!("{cpus}\n")).unwrap();
            write(node.join("distance"), format!("{distances}\n")).unwrap();
        }
        for (class, devices) in [(GPU, gpus), (NIC, nics)] {
            for (name, node, path) in devices {
                let function = path.rsplit('/').next().unwrap();
                let hardware = root.join("devices/pci").join(path);
                create_dir_all(&hardware).unwrap();
                write(hardware.join("numa_node"), format!("{node}\n")).unwrap();
                write(hardware.join("class"), class).unwrap();
                symlink(&hardware, root.join("bus/pci/devices").join(function)).unwrap();
                if class == NIC {
                    let shown = root.join("class/infiniband").join(name);
                    create_dir_all(&shown).unwrap();
                    symlink(&hardware, shown.join("device")).unwrap();
                }
            }
        }
        Self { sysfs, nics: nics.iter().map(|(name, ..)| *name).collect() }
    }

    fn place(&self, nic: &str) -> Place {
        Place::below(&self.sysfs.path().join("class"), nic)
    }

    fn nearest_first(&self, origin: &Origin) -> Vec<&'static str> {
        origin.nearest_first(self.nics.clone(), |nic| self.place(nic))
    }

    fn gpu(&self, address: &str) -> Origin {
        Origin::of_pci(self.sysfs.path(), address.parse().unwrap()).unwrap()
    }

    fn cpus(&self, allowed: &str) -> Origin {
        let mut set = CpuSet::new();
        allowed.parse::<CpuList>().unwrap().iter().for_each(|cpu| set.set(cpu));
        Origin::of_cpus(self.sysfs.path(), &set)
    }

    /// Removes a file or directory of sysfs.
    fn lose(&self, path: &str) {
        let path = self.sysfs.path().join(path);
        let removed = if path.is_dir() { std::fs::remove_dir_all } else { std::fs::remove_file };
        removed(path).unwrap();
    }
}

/// A server of 8 GPUs, 8 NICs for data and 1 for storage, and 2 processors, after the DGX A100: two
/// switches below each root port have a GPU and a NIC each.
fn eight_and_eight() -> Server {
    let device = |name, node, root: &str, switch: &str, function: &str| {
        (name, node, format!("{root}/{switch}/{function}"))
    };
    let gpus = [
        device("gpu0", 0, "0000:00:01.1/0000:01:00.0", "0000:02:00.0", "0000:07:00.0"),
        device("gpu1", 0, "0000:00:01.1/0000:01:00.0", "0000:02:04.0", "0000:0f:00.0"),
        device("gpu2", 0, "0000:40:01.1/0000:41:00.0", "0000:42:00.0", "0000:47:00.0"),
        device("gpu3", 0, "0000:40:01.1/0000:41:00.0", "0000:42:04.0", "0000:4e:00.0"),
        device("gpu4", 1, "0000:80:01.1/0000:81:00.0", "0000:82:00.0", "0000:87:00.0"),
        device("gpu5", 1, "0000:80:01.1/0000:81:00.0", "0000:82:04.0", "0000:90:00.0"),
        device("gpu6", 1, "0000:b0:01.1/0000:b1:00.0", "0000:b2:00.0", "0000:b7:00.0"),
        device("gpu7", 1, "0000:b0:01.1/0000:b1:00.0", "0000:b2:04.0", "0000:bd:00.0"),
    ];
    let nics = [
        device("mlx5_0", 0, "0000:00:01.1/0000:01:00.0", "0000:02:00.0", "0000:0c:00.0"),
        device("mlx5_1", 0, "0000:00:01.1/0000:01:00.0", "0000:02:04.0", "0000:12:00.0"),
        device("mlx5_2", 0, "0000:40:01.1/0000:41:00.0", "0000:42:00.0", "0000:4b:00.0"),
        device("mlx5_3", 0, "0000:40:01.1/0000:41:00.0", "0000:42:04.0", "0000:54:00.0"),
        ("mlx5_4", 1, "0000:60:03.1/0000:61:00.0".into()),
        device("mlx5_6", 1, "0000:80:01.1/0000:81:00.0", "0000:82:00.0", "0000:8d:00.0"),
        device("mlx5_7", 1, "0000:80:01.1/0000:81:00.0", "0000:82:04.0", "0000:94:00.0"),
        device("mlx5_8", 1, "0000:b0:01.1/0000:b1:00.0", "0000:b2:00.0", "0000:ba:00.0"),
        device("mlx5_9", 1, "0000:b0:01.1/0000:b1:00.0", "0000:b2:04.0", "0000:cc:00.0"),
    ];
    let nodes = [(0, "0-63,128-191", "10 32"), (1, "64-127,192-255", "32 10")];
    Server::new(&nodes, &gpus, &nics)
}

/// A server of 4 GPUs and 4 NICs in PCI domains of their own, and 2 processors, after a tray of the
/// GB200 NVL72. Memory of the GPUs is on NUMA nodes without processors.
fn four_and_four() -> Server {
    let gpu = |name, node, domain| (name, node, format!("{domain}:00:00.0/{domain}:01:00.0"));
    let gpus = [
        gpu("gpu0", 0, "0008"),
        gpu("gpu1", 0, "0009"),
        gpu("gpu2", 1, "0018"),
        gpu("gpu3", 1, "0019"),
    ];
    let nic = |name, node, domain| (name, node, format!("{domain}:00:00.0/{domain}:03:00.0"));
    let nics = [
        nic("mlx5_0", 0, "0000"),
        nic("mlx5_1", 0, "0002"),
        nic("mlx5_2", 1, "0010"),
        nic("mlx5_3", 1, "0012"),
    ];
    let nodes = [
        (0, "0-71", "10 40 80 120"),
        (1, "72-143", "40 10 120 80"),
        (2, "", "80 120 10 255"),
        (10, "", "120 80 255 10"),
    ];
    Server::new(&nodes, &gpus, &nics)
}

/// A virtual machine of 2 GPUs and 2 virtual functions, which reports no NUMA nodes of devices.
fn virtual_machine() -> Server {
    let gpus = [("gpu0", -1, "0001:00:00.0".into()), ("gpu1", -1, "0002:00:00.0".into())];
    let nics = [("mlx5_0", -1, "0101:00:00.0".into()), ("mlx5_1", -1, "0102:00:00.0".into())];
    Server::new(&[(0, "0-95", "10")], &gpus, &nics)
}

#[test]
fn each_gpu_begins_with_the_nic_of_its_switch() {
    let server = eight_and_eight();
    for (gpu, first, second) in [
        ("07:00.0", "mlx5_0", "mlx5_1"),
        ("0f:00.0", "mlx5_1", "mlx5_0"),
        ("47:00.0", "mlx5_2", "mlx5_3"),
        ("4e:00.0", "mlx5_3", "mlx5_2"),
        ("87:00.0", "mlx5_6", "mlx5_7"),
        ("90:00.0", "mlx5_7", "mlx5_6"),
        ("b7:00.0", "mlx5_8", "mlx5_9"),
        ("bd:00.0", "mlx5_9", "mlx5_8"),
    ] {
        let origin = server.gpu(gpu);
        assert_eq!(server.nearest_first(&origin)[..2], [first, second], "{gpu}");
        assert_eq!(origin.distance(&server.place(first)), Distance::Bridges(2), "{gpu}");
        assert_eq!(origin.distance(&server.place(second)), Distance::Bridges(4), "{gpu}");
    }
    let far = server.gpu("07:00.0").distance(&server.place("mlx5_9"));
    assert_eq!(far, Distance::OtherNode(32));
    assert_eq!(server.gpu("07:00.0").distance(&server.place("mlx5_2")), Distance::SameNode);
}

#[test]
fn a_thread_begins_with_the_nics_of_its_processors() {
    let server = eight_and_eight();
    let second = ["mlx5_4", "mlx5_6", "mlx5_7", "mlx5_8", "mlx5_9"];
    let first = ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"];
    assert_eq!(server.nearest_first(&server.cpus("70,192")), [&second[..], &first].concat());
    assert_eq!(server.nearest_first(&server.cpus("0-63")), [&first[..], &second].concat());
    let everywhere = server.cpus("0,64");
    assert_eq!(everywhere, Origin::default());
    assert_eq!(server.nearest_first(&everywhere), server.nics);
}

/// Each of 8 processes is bound to a node, and uses the first 4 devices, as with 4 rails.
#[test]
fn eight_processes_that_are_bound_to_nodes_use_eight_nics_of_their_nodes() {
    const RAILS: usize = 4;
    let server = eight_and_eight();
    let mut used = BTreeSet::new();
    for process in 0..8 {
        let (node, cpus) = if process < 4 { (0, "0-63,128-191") } else { (1, "64-127,192-255") };
        let first = &server.nearest_first(&server.cpus(cpus))[..RAILS];
        for nic in first {
            assert_eq!(server.place(nic).numa_node, Some(node), "process {process}: {first:?}");
        }
        used.extend(first.iter().copied());
    }
    assert_eq!(used.len(), 8, "{used:?}");
}

/// The processors of the thread of this test are made those of a NUMA node.
#[test]
fn by_default_devices_near_to_the_calling_thread_come_first() {
    let first = |nodes: &[NumaNode], near| {
        let nic = |name, node| (name, node, format!("000{node}:01:00.0"));
        let server = Server::new(nodes, &[], &[nic("mlx5_0", 0), nic("mlx5_1", 1)]);
        server.nearest_first(&Origin::below(server.sysfs.path(), near).unwrap())[0]
    };
    thread::spawn(move || {
        let allowed = sched_getaffinity(None).unwrap();
        let own = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap();
        pin_thread(&own.to_string().parse().unwrap()).unwrap();
        let [own, others] = [own.to_string(), (own + 1).to_string()].map(|cpu| &*cpu.leak());
        let there = [(0, others, "10 21"), (1, own, "21 10")];
        let here = [(0, own, "10 21"), (1, others, "21 10")];
        assert_eq!(first(&there, Near::default()), "mlx5_1");
        assert_eq!(first(&here, Near::default()), "mlx5_0");
        assert_eq!(first(&there, Near::Nothing), "mlx5_0");
        // It may use processors of every node.
        assert_eq!(first(&[(0, own, "10 21"), (1, own, "21 10")], Near::default()), "mlx5_0");
        assert_eq!(first(&[(1, own, "10")], Near::default()), "mlx5_0");
    })
    .join()
    .unwrap();
}

#[test]
fn gpus_that_share_no_switch_with_a_nic_begin_with_different_nics_of_their_node() {
    let server = four_and_four();
    for (gpu, order) in [
        ("0008:01:00.0", ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]),
        ("0009:01:00.0", ["mlx5_1", "mlx5_0", "mlx5_3", "mlx5_2"]),
        ("0018:01:00.0", ["mlx5_2", "mlx5_3", "mlx5_0", "mlx5_1"]),
        ("0019:01:00.0", ["mlx5_3", "mlx5_2", "mlx5_1", "mlx5_0"]),
    ] {
        assert_eq!(server.nearest_first(&server.gpu(gpu)), order, "{gpu}");
    }
    let order = ["mlx5_2", "mlx5_3", "mlx5_0", "mlx5_1"];
    assert_eq!(server.nearest_first(&server.cpus("100-143")), order);
    // Nodes that are memory only have no processor that a thread could lack.
    assert_eq!(server.cpus("0-143"), Origin::default());
    let distance = server.gpu("0008:01:00.0").distance(&server.place("mlx5_2"));
    assert_eq!(distance, Distance::OtherNode(40));
    // The kernel numbers the nodes that are online, with gaps; distances have none.
    let memory = Node::of(server.sysfs.path(), 10);
    assert_eq!(memory.distance(2), Distance::OtherNode(255));
}

#[test]
fn without_numa_nodes_each_gpu_begins_with_another_nic() {
    let server = virtual_machine();
    assert_eq!(server.nearest_first(&server.gpu("0001:00:00.0")), ["mlx5_0", "mlx5_1"]);
    assert_eq!(server.nearest_first(&server.gpu("0002:00:00.0")), ["mlx5_1", "mlx5_0"]);
    assert_eq!(server.cpus("0-3"), Origin::default());
    let distance = server.gpu("0001:00:00.0").distance(&server.place("mlx5_0"));
    assert_eq!(distance, Distance::Unknown);
}

#[test]
fn what_sysfs_lacks_changes_the_order_and_nothing_else() {
    let server = eight_and_eight();
    server.lose("devices/system/node/node0/distance");
    let distance = server.gpu("07:00.0").distance(&server.place("mlx5_9"));
    assert_eq!(distance, Distance::OtherNode(OTHER_NODE));
    write(directory(server.sysfs.path(), 0).join("distance"), "ten 32\n").unwrap();
    let distance = server.gpu("07:00.0").distance(&server.place("mlx5_9"));
    assert_eq!(distance, Distance::OtherNode(OTHER_NODE));
    server.lose("devices/system/node");
    assert_eq!(server.cpus("0-3"), Origin::default());
    assert_eq!(server.nearest_first(&server.gpu("0f:00.0"))[..2], ["mlx5_1", "mlx5_0"]);
    server.lose("class/infiniband/mlx5_1");
    assert_eq!(server.place("mlx5_1"), Place::default());
    assert_eq!(server.nearest_first(&server.gpu("0f:00.0")).last(), Some(&"mlx5_1"));
    assert!(server.gpu("0f:00.0").nearest_first(vec![], Place::clone).is_empty());
}

#[test]
fn an_order_that_does_not_depend_on_places_reads_none() {
    let place = |nic: &&str| -> Place { panic!("the place of {nic} is read") };
    let nothing = Origin::of(Near::Nothing).unwrap();
    assert_eq!(nothing.nearest_first(vec!["mlx5_1", "mlx5_0"], place), ["mlx5_1", "mlx5_0"]);
}

#[test]
fn a_gpu_that_is_not_there_is_refused() {
    let server = virtual_machine();
    let address = "0003:00:00.0".parse().unwrap();
    let error = Origin::of_pci(server.sysfs.path(), address).unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no PCI device 0003:00:00.0 in this machine: lspci lists them"
    );
    assert_eq!(
        Origin::of(Near::Pci("ffffffff:ff:1f.7".parse().unwrap())).unwrap_err().address.to_string(),
        "ffffffff:ff:1f.7"
    );
    assert_eq!(Origin::of(Near::Nothing), Ok(Origin::default()));
}

#[test]
fn what_devices_are_near_to_is_read_as_it_is_written() {
    for near in [Near::Nothing, Near::ThisThread, Near::Pci("3b:00.0".parse().unwrap())] {
        assert_eq!(near.to_string().parse(), Ok(near));
    }
    let error = "gpu0".parse::<Near>().unwrap_err();
    assert_eq!(error, NearError { text: "gpu0".into() });
    assert!(error.to_string().contains("0000:3b:00.0"), "{error}");
}
