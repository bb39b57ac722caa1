//! What drivers and members want of the scheduler, and what members report.

use super::super::barriers::Waiting;
use super::super::control::{self, Ask, Command, Order, Program, Pulse, Role, Submitted};
use super::super::group::NodeName;
use super::super::members::{Seat, Violation};
use super::super::session::{Said, SessionId, Speech};
use super::further;
use super::jobs::{Gathers, Submission, Watch};
use super::state::State;
use super::state_store::StateStore;
use super::tasks::At;
use super::thread::{LEAVE_WITHIN, SchedulerThread, WARN_EVERY};

impl SchedulerThread {
    /// Does what a driver wants.
    pub(super) fn dispatch(&mut self, session: SessionId, said: &Said) -> Result<(), Violation> {
        let timestamp = said.of;
        let State { control, jobs, posts, .. } = &mut self.state;
        if said.speech != Speech::Ask {
            if let Some(node) = jobs.name(session) {
                posts.taken(control, node, timestamp);
            }
            return Ok(());
        }
        let command: Command = said.read()?;
        if jobs.answer_any(control, session, timestamp, &command) {
            return Ok(());
        }
        let driver = jobs.drivers.entry(session).or_default();
        let job = match (&command, &driver.job) {
            (&Command::Begin { ref job, visits }, None) if driver.begins.is_none() => {
                driver.visits = visits;
                jobs.begin(control, session, timestamp, job.clone());
                return Ok(());
            }
            (Command::Nodes, _) => {
                let states = control.members.states();
                control.tell(session, timestamp, &states);
                return Ok(());
            }
            (Command::Paused, _) => {
                let paused = self.state_store.as_ref().and_then(StateStore::paused);
                control.tell(session, timestamp, &paused);
                return Ok(());
            }
            (Command::Begin { .. }, _) | (_, None) => return Err(Violation::Job),
            (Command::Submit { .. } | Command::Promise | Command::Forget { .. }, _)
                if driver.visits =>
            {
                let why = "a driver that visits a cluster has no tasks: attach to it for a job";
                control.tell(session, timestamp, &Submitted::Refused(why.to_owned()));
                return Ok(());
            }
            (_, Some(job)) => job.clone(),
        };
        self.execute(session, timestamp, &job, command)
    }

    /// Does what the driver of a job wants.
    fn execute(
        &mut self,
        session: SessionId,
        timestamp: u64,
        job: &str,
        command: Command,
    ) -> Result<(), Violation> {
        let State { control, jobs, posts, .. } = &mut self.state;
        let now = control.now;
        let is_launcher = control.launcher == Some(session);
        let driver = jobs.drivers.entry(session).or_default();
        match command {
            // `dispatch` has answered these.
            Command::Begin { .. } | Command::Cancel { .. } => {}
            Command::Jobs | Command::Nodes | Command::Paused => {}
            Command::Gather => {
                let until = now.saturating_add(self.config.node.join_timeout);
                let warn_at = now + WARN_EVERY;
                driver.gathers = Some(Gathers { timestamp, until, warn_at });
                self.gathered();
            }
            Command::Submit { part, target, program, after } => {
                let job = control::within(job, &part);
                let submission = Submission { target, job, program, after, parent: None };
                let submitted = jobs.submit(control, session, submission);
                control.tell(session, timestamp, &submitted);
            }
            Command::Promise => {
                let submitted = jobs.promise(control, session);
                control.tell(session, timestamp, &submitted);
            }
            Command::Finish { task } => {
                let is_there = jobs.finish(control, session, task);
                control.tell(session, timestamp, &is_there);
            }
            Command::Forget { part } => {
                let submitted = jobs.forget(control, Some(session), control::within(job, &part));
                control.tell(session, timestamp, &submitted);
            }
            Command::Post(post) => {
                let node = jobs.name(session).ok_or(Violation::Job)?;
                return posts.ingest(control, jobs, Waiting { node, session, timestamp }, post);
            }
            Command::Wait { task } => jobs.wait(control, session, (timestamp, task)),
            Command::First { tasks } => jobs.wait_first(control, session, (timestamp, tasks)),
            Command::Watch(heard) => {
                driver.watches = Some(Watch { timestamp, heard });
                let losses = control.losses(heard);
                if losses.is_news() {
                    driver.watches = None;
                    control.tell(session, timestamp, &losses);
                }
            }
            Command::AnnounceLeave { server } => {
                let threads = further::announce_leave(control, jobs, server);
                control.tell_or_refuse(session, timestamp, threads);
            }
            Command::Leave { server, departed } => {
                let told = further::let_leave(control, jobs, server, departed);
                control.tell_or_refuse(session, timestamp, told);
            }
            Command::Rechain(changes) => {
                let number = further::rechain(control, jobs, &changes);
                control.tell_or_refuse(session, timestamp, number.map_err(|why| why.to_string()));
            }
            Command::Check => {
                self.check_members();
                let lost = self.state.control.lost.clone();
                self.state.control.tell(session, timestamp, &lost);
            }
            Command::End { .. } if !is_launcher => return Err(Violation::NotLauncher),
            Command::End { reason } => {
                control.order_all(jobs.tasks.next_number(), &Order::End);
                self.state.ended = Some(reason);
                self.launcher.ends = Some((timestamp, now + LEAVE_WITHIN));
            }
        }
        Ok(())
    }

    /// Does what a member wants, or takes its report.
    pub(super) fn serve(&mut self, session: SessionId, said: &Said) -> Result<(), Violation> {
        let timestamp = said.of;
        match said.speech {
            Speech::Ask => {}
            Speech::Answer => return self.report(session, said),
            other => return Err(Violation::Speech(other)),
        }
        match said.read::<Ask>()? {
            Ask::Join(join) => self.join(session, timestamp, join),
            Ask::Post(post) => {
                let Seat { role, rank } = self.state.control.members.of(session, "other nodes")?;
                let sender = Waiting { node: NodeName::of(role, rank), session, timestamp };
                self.state.posts.ingest(&mut self.state.control, &self.state.jobs, sender, post)
            }
            Ask::Spawn { task, target, app, body } => {
                let seat = self.state.control.members.of(session, "a sub-task")?;
                let at = At { task, rank: seat.rank };
                let program = Program::App { app, body };
                let spawned = self.state.jobs.spawn(&mut self.state.control, at, target, program);
                self.state.control.tell(session, timestamp, &spawned);
                Ok(())
            }
            Ask::Alive(vitals) => {
                let State { control, jobs, .. } = &mut self.state;
                control.members.alive(session, vitals)?;
                control.members.compare_paces(|rank| jobs.tasks.load(rank) > 0);
                let left = control.members.farewell(session);
                let is_lost = control.lost.is_some();
                let pulse = Pulse { ended: self.state.ended.clone().or(left), is_lost };
                self.state.control.tell(session, timestamp, &pulse);
                Ok(())
            }
        }
    }

    /// Records a worker's result of a task; ignores results that were not requested or came before.
    fn report(&mut self, session: SessionId, said: &Said) -> Result<(), Violation> {
        let seat = self.state.control.members.of(session, "a report")?;
        let task = said.of;
        if self.state.posts.taken(&mut self.state.control, NodeName::of(seat.role, seat.rank), task)
        {
            return Ok(());
        }
        if seat.role != Role::Worker || !self.state.jobs.tasks.is_run_by(task, seat.rank) {
            // It has only heard of lost servers if it says nothing.
            if said.text != "null" {
                tracing::warn!(node = %seat, "a report on a task that the node does not run");
            }
            return Ok(());
        }
        let at = At { task, rank: seat.rank };
        self.state.jobs.report(&mut self.state.control, at, said.read()?);
        Ok(())
    }
}
