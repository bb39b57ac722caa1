//! The launcher's side of an agent: the remote shell that starts it, and what comes from there.

use std::io::BufReader;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use caravan_kv::how_ended;

use super::agent::each_line;
use super::hosts::{Host, Through};
use super::plan::Plan;
use super::protocol::{Hello, Node, Said, hear, hear_after};
use super::threads::spawn;
use crate::cli::values::name;

/// Longest wait for what a remote shell that has ended says of it.
const LAST_WORDS_WITHIN: Duration = Duration::from_secs(1);

/// What the launcher hears.
pub(super) enum Event {
    Hello(usize, Hello),
    Said(Said),
    /// A line of an agent's remote shell.
    Noise(usize, String),
    /// An agent says nothing more.
    Silent(usize, Option<String>),
    SchedulerEnded,
    Signal(i32),
}

/// An agent, and the remote shell to it.
pub(super) struct Agent {
    pub(super) host: String,
    pub(super) shell: Child,
    /// What the remote shell is called.
    program: String,
    /// Closed to end all processes of the agent.
    pub(super) input: Option<ChildStdin>,
    pub(super) hello: Option<Hello>,
    pub(super) nodes: Vec<Node>,
    /// The last line of the remote shell: why it failed, if it did.
    pub(super) noise: String,
}

impl Agent {
    pub(super) fn start(
        plan: &Plan,
        host: &str,
        nodes: Vec<Node>,
        at: usize,
        events: &Sender<Event>,
    ) -> Result<Agent> {
        let mut command = agent_command(plan, host)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A signal from the terminal is for the launcher only.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let program = command.get_program().to_string_lossy().into_owned();
        let mut shell = command.spawn().with_context(|| format!("cannot start {program}"))?;
        let input = shell.stdin.take();
        let output = shell.stdout.take().context("its output is a pipe")?;
        let noise = shell.stderr.take().context("its output is a pipe")?;
        let noisy = events.clone();
        let (noise_goes_on, noise_ended) = mpsc::channel::<()>();
        spawn(move || {
            let _ = each_line(noise, |line| noisy.send(Event::Noise(at, line)).is_ok());
            drop(noise_goes_on);
        })?;
        let events = events.clone();
        spawn(move || {
            let why = listen(&mut BufReader::new(output), at, &events).err();
            // Why the remote shell failed stands in its last line, which may come after its end.
            let _ = noise_ended.recv_timeout(LAST_WORDS_WITHIN);
            let _ = events.send(Event::Silent(at, why.map(|why| format!("{why:#}"))));
        })?;
        let host = host.to_owned();
        let noise = "it says nothing".to_owned();
        Ok(Agent { host, shell, program, input, hello: None, nodes, noise })
    }

    /// Why it says no more: `why`, or the last line of its remote shell, and how that ended.
    pub(super) fn last_words(&mut self, why: Option<String>) -> String {
        let why = why.unwrap_or_else(|| self.noise.clone());
        match ended_by(&mut self.shell, Instant::now() + LAST_WORDS_WITHIN) {
            Some(status) => format!("{} {}: {why}", self.program, how_ended(status)),
            None => why,
        }
    }
}

/// Waits for the end of a process until then.
pub(super) fn ended_by(process: &mut Child, until: Instant) -> Option<ExitStatus> {
    loop {
        match process.try_wait() {
            Ok(None) if Instant::now() < until => std::thread::sleep(LOOK),
            found => return found.ok().flatten(),
        }
    }
}

const LOOK: Duration = Duration::from_millis(5);

/// Passes on what an agent says, and what its remote shell prints before.
fn listen(output: &mut impl std::io::BufRead, at: usize, events: &Sender<Event>) -> Result<()> {
    let noise = |line| drop(events.send(Event::Noise(at, line)));
    let Some(hello) = hear_after(output, noise)? else { return Ok(()) };
    let mut goes_on = events.send(Event::Hello(at, hello)).is_ok();
    while goes_on && let Some(said) = hear(output)? {
        goes_on = events.send(Event::Said(said)).is_ok();
    }
    Ok(())
}

/// The command that starts an agent on a host.
fn agent_command(plan: &Plan, host: &str) -> Result<Command> {
    let own = std::env::current_exe().context("cannot find this program")?;
    let own = own.to_str().context("this program's path is not UTF-8")?;
    let through = if host == Host::HERE { Through::Here } else { plan.through };
    let word = name(&through);
    let mut command;
    match through {
        Through::Here => {
            command = Command::new(own);
            command.args(["agent", &word]);
        }
        Through::Ssh => {
            let (ssh, options) = plan.ssh.split_first().context("--ssh names no program")?;
            command = Command::new(ssh);
            command.args(options).arg(host).arg(format!(
                "exec sh -c 'if [ -x \"$0\" ]; then exec \"$0\" agent {word}; \
                 else exec caravan agent {word}; fi' {}",
                quoted(own)
            ));
        }
        Through::Srun => {
            command = Command::new("srun");
            // A step of its own on each host, with all that the job has there, beside others.
            command.args(["--overlap", "--whole", "--nodes=1", "--ntasks=1", "--mpi=none"]);
            command.args(["--cpu-bind=none", "--quiet", "--unbuffered"]);
            command.arg(format!("--nodelist={host}")).args([own, "agent", &word]);
        }
    }
    Ok(command)
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn words_survive_a_shell() {
        assert_eq!(quoted("/opt/it's here/caravan"), r"'/opt/it'\''s here/caravan'");
    }
}
