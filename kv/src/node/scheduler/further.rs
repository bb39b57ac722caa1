//! Servers beside those of a complete cluster: they join it, and leave it again.
//!
//! A server leaves in this order: a driver asks here whether it may, and everybody hears that it
//! will. The driver moves its shards to others, waits until those with copies have one more, and
//! has its threads take no more. Then it tells here where the shards have gone, and everybody hears
//! that the server has left. That ends when no client has a lane to it, and its loss is none.
//!
//! Shards with copies move by changes of their chains, which a driver wants and everybody hears of.

use super::super::backend::Van;
use super::super::choice::{self, Candidate};
use super::super::control::{Role, Roster};
use super::super::members::{Member, Seat};
use super::super::reach;
use super::control_state::ControlState;
use super::jobs::Jobs;
use crate::membership::{Departed, Event};
use crate::rechain::{self, Rechain, RechainError};

/// The vans of a server that wants to join the others, and its entry for them.
///
/// # Errors
/// Why it cannot join now, or none of its vans works for all.
pub(super) fn choose(
    control: &ControlState,
    is_complete: bool,
    offered: &[Candidate],
) -> Result<(Vec<Van>, Candidate), String> {
    if !is_complete {
        let missing = control.members.missing();
        return Err(format!(
            "the cluster is not complete, it waits for {missing}: start this server without --join \
             to be one of them, or later"
        ));
    }
    let members = control.members.iter().map(|(_, member)| member);
    let taken: Vec<Candidate> = members.flat_map(|it| it.join.vans.clone()).collect();
    let (vans, entry) = choice::choose_further(offered, &taken)?;
    if control.members.iter().any(|(_, member)| member.join.is_elsewhere) {
        reach::check_announced(reach::taken(offered, &vans))?;
    }
    Ok((vans, entry))
}

/// Tells a server that has joined the others where it is, and them of its threads. `shared` is the
/// roster of all.
pub(super) fn welcome(control: &mut ControlState, jobs: &mut Jobs, seat: Seat, shared: Roster) {
    let Some((node, _, member)) = control.members.nodes().find(|(_, it, _)| *it == seat) else {
        return;
    };
    let [van, vans @ ..] = &member.vans[..] else { return };
    let threads = member.threads().len();
    let first_thread = shared.servers.len() - threads;
    let beside = |it: &(Seat, &Member)| {
        it.0.role == Role::Server && it.0 != seat && it.1.join.host == member.join.host
    };
    let turn = control.members.iter().filter(beside).count() as u32;
    let (session, joined_as, rank) = (member.session, member.joined_as, seat.rank);
    let (van, vans) = (*van, vans.to_vec());
    let new = shared.servers[first_thread..].to_vec();
    let roster = Roster { node, rank, van, vans, first_thread, turn, ..shared };
    tracing::info!(node = %seat, threads, "joined the others");
    control.tell(session, joined_as, &roster);
    control.publish_joined_threads(jobs.tasks.next_number(), session, new);
    jobs.answer_watches(control);
}

/// The places among all of the threads of a server that may leave.
///
/// # Errors
/// Why it may not.
fn may_leave(control: &ControlState, rank: usize) -> Result<Vec<usize>, String> {
    let seat = Seat { role: Role::Server, rank };
    if rank >= control.members.size(Role::Server) {
        let last = control.members.size(Role::Server) - 1;
        return Err(format!("there is no server {rank}, the last one is {last}"));
    }
    if control.members.has_left(seat) {
        return Err(format!("server {rank} leaves already, or has left"));
    }
    if control.members.is_lost(seat) {
        return Err(format!("server {rank} is lost, and its shards with it"));
    }
    let stays = |other: usize| {
        let seat = Seat { role: Role::Server, rank: other };
        other != rank && !control.members.has_left(seat) && !control.members.is_lost(seat)
    };
    if !(0..control.members.size(Role::Server)).any(stays) {
        return Err(format!("server {rank} is the only one left: have another one join before"));
    }
    Ok(control.members.threads_of(rank).collect())
}

/// Tells everybody that a server will leave; returns the places among all of its threads.
///
/// # Errors
/// As [`may_leave`].
pub(super) fn announce_leave(
    control: &mut ControlState,
    jobs: &mut Jobs,
    rank: usize,
) -> Result<Vec<usize>, String> {
    let threads = may_leave(control, rank)?;
    let new = threads.iter().copied().filter(|thread| !control.leaves(*thread));
    let new: Vec<Event> = new.map(Event::Announced).collect();
    if !new.is_empty() {
        control.publish_events(jobs.tasks.next_number(), new);
        jobs.answer_watches(control);
    }
    Ok(threads)
}

/// Makes a server leave whose threads own nothing any more, and tells everybody.
///
/// # Errors
/// As [`may_leave`].
pub(super) fn let_leave(
    control: &mut ControlState,
    jobs: &mut Jobs,
    rank: usize,
    departed: Vec<Departed>,
) -> Result<(), String> {
    let threads = may_leave(control, rank)?;
    let founding = control.members.founding_threads();
    let is_last = (0..founding).all(|thread| threads.contains(&thread) || !control.stays(thread));
    if !departed.iter().map(|it| it.thread).eq(threads) {
        return Err(format!("not all threads of server {rank} own nothing"));
    }
    if let Some(Departed { thread, successor, .. }) =
        departed.iter().find(|it| !control.stays(it.successor))
    {
        return Err(format!(
            "server thread {successor}, which was to have the place of {thread}, is gone"
        ));
    }
    let seat = Seat { role: Role::Server, rank };
    tracing::info!(node = %seat, "leaves");
    control.members.let_leave(seat);
    let departed = departed.into_iter().map(|it| Departed { is_last, ..it });
    let events = departed.map(Event::Departed).collect();
    control.publish_events(jobs.tasks.next_number(), events);
    jobs.answer_watches(control);
    Ok(())
}

/// Tells everybody that chains of shards are others from now on; returns the number of the change,
/// or `None` if one of them is not the one that the driver has seen.
///
/// # Errors
/// Why a chain cannot be what is wanted.
pub(super) fn rechain(
    control: &mut ControlState,
    jobs: &mut Jobs,
    changes: &[Rechain],
) -> Result<Option<usize>, RechainError> {
    let Some(event) = rechain::event(&control.view(), changes)? else { return Ok(None) };
    let number = control.publish_events(jobs.tasks.next_number(), vec![event]);
    jobs.answer_watches(control);
    Ok(Some(number))
}
