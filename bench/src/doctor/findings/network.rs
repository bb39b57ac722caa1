//! Sockets and the interfaces of the network.

use super::check::{Check, among, here};
use super::root::Root;

const IPV4: &str = "/proc/sys/net/ipv4";

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "loopback",
        find: |seen| {
            let is_down = flags(&seen.root, "lo").is_some_and(|flags| flags & UP == 0);
            here(is_down.then(|| "the loopback interface is down".to_owned()))
        },
        remedy: "bring it up",
        command: "ip link set lo up",
    },
    Check {
        name: "link-down",
        find: |seen| {
            among(cards(&seen.root), |name| {
                let up = flags(&seen.root, name)? & UP != 0;
                let state = seen.root.text(&format!("/sys/class/net/{name}/operstate"))?;
                (up && state == "down").then(|| format!("{name} is up, but its link is down"))
            })
        },
        remedy: "look at the cable, the transceiver and the switch's port",
        command: "ethtool {}",
    },
    Check {
        name: "link-slow",
        find: |seen| {
            among(cards(&seen.root), |name| {
                let speed = speed(&seen.root, name).filter(|mbit| *mbit < 1000.0)?;
                Some(format!("{name} runs at {speed} Mbit/s"))
            })
        },
        remedy: "change the cable, and let both ends negotiate",
        command: "ethtool -s {} autoneg on",
    },
    Check {
        name: "half-duplex",
        find: |seen| {
            among(cards(&seen.root), |name| {
                let duplex = seen.root.text(&format!("/sys/class/net/{name}/duplex"))?;
                (duplex == "half")
                    .then(|| format!("{name} sends or receives, but not both at once"))
            })
        },
        remedy: "let both ends negotiate",
        command: "ethtool -s {} autoneg on",
    },
    Check {
        name: "mtu",
        find: |seen| {
            among(cards(&seen.root), |name| {
                speed(&seen.root, name).filter(|mbit| *mbit >= 10_000.0)?;
                let mtu = seen.root.number(&format!("/sys/class/net/{name}/mtu"))?;
                (mtu < 4200.0).then(|| format!("{name} has an MTU of {mtu} bytes"))
            })
        },
        remedy: "take jumbo frames, on the switch and all hosts alike",
        command: "ip link set {} mtu 9000",
    },
    Check {
        name: "queues",
        find: |seen| {
            let online = seen.root.text("/sys/devices/system/cpu/online").unwrap_or_default();
            among(cards(&seen.root), |name| {
                speed(&seen.root, name).filter(|mbit| *mbit >= 10_000.0)?;
                let queues = seen.root.names(&format!("/sys/class/net/{name}/queues"));
                let count = queues.iter().filter(|queue| queue.starts_with("rx-")).count();
                let alone = count == 1 && super::root::list_len(&online) > 1;
                alone.then(|| format!("one core takes all interrupts of {name}"))
            })
        },
        remedy: "give it a queue for each core",
        command: "ethtool -L {} combined $(nproc)",
    },
    Check {
        name: "discards",
        find: |seen| {
            among(cards(&seen.root), |name| {
                let of =
                    |file| seen.root.number(&format!("/sys/class/net/{name}/statistics/{file}"));
                let bad: f64 = ["rx_errors", "rx_missed_errors", "rx_crc_errors", "tx_errors"]
                    .into_iter()
                    .filter_map(of)
                    .sum();
                let share = bad / of("rx_packets")?.max(1.0);
                (bad > 10.0 && share > 1e-5).then(|| format!("{name} has counted {bad} errors"))
            })
        },
        remedy: "look which: lost for want of buffers (ethtool -G), or a bad cable",
        command: "ethtool -S {} | grep -iE 'err|drop|discard|crc'",
    },
    Check {
        name: "window-scaling",
        find: |seen| {
            let is_off = seen.root.number(&format!("{IPV4}/tcp_window_scaling")) == Some(0.0);
            here(is_off.then(|| "TCP has at most 64 KiB on the way".to_owned()))
        },
        remedy: "allow larger windows",
        command: "sysctl -w net.ipv4.tcp_window_scaling=1",
    },
    Check {
        name: "selective-acknowledgement",
        find: |seen| {
            let is_off = seen.root.number(&format!("{IPV4}/tcp_sack")) == Some(0.0);
            here(is_off.then(|| "a lost packet makes TCP send all after it again".to_owned()))
        },
        remedy: "allow selective acknowledgement",
        command: "sysctl -w net.ipv4.tcp_sack=1",
    },
    Check {
        name: "socket-buffers",
        find: |seen| {
            here(["tcp_rmem", "tcp_wmem"].into_iter().find_map(|file| {
                let text = seen.root.text(&format!("{IPV4}/{file}"))?;
                let most: f64 = text.split_whitespace().nth(2)?.parse().ok()?;
                (most < 2e6).then(|| format!("net.ipv4.{file} ends at {most} bytes"))
            }))
        },
        remedy: "let buffers grow to what is on the way between two hosts",
        command: "sysctl -w net.ipv4.tcp_rmem='4096 131072 16777216' \
                  net.ipv4.tcp_wmem='4096 65536 16777216'",
    },
    Check {
        name: "backlog",
        find: |seen| {
            let most = seen.root.number("/proc/sys/net/core/somaxconn");
            here(most.filter(|most| *most < 1024.0).map(|most| {
                format!("{most} connections may wait, fewer than nodes that join at once")
            }))
        },
        remedy: "raise net.core.somaxconn",
        command: "sysctl -w net.core.somaxconn=4096",
    },
    Check {
        name: "ports",
        find: |seen| {
            let range = seen.root.text(&format!("{IPV4}/ip_local_port_range")).unwrap_or_default();
            let ends: Vec<f64> =
                range.split_whitespace().filter_map(|it| it.parse().ok()).collect();
            let count = (ends.len() == 2).then(|| ends[1] - ends[0] + 1.0);
            here(
                count
                    .filter(|count| *count < 4096.0)
                    .map(|count| format!("{count} ports are there for connections to one host")),
            )
        },
        remedy: "widen the range",
        command: "sysctl -w net.ipv4.ip_local_port_range='32768 60999'",
    },
    Check {
        name: "firewall-table",
        find: |seen| {
            let of =
                |file| seen.root.number(&format!("/proc/sys/net/netfilter/nf_conntrack_{file}"));
            let full = of("count").zip(of("max")).filter(|(count, most)| *count > 0.8 * most);
            here(full.map(|(count, most)| {
                format!("the firewall follows {count} of at most {most} connections, then drops")
            }))
        },
        remedy: "raise its limit, or do not follow the cluster's connections",
        command: "sysctl -w net.netfilter.nf_conntrack_max=1048576",
    },
];

const UP: u32 = 1;

fn flags(root: &Root, name: &str) -> Option<u32> {
    let flags = root.text(&format!("/sys/class/net/{name}/flags"))?;
    u32::from_str_radix(flags.trim_start_matches("0x"), 16).ok()
}

/// Interfaces with a device behind them.
pub(super) fn cards(root: &Root) -> Vec<String> {
    let mut names = root.names("/sys/class/net");
    names.retain(|name| root.has(&format!("/sys/class/net/{name}/device")));
    names
}

/// In Mbit/s, if the link is up and tells.
fn speed(root: &Root, name: &str) -> Option<f64> {
    root.number(&format!("/sys/class/net/{name}/speed")).filter(|mbit| *mbit > 0.0)
}
