//! `walk VAN FOLDER SHORT LONG`: which files an 8-byte push and its answer pass, by two runs under
//! callgrind of so many pushes, of which each thread has left a file `FOLDER/VAN-SHORT-…` or
//! `FOLDER/VAN-LONG-…`. The runs are subtracted, so that what is set up once does not count.
//!
//! A file is on the way if a push spends 20 instructions or more in its functions. A hand-over is a
//! pair of files on the way of which one calls the other, however often. What the compiler puts
//! into its caller counts for the caller: accessors and conversions are no stations. Fails when the
//! way is too long, or when the files differ from the map in `README.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::files;

const FILES_MAX: usize = 25;
const HAND_OVERS_MAX: usize = 30;
/// Instructions of a push in a file that is on its way.
const STATION: f64 = 20.0;
/// Calls that count as one, for each push.
const CALLS_MIN: f64 = 0.1;

/// A thread that spends an instruction a push in one of these is a worker's or server's; the
/// control plane has others.
const WORKING: [&str; 2] = ["kv/src/worker.rs", "kv/src/server/thread/service.rs"];
/// The floor, which the same thread measures.
const FLOOR: &str = "van/src/shm/bare.rs";
const ROOMS: [&str; 3] = ["kv/src/", "van/src/", "fallback-tcp/src/"];
/// Rooms of vans: the map has those of others than the one that is walked.
const VANS: [&str; 6] = [
    "van/src/rdma/",
    "van/src/shm/",
    "van/src/uring/",
    "van/src/socket/",
    "van/src/sim/",
    "fallback-tcp/",
];

/// Runs the command at the top of the repository.
///
/// # Errors
/// Says how the way differs from the map, or which limit it is over.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let usage = || "usage: walk VAN FOLDER SHORT LONG".to_owned();
    let [van, folder, short, long] = arguments else { return Err(usage()) };
    let counts = [short, long].map(|text| text.parse::<u32>());
    let [Ok(pushes_short), Ok(pushes_long)] = counts else { return Err(usage()) };
    let root = std::env::current_dir().map_err(|error| error.to_string())?;
    let root = format!("{}/", root.display());
    // The warm-up is a tenth of the pushes.
    let pushes = f64::from(pushes_long.saturating_sub(pushes_short)) * 1.1;
    let mut way = Way { pushes, ..Way::default() };
    for (count, sign) in [(short, -1.0), (long, 1.0)] {
        let begin = format!("{van}-{count}-");
        let profiles = files::find(Path::new(folder), |file| file.starts_with(&begin))?;
        if profiles.is_empty() {
            return Err(format!(
                "FAILED ci/suites/walk {van}: callgrind left no {folder}/{begin}…"
            ));
        }
        for profile in profiles {
            way.add(&Thread::of(&files::read(Path::new(folder), &profile)?, &root), sign);
        }
    }
    way.print();
    let faults = way.faults(van, &map(&files::read(Path::new("."), "README.md")?));
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
}

/// What one thread did, by file of ours.
#[derive(Debug, Default)]
struct Thread {
    /// Instructions by the file of the function.
    own: BTreeMap<String, f64>,
    /// Instructions by the file of the line: what was inlined counts where it is written.
    lines: BTreeMap<String, f64>,
    /// Calls from one file to another.
    calls: BTreeMap<(String, String), f64>,
}

impl Thread {
    /// Reads a profile of callgrind, in which files of the repository lie below `root`.
    fn of(profile: &str, root: &str) -> Thread {
        let mut thread = Thread::default();
        let mut names = Names { root, known: BTreeMap::new() };
        // The files of the function, of the line, and of the function that is called.
        let (mut from, mut file, mut callee) = (None, None, None);
        let mut is_of_a_call = false;
        for line in profile.lines() {
            match line.split_once('=') {
                Some(("fl", name)) => {
                    from = names.ours(name);
                    (file, callee) = (from.clone(), from.clone());
                }
                Some(("fi" | "fe", name)) => {
                    file = names.ours(name);
                    callee = file.clone();
                }
                Some(("cfi" | "cfl", name)) => callee = names.ours(name),
                Some(("fn", _)) => callee = file.clone(),
                Some(("calls", counts)) => {
                    if let (Some(from), Some(to)) = (&from, &callee)
                        && from != to
                    {
                        *thread.calls.entry((from.clone(), to.clone())).or_default() +=
                            first(counts);
                    }
                    is_of_a_call = true;
                }
                _ if line.starts_with(|c: char| c.is_ascii_digit() || "+*-".contains(c)) => {
                    callee = file.clone();
                    let cost = line.split_once(' ').map_or(0.0, |(_, rest)| first(rest));
                    if !std::mem::take(&mut is_of_a_call) {
                        from.iter()
                            .for_each(|at| *thread.own.entry(at.clone()).or_default() += cost);
                        file.iter()
                            .for_each(|at| *thread.lines.entry(at.clone()).or_default() += cost);
                    }
                }
                _ => {}
            }
        }
        thread
    }
}

/// The first number of a text, or nothing.
fn first(text: &str) -> f64 {
    text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or_default()
}

/// Callgrind gives a number to each name, and says the name once.
struct Names<'a> {
    root: &'a str,
    known: BTreeMap<String, String>,
}

impl Names<'_> {
    /// The path of a file of ours, from the top of the repository.
    fn ours(&mut self, text: &str) -> Option<String> {
        let path = match text.split_once(')') {
            Some((number, name)) if number.starts_with('(') => {
                if let Some(name) = name.strip_prefix(' ') {
                    self.known.insert(number.to_owned(), name.to_owned());
                }
                self.known.get(number).map(String::as_str).unwrap_or_default()
            }
            _ => text,
        };
        let path = path.strip_prefix(self.root).unwrap_or(path);
        let is_ours = path != FLOOR && ROOMS.iter().any(|room| path.starts_with(room));
        is_ours.then(|| path.to_owned())
    }
}

/// What the pushes did in all threads that work.
#[derive(Debug, Default)]
struct Way {
    pushes: f64,
    all: Thread,
}

impl Way {
    fn add(&mut self, thread: &Thread, sign: f64) {
        let spent: f64 = WORKING.iter().filter_map(|file| thread.own.get(*file)).sum();
        if spent <= self.pushes {
            return;
        }
        let part = sign / self.pushes;
        for (file, cost) in &thread.own {
            *self.all.own.entry(file.clone()).or_default() += part * cost;
        }
        for (file, cost) in &thread.lines {
            *self.all.lines.entry(file.clone()).or_default() += part * cost;
        }
        for (pair, count) in &thread.calls {
            *self.all.calls.entry(pair.clone()).or_default() += part * count;
        }
    }

    /// Files on the way, with the instructions of a push in each.
    fn stations(&self) -> BTreeMap<&str, f64> {
        let costs = self.all.own.iter().map(|(file, cost)| (file.as_str(), *cost));
        costs.filter(|(_, cost)| *cost >= STATION).collect()
    }

    /// Pairs of stations, with the calls of a push from the first to the second.
    fn hand_overs(&self) -> Vec<(&str, &str, f64)> {
        let stations = self.stations();
        let calls = self.all.calls.iter();
        let calls = calls.map(|((from, to), count)| (from.as_str(), to.as_str(), *count));
        let is_on_the_way = |(from, to, count): &(&str, &str, f64)| {
            *count >= CALLS_MIN && stations.contains_key(from) && stations.contains_key(to)
        };
        calls.filter(is_on_the_way).collect()
    }

    fn print(&self) {
        println!("instructions of a push by file, then calls from file to file");
        let mut stations: Vec<(&str, f64)> = self.stations().into_iter().collect();
        stations.sort_by(|a, b| b.1.total_cmp(&a.1));
        stations.iter().for_each(|(file, cost)| println!("{cost:8.1}  {file}"));
        let mut calls = self.hand_overs();
        calls.sort_by(|a, b| b.2.total_cmp(&a.2));
        calls.iter().for_each(|(from, to, count)| println!("{count:8.1}  {from} > {to}"));
    }

    /// Where the way is too long, or differs from the map.
    fn faults(&self, van: &str, map: &BTreeSet<String>) -> Vec<String> {
        let stations = self.stations();
        let (files, hand_overs) = (stations.len(), self.hand_overs().len());
        println!(
            "ci/suites/walk: {van}: {files} files ({FILES_MAX}), {hand_overs} hand-overs ({HAND_OVERS_MAX})"
        );
        let mut faults = Vec::new();
        let mut fault = |what: String| faults.push(format!("FAILED ci/suites/walk {van}: {what}"));
        if files > FILES_MAX || hand_overs > HAND_OVERS_MAX {
            fault(format!("a push passes {files} files in {hand_overs} hand-overs"));
        }
        // A line of the map that ends with a slash stands for all that is in the folder.
        let is_on_map = |file: &&str| {
            map.contains(*file)
                || map.iter().any(|line| line.ends_with('/') && file.starts_with(line))
        };
        for file in stations.keys().filter(|file| !is_on_map(file)) {
            fault(format!("a push passes {file}, which the map in README.md lacks"));
        }
        // What is inlined may be on the map, but need not be.
        let is_run = |file: &str| self.all.lines.get(file).is_some_and(|cost| *cost >= 1.0);
        let is_of_a_van = |file: &str| VANS.iter().any(|room| file.starts_with(room));
        let files = map.iter().filter(|line| line.ends_with(".rs"));
        for file in files.filter(|file| !is_run(file) && !is_of_a_van(file)) {
            fault(format!("the map in README.md has {file}, which no push passes"));
        }
        faults
    }
}

/// The files and folders of the map on the front page.
fn map(page: &str) -> BTreeSet<String> {
    let lines = page.lines().skip_while(|line| !line.starts_with("<!-- The map"));
    let lines = lines.take_while(|line| !line.starts_with("<!-- End of the map"));
    let lines = lines.filter(|line| ROOMS.iter().any(|room| line.starts_with(room)));
    let files = lines.filter_map(|line| line.split_whitespace().next());
    files.map(|file| file.trim_end_matches(',').to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker calls a slicer, of which one line is inlined, and the slicer a filter.
    const PROFILE: &str = "events: Ir\n\
        fl=(1) /top/kv/src/worker.rs\nfn=(1) push\n10 2960\n\
        fi=(2) /top/kv/src/runs.rs\n5 40\nfe=(1)\n\
        cfi=(3) /top/kv/src/slicer.rs\ncfn=(2) cut\ncalls=100 7\n12 9000\n\
        fl=(3)\nfn=(2)\n7 2500\ncalls=100 9\n+1 77\n\
        fl=(4) /rust/library/core/src/ops.rs\nfn=(9)\n1 5000\n";

    fn way(map_lines: &[&str]) -> (Way, Vec<String>) {
        let mut way = Way { pushes: 100.0, ..Way::default() };
        way.add(&Thread::of(PROFILE, "/top/"), 1.0);
        let map = map_lines.iter().map(|line| (*line).to_owned()).collect();
        let faults = way.faults("shm", &map);
        (way, faults)
    }

    #[test]
    fn costs_and_calls_are_of_the_file_of_the_function() {
        let (way, _) = way(&[]);
        let stations: Vec<(&str, f64)> = way.stations().into_iter().collect();
        assert_eq!(stations, [("kv/src/slicer.rs", 25.0), ("kv/src/worker.rs", 30.0)]);
        assert_eq!(way.hand_overs(), [("kv/src/worker.rs", "kv/src/slicer.rs", 1.0)]);
        assert_eq!(way.all.lines["kv/src/worker.rs"], 29.6);
    }

    #[test]
    fn a_shorter_run_is_taken_off_and_idle_threads_do_not_count() {
        let mut way = Way { pushes: 100.0, ..Way::default() };
        way.add(&Thread::of(PROFILE, "/top/"), 1.0);
        way.add(&Thread::of(PROFILE, "/top/"), -1.0);
        way.add(&Thread::of("fl=(1) /top/kv/src/worker.rs\n1 100\n", "/top/"), 1.0);
        assert!(way.stations().is_empty());
    }

    #[test]
    fn the_map_is_held_to_the_way_in_both_directions() {
        let (_, faults) = way(&["kv/src/worker.rs", "kv/src/slicer.rs"]);
        assert_eq!(faults, Vec::<String>::new());
        let (_, faults) = way(&["kv/src/", "van/src/rdma/x.rs", "kv/src/gone.rs"]);
        assert_eq!(
            faults,
            [
                "FAILED ci/suites/walk shm: the map in README.md has kv/src/gone.rs, which no push passes"
            ]
        );
        let (_, faults) = way(&["kv/src/worker.rs"]);
        assert_eq!(
            faults,
            [
                "FAILED ci/suites/walk shm: a push passes kv/src/slicer.rs, which the map in README.md lacks"
            ]
        );
    }

    #[test]
    fn a_way_over_the_limit_fails() {
        let functions: String =
            (0..26).map(|n| format!("fl=({n}) /top/kv/src/f{n}.rs\nfn=({n})\n1 2000\n")).collect();
        let profile = format!("{functions}fl=(99) /top/kv/src/worker.rs\n1 200\n");
        let mut way = Way { pushes: 100.0, ..Way::default() };
        way.add(&Thread::of(&profile, "/top/"), 1.0);
        let faults = way.faults("tcp", &["kv/src/".to_owned()].into());
        assert_eq!(faults, ["FAILED ci/suites/walk tcp: a push passes 26 files in 0 hand-overs"]);
    }

    #[test]
    fn the_map_is_what_stands_between_its_marks() {
        let page = "kv/src/a.rs\n<!-- The map -->\nkv/src/b.rs, twice\nvan/src/wire/  all\nelse\n<!-- End of the map -->\nkv/src/c.rs";
        assert_eq!(map(page), ["kv/src/b.rs", "van/src/wire/"].map(str::to_owned).into());
    }
}
