//! Machines for tests: folders with the files of `/sys` that both sources of a layout read.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;

use super::{Error, Topology, ranges, sysfs};
use crate::ids::PuId;

/// Where a processing unit is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At {
    pub(crate) pu: usize,
    pub(crate) core: usize,
    /// Its package, which has one cache of level 3.
    pub(crate) package: usize,
    pub(crate) node: usize,
}

/// A machine without devices, whose control group restricts nothing.
pub(crate) struct Tree(TempDir);

impl Tree {
    /// A machine of these processing units and nodes of 1 GiB, of which some may have none.
    pub(crate) fn of(pus: &[At], nodes: &[usize]) -> Tree {
        let tree = Tree(tempfile::tempdir().unwrap());
        for (index, &node) in nodes.iter().enumerate() {
            let at = format!("sys/devices/system/node/node{node}");
            let local: Vec<usize> =
                pus.iter().filter(|at| at.node == node).map(|at| at.pu).collect();
            tree.write_set(&format!("{at}/cpulist"), &format!("{at}/cpumap"), &local);
            let far = (0..nodes.len()).map(|to| if to == index { "10" } else { "21" });
            tree.write(&format!("{at}/distance"), &far.collect::<Vec<_>>().join(" "));
            tree.write(&format!("{at}/meminfo"), &format!("Node {node} MemTotal: 1048576 kB"));
        }
        tree.write("proc/meminfo", "MemTotal: 4194304 kB\nMemFree: 1 kB");
        for at in pus {
            tree.write_pu(at, pus);
        }
        tree
    }

    fn write_pu(&self, at: &At, pus: &[At]) {
        let cpu = format!("sys/devices/system/cpu/cpu{}", at.pu);
        let with = |is_sibling: &dyn Fn(&&At) -> bool| -> Vec<usize> {
            pus.iter().filter(is_sibling).map(|at| at.pu).collect()
        };
        let core = with(&|other| other.core == at.core && other.package == at.package);
        let package = with(&|other| other.package == at.package);
        for (name, set) in [("core_cpus", &core), ("package_cpus", &package)] {
            let map = format!("{cpu}/topology/{name}");
            self.write_set(&format!("{map}_list"), &map, set);
        }
        self.write(&format!("{cpu}/topology/core_id"), &at.core.to_string());
        self.write(&format!("{cpu}/topology/physical_package_id"), &at.package.to_string());
        let caches = [
            ("1", "Data", "32K", &core),
            ("1", "Instruction", "32K", &core),
            ("2", "Unified", "1024K", &core),
            ("3", "Unified", "32768K", &package),
        ];
        for (index, (level, kind, size, set)) in caches.into_iter().enumerate() {
            let at = format!("{cpu}/cache/index{index}");
            for (name, text) in [("level", level), ("type", kind), ("size", size)] {
                self.write(&format!("{at}/{name}"), text);
            }
            self.write_set(&format!("{at}/shared_cpu_list"), &format!("{at}/shared_cpu_map"), set);
        }
    }

    /// A device of a class, `net` or `infiniband`, that names `node`.
    pub(crate) fn device(self, class: &str, name: &str, node: i32) -> Tree {
        self.write(&format!("sys/devices/platform/{name}/numa_node"), &node.to_string());
        self.device_at(class, name, "platform")
    }

    /// A device below a folder of `/sys/devices`; software is in `virtual`.
    pub(crate) fn device_at(self, class: &str, name: &str, parent: &str) -> Tree {
        let at = format!("sys/devices/{parent}/{name}/{class}/{name}");
        self.write(&format!("{at}/uevent"), "");
        symlink("../..", self.root().join(&at).join("device")).unwrap();
        let class = self.root().join("sys/class").join(class);
        fs::create_dir_all(&class).unwrap();
        symlink(at.replacen("sys", "../..", 1), class.join(name)).unwrap();
        self
    }

    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn write(&self, file: &str, text: &str) {
        let file = self.root().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, format!("{text}\n")).unwrap();
    }

    /// Numbers as the list that `/sys` has and as the bits that it has beside it.
    fn write_set(&self, list: &str, map: &str, numbers: &[usize]) {
        let pus: Vec<PuId> = numbers.iter().copied().map(PuId).collect();
        self.write(list, &ranges(&pus));
        let words = numbers.last().map_or(1, |last| last / 32 + 1);
        let word = |at| {
            let bits = numbers.iter().filter(|number| *number / 32 == at);
            format!("{:08x}", bits.fold(0_u32, |word, number| word | 1 << (number % 32)))
        };
        self.write(map, &(0..words).rev().map(word).collect::<Vec<_>>().join(","));
    }

    pub(crate) fn remove(&self, at: &str) {
        let at = self.root().join(at);
        if at.is_dir() { fs::remove_dir_all(at) } else { fs::remove_file(at) }.unwrap();
    }

    pub(crate) fn try_read(&self) -> Result<Topology, Error> {
        let found = sysfs::read(self.root(), &BTreeSet::new())?;
        Ok(Topology::snapshot(found, "a tree".to_owned()))
    }

    pub(crate) fn read(&self) -> Topology {
        self.try_read().unwrap()
    }
}

/// Cores of two PUs with adjacent numbers, `cores` of them in each of `packages`, each with a node.
pub(crate) fn smt(packages: usize, cores: usize) -> Vec<At> {
    let at = |pu| At { pu, core: pu / 2 % cores, package: pu / 2 / cores, node: pu / 2 / cores };
    (0..2 * packages * cores).map(at).collect()
}

/// Two nodes with four cores of two PUs each.
pub(crate) fn two_nodes() -> Topology {
    Tree::of(&smt(2, 4), &[0, 1]).read()
}

/// Two nodes with two cores of two PUs each and an RDMA device beside each, the first with its
/// interface.
pub(crate) fn two_ib() -> Topology {
    let tree = Tree::of(&smt(2, 2), &[0, 1]).device("infiniband", "mlx5_0", 0);
    tree.device("infiniband", "mlx5_1", 1).device("net", "ib0", 0).read()
}
