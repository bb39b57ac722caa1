//! Lists of hosts, as people, host files of MPI, and Slurm write them; and how nodes are dealt to
//! hosts.

use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result};
use caravan_kv::files;
use clap::ValueEnum;

use crate::cli::ending::Usage;

/// By what the launcher has reached this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Through {
    /// It is the launcher's own.
    Here,
    Ssh,
    Srun,
}

/// Most hosts of a job.
pub(crate) const HOSTS_MAX: usize = 10_000;

/// Longest host file, in bytes.
const FILE_MAX: u64 = 1 << 20;

/// A host, and the number of nodes that it takes before the next host gets a second one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) slots: usize,
}

impl Host {
    /// The name of the machine that launches; it is reached without a remote shell.
    pub(crate) const HERE: &str = "localhost";

    pub(crate) fn new(name: &str) -> Host {
        Host { name: name.to_owned(), slots: 1 }
    }
}

/// Hosts, separated by commas: `A,B`, `A:4,user@B`, `[fd00::1]:2`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostList(pub(crate) Vec<Host>);

impl FromStr for HostList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let hosts: Vec<Host> = text.split(',').map(host).collect::<Result<_, _>>()?;
        bounded(hosts).map(HostList)
    }
}

/// One host, with or without its slots: `A`, `A:4`, `[fd00::1]:4`.
fn host(text: &str) -> Result<Host, String> {
    let text = text.trim();
    let (name, slots) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, rest)) => (name, rest.strip_prefix(':').or(rest.is_empty().then_some("1"))),
        None => match text.split_once(':') {
            None => (text, Some("1")),
            Some((name, slots)) => (name, Some(slots)),
        },
    };
    let slots = slots.and_then(|slots| slots.parse().ok());
    let slots = slots.filter(|slots| (1..=HOSTS_MAX).contains(slots));
    let slots = slots.ok_or_else(|| {
        format!("{text:?} is no host, as A, A:4 with 4 slots, user@A, or [fd00::1]:4")
    })?;
    Ok(Host { name: checked_name(name)?.to_owned(), slots })
}

/// A name that a remote shell takes for a host and for nothing else.
fn checked_name(name: &str) -> Result<&str, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-@:%".contains(c);
    let fits = !name.is_empty() && !name.starts_with('-') && name.chars().all(is_plain);
    fits.then_some(name).ok_or_else(|| format!("{name:?} is no name of a host"))
}

fn bounded(hosts: Vec<Host>) -> Result<Vec<Host>, String> {
    match hosts.len() {
        0 => Err("there is no host; name one, as --hosts A,B".to_owned()),
        1..=HOSTS_MAX => Ok(hosts),
        many => Err(format!("{many} hosts are more than {HOSTS_MAX}")),
    }
}

/// Reads a host file of OpenMPI (`A slots=4`) or MPICH (`A:4`): a host a line, `#` begins a
/// comment.
///
/// # Errors
/// [`Usage`] names the file, and the line that is wrong.
pub(crate) fn read_file(path: &Path) -> Result<Vec<Host>> {
    let shown = path.display();
    let text = files::read(path, FILE_MAX).with_context(|| format!("cannot read {shown}"))?;
    let text = String::from_utf8_lossy(&text);
    Ok(lines(&text).map_err(|why| Usage(format!("{shown}: {why}")))?)
}

fn lines(text: &str) -> Result<Vec<Host>, String> {
    let mut hosts = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let wrong = |why| format!("line {}: {why}", number + 1);
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(name) = words.next() else { continue };
        let mut host = host(name).map_err(wrong)?;
        // OpenMPI has further words that do not matter here, as max_slots=8.
        if let Some(slots) = words.find_map(|word| word.strip_prefix("slots=")) {
            host.slots = slots
                .parse()
                .ok()
                .filter(|slots| (1..=HOSTS_MAX).contains(slots))
                .ok_or_else(|| wrong(format!("{slots:?} is no number of slots")))?;
        }
        hosts.push(host);
    }
    bounded(hosts)
}

/// Expands a list of nodes as Slurm writes it: `n[1-3,07],login` is n1, n2, n3, n07 and login.
///
/// # Errors
/// The part that is wrong, or the number of hosts if that is too large.
pub(crate) fn expand_slurm(text: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for part in split_outside_brackets(text) {
        let mut expanded = vec![String::new()];
        let mut rest = part;
        while let Some((head, tail)) = rest.split_once('[') {
            let (inside, after) = tail
                .split_once(']')
                .ok_or_else(|| format!("{part:?} has a bracket that does not close"))?;
            let numbers = numbers(inside)?;
            if expanded.len() * numbers.len() > HOSTS_MAX {
                return Err(format!("{part:?} has more than {HOSTS_MAX} hosts"));
            }
            let with = |name: &String| {
                let name = format!("{name}{head}");
                numbers.iter().map(move |number| format!("{name}{number}")).collect::<Vec<_>>()
            };
            expanded = expanded.iter().flat_map(with).collect();
            rest = after;
        }
        for name in expanded {
            names.push(checked_name(&format!("{name}{rest}"))?.to_owned());
        }
        if names.len() > HOSTS_MAX {
            return Err(format!("{text:?} has more than {HOSTS_MAX} hosts"));
        }
    }
    Ok(names)
}

fn split_outside_brackets(text: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    text.split(move |c| {
        inside = c == '[' || inside && c != ']';
        c == ',' && !inside
    })
}

/// The numbers in a bracket, with the zeros before them: `1-3,07`.
fn numbers(text: &str) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let bounds = first.parse::<u64>().ok().zip(last.parse::<u64>().ok());
        let (low, high) = bounds
            .filter(|(low, high)| low <= high && high - low < HOSTS_MAX as u64)
            .ok_or_else(|| format!("{range:?} is no range of at most {HOSTS_MAX} hosts"))?;
        let width = first.len();
        all.extend((low..=high).map(|number| format!("{number:0width$}")));
        if all.len() > HOSTS_MAX {
            return Err(format!("{text:?} has more than {HOSTS_MAX} hosts"));
        }
    }
    Ok(all)
}

/// Deals `count` nodes to hosts in turn; a host with more slots is passed over later. When all
/// slots are taken it begins again. Returns the place of each node's host.
pub(crate) fn deal(hosts: &[Host], count: usize) -> Vec<usize> {
    let mut dealt = Vec::with_capacity(count);
    let rounds = hosts.iter().map(|host| host.slots).max().unwrap_or(1);
    for round in (0..rounds).cycle() {
        for at in (0..hosts.len()).filter(|at| hosts[*at].slots > round) {
            if dealt.len() == count {
                return dealt;
            }
            dealt.push(at);
        }
    }
    dealt
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn named(hosts: &[(&str, usize)]) -> Vec<Host> {
        hosts.iter().map(|(name, slots)| Host { slots: *slots, ..Host::new(name) }).collect()
    }

    #[test]
    fn lists_of_hosts_are_read() {
        for (text, hosts) in [
            ("A,B", named(&[("A", 1), ("B", 1)])),
            ("me@a-1.lan:4, b_2", named(&[("me@a-1.lan", 4), ("b_2", 1)])),
            ("[fd00::1]:2,[fe80::1%eth0]", named(&[("fd00::1", 2), ("fe80::1%eth0", 1)])),
        ] {
            assert_eq!(text.parse(), Ok(HostList(hosts)), "{text}");
        }
        for text in ["", "A,,B", "A:0", "A:x", "A:99999", "-oProxyCommand=sh", "a b", "a;b", "[a"] {
            assert!(text.parse::<HostList>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn host_files_of_both_kinds_are_read() {
        let text = "# two nodes\nA slots=4 max_slots=8\n\n  B:2   # the other\nC\n";
        assert_eq!(lines(text), Ok(named(&[("A", 4), ("B", 2), ("C", 1)])));
        for (text, part) in [
            ("", "no host"),
            ("# none\n", "no host"),
            ("A\nB slots=many\n", "line 2"),
            ("A\n\n-l root\n", "line 3"),
        ] {
            assert!(lines(text).unwrap_err().contains(part), "{text:?}");
        }
    }

    #[test]
    fn only_short_plain_files_are_host_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts");
        std::fs::write(&path, "A\nB:2\n").unwrap();
        assert_eq!(read_file(&path).unwrap(), named(&[("A", 1), ("B", 2)]));
        std::fs::write(&path, "#".repeat(FILE_MAX as usize + 1)).unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for (path, says) in [
            (&*path, "longer than 1048576 bytes"),
            (&*pipe, "it is a pipe"),
            (Path::new("/dev/zero"), "it is a device"),
        ] {
            let said = format!("{:#}", read_file(path).unwrap_err());
            assert!(said.contains(says) && said.contains(path.to_str().unwrap()), "{said}");
        }
    }

    #[test]
    fn lists_of_slurm_are_expanded() {
        for (text, names) in [
            ("n1", "n1"),
            ("n[1-3,7],m02", "n1 n2 n3 n7 m02"),
            ("rack[1-2]n[08-10]", "rack1n08 rack1n09 rack1n10 rack2n08 rack2n09 rack2n10"),
            ("gpu[001,100-101]-ib,login", "gpu001-ib gpu100-ib gpu101-ib login"),
        ] {
            assert_eq!(expand_slurm(text).unwrap().join(" "), names, "{text}");
        }
        for text in
            ["", "n[1-", "n[1-x]", "n[3-1]", "n[1-99999999]", "n[0-9999][0-9999]", "-x", "n]"]
        {
            assert!(expand_slurm(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn nodes_are_dealt_in_turn() {
        let two = named(&[("A", 1), ("B", 1)]);
        assert_eq!(deal(&two, 2), [0, 1]);
        assert_eq!(deal(&two, 5), [0, 1, 0, 1, 0]);
        assert_eq!(deal(&named(&[("A", 3), ("B", 1)]), 6), [0, 1, 0, 0, 0, 1]);
        assert_eq!(deal(&two, 0), [0; 0]);
    }
}
