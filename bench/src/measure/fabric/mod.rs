//! `caravan bench fabric`: latency and bandwidth of every link between hosts, and which of them are
//! slower than the others.

pub(crate) mod judge;
mod rows;
pub(crate) mod worker;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use caravan_kv::{Cluster, Target};
use serde_json::Value;

use self::judge::{HOSTS_MIN, Judged, Least, Matrix, median, repeats_deviation};
use self::rows::{FabricRow, LinkRow, Shown};
use self::worker::{Links, Part, Task};
use super::figures::{micro, milli, nano};
use crate::cli::ending::{Failed, Usage};
use crate::cli::values::size;
use crate::cli::{Common, FabricArgs};
use crate::cluster;
use crate::doctor::machine::Machine;

/// Pushes in flight.
const WINDOW: usize = 8;

/// Status where a link is below `--fail-below`.
const BELOW: i32 = 1;

/// Runs `caravan bench fabric`.
///
/// # Errors
/// [`Usage`] without a worker and a server on every host; [`Failed`] if a link is below
/// `--fail-below`.
pub(crate) fn run(common: &Common, args: &FabricArgs) -> Result<()> {
    let config = cluster::config(common)?;
    if config.servers != config.workers || config.workers < 2 {
        let why = format!(
            "bench fabric takes a worker and a server on each of two hosts or more, not {} and {}: \
             name the hosts, as --hosts A,B,C",
            config.workers, config.servers
        );
        return Err(Usage(why).into());
    }
    let mut report = Machine::first(common, 1)?;
    let mut cluster = cluster::launch(&config, common)?;
    report.doing(format!("fabric of {} hosts", config.workers));
    let seconds = if common.smoke { SMOKE_SECONDS } else { args.duration };
    let task = Task {
        repeats: args.rounds as usize,
        lasts: Duration::from_secs_f64(seconds),
        bytes: args.size,
        window: WINDOW,
    };
    let began = Instant::now();
    let parts = measure(&mut cluster, &task)?;
    let fabric = Fabric::of(parts, began.elapsed(), &task, args.fail_below)?;
    for link in &fabric.links {
        report.row(link)?;
    }
    report.row(&fabric.all)?;
    report.step();
    cluster.shutdown()?;
    report.end("links")?;
    match fabric.all.failed_links {
        0 => Ok(()),
        count => {
            let why = format!("{count} of {} links are too slow", fabric.all.links);
            Err(Failed { status: BELOW, why }.into())
        }
    }
}

/// Seconds of each link with `--smoke`.
const SMOKE_SECONDS: f64 = 0.005;

fn measure(cluster: &mut Cluster, task: &Task) -> Result<Vec<Value>> {
    let id = cluster.submit(Target::Workers, Links::NAME, &serde_json::to_value(task)?)?;
    Ok(cluster.wait(id)?)
}

/// Rows of all links, and of all together.
#[derive(Debug, Clone, PartialEq)]
struct Fabric {
    links: Vec<LinkRow>,
    all: FabricRow,
}

impl Fabric {
    fn of(
        answers: Vec<Value>,
        took: Duration,
        task: &Task,
        least: Option<Least>,
    ) -> Result<Fabric> {
        let parts: Vec<Part> =
            answers.into_iter().map(serde_json::from_value).collect::<Result<_, _>>()?;
        check_places(&parts)?;
        let names = names(&parts);
        let matrix = |figure: fn(&worker::Link) -> f64| -> Vec<Vec<Option<f64>>> {
            let of = |(from, part): (usize, &Part)| {
                let links = part.links.iter().enumerate();
                links.map(|(to, link)| (from != to).then(|| figure(link))).collect()
            };
            parts.iter().enumerate().map(of).collect()
        };
        let latency = matrix(|link| median(link.p50_us.iter().copied()));
        let rate = matrix(|link| median(link.gb_per_s.iter().copied()));
        let middle = |matrix: &Matrix| median(matrix.iter().flatten().flatten().copied());
        let [latency_middle, rate_middle] = [&latency, &rate].map(middle);
        let slowness = |matrix: &Matrix, sign: f64, repeats: fn(&worker::Link) -> &Vec<f64>| {
            let of =
                |row: &Vec<Option<f64>>| row.iter().map(|v| v.map(|v| sign * v.ln())).collect();
            let all = parts.iter().flat_map(|part| &part.links);
            Judged::of(&matrix.iter().map(of).collect(), repeats_deviation(all.map(repeats)))
        };
        let judged = [
            slowness(&latency, 1.0, |link| &link.p50_us),
            slowness(&rate, -1.0, |link| &link.gb_per_s),
        ];
        let below = least.map_or(0.0, |least| least.of(rate_middle));
        let links = link_rows(&parts, &names, [&latency, &rate], &judged, task.bytes, below);
        let shown = |title: String, matrix: &Matrix, judged: &Judged| Shown {
            title,
            names: names.clone(),
            cells: cells(matrix, judged),
        };
        let large = size(&task.bytes);
        let words = words(&judged, &names, &links, below);
        let hosts = names.len();
        let all = FabricRow {
            van: parts.first().map_or_else(String::new, |part| part.van.clone()),
            hosts,
            links: links.len(),
            bytes: task.bytes,
            p50_us: milli(latency_middle),
            gb_per_s: micro(rate_middle),
            slow_links: links.iter().filter(|link| link.is_slow).count(),
            slow_hosts: (0..hosts).filter(|host| is_slow_host(&judged, *host)).count(),
            failed_links: links.iter().filter(|link| link.is_failed).count(),
            seconds: nano(took.as_secs_f64()),
            words,
            matrices: [
                shown(format!("GB/s from row to column, {large}"), &rate, &judged[1]),
                shown("µs round trip from row to column, 8 B".to_owned(), &latency, &judged[0]),
            ],
        };
        Ok(Fabric { links, all })
    }
}

/// The row of each link between two hosts, by the matrices of latency and rate and what was judged
/// of each.
fn link_rows(
    parts: &[Part],
    names: &[String],
    [latency, rate]: [&Matrix; 2],
    judged: &[Judged; 2],
    bytes: usize,
    below: f64,
) -> Vec<LinkRow> {
    let mut links = Vec::new();
    for (from, part) in parts.iter().enumerate() {
        for (to, link) in part.links.iter().enumerate() {
            let [Some(p50_us), Some(gb_per_s)] = [latency[from][to], rate[from][to]] else {
                continue;
            };
            let slower = |judged: &Judged| percent(judged.links[from][to].unwrap_or_default());
            links.push(LinkRow {
                van: part.vans.get(to).unwrap_or(&part.van).clone(),
                port: part.ports.get(to).cloned().flatten(),
                from: names[from].clone(),
                to: names[to].clone(),
                bytes,
                p50_us: milli(p50_us),
                gb_per_s: micro(gb_per_s),
                latency_slower_percent: slower(&judged[0]),
                rate_slower_percent: slower(&judged[1]),
                is_slow: judged.iter().any(|judged| judged.is_slow(from, to)),
                is_failed: gb_per_s < below,
                wrong: link.wrong,
                rounds_us: link.p50_us.iter().copied().map(milli).collect(),
                rounds_gb_per_s: link.gb_per_s.iter().copied().map(micro).collect(),
            });
        }
    }
    links
}

/// How much slower, from a logarithm.
fn percent(slower: f64) -> f64 {
    (slower.exp_m1() * 1e4).round() / 100.0
}

fn cells(matrix: &Matrix, judged: &Judged) -> Vec<Vec<Option<(f64, bool)>>> {
    let cell = |from: usize, to: usize, value: Option<f64>| {
        value.map(|value| (value, judged.is_slow(from, to)))
    };
    let row = |(from, row): (usize, &Vec<Option<f64>>)| {
        row.iter().enumerate().map(|(to, value)| cell(from, to, *value)).collect()
    };
    matrix.iter().enumerate().map(row).collect()
}

fn is_slow_host(judged: &[Judged; 2], host: usize) -> bool {
    let is_in = |judged: &Judged, direction| judged.slow_hosts(direction).any(|(at, _)| at == host);
    judged.iter().any(|judged| is_in(judged, 0) || is_in(judged, 1))
}

/// What is slow, a sentence each.
fn words(judged: &[Judged; 2], names: &[String], links: &[LinkRow], below: f64) -> Vec<String> {
    let mut words = Vec::new();
    let [latency, rate] = judged;
    for (judged, what) in [(rate, "carries less"), (latency, "takes longer")] {
        for (direction, does) in [(0, "sending"), (1, "receiving")] {
            for (host, slower) in judged.slow_hosts(direction) {
                let slower = percent(slower);
                words.push(format!("host {}: {does} {what}, {slower:.1} % slower", names[host]));
            }
        }
    }
    for link in links.iter().filter(|link| link.is_slow) {
        words.push(format!(
            "link {} to {}: {:.1} % slower in bandwidth and {:.1} % in latency than the other \
             links of its hosts",
            link.from, link.to, link.rate_slower_percent, link.latency_slower_percent
        ));
    }
    for link in links.iter().filter(|link| link.is_failed) {
        let LinkRow { from, to, gb_per_s, .. } = link;
        words.push(format!("link {from} to {to}: {gb_per_s:.3} GB/s, below {below:.3}"));
    }
    if names.len() < HOSTS_MIN {
        words.push(format!(
            "from {HOSTS_MIN} hosts on, slow links are found by comparing them with others"
        ));
    } else if words.is_empty() {
        let [latency, rate] = [latency, rate].map(|judged| percent(judged.limits[0]));
        words.push(format!(
            "no link is slower than the others by more than noise: {rate:.1} % in bandwidth, \
             {latency:.1} % in latency"
        ));
    }
    words
}

/// Checks that worker i and server i share a host, as --hosts deals them.
fn check_places(parts: &[Part]) -> Result<()> {
    for (at, part) in parts.iter().enumerate() {
        let server = part.servers.get(at).context("there are as many servers as workers")?;
        let Some(server) = host_of(server) else { return Ok(()) };
        let Ok(own) = part.address.parse::<IpAddr>() else { continue };
        ensure!(
            server == own,
            "worker {at} is at {own} and server {at} at {server}; bench fabric needs both on the \
             same host: name the hosts, as --hosts A,B,C"
        );
    }
    Ok(())
}

/// The host of a server's address; none where the van has no hosts.
fn host_of(address: &str) -> Option<IpAddr> {
    let (host, _) = address.rsplit_once(':')?;
    host.trim_matches(['[', ']']).parse().ok()
}

/// The shortest that tells hosts apart: their names, addresses, or numbers.
fn names(parts: &[Part]) -> Vec<String> {
    let are_apart = |names: &[String]| {
        let mut sorted = names.to_vec();
        sorted.sort();
        sorted.windows(2).all(|pair| pair[0] != pair[1])
    };
    let hosts: Vec<String> = parts.iter().map(|part| part.host.clone()).collect();
    let addresses: Vec<String> = parts.iter().map(|part| part.address.clone()).collect();
    let numbers = (0..parts.len()).map(|at| at.to_string()).collect();
    [hosts, addresses].into_iter().find(|names| are_apart(names)).unwrap_or(numbers)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::num::NonZeroU64;

    use caravan_kv::node::Numa;
    use caravan_kv::{Apps, ClusterConfig, Launch, NodeConfig};
    use caravan_numa::HugePages;
    use caravan_van::sim::{Faults, Network};

    use super::*;

    /// The fabric of simulated hosts whose links carry 10 GB/s, with latencies of 5 to 5.5 µs.
    fn simulated(hosts: usize, seed: u64, slow: Option<[usize; 2]>) -> Fabric {
        let faults = Faults {
            latency: Duration::from_nanos(5000)..=Duration::from_nanos(5500),
            bytes_per_second: NonZeroU64::new(10_000_000_000),
            ..Faults::none()
        };
        let network = Network::new(seed, faults);
        if let Some([from, to]) = slow {
            network.slow(&format!("worker {from}"), &format!("server {to}"), 1.0 / 0.9);
        }
        let node = NodeConfig {
            huge_pages: HugePages::AsSystem,
            numa: Numa::Any,
            join_timeout: Duration::from_secs(3600),
            heartbeat: Duration::from_secs(3600),
            ..NodeConfig::default()
        };
        let config =
            ClusterConfig { workers: hosts, servers: hosts, node, ..ClusterConfig::default() };
        let task =
            Task { repeats: 1, lasts: Duration::from_micros(200), bytes: 64 << 10, window: 8 };
        let run = move |_: &Network| {
            let apps = Apps::default().with(Links::NAME, || Box::new(Links));
            let launch = Launch::Simulated(crate::apps::handles(), apps);
            let mut cluster = Cluster::launch(&config, launch).unwrap();
            let parts = measure(&mut cluster, &task).unwrap();
            cluster.shutdown().unwrap();
            let least = Some(Least::Share(0.95));
            Fabric::of(parts, Duration::ZERO, &task, least).unwrap()
        };
        network.spawn("scheduler", run).join().unwrap()
    }

    /// Goal: the whole of it finds the one link that is 10 % slow, and nothing where there is none.
    #[test]
    fn a_slow_link_of_a_simulated_fabric_is_found() {
        for seed in 0..2 {
            let Fabric { links, all } = simulated(8, seed, None);
            assert_eq!((links.len(), all.slow_links, all.slow_hosts), (56, 0, 0), "{all:?}");
            assert_eq!(all.failed_links, 0);
            assert!(links.iter().all(|link| link.wrong == 0));
            assert!((all.gb_per_s - 10.0).abs() < 1.0 && all.words[0].contains("no link"));
            let Fabric { links, all } = simulated(8, seed, Some([2, 5]));
            let slow: Vec<_> = links.iter().filter(|link| link.is_slow).collect();
            assert_eq!((slow.len(), all.slow_hosts), (1, 0), "{all:?}");
            assert_eq!((slow[0].from.as_str(), slow[0].to.as_str()), ("2", "5"));
            assert!((slow[0].rate_slower_percent - 11.1).abs() < 1.5, "{:?}", slow[0]);
            assert!(slow[0].is_failed && all.failed_links == 1, "{all:?}");
        }
    }

    #[test]
    fn thresholds_are_shares_or_rates() {
        assert_eq!("90%".parse(), Ok(Least::Share(0.9)));
        assert_eq!("11.5".parse(), Ok(Least::Rate(11.5)));
        assert_eq!(Least::Share(0.9).of(10.0), 9.0);
        for text in ["", "0", "-1", "110%", "x", "inf", "NaN%"] {
            assert!(text.parse::<Least>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn hosts_are_told_apart() {
        let part = |host: &str, address: &str, server: &str| Part {
            van: "tcp".to_owned(),
            vans: vec!["tcp".to_owned(); 2],
            ports: vec![None; 2],
            host: host.to_owned(),
            address: address.to_owned(),
            servers: vec![server.to_owned(); 2],
            links: vec![worker::Link::default(); 2],
        };
        let [a, b] = [part("a", "10.0.0.1", "10.0.0.1:5"), part("b", "10.0.0.2", "10.0.0.2:5")];
        assert_eq!(names(&[a.clone(), b.clone()]), ["a", "b"]);
        let same = Part { host: "a".to_owned(), ..b.clone() };
        assert_eq!(names(&[a.clone(), same]), ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(names(&[a.clone(), a.clone()]), ["0", "1"]);
        assert!(check_places(&[a.clone(), b.clone()]).is_ok());
        let error = check_places(&[a.clone(), Part { servers: a.servers.clone(), ..b }]);
        assert!(error.unwrap_err().to_string().contains("worker 1 is at 10.0.0.2"));
    }
}
