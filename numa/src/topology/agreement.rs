//! Goal: `/sys` and libhwloc say the same of every machine, and it is what the machine has.
//! Method: machines are trees of files. What `/sys` has of them is compared with the expected
//! layout, and with libhwloc's in a build that has it, by a process of its own for each tree.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::tree::{At, Tree, smt, two_ib};
use super::*;

/// Each set of processing units in the kernel's notation.
fn sets<'a>(sets: impl Iterator<Item = &'a Vec<PuId>>) -> Vec<String> {
    sets.map(|set| ranges(set)).collect()
}

fn cores(topology: &Topology) -> Vec<String> {
    sets(topology.cores().iter().map(|core| &core.pus))
}

fn nodes(topology: &Topology) -> Vec<String> {
    sets(topology.nodes().iter().map(|node| &node.pus))
}

fn usable(topology: &Topology) -> String {
    ranges(&topology.usable_pus().iter().copied().collect::<Vec<_>>())
}

fn shared(topology: &Topology, level: u8, kind: CacheKind) -> Vec<String> {
    let caches = topology.caches().iter();
    sets(caches.filter(|it| it.level == level && it.kind == kind).map(|cache| &cache.pus))
}

/// Reads a tree by `/sys`, and has libhwloc agree on it.
fn agreed(tree: &Tree) -> Topology {
    libhwloc::agrees_on(tree);
    tree.read()
}

#[cfg(not(feature = "hwloc"))]
mod libhwloc {
    pub(super) fn agrees_on(_: &super::Tree) {}
}

#[cfg(feature = "hwloc")]
mod libhwloc {
    use std::env;
    use std::process::Command;

    use super::*;

    /// libhwloc takes the root of its files from the environment of the process.
    pub(super) fn agrees_on(tree: &Tree) {
        let mut test = Command::new(env::current_exe().unwrap());
        test.args(["--exact", "topology::agreement::libhwloc::both_sources_find_the_same"]);
        // Its x86 component asks the processors of this machine.
        test.env("HWLOC_FSROOT", tree.root()).env("HWLOC_COMPONENTS", "-x86");
        let output = test.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }

    /// On the machine below `HWLOC_FSROOT`, else on this one.
    #[test]
    fn both_sources_find_the_same() {
        let found = match env::var_os("HWLOC_FSROOT") {
            Some(root) => sysfs::read(Path::new(&root), &BTreeSet::new()),
            None => sysfs::this_machine(),
        };
        let by_sysfs = Topology::snapshot(found.unwrap(), "this machine".to_owned());
        let by_libhwloc = Topology::this_machine().unwrap();
        assert_eq!((by_sysfs.source, by_libhwloc.source), ("/sys", "libhwloc"));
        println!("{}", by_sysfs.describe());
        let (here, there) = (lines(&by_sysfs), lines(&by_libhwloc));
        let only = |here: &[String], there: &[String]| -> Vec<String> {
            here.iter().filter(|line| !there.contains(line)).cloned().collect()
        };
        assert_eq!(only(&here, &there), only(&there, &here), "in /sys, by libhwloc");
        assert_eq!(here, there, "in this order");
    }
}

/// What a topology says, one thing a line.
fn lines(topology: &Topology) -> Vec<String> {
    let Topology { nodes, cores, caches, devices, distances, usable, .. } = topology;
    let mut lines = vec![format!("{usable:?} of {}", topology.pus_present)];
    lines.extend(nodes.iter().map(|node| format!("{node:?}")));
    lines.extend(cores.iter().map(|core| format!("{core:?}")));
    lines.extend(caches.iter().map(|cache| format!("{cache:?}")));
    lines.extend(devices.iter().map(|device| format!("{device:?}")));
    lines.extend(distances.iter().map(|distance| format!("{distance:?}")));
    lines
}

#[test]
fn one_node_whose_cores_have_two_pus_each() {
    // As on most machines, all first PUs come before all second ones.
    let at = |pu| At { pu, core: pu % 4, package: 0, node: 0 };
    let topology = agreed(&Tree::of(&(0..8).map(at).collect::<Vec<_>>(), &[0]));
    assert_eq!(cores(&topology), ["0,4", "1,5", "2,6", "3,7"]);
    assert_eq!((nodes(&topology), usable(&topology)), (vec!["0-7".to_owned()], "0-7".to_owned()));
    assert_eq!(topology.nodes()[0].memory_bytes, Some(1 << 30));
    assert_eq!(topology.node_of(PuId(5)), Some(NumaId(0)));
    assert_eq!(shared(&topology, 1, CacheKind::Instruction), ["0,4", "1,5", "2,6", "3,7"]);
    assert_eq!(shared(&topology, 3, CacheKind::Unified), ["0-7"]);
    assert_eq!(topology.caches().last().unwrap().bytes, Some(32 << 20));
    assert_eq!(topology.distance(NumaId(0), NumaId(0)), None);
}

#[test]
fn two_nodes_with_devices_beside_them() {
    let tree = Tree::of(&smt(2, 2), &[0, 1]).device("infiniband", "mlx5_1", 1);
    let tree = tree.device("net", "eth0", 0).device("net", "tun0", -1).device("net", "odd0", 7);
    let tree = tree.device_at("net", "lo", "virtual");
    let topology = agreed(&tree);
    assert_eq!(cores(&topology), ["0-1", "2-3", "4-5", "6-7"]);
    assert_eq!(nodes(&topology), ["0-3", "4-7"]);
    let packages: Vec<_> = topology.cores().iter().map(|core| core.package).collect();
    assert_eq!(packages, [Some(0), Some(0), Some(1), Some(1)]);
    assert_eq!(topology.distance(NumaId(1), NumaId(0)), Some(21));
    let devices = topology.devices().iter().map(|it| (&*it.name, it.node.map(|node| node.0)));
    let expected = [("mlx5_1", Some(1)), ("eth0", Some(0)), ("odd0", None), ("tun0", None)];
    assert_eq!(devices.collect::<Vec<_>>(), expected, "RDMA first");
    assert_eq!(two_ib().device("mlx5_0").unwrap().kind, DeviceKind::OpenFabrics);
}

#[test]
fn pus_that_share_more_are_closer() {
    // Numbers go around the packages, and the cores of a package around its two nodes.
    let at = |pu| At { pu, core: pu / 4, package: pu % 2, node: pu % 2 + pu / 4 % 2 * 2 };
    let topology = agreed(&Tree::of(&(0..16).map(at).collect::<Vec<_>>(), &[0, 1, 2, 3]));
    let order = ["0,2", "8,10", "4,6", "12,14", "1,3", "9,11", "5,7", "13,15"];
    assert_eq!(cores(&topology), order);
    assert_eq!(nodes(&topology), ["0,2,8,10", "1,3,9,11", "4,6,12,14", "5,7,13,15"]);
}

#[test]
fn memory_without_processors_is_local_to_the_named_or_the_nearest_ones() {
    let tree = Tree::of(&smt(2, 1), &[0, 1, 2]);
    tree.write("sys/devices/system/node/node2/distance", "24 17 10");
    let topology = agreed(&tree);
    assert_eq!(nodes(&topology), ["0-1", "2-3", "2-3"]);
    let of_cores: Vec<_> = topology.cores().iter().map(|core| core.node).collect();
    assert_eq!(of_cores, [Some(NumaId(0)), Some(NumaId(1))]);
    tree.write("sys/devices/system/node/node2/access0/initiators/node0/uevent", "");
    assert_eq!(nodes(&agreed(&tree)), ["0-1", "2-3", "0-1"]);
}

#[test]
fn an_offline_pu_is_present_and_in_no_core() {
    let online: Vec<At> = smt(1, 2).into_iter().filter(|at| at.pu != 3).collect();
    let tree = Tree::of(&online, &[0]);
    tree.write("sys/devices/system/cpu/cpu3/online", "0");
    tree.write("sys/devices/system/cpu/cpu1/online", "1");
    let topology = agreed(&tree);
    assert_eq!((cores(&topology), topology.pus_present()), (vec!["0-1".into(), "2".into()], 4));
    assert_eq!(usable(&topology), "0-2");
}

#[test]
fn what_the_system_hides_is_not_there() {
    let tree = Tree::of(&smt(2, 2), &[0, 1]);
    for pu in 0..8 {
        tree.remove(&format!("sys/devices/system/cpu/cpu{pu}/cache"));
    }
    assert_eq!(agreed(&tree).caches(), []);
    tree.remove("sys/devices/system/node");
    let topology = agreed(&tree);
    assert_eq!((nodes(&topology), topology.cores().len()), (vec!["0-7".to_owned()], 4));
    assert_eq!(topology.nodes()[0].memory_bytes, Some(4 << 30));

    // libhwloc finds no processing units in what follows.
    for pu in 0..8 {
        tree.remove(&format!("sys/devices/system/cpu/cpu{pu}/topology"));
    }
    assert_eq!(cores(&tree.read()), ["0", "1", "2", "3", "4", "5", "6", "7"]);
    tree.remove("sys");
    tree.remove("proc");
    let topology = tree.read();
    assert_eq!((topology.nodes().len(), topology.nodes()[0].memory_bytes), (1, None));
    assert!(!topology.cores().is_empty());
    // The mask of a thread is never wrong; a control group may be another's.
    tree.write("proc/self/cgroup", "0::/theirs");
    tree.write("sys/fs/cgroup/theirs/cpuset.cpus.effective", "0-1");
    let mask = BTreeSet::from([2, 700].map(PuId));
    let found = sysfs::read(tree.root(), &mask).unwrap();
    assert_eq!(cores(&Topology::snapshot(found, String::new())), ["2", "700"]);
}

#[test]
fn pus_may_have_any_number_that_linux_gives() {
    let at = |pu| At { pu, core: pu / 2, package: pu / 4095, node: pu / 4095 };
    let topology = agreed(&Tree::of(&[0, 1022, 1023, 1024, 4095].map(at), &[0, 1]));
    assert_eq!(cores(&topology), ["0", "1022-1023", "1024", "4095"]);
    assert_eq!(
        (nodes(&topology), usable(&topology).as_str()),
        (vec!["0,1022-1024".into(), "4095".into()], "0,1022-1024,4095")
    );
}

#[test]
fn control_groups_leave_some_pus_and_nodes() {
    let tree = Tree::of(&smt(2, 2), &[0, 1]).device("net", "eth1", 1);
    tree.write("proc/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0");
    tree.write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu");
    tree.write("proc/self/cgroup", "0::/jobs/ours");
    tree.write("sys/fs/cgroup/cpuset.cpus.effective", "0-7");
    tree.write("sys/fs/cgroup/cpuset.mems.effective", "0-1");
    assert_eq!(usable(&tree.read()), "0-7", "a group that a container does not show");
    tree.write("sys/fs/cgroup/jobs/ours/cpuset.cpus.effective", "1-3");
    tree.write("sys/fs/cgroup/jobs/ours/cpuset.mems.effective", "0");
    let topology = agreed(&tree);
    assert_eq!(
        (usable(&topology), cores(&topology)),
        ("1-3".into(), vec!["1".into(), "2-3".into()])
    );
    assert_eq!((nodes(&topology), topology.pus_present()), (vec!["1-3".to_owned()], 8));
    assert_eq!(shared(&topology, 3, CacheKind::Unified), ["1-3"]);

    let tree = Tree::of(&smt(2, 2), &[0, 1]);
    tree.write("proc/mounts", "cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0");
    tree.write("proc/self/cgroup", "8:cpu,cpuacct:/other\n7:cpuset:/jobs\n0::/");
    tree.write("sys/fs/cgroup/cpuset/cpuset.cpus", "0-7");
    tree.write("sys/fs/cgroup/cpuset/cpuset.mems", "0-1");
    tree.write("sys/fs/cgroup/cpuset/jobs/cpuset.cpus", "2,5");
    tree.write("sys/fs/cgroup/cpuset/jobs/cpuset.mems", "0-1");
    let topology = agreed(&tree);
    assert_eq!((usable(&topology), cores(&topology)), ("2,5".into(), vec!["2".into(), "5".into()]));
}

#[test]
fn a_file_with_what_linux_never_writes_is_named() {
    let cpu = "sys/devices/system/cpu/cpu1";
    for (file, text) in [
        (format!("{cpu}/online"), "yes"),
        (format!("{cpu}/topology/core_cpus_list"), "0-1 many"),
        (format!("{cpu}/topology/core_cpus_list"), "2-3"),
        (format!("{cpu}/topology/physical_package_id"), "1.5"),
        (format!("{cpu}/cache/index0/level"), "300"),
        (format!("{cpu}/cache/index0/type"), "Magic"),
        (format!("{cpu}/cache/index0/size"), "18446744073709551615K"),
        (format!("{cpu}/cache/index0/shared_cpu_list"), "1-0"),
        ("sys/devices/system/node/node1/cpulist".to_owned(), "0-99999999999"),
        ("sys/devices/system/node/node1/meminfo".to_owned(), "none"),
        ("sys/devices/system/node/node1/distance".to_owned(), "10 far"),
        ("sys/fs/cgroup/cpuset.cpus.effective".to_owned(), "all"),
    ] {
        let tree = Tree::of(&smt(2, 2), &[0, 1]);
        tree.write("proc/self/cgroup", "0::/");
        tree.write(&file, text);
        let error = tree.try_read().expect_err(&file);
        assert!(matches!(&error, Error::SysFile { path, .. } if path.ends_with(&file)), "{error}");
        assert!(error.to_string().contains("findmnt"), "{error}");
    }
}

/// What a container may hide of a machine, and the page promises to read.
#[test]
fn every_folder_on_the_page_is_read() {
    let page = include_str!("../../README.md");
    let rows = page.lines().filter(|line| line.starts_with("| ") && line.contains(" | `"));
    let folders: Vec<&str> = rows.flat_map(|row| row.split('`').skip(1).step_by(2)).collect();
    assert_eq!(folders.len(), 7, "{folders:?}");
    for folder in folders {
        let tree = Tree::of(&smt(2, 2), &[0, 1]).device("infiniband", "mlx5_0", 1);
        let tree = tree.device("net", "eth0", 0);
        tree.write("proc/self/cgroup", "0::/");
        tree.write("sys/fs/cgroup/cpuset.cpus.effective", "0-4");
        let whole = lines(&tree.read());
        match folder.strip_prefix('/') {
            Some(file) => tree.remove(file),
            None => {
                let of_pu = |pu: usize| format!("sys/{}", folder.replace('N', &pu.to_string()));
                let folders: BTreeSet<String> = (0..8).map(of_pu).collect();
                folders.iter().for_each(|folder| tree.remove(folder));
            }
        }
        assert_ne!(lines(&tree.read()), whole, "{folder}");
    }
}
