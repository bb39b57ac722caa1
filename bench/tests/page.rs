//! Goal: people see the page of `caravan report` in a browser, from disk and without a network.
//! Method: a headless Chromium that can look up no name opens a page of two real runs. It is
//! skipped with a line where there is none; `ci/suites/launchers setup` installs it.

use crate::support;
use std::process::Command;

use support::{folder, text};

/// Goal: a report of few rows takes little memory, though each has a distribution of its own.
/// Method: a limit on the memory of the process, which the histograms do not fit into at once.
#[test]
fn distributions_are_drawn_one_by_one() {
    let folder = folder("distributions");
    let run = support::caravan("bench latency --smoke --van tcp --op push --sizes 8 --json");
    let output = { run }.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rows = text(&output.stdout);
    let row = rows.lines().next_back().unwrap();
    let rows =
        (1..=3000).map(|keys| row.replace("\"keys\":1,", &format!("\"keys\":{keys},")) + "\n");
    std::fs::write(folder.join("rows"), rows.collect::<String>()).unwrap();
    let mut report = support::without_variables("sh");
    report
        .current_dir(&folder)
        .args(["-c", "ulimit -v 600000; exec \"$0\" report rows --out page"]);
    let output = report.arg(env!("CARGO_BIN_EXE_caravan")).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = std::fs::read_to_string(folder.join("page")).unwrap();
    assert!(page.contains("2800 more charts are left out") && page.matches("<svg").count() == 400);
}

#[test]
fn a_browser_shows_every_row_and_every_curve() {
    let folder = folder("page");
    let file = |name: &str| folder.join(name).display().to_string();
    for van in ["tcp", "uring"] {
        let run = format!("bench all --smoke --van {van} --json");
        let output = support::caravan(&run).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let load = format!("bench load --smoke --van {van} --pushes 0 --rate 1k,2k --json");
        let under_load = support::caravan(&load).output().unwrap();
        assert!(under_load.status.success(), "{}", text(&under_load.stderr));
        std::fs::write(file(van), [output.stdout, under_load.stdout].concat()).unwrap();
    }
    let line = format!("report {} {} --out {}", file("tcp"), file("uring"), file("page.html"));
    let output = support::caravan(&line).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    if !std::path::Path::new("/usr/bin/chromium").exists() {
        eprintln!("skipped: needs chromium; ci/suites/launchers setup installs it");
        return;
    }
    let profile = format!("--user-data-dir={}", file("profile"));
    let shown = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", &profile])
        .args(["--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking"])
        .arg(format!("file://{}", file("page.html")))
        .output()
        .unwrap();
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    let page = text(&shown.stdout);
    // Three of latency, one of each other kind, for push and for pull; under load only pulls.
    assert_eq!(page.matches("<svg").count(), 2 * (1 + 1 + 1 + 3) + 1, "{page}");
    assert!(page.matches("<polyline").count() >= 2 * 12, "{page}");
    for van in ["tcp", "uring"] {
        for row in std::fs::read_to_string(file(van)).unwrap().lines() {
            let row: serde_json::Value = serde_json::from_str(row).unwrap();
            for figure in ["p50_us", "p999_us", "gb_per_s", "mmsg_per_s", "kernel"] {
                let shown = match &row[figure] {
                    serde_json::Value::Null => continue,
                    serde_json::Value::String(text) => format!(">{text}"),
                    number => format!(">{number}</td>"),
                };
                assert!(page.contains(&shown), "{shown} of {row}");
            }
        }
    }
}
