//! RDMA devices and how cards are plugged in.

use super::check::{Check, Place, Seen, among, here};
use super::network::cards;
use super::root::Root;

const RDMA: &str = "/sys/class/infiniband";

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "rdma-files",
        find: |seen| {
            let devices = seen.root.names(RDMA);
            let files = seen.root.names("/dev/infiniband");
            let none = !devices.is_empty() && !files.iter().any(|it| it.starts_with("uverbs"));
            here(none.then(|| format!("there is {}, but no /dev/infiniband/uverbs*", devices[0])))
        },
        remedy: "load the module; in a container --device=/dev/infiniband",
        command: "modprobe ib_uverbs",
    },
    Check {
        name: "rdma-manager",
        find: |seen| {
            let files = seen.root.names("/dev/infiniband");
            let some = files.iter().any(|it| it.starts_with("uverbs"));
            let none = some && !files.iter().any(|it| it == "rdma_cm");
            here(none.then(|| "there is no /dev/infiniband/rdma_cm".to_owned()))
        },
        remedy: "load the connection manager, or set CARAVAN_RDMA_CONNECT=direct",
        command: "modprobe rdma_ucm",
    },
    Check {
        name: "rdma-port",
        find: |seen| {
            ports(&seen.root, |port| {
                let state = port.text("state").filter(|state| !state.contains("ACTIVE"))?;
                (!state.contains("INIT")).then(|| format!("{port} is {state}"))
            })
        },
        remedy: "plug the cable in, bring its interface up, enable the switch's port",
        command: "rdma link | grep {}",
    },
    Check {
        name: "subnet-manager",
        find: |seen| {
            ports(&seen.root, |port| {
                let waits = port.text("state")?.contains("INIT");
                waits.then(|| format!("{port} waits for a subnet manager"))
            })
        },
        remedy: "run one on a host of the fabric, or on a switch",
        command: "systemctl start opensm",
    },
    Check {
        name: "rdma-address",
        find: |seen| {
            ports(&seen.root, |port| {
                let local = |gid: &String| gid.starts_with("fe80:");
                let only = port.is_roce() && port.gids().iter().all(local);
                only.then(|| format!("{port} has no IP address"))
            })
        },
        remedy: "give its interface one, or set CARAVAN_RDMA_CONNECT=direct",
        command: "rdma link | grep {} && ip address add ADDRESS/PREFIX dev INTERFACE",
    },
    Check {
        name: "roce-version",
        find: |seen| {
            ports(&seen.root, |port| {
                let kinds = port.values("gid_attrs/types");
                let old = port.is_roce() && !kinds.is_empty();
                let old = old && !kinds.iter().any(|kind| kind.contains("v2"));
                old.then(|| format!("{port} has GIDs of RoCE v1 only, which no router forwards"))
            })
        },
        remedy: "load firmware that knows RoCE v2, or keep all hosts in one Ethernet segment",
        command: "ibv_devinfo -v -d {} | grep -E 'fw_ver|GID'",
    },
    Check {
        name: "partition",
        find: |seen| {
            ports(&seen.root, |port| {
                let keys = port.values("pkeys");
                let key = |text: &String| u16::from_str_radix(text.trim_start_matches("0x"), 16);
                let keys: Vec<u16> = keys.iter().filter_map(|it| key(it).ok()).collect();
                let keys: Vec<u16> = keys.into_iter().filter(|key| *key != 0).collect();
                let limited = !keys.is_empty() && keys.iter().all(|key| key & 0x8000 == 0);
                limited.then(|| format!("{port} is a limited member of all its partitions"))
            })
        },
        remedy: "make hosts full members in the subnet manager, as limited ones cannot talk to \
                 each other",
        command: "grep . /sys/class/infiniband/{}/ports/*/pkeys/* | grep -v 0x0000",
    },
    Check {
        name: "rdma-width",
        find: |seen| {
            ports(&seen.root, |port| {
                let rate = port.text("rate").filter(|rate| rate.contains("1X"))?;
                (!port.is_roce()).then(|| format!("{port} runs on one lane: {rate}"))
            })
        },
        remedy: "change the cable or the switch's port",
        command: "iblinkinfo",
    },
    Check {
        name: "rdma-errors",
        find: |seen| {
            ports(&seen.root, |port| {
                let names = ["symbol_error", "link_downed", "port_rcv_errors"];
                let count = port.sum("counters", &names);
                (count > 10.0).then(|| format!("{port} has counted {count} errors of its link"))
            })
        },
        remedy: "change the cable, and look whether the count grows",
        command: "grep . /sys/class/infiniband/{}/ports/*/counters/*err*",
    },
    Check {
        name: "flow-control",
        find: |seen| {
            ports(&seen.root, |port| {
                let names = ["out_of_sequence", "packet_seq_err", "local_ack_timeout_err"];
                let count = port.sum("hw_counters", &names);
                (count > 10.0).then(|| format!("{port} has sent again {count} times"))
            })
        },
        remedy: "turn PFC or ECN on, on cards and switches alike; see CARAVAN_RDMA_TRAFFIC_CLASS",
        command: "grep . /sys/class/infiniband/{}/ports/*/hw_counters/*",
    },
    Check {
        name: "memlock",
        find: |seen| here(memlock(seen)),
        remedy: "lift the limit, in a container by --ulimit memlock=-1",
        command: "ulimit -l unlimited",
    },
    Check {
        name: "rdma-node",
        find: |seen| {
            let allowed = seen.root.entry("/proc/self/status", "Mems_allowed_list:");
            let nodes = allowed.unwrap_or_default();
            among(seen.root.names(RDMA), |device| {
                let node = seen.root.number(&format!("{RDMA}/{device}/device/numa_node"))?;
                let far = node >= 0.0 && !nodes.is_empty() && !holds(&nodes, node);
                far.then(|| format!("{device} is at NUMA node {node}, this process on {nodes}"))
            })
        },
        remedy: "give the container or the cpuset the card's node",
        command: "docker update --cpuset-mems $(cat /sys/class/infiniband/{}/device/numa_node) \
                  CONTAINER",
    },
    Check {
        name: "pcie",
        find: |seen| {
            let cards = cards(&seen.root)
                .into_iter()
                .map(|name| Place { what: format!("/sys/class/net/{name}/device"), name });
            let rdma = seen
                .root
                .names(RDMA)
                .into_iter()
                .map(|name| Place { what: format!("{RDMA}/{name}/device"), name });
            let slow = |Place { name, what: folder }| {
                narrow(&seen.root, &folder)
                    .map(|link| Place { what: format!("{name} {link}"), name })
            };
            cards.chain(rdma).filter_map(slow).collect()
        },
        remedy: "move the card to another slot, or seat it anew",
        command: "lspci -vv | grep -E '^[0-9a-f]|LnkSta:'",
    },
    Check {
        name: "iommu",
        find: |seen| {
            let has = !seen.root.names(RDMA).is_empty()
                && !seen.root.names("/sys/class/iommu").is_empty();
            let line = seen.root.text("/proc/cmdline").unwrap_or_default();
            let passes = line.split_whitespace().any(|it| it == "iommu=pt" || it == "iommu=off");
            here(
                (has && !passes).then(|| {
                    "the IOMMU translates each access of the RDMA card to memory".to_owned()
                }),
            )
        },
        remedy: "add iommu=pt to the kernel's command line (on Debian in /etc/default/grub, then \
                 update-grub), and start the host anew",
        command: "grubby --update-kernel ALL --args iommu=pt",
    },
];

/// One port of a device.
struct Port<'a> {
    root: &'a Root,
    device: &'a str,
    number: &'a str,
}

impl std::fmt::Display for Port<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} port {}", self.device, self.number)
    }
}

impl Port<'_> {
    fn path(&self, file: &str) -> String {
        format!("{RDMA}/{}/ports/{}/{file}", self.device, self.number)
    }

    fn text(&self, file: &str) -> Option<String> {
        self.root.text(&self.path(file))
    }

    fn is_roce(&self) -> bool {
        self.text("link_layer").as_deref() == Some("Ethernet")
    }

    /// What the files of a folder hold; entries that are not in use cannot be read.
    fn values(&self, folder: &str) -> Vec<String> {
        let names = self.root.names(&self.path(folder)).into_iter();
        names.filter_map(|name| self.text(&format!("{folder}/{name}"))).collect()
    }

    /// Its addresses in use.
    fn gids(&self) -> Vec<String> {
        let mut gids = self.values("gids");
        gids.retain(|gid| gid.contains(|digit: char| digit.is_ascii_hexdigit() && digit != '0'));
        gids
    }

    fn sum(&self, folder: &str, names: &[&str]) -> f64 {
        let of = |name: &&str| self.root.number(&self.path(&format!("{folder}/{name}")));
        names.iter().filter_map(of).sum()
    }
}

/// The ports of which there is something to say, by their device.
fn ports(root: &Root, what: impl Fn(&Port<'_>) -> Option<String>) -> Vec<Place> {
    let mut places = Vec::new();
    for device in &root.names(RDMA) {
        for number in &root.names(&format!("{RDMA}/{device}/ports")) {
            let what = what(&Port { root, device, number });
            places.extend(what.map(|what| Place { name: device.clone(), what }));
        }
    }
    places
}

/// A limit on locked memory, where there is a device to lock it for.
fn memlock(seen: &Seen) -> Option<String> {
    let status = seen.root.text("/proc/self/status")?;
    if seen.root.names(RDMA).is_empty() || crate::doctor::rdma::capable(&status) {
        return None;
    }
    let bytes = crate::doctor::rdma::limit(&seen.root.text("/proc/self/limits")?)?;
    let asked = seen.memory_bytes as u64;
    (bytes < asked).then(|| {
        format!(
            "{} KiB of memory may be locked, CARAVAN_MEMORY allows {}",
            bytes >> 10,
            asked >> 10
        )
    })
}

/// Whether a kernel's list, as `0-3,8`, has a number.
fn holds(list: &str, number: f64) -> bool {
    list.split(',').any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let ends = first.parse::<f64>().ok().zip(last.parse::<f64>().ok());
        ends.is_some_and(|(first, last)| (first..=last).contains(&number))
    })
}

/// What is less about a card's link to the processor than the card can do.
fn narrow(root: &Root, device: &str) -> Option<String> {
    ["width", "speed"].into_iter().find_map(|of| {
        let file = |which: &str| format!("{device}/{which}_link_{of}");
        let now = root.number(&file("current")).filter(|now| *now > 0.0)?;
        let most = root.number(&file("max"))?;
        (now < most).then(|| format!("has a PCIe {of} of {now}, of {most} that it can"))
    })
}
