//! How the cluster comes together: nodes get seats, vans are chosen once all have joined, and each
//! node and driver gets its roster.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::backend::Van;
use super::super::choice::{self, Chooser};
use super::super::control::{Gathered, Join, Role, Roster};
use super::super::members::{Violation, describe};
use super::super::reach;
use super::super::session::{SessionId, Speech};
use super::control_state::ControlState;
use super::further;
use super::thread::SchedulerThread;
use crate::server_address::ServerAddress;

impl SchedulerThread {
    /// Admits a node; the last one triggers the choice of vans and its announcement.
    pub(super) fn join(
        &mut self,
        session: SessionId,
        timestamp: u64,
        join: Join,
    ) -> Result<(), Violation> {
        let pid = join.pid;
        let has_ended = self.state.ended.is_some() || self.state.control.lost.is_some();
        let is_complete = matches!(self.state.chosen, Some(Ok(_)));
        let choose = || match has_ended {
            true => Err("the cluster has ended".to_owned()),
            false => further::choose(&self.state.control, is_complete, &join.vans),
        };
        let further = join.is_further.then(choose).transpose();
        let seated = match &further {
            Err(why) => Err(why.clone()),
            Ok(_) => {
                let seated = self.state.control.members.join(session, timestamp, join)?;
                seated.map_err(|error| error.to_string())
            }
        };
        let seat = match seated {
            Ok(seat) => seat,
            Err(why) => {
                tracing::warn!(why, pid, "refusing a node");
                self.state.control.refuse(session, timestamp, &why);
                return Ok(());
            }
        };
        self.state.control.sessions.keep(session);
        if let Ok(Some((vans, entry))) = further {
            self.state.control.members.equip(seat, vans, entry);
            if let Some(Ok(vans)) = &self.state.chosen {
                let shared = self.roster(vans);
                further::welcome(&mut self.state.control, &mut self.state.jobs, seat, shared);
            }
            return Ok(());
        }
        if self.state.control.members.all_are_in() && self.state.chosen.is_none() {
            self.state.chosen = Some(self.choose_vans());
            self.announce();
            self.gathered();
        }
        Ok(())
    }

    /// Chooses the vans of all nodes; others are forgotten. Returns those of drivers.
    fn choose_vans(&mut self) -> Result<Vec<Van>, String> {
        let own = self.own.iter().map(|own| Chooser {
            name: "the scheduler".to_owned(),
            is_server: false,
            candidates: own,
        });
        let nodes = self.state.control.members.iter().map(|(seat, member)| Chooser {
            name: describe(seat, member),
            is_server: seat.role == Role::Server,
            candidates: &member.join.vans,
        });
        let (choice, passed_over) = choice::choose(&nodes.chain(own).collect::<Vec<_>>());
        passed_over.iter().for_each(|line| tracing::info!("{line}"));
        let Some(choice) = choice else {
            self.state.control.members.complete(|member| member.join.vans.clear());
            return Err(format!("no van works for all nodes; {}", passed_over.join("; ")));
        };
        if let Some(why) = self.unreachable(&choice.vans) {
            self.state.control.members.complete(|member| member.join.vans.clear());
            return Err(why);
        }
        for (carrier, pairs) in &choice.pairs {
            tracing::info!(pairs, "{carrier}: pairs of nodes that meet over it");
        }
        let mut vans = choice.vans.into_iter();
        self.state.control.members.complete(|member| {
            member.vans = vans.next().unwrap_or_default();
            match choice.is_mixed {
                true => member.join.vans = vec![choice::joined(&member.join.vans, &member.vans)],
                false => member.join.vans.retain(|known| member.vans.contains(&known.van)),
            }
        });
        // A driver that has not said what works for it does as the first server.
        let first = self.state.control.members.iter().next().map(|(_, member)| member.vans.clone());
        Ok(vans.next().or(first).unwrap_or_default())
    }

    /// Names a server whose addresses other hosts cannot reach, if there are nodes there. `vans`
    /// are those of each node.
    fn unreachable(&self, vans: &[Vec<Van>]) -> Option<String> {
        let members = &self.state.control.members;
        if !members.iter().any(|(_, member)| member.join.is_elsewhere) {
            return None;
        }
        let mut servers =
            members.iter().zip(vans).filter(|((seat, _), _)| seat.role == Role::Server);
        servers.find_map(|((seat, member), vans)| {
            let announced = reach::check_announced(reach::taken(&member.join.vans, vans));
            announced.err().map(|why| format!("{}: {why}", describe(seat, member)))
        })
    }

    /// The roster of a driver with these vans, which has no rank.
    fn roster(&self, vans: &[Van]) -> Roster {
        Roster {
            node: 0,
            rank: 0,
            van: vans.first().copied().unwrap_or(Van::Auto),
            vans: vans.get(1..).unwrap_or_default().to_vec(),
            servers: self.servers(),
            founders: self.state.control.members.founding_threads(),
            threads: self.state.control.members.threads_of_each(),
            first_thread: 0,
            workers: self.config.workers,
            server_losses_max: self.config.node.server_losses_max,
            away_max: match self.state_store {
                Some(_) => self.config.node.scheduler_away,
                None => Duration::ZERO,
            },
            turn: 0,
        }
    }

    /// All server threads, those that have joined when all others had behind them.
    fn servers(&self) -> Vec<ServerAddress> {
        let servers =
            self.state.control.members.iter().filter(|(seat, _)| seat.role == Role::Server);
        let threads = servers.flat_map(|(seat, member)| {
            member.threads().iter().enumerate().map(move |(thread, address)| ServerAddress {
                name: format!("{seat} thread {thread}"),
                address: address.clone(),
            })
        });
        threads.collect()
    }

    /// Sends every node the roster, or why there is no common van.
    fn announce(&mut self) {
        let Some(chosen) = &self.state.chosen else { return };
        let shared = chosen.as_ref().map(|vans| self.roster(vans)).map_err(String::clone);
        let ControlState { members, sessions, .. } = &mut self.state.control;
        let mut threads = 0;
        let mut on_host: BTreeMap<(Role, &str), u32> = BTreeMap::new();
        for (node, seat, member) in members.nodes() {
            let (session, joined_as) = (member.session, member.joined_as);
            let first_thread = if seat.role == Role::Server { threads } else { 0 };
            threads += member.threads().len();
            let next = on_host.entry((seat.role, &member.join.host)).or_default();
            let turn = *next;
            *next += 1;
            match &shared {
                Err(why) => sessions.refuse(session, joined_as, why),
                Ok(shared) => {
                    let [van, vans @ ..] = &member.vans[..] else { continue };
                    let (van, vans) = (*van, vans.to_vec());
                    let rank = seat.rank;
                    let shared = shared.clone();
                    let roster = Roster { node, rank, van, vans, first_thread, turn, ..shared };
                    sessions.say(session, Speech::Answer, joined_as, &roster);
                }
            }
        }
    }

    /// Answers the drivers that wait for the cluster, if that is complete.
    pub(super) fn gathered(&mut self) {
        let Some(chosen) = self.state.chosen.clone() else { return };
        // Ids of drivers from outside follow those of the members.
        let members = self.state.control.members.iter().count() as u32;
        let mut waiting = Vec::new();
        for (&session, driver) in &mut self.state.jobs.drivers {
            let node = if driver.node == 0 { 0 } else { members + driver.node };
            waiting.extend(driver.gathers.take().map(|gathers| (session, gathers.timestamp, node)));
        }
        for (driver, timestamp, node) in waiting {
            let outcome = match &chosen {
                Err(why) => Gathered::NoVan(why.clone()),
                Ok(vans) => Gathered::All(Roster { node, ..self.roster(vans) }),
            };
            self.state.control.tell(driver, timestamp, &outcome);
        }
    }
}
