//! What holds after every event.

use crate::log::RequestSet;
use crate::model::State;
use crate::rules::Rules;
use crate::server::Server;
use crate::violation::Violation;
use crate::workload::ROWS;

/// Checks the members of the chain, as the saved version has it.
///
/// # Errors
/// Says which promise is broken.
pub fn check(rules: &Rules, state: &State) -> Result<(), Violation> {
    let entry = state.scheduler.saved_entry();
    let members = entry.chain.members().iter().map(|id| &state.servers[usize::from(*id)]);
    let mut before: Option<&Server> = None;
    for server in members.filter(|server| !server.is_crashed) {
        answered_requests_are_there(rules, state, server)?;
        rows_are_those_of_the_log(rules, server)?;
        if let Some(predecessor) = before {
            is_prefix(server, predecessor)?;
        }
        before = Some(server);
    }
    Ok(())
}

/// A log has an increment at most once, and once if it was answered, with the same outcome.
fn answered_requests_are_there(
    rules: &Rules,
    state: &State,
    server: &Server,
) -> Result<(), Violation> {
    let all = |set: fn(&crate::client::Client) -> RequestSet| {
        state.clients.iter().map(set).fold(RequestSet::default(), RequestSet::with)
    };
    let answered = all(|client| client.answered);
    let refused = all(|client| client.refused);
    let log = server.replica.log;
    let refused_here = rules.workload.refused(log);
    for request in rules.workload.increments() {
        let times = log.requests().filter(|record| *record == request).count();
        let server = server.id;
        if times > 1 {
            return Err(Violation::Doubled { request, times, server });
        }
        if !answered.has(request) {
            continue;
        }
        if times == 0 {
            return Err(Violation::Lost { request, server });
        }
        if refused.has(request) != refused_here.has(request) {
            return Err(Violation::OtherOutcome { request, server });
        }
    }
    Ok(())
}

/// A member has all rows, and each is what its log comes to.
fn rows_are_those_of_the_log(rules: &Rules, server: &Server) -> Result<(), Violation> {
    let wanted = rules.workload.row(server.replica.log);
    let (rows, arrived) = (server.replica.rows, server.replica.arrived);
    if server.replica.is_whole() && rows == [wanted; ROWS] {
        return Ok(());
    }
    Err(Violation::WrongRows { server: server.id, rows, arrived, wanted })
}

fn is_prefix(server: &Server, predecessor: &Server) -> Result<(), Violation> {
    if server.replica.log.is_prefix_of(predecessor.replica.log) {
        return Ok(());
    }
    Err(Violation::NoPrefix { server: server.id, predecessor: predecessor.id })
}
