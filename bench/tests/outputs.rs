//! Goal: what a run has to bring in is brought in or missed aloud, whatever becomes of its outputs
//! and whatever others have put where they go; and nothing that a node or a file says does anything
//! to a terminal.
//! Method: real processes, pipes that are closed, `/dev/full`, planted links and pipes, locks, the
//! limits of the system.

#![cfg(target_os = "linux")]

use crate::support;
use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use support::{PATIENCE, caravan, ended, folder, text};

/// Runs to the end, and not for ever.
fn run(mut command: Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut out, mut said) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let mut read = [Vec::new(), Vec::new()];
    let status = std::thread::scope(|scope| {
        let [stdout, stderr] = &mut read;
        scope.spawn(move || out.read_to_end(stdout).unwrap());
        scope.spawn(move || said.read_to_end(stderr).unwrap());
        ended(&mut child, PATIENCE)
    });
    let [stdout, stderr] = read;
    Output { status, stdout, stderr }
}

/// Runs with nobody who reads more than the first line.
fn unread(mut command: Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = child.stderr.take().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    let status = ended(&mut child, PATIENCE);
    let mut stderr = Vec::new();
    said.read_to_end(&mut stderr).unwrap();
    Output { status, stdout: first.into_bytes(), stderr }
}

/// Runs with a full disk behind standard output.
fn full(mut command: Command) -> Output {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut child = command.stdout(full).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = child.stderr.take().unwrap();
    let status = ended(&mut child, PATIENCE);
    let mut stderr = Vec::new();
    said.read_to_end(&mut stderr).unwrap();
    Output { status, stdout: Vec::new(), stderr }
}

/// A folder with clicks, and the words that train on them.
fn training(test: &str) -> (PathBuf, String) {
    let folder = folder(test);
    let clicks = folder.join("clicks");
    let made = run(caravan(&format!("generate clicks {} --smoke", clicks.display())));
    assert!(made.status.success(), "{made:?}");
    let train = format!("train dbpg --data {0}.train --van tcp --lambda", clicks.display());
    (folder, train)
}

fn assert_whole(model: &Path, folder: &Path) {
    let line =
        format!("predict --model {} --data {}/clicks.test", model.display(), folder.display());
    let output = run(caravan(&line));
    assert!(output.status.success(), "{}", text(&output.stderr));
}

const FULL: &str =
    "caravan: cannot write to standard output: No space left on device (os error 28)\n";

/// As `| head -1` does it, for all models of a path.
#[test]
fn models_are_written_though_nobody_reads_the_rows() {
    let (folder, train) = training("unread");
    let models = [folder.join("m.5"), folder.join("m.3")];
    let line = format!("{train} 5,3 --json --model {}/m", folder.display());
    let output = unread(caravan(&line));
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(141), "{said}");
    assert!(said.ends_with(&format!("the model is in {} all the same\n", models[1].display())));
    models.iter().for_each(|model| assert_whole(model, &folder));

    // Where what it says goes the same way.
    models.iter().for_each(|model| fs::remove_file(model).unwrap());
    let program = env!("CARGO_BIN_EXE_caravan");
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{program} {line} --passes 2 2>&1 | head -n 1")]);
    assert!(run(shell).status.success());
    models.iter().for_each(|model| assert_whole(model, &folder));
}

#[test]
fn models_are_written_though_the_disk_of_the_rows_is_full() {
    let (folder, train) = training("full");
    let output = full(caravan(&format!("{train} 5,3 --model {}/m.bin", folder.display())));
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("all the same") && said.ends_with(FULL), "{said}");
    for model in ["m.5.bin", "m.3.bin"] {
        assert_whole(&folder.join(model), &folder);
    }
}

/// Goal: weights that cannot be saved on the way end no training, and the model at the end is an
/// error. Method: a limit on the size of files, which the model is longer than.
#[test]
fn training_goes_on_though_its_weights_cannot_be_saved() {
    let (folder, train) = training("unsaved");
    let passes = "0.01 --json --no-newton --epsilon 0 --passes 3 --save-every 1 --model";
    let mut shell = Command::new("sh");
    let program = env!("CARGO_BIN_EXE_caravan");
    let line = format!("ulimit -f 8; exec {program} {train} {passes} {}/m", folder.display());
    shell.args(["-c", &line]);
    let output = run(shell);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(text(&output.stdout).matches(r#""row":"progress""#).count(), 3, "{said}");
    let reason = format!("cannot write {}/m: File too large", folder.display());
    assert_eq!(said.matches(&reason).count(), 4, "{said}");
    assert_eq!(said.matches("were not saved, and training goes on").count(), 3, "{said}");
    assert!(!folder.join("m").exists());
}

/// The place of the picture goes while the run trains.
#[test]
fn the_model_is_written_though_the_picture_cannot_be() {
    let (folder, train) = training("picture");
    let (model, pictures) = (folder.join("m"), folder.join("pictures"));
    fs::create_dir(&pictures).unwrap();
    let (m, p) = (model.display(), pictures.display());
    let line = format!("{train} 5 --json --model {m} --plot {p}/plot.svg");
    let mut child = caravan(&line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut rows = BufReader::new(child.stdout.take().unwrap()).lines();
    rows.next().unwrap().unwrap();
    fs::remove_dir(&pictures).unwrap();
    let last = rows.map(Result::unwrap).last().unwrap();
    assert!(last.contains("\"result\""), "{last}");
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("all the same") && said.contains("cannot write"), "{said}");
    assert!(said.contains("pictures/plot.svg"), "{said}");
    assert_whole(&model, &folder);
}

/// Without anything else to bring in.
#[test]
fn a_run_whose_rows_nobody_reads_ends_without_a_word() {
    let (folder, train) = training("quiet");
    for line in [
        "bench latency --json --van tcp --sizes 8,64,512 --iterations 2000".to_owned(),
        "bench rate --json --smoke --van tcp".to_owned(),
        "doctor --json".to_owned(),
        format!("{train} 5 --json --no-newton --epsilon 0 --passes 100000000"),
        format!("generate clicks {}/more --smoke", folder.display()),
    ] {
        let output = unread(caravan(&line));
        let first = text(&output.stdout);
        // What fits into the pipe before it is closed is not missed: a training that comes to where
        // nothing changes has few rows.
        let is_quick = !line.starts_with("bench");
        let is_status = output.status.code() == Some(141) || is_quick && output.status.success();
        assert!(is_status && !first.is_empty(), "{line}: {output:?}");
        assert_eq!(text(&output.stderr), "", "{line}");
    }
}

#[test]
fn a_full_disk_behind_the_rows_is_one_clear_line() {
    let (folder, train) = training("full-rows");
    for line in [
        "bench latency --json --smoke --van tcp".to_owned(),
        "bench scale --smoke --nodes 2 --json".to_owned(),
        "doctor".to_owned(),
        format!("{train} 5 --json --no-newton --epsilon 0 --passes 100000000"),
        format!("generate clicks {}/more --smoke --json", folder.display()),
    ] {
        let output = full(caravan(&line));
        assert_eq!(output.status.code(), Some(1), "{line}");
        assert_eq!(text(&output.stderr), FULL, "{line}");
    }
}

/// Links and pipes where outputs go are named and left as they are, before any work.
#[test]
fn what_others_have_planted_is_not_written_through() {
    let (folder, train) = training("planted");
    let at = |name: &str| folder.join(name);
    let model = at("model");
    assert!(run(caravan(&format!("{train} 5 --model {}", model.display()))).status.success());
    fs::write(at("victim"), "precious").unwrap();
    for link in ["link", "made.train", "made.test"] {
        symlink(at("victim"), at(link)).unwrap();
    }
    assert!(Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
    let dir = folder.display();
    let predict = format!("predict --model {dir}/model --data {dir}/clicks.test --out");
    for (line, named) in [
        (format!("{train} 5 --model {dir}/link"), "link is a link"),
        (format!("{train} 5 --model {dir}/fifo"), "fifo is a pipe"),
        (format!("{train} 5 --resume {dir}/fifo"), "fifo is a pipe"),
        (format!("{train} 5 --plot {dir}/link"), "link is a link"),
        (format!("{train} 5 --plot /dev/full"), "/dev/full is a device"),
        (format!("{predict} {dir}/link"), "link is a link"),
        (format!("{predict} {dir}/fifo"), "fifo is a pipe"),
        (format!("generate clicks {dir}/made"), "made.train is a link"),
    ] {
        let output = run(caravan(&line));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{line}: {said}");
        assert!(said.contains(named) && said.lines().count() == 1, "{line}: {said}");
        assert!(output.stdout.is_empty(), "{line}");
    }
    assert_eq!(fs::read_to_string(at("victim")).unwrap(), "precious");
}

/// A lock that another process holds on the file itself, or on what looks like one that is being
/// written, keeps nobody waiting.
#[test]
fn a_locked_file_is_replaced_and_keeps_its_mode() {
    let (folder, train) = training("locked");
    let locked = ["m", "m.abcdefabcdef.partial"].map(|name| {
        fs::write(folder.join(name), "old").unwrap();
        let file = File::open(folder.join(name)).unwrap();
        file.lock().unwrap();
        file
    });
    let model = folder.join("m");
    fs::set_permissions(&model, Permissions::from_mode(0o600)).unwrap();
    fs::write(folder.join("m.ABCDEFABCDEF.partial"), "left behind").unwrap();
    let output = run(caravan(&format!("{train} 5 --model {}", model.display())));
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_whole(&model, &folder);
    assert_eq!(fs::metadata(&model).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(folder.join("m.abcdefabcdef.partial").exists(), "it is locked");
    assert!(!folder.join("m.ABCDEFABCDEF.partial").exists(), "it was left behind");
    drop(locked);
}

/// Stacks so large that the system gives no thread, which any user can have, as with `ulimit -u`.
#[test]
fn a_system_without_threads_is_an_error() {
    let (folder, train) = training("threads");
    let dir = folder.display();
    assert!(run(caravan(&format!("{train} 5 --model {dir}/m"))).status.success());
    for line in [
        format!("generate clicks {dir}/more --smoke"),
        format!("predict --model {dir}/m --data {dir}/clicks.test"),
        "bench scale --smoke --nodes 2".to_owned(),
        "bench placement --smoke --van tcp".to_owned(),
        "floor socket".to_owned(),
        "doctor --topology pu:2".to_owned(),
    ] {
        let mut command = caravan(&line);
        command.env("RUST_MIN_STACK", (1_u64 << 60).to_string());
        let output = run(command);
        let said = text(&output.stderr);
        assert_eq!(
            output.status.code(),
            if line.starts_with("doctor") { Some(2) } else { Some(1) }
        );
        assert!(said.contains("cannot start") && said.contains("ulimit -u"), "{line}: {said}");
        assert!(!said.contains("panicked"), "{line}: {said}");
    }
}

/// libhwloc asserts what a damaged file does not keep.
#[test]
#[cfg(feature = "hwloc")]
fn a_topology_that_crashes_libhwloc_is_named() {
    let folder = folder("topology");
    let sound = concat!(env!("CARGO_MANIFEST_DIR"), "/../numa/tests/two_ib.xml");
    let sound = fs::read_to_string(sound).unwrap();
    let file = folder.join("damaged.xml");
    for (damage, by) in
        [("type=\"Machine\"", "type=\"Core\""), ("cpuset=\"0x00000001\"", "cpuset=\"\"")]
    {
        fs::write(&file, sound.replacen(damage, by, 1)).unwrap();
        let output = run(caravan(&format!("doctor --topology {}", file.display())));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("damaged.xml is no") && said.lines().count() == 1, "{said}");
        assert!(said.contains("lstopo"), "{said}");
    }
    fs::write(&file, sound).unwrap();
    let output = run(caravan(&format!("doctor --topology {}", file.display())));
    assert!(output.status.success() && text(&output.stdout).contains("mlx5_1"), "{output:?}");
}

/// Workers that are launched, with a root, and one that is started by hand, without.
#[test]
fn workers_read_only_below_their_root() {
    let (folder, train) = training("root");
    let (root, cache) = (folder.join("root"), folder.join("cache"));
    fs::create_dir(&root).unwrap();
    fs::copy(folder.join("clicks.train"), root.join("inside")).unwrap();
    symlink(folder.join("clicks.train"), root.join("out")).unwrap();
    let (dir, words) = (root.display(), "train dbpg --lambda 5 --van tcp --json --data");
    let rooted = |line: &str| {
        let mut command = caravan(line);
        command.env("CARAVAN_DATA_ROOT", &root);
        run(command)
    };
    for line in [
        format!("{train} 5"),
        format!("{words} {dir}/out"),
        format!("{words} {dir}/../clicks.train"),
        format!("{words} inside --cache {}", cache.display()),
    ] {
        let output = rooted(&line);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{line}: {said}");
        assert!(said.contains("is not below") && said.contains("--data-root"), "{line}: {said}");
    }
    assert!(!cache.exists());
    let output = rooted(&format!("{words} inside --cache kept"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(root.join("kept").exists());

    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let at = format!("--scheduler {port} --van tcp");
    let mut nodes = [format!("server {at}"), format!("worker {at}")].map(|line| {
        let mut node = caravan(&line);
        node.current_dir(&root).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
    });
    let mut external = caravan(&format!("{words} {}/clicks.train --external", folder.display()));
    external.env("CARAVAN_SCHEDULER", port.to_string());
    let output = run(external);
    for node in &mut nodes {
        ended(node, PATIENCE);
    }
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("is not below"), "{said}");
}

/// The name of a file, which a worker's error and its log repeat.
#[test]
fn what_nodes_say_does_nothing_to_a_terminal() {
    let (folder, _) = training("escapes");
    let evil = folder.join("\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m\u{202e}x");
    let train = |data: &Path, cache: &Path| {
        let mut command = caravan("train dbpg --lambda 5 --van tcp --data");
        command.arg(data).arg("--cache").arg(cache);
        run(command)
    };
    let refused = train(&evil, &folder.join("cache"));
    assert_eq!(refused.status.code(), Some(1));
    let said = text(&refused.stderr);
    assert!(said.contains(r"\u001b]0;owned\u0007"), "{said:?}");
    fs::write(&evil, "no folder").unwrap();
    let logged = train(&folder.join("clicks.train"), &evil);
    assert!(logged.status.success());
    let warned = text(&logged.stderr);
    assert!(warned.contains("owned"), "{warned:?}");
    for said in [said, warned] {
        let is_harmful = |c: char| c.is_control() && c != '\n';
        assert!(!said.contains(is_harmful), "{said:?}");
    }
}
