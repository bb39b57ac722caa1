//! Whole tables and shards: a worker creates, lists, drops, moves and spreads them. It also makes
//! broken lanes anew.
//!
//! The first server thread numbers tables. Whoever creates one tells the owners of its shards, and
//! then the first thread that all of them know it. From then on nobody who joins the table asks its
//! owners before there is a request for them; of shards that have moved they tell when one comes.
//!
//! Path: **worker** > slicer > filter > message > codec > endpoint > transport.

use std::collections::BTreeSet;
use std::time::Duration;

use caravan_van::KeyRange;

use super::chains::ChainMove;
use super::copies::{self, TableCopies};
use super::table::{Table, TableState};
use super::{News, Worker};
use crate::cost::Cost;
use crate::error::{Error, Result};
use crate::filter::OwnFilters;
use crate::map::{Created, Map, Numbered, Placed};
use crate::node::within;
use crate::op::Op;
use crate::server::{Copies, Destination};
use crate::table::TableSpec;
use crate::tracker::Timestamp;

/// What a worker does with whole tables and their shards ([`Worker::admin`]).
pub struct Admin<'a> {
    pub(super) worker: &'a mut Worker,
}

impl Admin<'_> {
    /// Creates a table on the servers that own shards of it, or joins it if there is an equal one
    /// of that id in its namespace. The first server thread numbers it, and knows all tables. A
    /// worker that joins asks that thread alone, unless servers may be lost.
    ///
    /// # Errors
    /// [`Error::Refused`] if the servers have another table under that id or cannot build this one;
    /// [`Error::TableDropped`] if it is dropped at this moment; [`Error::Config`], also for filters
    /// that do not suit the table.
    pub fn create_table(&mut self, spec: &TableSpec) -> Result<Table> {
        let range = spec.range()?;
        spec.filters.check(spec)?;
        spec.check_consistency()?;
        self.worker.own_filters.make(spec, Some(self.worker.endpoint.lanes.node()))?;
        let spec = &spec.clone().namespace(&within(&self.worker.namespace, &spec.namespace));
        let text = serde_json::to_string(spec)?;
        self.worker.recovery.is_on |= spec.replicas > 0;
        let place = self
            .worker
            .ask_survivors(|worker| worker.admin().create_at_owners(spec, range, &text))?;
        Ok(Table(place as u32, self.worker.tables[place].number))
    }

    /// Makes the first server number a table and the owners of its shards create it, unless they
    /// have; returns its place here.
    fn create_at_owners(&mut self, spec: &TableSpec, range: KeyRange, text: &str) -> Result<usize> {
        let map = spec.placement.map(range, self.worker.founders)?;
        let (first, created) = number_table(self.worker, text)?;
        let number = created.number;
        let mut claims = Vec::new();
        if !created.is_complete || spec.replicas > 0 || self.worker.waits.spares {
            let dropped = created.dropped.clone();
            let numbered = Numbered { table: text.to_owned(), dropped, is_complete: false };
            let mut owners = self.holders(spec, &map);
            owners.extend(&created.elsewhere);
            let told = BTreeSet::from([first]);
            claims = self.create_along(spec, (number, &numbered), told, owners)?;
            if !claims.is_empty() && !created.is_complete {
                let numbered = Numbered { is_complete: true, ..numbered };
                let first = BTreeSet::from([first]);
                self.create_along(spec, (number, &numbered), BTreeSet::new(), first)?;
            }
        }
        claims.push((first, created));
        let known = self.worker.tables.iter().position(|known| known.number == number);
        let place = match known {
            Some(place) => place,
            None => {
                let place = self.worker.enter_table(number, spec, range, map)?;
                self.worker.enter_all_handed(place);
                place
            }
        };
        for (server, created) in &claims {
            self.worker.enter_claims(place, *server, created);
        }
        Ok(place)
    }

    /// Creates a table of this number at `owners` and wherever shards of it have moved from
    /// there, but for those that were told; returns what they say.
    fn create_along(
        &mut self,
        spec: &TableSpec,
        (number, numbered): (u32, &Numbered),
        told: BTreeSet<usize>,
        owners: BTreeSet<usize>,
    ) -> Result<Vec<(usize, Created)>> {
        let numbered = serde_json::to_vec(numbered)?;
        let mut told = told;
        let mut next = owners;
        let mut claims = Vec::new();
        while let Some(others) = self.untold(number, &mut told, next)? {
            let asked = self.worker.tell(&others, Op::Create, number, &numbered)?;
            let answered = self.worker.wait(asked).map_err(|error| match error {
                Error::TableDropped { .. } => Error::TableDropped { table: spec.name.clone() },
                other => other,
            })?;
            next = BTreeSet::new();
            for (server, reply) in others.into_iter().zip(&answered.replies) {
                let created: Created = self.worker.read_reply(server, Op::Create, reply)?;
                next.extend(&created.elsewhere);
                claims.push((server, created));
            }
        }
        Ok(claims)
    }

    /// Asks all that live, and have or had shards of a table, where these are.
    pub(super) fn follow_shards(&mut self, table: Table) -> Result<()> {
        let TableState { spec, map, .. } = self.worker.known(table)?;
        let (spec, mut owners) = (spec.clone(), map.owners());
        owners.extend(spec.placement.map(spec.range()?, self.worker.founders)?.owners());
        let text = serde_json::to_string(&spec)?;
        let numbered = Numbered { table: text, dropped: Vec::new(), is_complete: false };
        let claims = self.worker.ask_survivors(|worker| {
            worker.admin().create_along(
                &spec,
                (table.1, &numbered),
                BTreeSet::new(),
                owners.clone(),
            )
        })?;
        for (server, created) in &claims {
            self.worker.enter_claims(table.0 as usize, *server, created);
        }
        Ok(())
    }

    /// The server threads that have to know of a table: the owners of its shards; or all founders,
    /// if any of them may have to serve copies, or to number tables after a loss.
    fn holders(&self, spec: &TableSpec, map: &Map) -> BTreeSet<usize> {
        match spec.replicas > 0 || self.worker.waits.spares {
            true => (0..self.worker.founders).collect(),
            false => map.owners(),
        }
    }

    /// Those of `next` that live and were not told of a table, which are now; `None` if there are
    /// none. Those to which one that has left has given shards stand for it.
    ///
    /// # Errors
    /// As [`Worker::wait_until_known`].
    fn untold(
        &mut self,
        number: u32,
        told: &mut BTreeSet<usize>,
        next: BTreeSet<usize>,
    ) -> Result<Option<Vec<usize>>> {
        self.worker.wait_until_known(&next)?;
        // What is placed on one that has left is made by its successor, who has to know that.
        if self.worker.recovery.is_on {
            self.worker.tell_view()?;
        }
        let next = self.worker.behind_departed(number, told, next);
        let lives = |server: &usize| {
            *server < self.worker.servers.len() && !self.worker.recovery.is_gone(*server)
        };
        let next: Vec<usize> =
            next.into_iter().filter(lives).filter(|it| told.insert(*it)).collect();
        Ok((!next.is_empty()).then_some(next))
    }

    /// The tables of a namespace and of those within it, whoever created them; all tables if it is
    /// empty, like this worker's own. [`Admin::create_table`] joins one of them, for a worker
    /// without a namespace.
    ///
    /// # Errors
    /// [`Error::ServerLost`].
    pub fn list_tables(&mut self, namespace: &str) -> Result<Vec<TableSpec>> {
        let tables = self.worker.tables_within(&within(&self.worker.namespace, namespace))?;
        Ok(tables.into_iter().map(|(_, spec)| spec).collect())
    }

    /// Drops a table on all servers that know it, with its rows and everything that servers and
    /// this worker keep for it. Nothing happens there if another worker has dropped it before.
    ///
    /// Requests of this worker that came first are executed, unless they wait for a clock. All
    /// others, of whichever worker, end with [`Error::TableDropped`]. Afterwards its id is free for
    /// another table; no request for this one ever reaches that.
    ///
    /// # Errors
    /// [`Error::UnknownTable`]; [`Error::ServerLost`].
    pub fn drop_table(&mut self, table: Table) -> Result<()> {
        let known = self.worker.known(table)?;
        let owners = known.map.owners();
        let spec = known.spec.clone();
        self.drop_at_holders(table.1, &spec, &owners)?;
        self.worker.forget_tables(|it| it.is(table));
        Ok(())
    }

    /// Drops all tables of a namespace and of those within it, whoever created them, as
    /// [`Admin::drop_table`] does; returns their number.
    ///
    /// # Errors
    /// [`Error::ServerLost`].
    pub fn drop_tables(&mut self, namespace: &str) -> Result<usize> {
        let namespace = within(&self.worker.namespace, namespace);
        let mut tables = self.worker.tables_within(&namespace)?;
        // Those of jobs are not within the empty namespace.
        tables.retain(|(_, spec)| spec.is_within(&namespace));
        for (number, spec) in &tables {
            self.drop_at_holders(*number, spec, &BTreeSet::new())?;
        }
        self.worker.forget_tables(|it| it.spec.is_within(&namespace));
        Ok(tables.len())
    }

    /// Drops a table at its first owners, at `owners`, and wherever shards of it have moved from
    /// there. The first server is the last to hear: whoever is cut off before can drop it again.
    fn drop_at_holders(
        &mut self,
        number: u32,
        spec: &TableSpec,
        owners: &BTreeSet<usize>,
    ) -> Result<()> {
        let map = spec.placement.map(spec.range()?, self.worker.founders)?;
        self.worker.ask_survivors(|worker| worker.admin().drop_along(number, spec, &map, owners))
    }

    fn drop_along(
        &mut self,
        number: u32,
        spec: &TableSpec,
        map: &Map,
        owners: &BTreeSet<usize>,
    ) -> Result<()> {
        let first = self.worker.first()?;
        let mut told = BTreeSet::from([first]);
        let mut next = self.holders(spec, map);
        next.extend(owners);
        let op = Op::Drop;
        let mut is_first_told = false;
        loop {
            let servers = match self.untold(number, &mut told, std::mem::take(&mut next))? {
                Some(servers) => servers,
                None if std::mem::replace(&mut is_first_told, true) => return Ok(()),
                None => vec![first],
            };
            let asked = self.worker.tell(&servers, op, number, &[])?;
            let replies = self.worker.wait(asked)?.replies;
            for (&server, reply) in servers.iter().zip(&replies).filter(|it| !it.1.is_empty()) {
                let elsewhere: BTreeSet<usize> = self.worker.read_reply(server, op, reply)?;
                next.extend(elsewhere);
            }
        }
    }

    /// Moves the shard that has `key` of a table to server thread `server`, in the order of
    /// [`Worker::connect`], while requests to it go on. The answer comes once it is there, and is
    /// empty. A shard with copies moves with all of them, as far as they have to, and is there when
    /// this function returns; the others of its chain are those behind that thread.
    ///
    /// # Errors
    /// [`Error::UnknownTable`](crate::Error::UnknownTable);
    /// [`Error::KeyOutsideTable`](crate::Error::KeyOutsideTable). [`Worker::wait`] returns
    /// [`Error::Refused`](crate::Error::Refused) if the shard cannot be moved, or the server is not
    /// there; it stays where it is then.
    pub fn move_shard(&mut self, table: Table, key: u64, server: usize) -> Result<Timestamp> {
        let known = self.worker.known(table)?;
        crate::slicer::check(&[key], known.range, &known.spec.name)?;
        let shard = known.map.find(key).unwrap_or_default();
        if known.spec.replicas > 0 {
            let moved = self.worker.tracker.begin(Op::Move)?;
            let outcome = ChainMove::of(self.worker, table).and_then(|it| it.one(shard, server));
            self.worker.seal(moved, outcome.map(|()| None));
            return Ok(moved);
        }
        let address = self.worker.servers.get(server).map_or("", |server| &server.at.address);
        let body = serde_json::to_vec(&Destination { server, address: address.to_owned() })?;
        self.worker.request_shards(Op::Move, table, shard..shard + 1, self.worker.clock, &body)
    }

    /// Moves shards of a table so that the server threads have keys as evenly as whole shards
    /// allow, and those of `drained` none; returns the shards that have moved, as they were before.
    /// Server threads that count as lost get none.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) if all server threads that are not lost are to be
    /// drained, or one that does not exist. As [`Admin::move_shard`] for the first shard that
    /// cannot be moved; those before it have moved.
    pub fn rebalance(&mut self, table: Table, drained: &[usize]) -> Result<Vec<Placed>> {
        self.worker.check_lost_nodes()?;
        if self.worker.known(table)?.spec.replicas > 0 {
            let heads = self.balanced(table, drained)?;
            let shards = self.worker.known(table)?.map.shards();
            let moved = heads.iter().map(|(shard, _)| shards[*shard]).collect();
            ChainMove::of(self.worker, table)?.all(heads, drained)?;
            return Ok(moved);
        }
        self.follow_shards(table)?;
        let moves = self.balanced(table, drained)?;
        self.move_all(table, moves)
    }

    /// Moves the shards of a table away from these server threads, and no others; as
    /// [`Admin::rebalance`].
    pub(crate) fn drain_threads(&mut self, table: Table, drained: &[usize]) -> Result<Vec<Placed>> {
        self.follow_shards(table)?;
        let mut moves = self.balanced(table, drained)?;
        let shards = self.worker.known(table)?.map.shards();
        moves.retain(|(shard, _)| drained.contains(&shards[*shard].server));
        self.move_all(table, moves)
    }

    /// The moves that spread a table's shards over the server threads but for `drained` and those
    /// that have left.
    fn balanced(&self, table: Table, drained: &[usize]) -> Result<Vec<(usize, usize)>> {
        let left = self.worker.recovery.view.departed().map(|it| it.thread);
        let without: Vec<usize> = drained.iter().copied().chain(left).collect();
        let (shards, lost) =
            (self.worker.known(table)?.map.shards(), &self.worker.recovery.view.lost);
        crate::map::balance(shards, self.worker.servers.len(), &without, lost)
    }

    /// Makes these moves one after the other; returns the shards as they were before.
    fn move_all(&mut self, table: Table, moves: Vec<(usize, usize)>) -> Result<Vec<Placed>> {
        let mut moved = Vec::new();
        for (shard, server) in moves {
            let placed = self.worker.known(table)?.map.shards()[shard];
            let wish = self.move_shard(table, placed.range.begin(), server)?;
            self.worker.wait(wish)?;
            moved.push(placed);
        }
        // Marks leave, for which a shard waits that comes back; the caller may do nothing for long.
        self.worker.poll()?;
        Ok(moved)
    }

    /// How far the copies of all shards are that have some, when all server threads know what this
    /// worker knows of who is lost and who leaves.
    ///
    /// # Errors
    /// [`Error::ServerLost`]; as [`Worker::wait`].
    pub fn copies(&mut self) -> Result<Copies> {
        copies::of_all(self.worker)
    }

    /// How the copies of each table of a namespace are, and of those within it. The empty namespace
    /// has all tables within it. Where no founder is left that knows all of them, they are those of
    /// which a server has something.
    ///
    /// # Errors
    /// As [`Admin::copies`].
    pub fn copies_of_tables(&mut self, namespace: &str) -> Result<Vec<TableCopies>> {
        copies::of_tables(self.worker, namespace)
    }

    /// Names the namespace that those of tables are within: table 1 of `weights` is then table 1 of
    /// `job/weights`. Tables that exist stay what they are.
    pub fn set_namespace(&mut self, namespace: &str) {
        namespace.clone_into(&mut self.worker.namespace);
    }

    /// Sets the filters that tables may name; servers have the same
    /// ([`Handles::with_filters`](crate::Handles::with_filters)).
    pub fn set_filters(&mut self, filters: OwnFilters) {
        self.worker.own_filters = filters;
    }

    /// Returns the cost of every server thread so far.
    ///
    /// # Errors
    /// [`Error::ServerLost`].
    pub fn server_costs(&mut self) -> Result<Vec<Cost>> {
        let timestamp = self.worker.broadcast(Op::Cost, 0, &[])?;
        let replies = self.worker.wait(timestamp)?.replies;
        Ok(replies.iter().map(|reply| serde_json::from_slice(reply)).collect::<Result<_, _>>()?)
    }

    /// Opens the lanes that no request has opened, and waits until all are up. Nothing needs this
    /// but who wants to know which vans carry them.
    ///
    /// # Errors
    /// As [`Admin::reconnect`].
    pub fn open_connections(&mut self) -> Result<()> {
        let unused: Vec<usize> = self
            .worker
            .living()
            .into_iter()
            .filter(|at| self.worker.servers[*at].is_unused())
            .collect();
        self.worker.connect_all(&unused, self.worker.waits.opening_max)
    }

    /// Connects again to all servers whose lanes have broken, and returns their number. Requests
    /// that were outstanding on those lanes have ended with [`Error::ServerLost`].
    ///
    /// In tables with a consistency model the servers count a worker without lanes as gone:
    /// [`Clocks::rejoin`](super::Clocks::rejoin) them.
    ///
    /// # Errors
    /// [`Error::ServerLost`] and [`Error::Timeout`] name a server that cannot be reached. The
    /// caller may try again.
    pub fn reconnect(&mut self, timeout: Duration) -> Result<usize> {
        let broken: Vec<usize> = self
            .worker
            .living()
            .into_iter()
            .filter(|at| self.worker.servers[*at].lost.is_some())
            .collect();
        self.worker.connect_all(&broken, timeout)?;
        Ok(broken.len())
    }

    /// Asks `watch` about every `backoff` while this worker waits; it says which server threads are
    /// lost so far, and ends the wait by an error. For workers of a cluster the scheduler says it.
    ///
    /// Whoever has the next copy serves the shards of a lost thread. All workers have to give up
    /// the same ones, and none ever comes back.
    /// Every worker needs a watch before it creates tables: all threads then hear of all tables.
    pub fn watch_servers(
        &mut self,
        watch: impl FnMut() -> Result<Vec<usize>> + 'static,
        backoff: Duration,
    ) {
        let mut watch = watch;
        let news = move || Ok(News { lost: watch()?, ..News::default() });
        self.worker.waits.watch_by(Box::new(news), backoff);
    }
}

/// Asks the first server for the number of a table; returns which server that is, and its answer.
/// It has created what is placed on it, and on those that have left it their places, as far as it
/// has heard. If this worker has heard of more, it tells that, and asks again.
fn number_table(worker: &mut Worker, text: &str) -> Result<(usize, Created)> {
    loop {
        // Others know the tables of which they have copies.
        let first = match (worker.first(), worker.living().first()) {
            (Ok(first), _) | (Err(_), Some(&first)) => first,
            (Err(error), None) => return Err(error),
        };
        let created: Created = worker.ask(first, Op::Create, text.as_bytes())?;
        worker.wait_for_news(|worker| {
            let knows_less = worker.recovery.view.events.len() < created.heard;
            (knows_less && worker.waits.is_watched()).then_some(first)
        })?;
        let knows_all = created.heard >= worker.recovery.view.events.len();
        if knows_all || !worker.recovery.is_on {
            return Ok((first, created));
        }
        worker.tell_view()?;
    }
}
