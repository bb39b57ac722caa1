//! Goal: any server leaves a cluster under load, those that have founded it as well, also the one
//! that numbers tables and those with copies: no request fails, and nothing is lost, applied twice
//! or read too early, even if another server dies meanwhile. Servers that die are replaced, until
//! no founder is left.
//! Method: whole clusters with their schedulers on the simulated van. Workers push whole numbers to
//! tables without copies and with one, join and create tables, and check what only they write; the
//! driver has servers leave at random instants, and crashes some. In the end each key's sum is that
//! of all acknowledged pushes. A failure prints its seed; `CARAVAN_SEED=<seed> cargo test` replays
//! it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::simulated::{Draws, join, weather};
use caravan_kv::{
    App, Apps, Cluster, ClusterConfig, Error, Handles, Launch, NodeConfig, Placement, Refusal,
    Table, TableSpec, Target, TaskId, Timestamp, ValueType, Worker, WorkerNode,
};
use caravan_van::KeyRange;
use caravan_van::sim::{Faults, Network, for_each_seed};
use serde_json::{Value, json};

const KEYS: u64 = 200;

/// Most workers of a run; each has a column of its own.
const WORKERS: u64 = 3;

const WIDTH: usize = 1 + WORKERS as usize;

/// Tables that workers create and join while servers leave.
const LATE: u64 = 4;

/// The table of this number; those from 2 on are created late. Where a server dies all have copies;
/// elsewhere half of them, and some of these are asynchronous.
fn table(number: u64, dies: bool) -> TableSpec {
    let name = format!("table {number}");
    let replicas = u32::from(dies || number % 2 == 1);
    let keys = KeyRange::new(0, KEYS).unwrap();
    let spec = TableSpec::new(1 + number as u32, &name, ValueType::I64, WIDTH as u32).keys(keys);
    // That of table 2 is known to the first founder alone, and moves from there.
    let placement = if number == 2 { Placement::Cut(vec![(0, 0)]) } else { Placement::Even(2) };
    let spec = spec.placement(placement).replicas(replicas);
    if !dies && number % 4 == 1 { spec.asynchronous() } else { spec }
}

const TABLES: u64 = 2 + LATE;

/// Pushes and pulls until it is told to stop.
struct Adds {
    stop: Arc<AtomicBool>,
}

impl App for Adds {
    fn run(&mut self, node: &mut WorkerNode, body: Value) -> Result<Value, String> {
        let seed = body["seed"].as_u64().unwrap();
        let [dies, late] = ["dies", "late"].map(|name| body[name].as_bool().unwrap());
        self.add(node, seed, (dies, late)).map_err(|error| error.to_string())
    }
}

impl Adds {
    /// Returns what it has pushed to each key of each table.
    fn add(
        &self,
        node: &mut WorkerNode,
        seed: u64,
        (dies, late): (bool, bool),
    ) -> caravan_kv::Result<Value> {
        let mut draws = Draws(seed << 8 | node.rank as u64);
        let own_column = 1 + node.rank;
        let worker = &mut node.worker;
        let first = [0, 1].map(|number| worker.admin().create_table(&table(number, dies)));
        let mut tables: BTreeMap<u64, Table> = BTreeMap::new();
        for (number, created) in (0..).zip(first) {
            tables.insert(number, created?);
        }
        let mut pushed: BTreeMap<(u64, u64), i64> = BTreeMap::new();
        let mut own: BTreeMap<u64, i64> = BTreeMap::new();
        let mut waiting: VecDeque<(Timestamp, Option<(u64, i64)>)> = VecDeque::new();
        while !self.stop.load(Ordering::Relaxed) {
            let mut number = draws.below(2);
            if late && draws.below(8) == 0 {
                number = 2 + draws.below(LATE);
                tables.insert(number, worker.admin().create_table(&table(number, dies))?);
            }
            let at = tables[&number];
            let most = [1, 3, 40][draws.below(3) as usize];
            let mut keys: Vec<u64> = (0..=draws.below(most)).map(|_| draws.below(KEYS)).collect();
            keys.sort_unstable();
            keys.dedup();
            let mut rows = vec![0i64; keys.len() * WIDTH];
            for (row, key) in rows.chunks_exact_mut(WIDTH).zip(&keys) {
                row[0] = 1 + draws.below(9) as i64;
                *pushed.entry((number, *key)).or_default() += row[0];
            }
            let sent = match draws.below(2) {
                0 => worker.push(at, &keys, &rows)?,
                _ => worker.push_pull(at, &keys, &rows)?,
            };
            waiting.push_back((sent, None));
            let mut row = [0i64; WIDTH];
            row[own_column] = 1;
            waiting.push_back((worker.push(at, &[7], &row)?, None));
            *own.entry(number).or_default() += 1;
            waiting.push_back((worker.pull(at, &[7])?, Some((number, own[&number]))));
            while waiting.len() > draws.below(8) as usize {
                let next = draws.below(waiting.len() as u64) as usize;
                let Some((timestamp, expected)) = waiting.remove(next) else { break };
                let answer = worker.wait(timestamp)?;
                if let Some((number, expected)) = expected {
                    let read = answer.values::<i64>()[own_column];
                    // One that is posted again may see what was pushed since.
                    let most =
                        if table(number, dies).replicas > 0 { own[&number] } else { expected };
                    assert!((expected..=most).contains(&read), "{read}, not {expected} to {most}");
                }
            }
            worker.charge(Duration::from_micros(draws.below(200)))?;
        }
        for (timestamp, _) in waiting {
            worker.wait(timestamp)?;
        }
        let pushed: Vec<_> = pushed.into_iter().collect();
        let own: Vec<_> = own.into_iter().collect();
        Ok(json!({ "pushed": pushed, "own": own }))
    }
}

/// The first column of a table, and the sum of each other one.
fn read(worker: &mut Worker, table: Table) -> (Vec<i64>, Vec<i64>) {
    let keys: Vec<u64> = (0..KEYS).collect();
    let pulled = worker.pull(table, &keys).unwrap();
    let rows = worker.wait(pulled).unwrap().values::<i64>().to_vec();
    let column = |at: usize| rows.iter().skip(at).step_by(WIDTH).copied();
    (column(0).collect(), (1..WIDTH).map(|at| column(at).sum()).collect())
}

/// What a run has met.
#[derive(Debug, Default)]
pub(crate) struct Met {
    /// Servers that have left, founders among them, and those of these that numbered tables.
    left: usize,
    founders: usize,
    numbering: usize,
    /// Shards that they gave to others.
    handed: usize,
    joined: usize,
    /// Servers that died: before another one left, while it did, as soon as it had, and while they
    /// left themselves.
    died_before: usize,
    died_meanwhile: usize,
    died_behind: usize,
    died_leaving: usize,
    late: i64,
}

impl AddAssign for Met {
    fn add_assign(&mut self, other: Met) {
        self.left += other.left;
        self.founders += other.founders;
        self.numbering += other.numbering;
        self.handed += other.handed;
        self.joined += other.joined;
        self.died_before += other.died_before;
        self.died_meanwhile += other.died_meanwhile;
        self.died_behind += other.died_behind;
        self.died_leaving += other.died_leaving;
        self.late += other.late;
    }
}

/// What becomes of a server that is to leave.
#[derive(PartialEq, Eq)]
enum Fate {
    Left,
    /// It has died before.
    Lost,
    /// It has what nobody else has any more, as the last other founder has died.
    Stays,
}

/// Makes a server leave. It or another one may die meanwhile.
fn release(network: &Network, cluster: &Cluster, rank: usize, met: &mut Met) -> Fate {
    let stays = ["the only copy of", "is the only one left"];
    let is_last = |why: &str| stays.iter().any(|stays| why.contains(stays));
    for _ in 0..50 {
        match cluster.release_server(rank) {
            Ok(moved) => {
                met.handed += moved.len();
                return Fate::Left;
            }
            Err(Error::Config(why)) if why.contains("is lost") => return Fate::Lost,
            Err(Error::Config(why)) if is_last(&why) => return Fate::Stays,
            // One that dies as it leaves was lost, or it had left.
            Err(Error::Config(why)) if why.contains("leaves already") => return Fate::Left,
            Err(Error::ServerLost { .. } | Error::Timeout { .. }) => {
                network.sleep(Duration::from_millis(100));
            }
            Err(error) => panic!("server {rank} cannot leave: {error}"),
        }
    }
    panic!("server {rank} cannot leave");
}

/// A cluster whose workers add until they are told to stop.
fn begin(config: &ClusterConfig, stop: &Arc<AtomicBool>, body: &Value) -> (Cluster, TaskId) {
    let heard = stop.clone();
    let apps = Apps::default().with("adds", move || Box::new(Adds { stop: heard.clone() }));
    let mut cluster = Cluster::launch(config, Launch::Simulated(Handles::default(), apps)).unwrap();
    let task = cluster.submit(Target::Workers, "adds", body).unwrap();
    (cluster, task)
}

/// Waits until all copies are whole beside so many servers that are lost, or more.
fn await_copies(network: &Network, worker: &mut Worker, lost: usize) {
    for _ in 0..10_000 {
        let copies = worker.admin().copies().unwrap();
        if copies.lost >= lost && (copies.missing, copies.coming) == (0, 0) {
            return;
        }
        network.sleep(Duration::from_millis(1));
        worker.sleep(Duration::ZERO).unwrap();
    }
    panic!("{lost} are lost: {:?}", worker.admin().copies());
}

/// By table: the sum of what was pushed to each key, and how often each worker has pushed to its
/// own column.
fn totals(cluster: &mut Cluster, task: TaskId) -> (Vec<Vec<i64>>, Vec<Vec<i64>>) {
    let mut sums = vec![vec![0; KEYS as usize]; TABLES as usize];
    let mut own = vec![vec![0; WORKERS as usize]; TABLES as usize];
    for (rank, done) in cluster.wait(task).unwrap().into_iter().enumerate() {
        let pushed: Vec<((usize, usize), i64)> =
            serde_json::from_value(done["pushed"].clone()).unwrap();
        pushed.into_iter().for_each(|((table, key), value)| sums[table][key] += value);
        let counts: Vec<(usize, i64)> = serde_json::from_value(done["own"].clone()).unwrap();
        counts.into_iter().for_each(|(table, count)| own[table][rank] += count);
    }
    (sums, own)
}

/// Moves a random shard of each table to a random server, perhaps. Those with copies may need more
/// servers than there are.
fn shift(client: &mut Worker, tables: &[Table], draws: &mut Draws) {
    for &table in tables {
        if draws.below(2) == 0 {
            continue;
        }
        let to = draws.below(client.info().addresses().count() as u64) as usize;
        let wish = client.admin().move_shard(table, draws.below(KEYS), to).unwrap();
        match client.wait(wish) {
            Ok(_) | Err(Error::Refused { .. } | Error::Config(_)) => {}
            Err(error) => panic!("a move to server {to}: {error}"),
        }
        client.poll().unwrap(); // so that its mark leaves, for which the shard waits if it returns
    }
}

#[allow(clippy::too_many_lines, reason = "one scenario, told in its order")]
pub(crate) fn depart(network: &Network, seed: u64) -> Met {
    let mut draws = Draws(seed);
    let dies = seed % 2 == 1;
    let (founders, workers) = (3 + draws.below(2) as usize, 1 + draws.below(WORKERS) as usize);
    let losses = usize::from(dies);
    let node = NodeConfig { server_losses_max: losses, ..NodeConfig::default() };
    let config = ClusterConfig { servers: founders, workers, node, ..ClusterConfig::default() };
    let stop = Arc::new(AtomicBool::new(false));
    let (mut cluster, task) =
        begin(&config, &stop, &json!({ "seed": seed, "dies": dies, "late": true }));
    let node = cluster.config().node.clone();
    let mut client = cluster.client().unwrap();
    let mut idle = cluster.client().unwrap();
    let known = [0, 1].map(|number| client.admin().create_table(&table(number, dies)).unwrap());
    let _ = [0, 1].map(|number| idle.admin().create_table(&table(number, dies)).unwrap());
    let mut met = Met::default();
    let mut there: BTreeSet<usize> = (0..founders).collect();
    let mut joining = Vec::new();
    for round in 0..3 {
        network.sleep(Duration::from_micros(draws.below(4000)));
        if draws.below(2) == 0 {
            let rank = founders + joining.len();
            joining.push(join(network, &node, &mut client));
            there.insert(rank);
            met.joined += 1;
        }
        let is_last =
            |rank: usize| rank < founders && there.iter().filter(|it| **it < founders).count() == 1;
        // Tables with copies are created all the time.
        let open: Vec<usize> = there.iter().copied().filter(|rank| !is_last(*rank)).collect();
        let Some(&rank) = open.get(draws.below(open.len().max(1) as u64) as usize) else { break };
        shift(&mut client, &known, &mut draws);
        let mut dying = None;
        let victims: Vec<usize> = there.iter().copied().filter(|it| *it < founders).collect();
        // Two founders stay, so that there are copies.
        if dies && round == 1 && victims.iter().filter(|it| **it != rank).count() > 1 {
            let victim = victims[draws.below(victims.len() as u64) as usize];
            let wait = Duration::from_micros(draws.below(6000));
            let name = format!("server {victim}");
            let when = if victim == rank { 1 } else { draws.below(3) };
            match when {
                0 => {
                    network.crash(&name);
                    network.sleep(wait);
                    met.died_before += 1;
                }
                1 => {
                    network.spawn("faults", move |network| {
                        network.sleep(wait);
                        network.crash(&name);
                    });
                    met.died_meanwhile += usize::from(victim != rank);
                    met.died_leaving += usize::from(victim == rank);
                }
                _ => met.died_behind += 1,
            }
            dying = Some((victim, when));
        }
        met.numbering += usize::from(there.first() == Some(&rank));
        met.founders += usize::from(rank < founders);
        let fate = release(network, &cluster, rank, &mut met);
        met.left += usize::from(fate == Fate::Left);
        if fate != Fate::Stays {
            there.remove(&rank);
        }
        if let Some((victim, when)) = dying {
            there.remove(&victim);
            if when == 2 {
                network.crash(&format!("server {victim}"));
            }
        }
        network.sleep(Duration::from_millis(draws.below(30)));
        for table in known {
            client.sleep(Duration::ZERO).unwrap();
            let shards = client.info().shards(table).unwrap();
            assert!(
                fate != Fate::Left || shards.iter().all(|shard| shard.server != rank),
                "{shards:?}"
            );
        }
    }
    stop.store(true, Ordering::Relaxed);
    let (sums, own) = totals(&mut cluster, task);
    met.late += sums[2..].iter().flatten().sum::<i64>();
    // One that has not listened meanwhile finds everything, and so does a driver that comes later.
    let late = Cluster::attach(&node, "late").unwrap();
    let mut reader = late.client().unwrap();
    reader.admin().set_namespace("");
    for worker in [&mut idle, &mut reader] {
        for number in 0..TABLES {
            let at = worker.admin().create_table(&table(number, dies)).unwrap();
            let expected = (sums[number as usize].clone(), own[number as usize].clone());
            assert_eq!(read(worker, at), expected, "table {number}");
        }
        await_copies(network, worker, 0);
    }
    // Tables are dropped wherever they are, and their names are free again.
    assert_eq!(reader.admin().drop_tables("").unwrap(), TABLES as usize);
    for worker in [&mut idle, &mut client, &mut reader] {
        let anew = worker.admin().create_table(&table(0, dies)).unwrap();
        assert_eq!(read(worker, anew), (vec![0; KEYS as usize], vec![0; WORKERS as usize]));
    }
    drop((client, idle, reader));
    late.shutdown().unwrap();
    cluster.shutdown().unwrap();
    for node in joining {
        node.join().unwrap_or_else(|why| panic!("{why}"));
    }
    met
}

#[test]
fn any_server_leaves_under_load_and_nothing_is_lost_or_doubled() {
    let mut sum = Met::default();
    for_each_seed(60, |seed| {
        let network = Network::new(seed, weather(seed));
        let driver = network.spawn("driver", move |network| depart(network, seed));
        sum += driver.join().unwrap_or_else(|stopped| panic!("{stopped}"));
    });
    println!("{sum:?}");
    let Met { left, founders, numbering, handed, joined, late, .. } = sum;
    let Met { died_before, died_meanwhile, died_behind, died_leaving, .. } = sum;
    let counts = [left, founders, numbering, handed, joined, late as usize];
    let deaths = [died_before, died_meanwhile, died_behind, died_leaving];
    assert!(counts.iter().chain(&deaths).all(|count| *count > 0), "{sum:?}");
}

/// Servers die or leave one after the other, each when all copies are whole, and another one has
/// joined before, until no founder is left. Returns how many have died and have left, and what was
/// pushed.
fn replace(network: &Network, seed: u64) -> (usize, usize, i64) {
    const ROUNDS: usize = 6;
    let mut draws = Draws(seed);
    let founders = 2 + draws.below(2) as usize;
    let node = NodeConfig { server_losses_max: ROUNDS, ..NodeConfig::default() };
    let workers = 1 + draws.below(WORKERS) as usize;
    let config = ClusterConfig { servers: founders, workers, node, ..ClusterConfig::default() };
    let stop = Arc::new(AtomicBool::new(false));
    let body = json!({ "seed": seed, "dies": true, "late": false });
    let (mut cluster, task) = begin(&config, &stop, &body);
    let node = cluster.config().node.clone();
    let mut client = cluster.client().unwrap();
    let known = [0, 1].map(|number| client.admin().create_table(&table(number, true)).unwrap());
    let mut there: Vec<usize> = (0..founders).collect();
    let (mut joining, mut died, mut left) = (Vec::new(), 0, 0);
    // The founders die, and with the last one whoever knows all tables; or all of them leave.
    let leaves = seed.is_multiple_of(2);
    let mut knows_tables = true;
    for round in 0..ROUNDS {
        network.sleep(Duration::from_micros(draws.below(4000)));
        // Whoever goes leaves two.
        for _ in there.len()..3 {
            let rank = founders + joining.len();
            joining.push(join(network, &node, &mut client));
            there.push(rank);
        }
        await_copies(network, &mut client, died);
        // The founders go first: what they have goes to others.
        let is_founder = |rank: &usize| *rank < founders;
        let founder = there.iter().copied().find(is_founder);
        let rank = founder.unwrap_or_else(|| there[draws.below(3) as usize]);
        there.retain(|it| *it != rank);
        let founds = is_founder(&rank) && leaves;
        if knows_tables && (founds || (round + seed as usize).is_multiple_of(3)) {
            assert!(cluster.release_server(rank).unwrap().is_empty(), "nothing moves");
            left += 1;
        } else {
            network.crash(&format!("server {rank}"));
            died += 1;
            knows_tables &= there.iter().any(is_founder);
        }
    }
    assert!(there.iter().all(|rank| *rank >= founders), "no founder is left");
    network.sleep(Duration::from_millis(2));
    stop.store(true, Ordering::Relaxed);
    let (sums, own) = totals(&mut cluster, task);
    // Whoever comes later finds the tables as well.
    let mut late = cluster.client().unwrap();
    for (number, at) in known.into_iter().enumerate() {
        let found = late.admin().create_table(&table(number as u64, true)).unwrap();
        assert_eq!(read(&mut late, found), (sums[number].clone(), own[number].clone()));
        assert_eq!(read(&mut client, at), (sums[number].clone(), own[number].clone()));
    }
    let why = client.admin().create_table(&table(2, true)).unwrap_err().to_string();
    let says = ["which is lost, so there are no new ones", "no server is left that has founded"];
    assert!(says.iter().any(|says| why.contains(says)), "{why}");
    drop((client, late));
    cluster.shutdown().unwrap();
    (died, left, sums.iter().flatten().sum())
}

/// A server is told of a table before it has heard that another one has left its place to it, so
/// that it does not make what is placed there. Method: the seed at which a worker met that.
#[test]
fn a_successor_hears_of_its_place_before_it_makes_a_table() {
    let network = Network::new(887, weather(887));
    let driver = network.spawn("driver", |network| depart(network, 2 * 887));
    driver.join().unwrap_or_else(|stopped| panic!("{stopped}"));
}

#[test]
fn servers_are_replaced_one_after_the_other_until_no_founder_is_left() {
    let (mut died, mut left, mut pushed) = (0, 0, 0);
    for_each_seed(30, |seed| {
        let network = Network::new(seed, weather(seed));
        let driver = network.spawn("driver", move |network| replace(network, seed));
        let met = driver.join().unwrap_or_else(|stopped| panic!("{stopped}"));
        (died, left, pushed) = (died + met.0, left + met.1, pushed + met.2);
    });
    println!("{died} died, {left} left, {pushed} pushed");
    assert!(died > 0 && left > 0 && pushed > 0);
}

/// Runs this on a cluster of so many servers, of which so many may be lost, without faults.
fn on_cluster(
    servers: usize,
    server_losses_max: usize,
    body: impl FnOnce(&Network, Cluster) + Send + 'static,
) {
    let network = Network::new(1, Faults::none());
    let driver = network.spawn("driver", move |network| {
        let node = NodeConfig { server_losses_max, ..NodeConfig::default() };
        let config = ClusterConfig { servers, workers: 1, node, ..ClusterConfig::default() };
        let launch = Launch::Simulated(Handles::default(), Apps::default());
        body(network, Cluster::launch(&config, launch).unwrap());
    });
    driver.join().unwrap_or_else(|stopped| panic!("{stopped}"));
}

#[test]
fn the_last_founder_leaves_its_tables_to_one_that_has_joined() {
    on_cluster(2, 0, |network, cluster| {
        let why = |rank| cluster.release_server(rank).unwrap_err().to_string();
        let mut client = cluster.client().unwrap();
        let before = client.admin().create_table(&table(0, false)).unwrap();
        assert!(why(2).contains("there is no server 2, the last one is 1"), "{}", why(2));
        assert!(!cluster.release_server(0).unwrap().is_empty());
        assert!(why(0).contains("server 0 leaves already, or has left"), "{}", why(0));
        assert!(why(1).contains("server 1 is the only one left"), "{}", why(1));
        let node = cluster.config().node.clone();
        let joining = [(); 2].map(|()| join(network, &node, &mut client));
        assert!(!cluster.release_server(1).unwrap().is_empty());
        let mut owners = |table: Table| -> BTreeSet<usize> {
            client.sleep(Duration::ZERO).unwrap();
            client.info().shards(table).unwrap().iter().map(|shard| shard.server).collect()
        };
        assert!(owners(before).iter().all(|owner| *owner >= 2), "{:?}", owners(before));
        let mut late = cluster.client().unwrap();
        assert_eq!(late.admin().list_tables("").unwrap().len(), 1);
        let after = late.admin().create_table(&table(4, false)).unwrap();
        let pushed = late.push(after, &[3], &[2i64; WIDTH]).unwrap();
        late.wait(pushed).unwrap();
        let refused = late.admin().create_table(&table(1, false)).unwrap_err().to_string();
        assert!(refused.contains("no server is left that has founded the cluster"), "{refused}");
        // Whoever numbers the tables leaves them to the next one.
        let first = cluster.release_server(2).map(|moved| moved.len());
        assert!(first.unwrap() > 0);
        assert_eq!(late.admin().list_tables("").unwrap().len(), 2);
        assert_eq!(late.admin().create_table(&table(4, false)).unwrap(), after);
        assert_eq!(read(&mut late, after).0[3], 2);
        late.admin().drop_table(after).unwrap();
        assert!(why(3).contains("server 3 is the only one left"), "{}", why(3));
        drop((client, late));
        cluster.shutdown().unwrap();
        for node in joining {
            node.join().unwrap_or_else(|why| panic!("{why}"));
        }
    });
}

/// The copies that a server has are elsewhere when it has left, however long they take: the next
/// one that has them may die at once.
#[test]
fn copies_are_whole_elsewhere_before_a_server_leaves() {
    on_cluster(3, 1, |network, cluster| {
        let mut client = cluster.client().unwrap();
        let keys: Vec<u64> = (0..200_000).collect();
        let spec = TableSpec::new(1, "copied", ValueType::I64, 1).replicas(1);
        let spec = spec.keys(KeyRange::new(0, keys.len() as u64).unwrap());
        let table = client.admin().create_table(&spec).unwrap();
        for part in keys.chunks(10_000) {
            let values: Vec<i64> = part.iter().map(|key| *key as i64).collect();
            let pushed = client.push(table, part, &values).unwrap();
            client.wait(pushed).unwrap();
        }
        assert!(cluster.release_server(0).unwrap().is_empty(), "nothing moves");
        network.crash("server 1");
        for part in keys.chunks(10_000) {
            let pulled = client.pull(table, part).unwrap();
            let answer = client.wait(pulled).unwrap();
            assert!(
                answer.values::<i64>().iter().zip(part).all(|(value, key)| *value == *key as i64)
            );
        }
        drop(client);
        cluster.shutdown().unwrap();
    });
}

/// Whoever joins a table has heard who has left since, when it was created.
#[test]
fn a_table_is_not_looked_for_where_it_never_was() {
    on_cluster(3, 0, |_, cluster| {
        let [mut client, mut idle] = [0, 1].map(|_| cluster.client().unwrap());
        let keys: Vec<u64> = (0..KEYS).collect();
        let ones = vec![1i64; KEYS as usize * WIDTH];
        let before = idle.admin().create_table(&table(0, false)).unwrap();
        let push = idle.push(before, &keys, &ones).unwrap();
        idle.wait(push).unwrap(); // it has a lane to each server
        assert!(!cluster.release_server(2).unwrap().is_empty());
        client.sleep(Duration::ZERO).unwrap();
        let created = client.admin().create_table(&table(4, false)).unwrap();
        let joined = idle.admin().create_table(&table(4, false)).unwrap();
        let push = idle.push(joined, &keys, &ones).unwrap();
        idle.wait(push).unwrap();
        assert_eq!(read(&mut client, created).0, vec![1; KEYS as usize]);
        drop((client, idle));
        cluster.shutdown().unwrap();
    });
}

/// Of a table: its id, the copies it lacks, and the first and last key of each range that is lost.
type Lacks = (u32, usize, Vec<(u64, u64)>);

/// What is lost when more servers die than there are copies is said, by table, and to whoever asks
/// for it; the rest is served, and gets its copies again.
#[test]
fn keys_whose_copies_are_lost_are_named() {
    on_cluster(5, 3, |network, cluster| {
        let mut client = cluster.client().unwrap();
        let [plain, copied] = [2, 4].map(|number| {
            let replicas = u32::from(number == 4);
            let spec = TableSpec::new(number, &format!("table {number}"), ValueType::I64, 1);
            spec.keys(KeyRange::new(0, 100).unwrap()).replicas(replicas)
        });
        let cut = TableSpec { id: 6, name: "table 6".to_owned(), ..copied.clone() };
        let cut = cut.placement(Placement::Cut(vec![(0, 1), (70, 3)]));
        let [with, without, cut] =
            [copied, plain, cut].map(|spec| client.admin().create_table(&spec).unwrap());
        let keys: Vec<u64> = (0..100).collect();
        for table in [with, without, cut] {
            let pushed = client.push(table, &keys, &[1i64; 100]).unwrap();
            client.wait(pushed).unwrap();
        }
        let copies = |client: &mut Worker, lost: usize| -> Vec<Lacks> {
            await_copies(network, client, lost);
            let each = client.admin().copies_of_tables("").unwrap().into_iter().map(|it| {
                let lost = it.lost.iter().map(|keys| (keys.begin(), keys.last())).collect();
                (it.table.id, it.missing + it.coming, lost)
            });
            each.collect()
        };
        assert_eq!(copies(&mut client, 0), [(4, 0, vec![]), (2, 0, vec![]), (6, 0, vec![])]);
        network.crash("server 4");
        assert_eq!(
            copies(&mut client, 1),
            [(4, 0, vec![]), (2, 0, vec![(80, 99)]), (6, 0, vec![])]
        );
        ["server 1", "server 2"].into_iter().for_each(|name| network.crash(name));
        assert_eq!(
            copies(&mut client, 3),
            [(4, 0, vec![(20, 39)]), (2, 0, vec![(20, 59), (80, 99)]), (6, 0, vec![(0, 69)])]
        );
        let mut ask = |table, key: u64| {
            let pulled = client.pull(table, &[key]).and_then(|pulled| client.wait(pulled));
            pulled.map(|answer| answer.values::<i64>()[0]).map_err(|error| match error {
                Error::Refused { kind: Refusal::Lost, reason, .. } => reason,
                other => panic!("{other}"),
            })
        };
        let why = ask(cut, 69).unwrap_err();
        assert!(why.contains("all copies of keys 0 to 69 of table table 6 are lost"), "{why}");
        let why = ask(with, 39).unwrap_err();
        assert!(why.contains("all copies of keys 20 to 39 of table table 4 are lost"), "{why}");
        let others = keys.iter().filter(|key| !(20..40).contains(*key));
        others.for_each(|key| assert_eq!(ask(with, *key), Ok(1), "{key}"));
        drop(client);
        cluster.shutdown().unwrap();
    });
}

/// When all copies are lost at once, one that has joined says so, and serves nothing in their
/// stead.
#[test]
fn who_has_joined_serves_nothing_that_is_lost() {
    on_cluster(2, 2, |network, cluster| {
        let mut client = cluster.client().unwrap();
        let spec = table(0, true);
        let at = client.admin().create_table(&spec).unwrap();
        let push = client.push(at, &[3], &[1i64; WIDTH]).unwrap();
        client.wait(push).unwrap();
        let node = cluster.config().node.clone();
        let joining = join(network, &node, &mut client);
        ["server 0", "server 1"].into_iter().for_each(|name| network.crash(name));
        let lost = loop {
            match client.pull(at, &[3]).and_then(|pulled| client.wait(pulled)) {
                Err(error) => break error.to_string(),
                Ok(_) => network.sleep(Duration::from_millis(1)),
            }
        };
        assert!(lost.contains("the shard of key 0 of table number 1 is lost"), "{lost}");
        assert!(lost.contains("was given no copy before the others were lost"), "{lost}");
        let again = client.admin().create_table(&spec).unwrap_err().to_string();
        assert!(again.contains("which is lost, so there are no new ones"), "{again}");
        drop(client);
        cluster.shutdown().unwrap();
        joining.join().unwrap_or_else(|why| panic!("{why}"));
    });
}

/// Whoever numbers tables next knows all of them, and which were dropped.
#[test]
fn tables_outlive_the_server_that_numbered_them() {
    on_cluster(3, 0, |_, cluster| {
        let [mut client, mut idle] = [0, 1].map(|_| cluster.client().unwrap());
        // The first server alone has them, so nobody else has heard of them.
        let spec = |id: u32| {
            let spec = TableSpec::new(id, &format!("table {id}"), ValueType::I64, 1);
            spec.keys(KeyRange::new(0, 10).unwrap()).placement(Placement::Cut(vec![(0, 0)]))
        };
        let ids = |worker: &mut Worker| -> Vec<u32> {
            worker.admin().list_tables("").unwrap().iter().map(|spec| spec.id).collect()
        };
        let add = |worker: &mut Worker, table: Table| {
            let pushed = worker.push(table, &[3], &[1i64]).unwrap();
            worker.wait(pushed).unwrap();
            let pulled = worker.pull(table, &[3]).unwrap();
            worker.wait(pulled).unwrap().values::<i64>()[0]
        };
        let [first, second, third] =
            [1, 2, 3].map(|id| client.admin().create_table(&spec(id)).unwrap());
        let stale = idle.admin().create_table(&spec(3)).unwrap();
        assert_eq!([first, second, third].map(|table| add(&mut client, table)), [1, 1, 1]);
        client.admin().drop_table(third).unwrap();
        assert_eq!(cluster.release_server(0).unwrap().len(), 2);
        for worker in [&mut client, &mut idle] {
            assert_eq!(ids(worker), [1, 2]);
        }
        let again = idle.admin().create_table(&spec(2)).unwrap();
        assert_eq!(add(&mut idle, again), 2);
        let anew = client.admin().create_table(&spec(3)).unwrap();
        assert_eq!(add(&mut client, anew), 1);
        // No number is given again, so whoever has not heard that the first one was dropped does
        // not reach the new one.
        let pushed = idle.push(stale, &[3], &[1i64]).and_then(|pushed| idle.wait(pushed));
        assert!(matches!(pushed, Err(Error::TableDropped { .. })), "{:?}", pushed.err());
        assert_eq!(add(&mut client, anew), 2);
        drop((client, idle));
        cluster.shutdown().unwrap();
    });
}
