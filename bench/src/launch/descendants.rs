//! What the processes of a job have started and left behind, in sessions of their own as well: it
//! becomes a child of the agent or the launcher when its parent ends, and is killed with the job.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid,
};

/// How long killed processes may take to be gone: one in a system call that does not end stays.
const GONE_WITHIN: Duration = Duration::from_secs(2);

const LOOK: Duration = Duration::from_millis(1);

/// Makes this process the parent of all descendants that lose theirs.
pub(super) fn adopt() {
    if let Err(error) = set_child_subreaper(Some(getpid())) {
        tracing::warn!(%error, "processes in sessions of their own may outlive the job");
    }
}

/// Kills and reaps all children, and theirs, until there is none. The caller has waited for those
/// whose status it wants.
pub(super) fn end_all() {
    let until = Instant::now() + GONE_WITHIN;
    loop {
        let left = children();
        if left.is_empty() || Instant::now() >= until {
            return;
        }
        for pid in left {
            let _ = kill_process(pid, Signal::KILL);
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
        sleep(LOOK);
    }
}

/// The children of this process, those included that nobody has waited for.
fn children() -> Vec<Pid> {
    let own = getpid().as_raw_pid();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |pid: &i32| {
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| parent(&stat) == Some(own))
    };
    pids.filter(is_child).filter_map(Pid::from_raw).collect()
}

/// The parent in `PID (NAME) STATE PARENT …`; a name may hold anything.
fn parent(stat: &str) -> Option<i32> {
    let (_, behind) = stat.rsplit_once(')')?;
    behind.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_stands_behind_any_name() {
        assert_eq!(parent("12 (sh) S 7 12 12 0"), Some(7));
        assert_eq!(parent("12 (a) R 1 (b) S 7 12 12 0"), Some(7));
        assert_eq!(parent("12 (sh"), None);
        assert_eq!(parent(""), None);
    }
}
