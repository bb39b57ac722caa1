//! Goal: the scheduler listens only to identities that lanes have proved, and nobody can speak for
//! another.
//! Method: requests made by hand to a scheduler, from strangers without the secret and from nodes
//! of the job that lie.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::{TIMEOUT, handles};
use caravan_kv::node::{SchedulerClient, open, run_worker};
use caravan_kv::{
    Apps, Cluster, ClusterConfig, Error, Launch, NodeConfig, SecretSource, Target, Van,
};
use caravan_van::wire::{Coding, Kind};
use caravan_van::{Arrival, Draft, Endpoint, Identity, Message, PeerId, Secret, Values, VanConfig};
use serde_json::{Value, json};

const SCHEDULER: u8 = 1;
const SERVER: u8 = 2;
const WORKER: u8 = 3;
const DRIVER: u8 = 4;
const GUEST: u8 = 5;

/// What a message of a session is: a request or an order, its answer, its refusal, and the wish to
/// go on with a session.
const ASK: u8 = 0;
const ANSWER: u8 = 1;
const REFUSE: u8 = 2;
const RESUME: u8 = 3;
const GONE: u8 = 4;

/// Bytes before each message and in each acknowledgement: the state from which it follows.
const STAMP_BYTES: usize = 16;

/// Settings of a job with a secret, whose nodes are soon counted as lost.
fn config(servers: usize, workers: usize) -> ClusterConfig {
    let mut config = ClusterConfig { servers, workers, ..ClusterConfig::default() };
    config.node.secret = SecretSource::Given(Secret::random());
    config.node.job = 7;
    config.node.heartbeat = Duration::from_millis(50);
    config.node.join_timeout = Duration::from_millis(300);
    config
}

/// What arrives on a lane.
#[derive(Debug, PartialEq)]
enum Heard {
    Answer(Value),
    Refused(String),
    /// The lane was closed.
    Closed,
}

/// A lane to the scheduler for arbitrary messages.
struct Lane {
    endpoint: Endpoint,
    scheduler: PeerId,
    /// The cluster that the scheduler has proved to belong to.
    cluster: u64,
    said: u64,
    asked: u64,
    /// The state of the scheduler that this has heard of.
    stamp: [u8; STAMP_BYTES],
}

impl Lane {
    /// Connects as `role` and `rank`; `None` if the lane is closed at once.
    fn open(scheduler: &SchedulerClient, node: &NodeConfig, identity: Identity) -> Option<Lane> {
        let van = VanConfig { identity, accepts: false, ..node.van_config(0) };
        let mut endpoint = Endpoint::new(open(Van::Tcp, &van).unwrap(), 0, van.credits);
        let peer = endpoint.connect(scheduler.address()).unwrap();
        let stamp = [0; STAMP_BYTES];
        let mut lane = Lane { endpoint, scheduler: peer, cluster: 0, said: 0, asked: 0, stamp };
        lane.cluster = lane.hear(|arrival, message| match (arrival, message) {
            (Arrival::Connected { hello, .. }, _) => Some(Some(hello.incarnation.get())),
            (Arrival::Lost { .. }, _) => Some(None),
            _ => None,
        })?;
        Some(lane)
    }

    fn hear<T>(&mut self, is_it: impl Fn(&Arrival, Option<&Message>) -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            self.endpoint.poll().unwrap();
            while let Some(arrival) = self.endpoint.take() {
                let message = self.endpoint.pop();
                let said = message.as_ref().filter(|message| message.kind() == Kind::Request);
                if let Some(said) = said {
                    let (to, number) = (self.scheduler, said.timestamp());
                    self.endpoint.lanes.reply(to, 0, number, &self.stamp).unwrap();
                }
                if let Some(it) = is_it(&arrival, message.as_ref()) {
                    return it;
                }
            }
            assert!(began.elapsed() < TIMEOUT, "nothing is heard");
            self.endpoint.wait(Duration::from_millis(1)).unwrap();
        }
    }

    /// Says the next thing.
    fn say(&mut self, speech: u8, of: u64, what: &Value) {
        self.said += 1;
        self.say_as(speech, (self.said, of), what);
    }

    /// Says something that has this number in its session.
    fn say_as(&mut self, speech: u8, (number, of): (u64, u64), what: &Value) {
        let text = [&self.stamp[..], what.to_string().as_bytes()].concat();
        let values = Values::Copied(&text);
        let message = Draft::new(Kind::Request);
        self.post(Draft { op: speech, timestamp: number, clock: of, values, ..message });
    }

    fn post(&mut self, draft: Draft<'_>) {
        self.endpoint.lanes.post(self.scheduler, draft, &mut Coding::plain()).unwrap();
        self.endpoint.wait(Duration::ZERO).unwrap(); // sends it
    }

    /// Sends a request without waiting for the answer; returns its number.
    fn begin(&mut self, what: &Value) -> u64 {
        self.asked += 1;
        self.say(ASK, self.asked, what);
        self.asked
    }

    fn ask(&mut self, what: &Value) -> Heard {
        let asked = self.begin(what);
        self.answer(asked)
    }

    /// The scheduler's answer to a request.
    fn answer(&mut self, asked: u64) -> Heard {
        self.hear(|arrival, message| match (arrival, message) {
            (_, Some(message))
                if is_said(message, &[ANSWER, REFUSE]) && message.clock() == asked =>
            {
                let text = said(message);
                Some(match message.op() {
                    REFUSE => Heard::Refused(text),
                    _ => Heard::Answer(serde_json::from_str(&text).unwrap()),
                })
            }
            (Arrival::Lost { .. }, _) => Some(Heard::Closed),
            _ => None,
        })
    }

    /// The number of the next task that the scheduler sends.
    fn task(&mut self) -> u64 {
        self.hear(|arrival, message| match (arrival, message) {
            (_, Some(message)) if is_said(message, &[ASK]) => Some(message.clock()),
            _ => None,
        })
    }
}

/// Whether a message is said in a session, and one of these.
fn is_said(message: &Message, speeches: &[u8]) -> bool {
    message.kind() == Kind::Request && speeches.contains(&message.op())
}

/// The text of a message.
fn said(message: &Message) -> String {
    String::from_utf8_lossy(&message.values()[STAMP_BYTES..]).into_owned()
}

/// The identity of a node that was just started.
fn node(role: u8, rank: Option<u32>) -> Identity {
    static STARTED: AtomicU64 = AtomicU64::new(1);
    Identity { role, rank, incarnation: STARTED.fetch_add(1, Ordering::Relaxed) }
}

fn barrier(name: &str) -> Value {
    json!({ "Post": { "Barrier": { "party": { "Group": 4 }, "name": name } } })
}

fn missing_at(name: &str) -> Value {
    json!({ "Post": { "Missing": { "party": { "Group": 4 }, "name": name } } })
}

fn join() -> Value {
    let vans = json!([{ "van": "tcp", "threads": { "Ok": ["127.0.0.1:1"] } }]);
    json!({ "Join": { "pid": 1, "beats": true, "vans": vans } })
}

/// A scheduler with one server and `workers` workers, all simulated by the test, with their
/// identities.
fn complete(workers: u32) -> (SchedulerClient, ClusterConfig, Vec<(Lane, Identity)>) {
    let mut config = config(1, workers as usize);
    config.node.heartbeat = Duration::from_millis(500);
    let scheduler = SchedulerClient::bind(&config).unwrap();
    let workers = (0..workers).map(|rank| node(WORKER, Some(rank)));
    let mut lanes = Vec::new();
    for identity in [node(SERVER, Some(0))].into_iter().chain(workers) {
        let mut lane = Lane::open(&scheduler, &config.node, identity).unwrap();
        lane.begin(&join());
        lanes.push((lane, identity));
    }
    for (lane, _) in &mut lanes {
        let heard = lane.answer(1);
        assert!(matches!(&heard, Heard::Answer(roster) if roster["van"] == "tcp"), "{heard:?}");
    }
    (scheduler, config, lanes)
}

/// What the scheduler orders next, if it is news of lost server threads.
fn lost_servers(lane: &mut Lane) -> Vec<u64> {
    lane.hear(|arrival, message| match (arrival, message) {
        (Arrival::Lost { error, .. }, _) => panic!("{error}"),
        (_, Some(message)) if is_said(message, &[ASK]) => {
            let order: Value = serde_json::from_str(&said(message)).unwrap();
            serde_json::from_value(order["LostServers"].clone()).ok()
        }
        _ => None,
    })
}

/// Losses are told once: of k lost servers a member and a driver hear k entries.
#[test]
fn each_loss_is_told_once() {
    let mut config = config(6, 1);
    config.node.server_losses_max = 6;
    config.node.join_timeout = TIMEOUT;
    let mut scheduler = SchedulerClient::bind(&config).unwrap();
    let mut join = join();
    join["Join"]["beats"] = json!(false);
    let servers = (0..6).map(|rank| node(SERVER, Some(rank)));
    let nodes = servers.chain([node(WORKER, Some(0))]);
    let mut lanes: Vec<Lane> = nodes
        .map(|identity| {
            let mut lane = Lane::open(&scheduler, &config.node, identity).unwrap();
            lane.begin(&join);
            lane
        })
        .collect();
    scheduler.gather(|| Ok(())).unwrap();
    let mut guest = Lane::open(&scheduler, &config.node, node(GUEST, None)).unwrap();
    let begin = json!({ "Begin": { "job": "watches", "visits": false } });
    assert_eq!(guest.ask(&begin), Heard::Answer(Value::Null));
    let losses = |known: usize| json!({ "Watch": { "lost": known, "events": 0 } });
    let told = |lost: &[u64]| {
        let news = json!({ "fatal": null, "servers": lost, "events": [], "cancelled": null });
        Heard::Answer(news)
    };
    let mut worker = lanes.remove(6);
    let mut stays = lanes.remove(1);
    // Not in the order of their ranks.
    let order = [4, 0, 5, 2, 3];
    let mut lanes: Vec<Option<Lane>> = lanes.into_iter().map(Some).collect();
    let mut heard = Vec::new();
    let mut watch = guest.begin(&losses(0));
    for (known, lost) in (1..).zip(order) {
        let place = if lost > 1 { lost - 1 } else { lost };
        drop(lanes[place as usize].take());
        let news = lost_servers(&mut worker);
        assert_eq!(lost_servers(&mut stays), news);
        heard.extend(news);
        assert_eq!(guest.answer(watch), told(&[lost]));
        watch = guest.begin(&losses(known));
    }
    assert_eq!(heard, order, "{} entries for 5 losses", heard.len());
    assert_eq!(guest.ask(&losses(2)), told(&[5, 2, 3]), "whoever knows less hears more");
    assert_eq!(guest.ask(&losses(0)), told(&order));
}

/// The nodes that the scheduler still waits for.
fn missing(scheduler: &mut SchedulerClient) -> String {
    match scheduler.gather(|| Ok(())) {
        Err(Error::Timeout { missing, .. }) => missing,
        other => panic!("{other:?}"),
    }
}

#[test]
fn only_nodes_of_the_job_get_a_lane() {
    let config = config(1, 1);
    let mut scheduler = SchedulerClient::bind(&config).unwrap();
    let with = |secret| NodeConfig { secret: SecretSource::Given(secret), ..config.node.clone() };
    for stranger in [
        with(Secret::random()),
        with(Secret::NONE),
        NodeConfig { job: 8, ..config.node.clone() },
        NodeConfig { encrypt: true, ..config.node.clone() },
    ] {
        let lane = Lane::open(&scheduler, &stranger, node(WORKER, Some(0)));
        assert!(lane.is_none(), "{stranger:?}");
    }
    for role in [0, SCHEDULER, DRIVER, 6, 255] {
        // It knows the secret but has no role that joins: its lane comes up, and all its requests
        // are refused.
        let lane = Lane::open(&scheduler, &config.node, node(role, None));
        let heard = lane.map(|mut lane| lane.ask(&join()));
        assert!(matches!(heard, None | Some(Heard::Closed)), "{role}: {heard:?}");
    }
    assert_eq!(missing(&mut scheduler), "server 0, worker 0");
}

#[test]
fn a_lane_has_one_seat_and_leaves_no_ghost() {
    let config = config(1, 2);
    let mut scheduler = SchedulerClient::bind(&config).unwrap();
    let mut twice = Lane::open(&scheduler, &config.node, node(WORKER, None)).unwrap();
    twice.begin(&join());
    assert_eq!(twice.ask(&join()), Heard::Closed);
    assert_eq!(missing(&mut scheduler), "server 0, worker 0, worker 1");
}

#[test]
fn a_seat_is_the_one_that_a_lane_has_proved() {
    let config = config(1, 2);
    let mut scheduler = SchedulerClient::bind(&config).unwrap();
    let mut first = Lane::open(&scheduler, &config.node, node(WORKER, Some(1))).unwrap();
    first.begin(&join());
    for (role, rank) in [(WORKER, 1), (WORKER, 2), (WORKER, u32::MAX - 1), (SERVER, 1)] {
        let mut other = Lane::open(&scheduler, &config.node, node(role, Some(rank))).unwrap();
        let heard = other.ask(&join());
        let Heard::Refused(why) = heard else { panic!("{heard:?}") };
        assert!(why.contains("no place for") && why.contains(&rank.to_string()), "{why}");
    }
    assert_eq!(missing(&mut scheduler), "server 0, worker 0");
}

#[test]
fn what_is_asked_too_early_or_makes_no_sense_closes_the_lane() {
    let config = config(1, 1);
    let mut scheduler = SchedulerClient::bind(&config).unwrap();
    for words in [
        barrier("early"),
        missing_at("early"),
        json!({ "Post": { "Request": { "id": 1, "to": { "Group": 7 }, "handler": "r",
            "command": 0, "body": "" } } }),
        json!({ "Post": { "Answer": { "number": 1, "outcome": { "Ok": "no base 64" } } } }),
        json!({ "Alive": {} }),
        json!("End"),
        json!({ "Run": { "app": "dbpg", "body": null } }),
        json!({ "Alive": { "role": "worker", "rank": 0 } }),
        json!(null),
    ] {
        for joins in [false, true] {
            let identity = node(WORKER, Some(0));
            let mut lane = Lane::open(&scheduler, &config.node, identity).unwrap();
            if joins {
                lane.begin(&join());
            }
            assert_eq!(lane.ask(&words), Heard::Closed, "{words}, {joins}");
        }
    }
    let speech =
        |speech, number| Draft { op: speech, timestamp: number, ..Draft::new(Kind::Request) };
    let drafts = [
        speech(ANSWER, 1),
        speech(REFUSE, 1),
        speech(99, 1),
        speech(ASK, 0),
        speech(ASK, 2),
        speech(ASK, u64::MAX),
        speech(RESUME, 1),
        Draft { values: Values::Copied(&[0xff; STAMP_BYTES + 1]), ..speech(ASK, 1) },
        Draft { values: Values::Copied(b"\"no stamp\""), ..speech(ASK, 1) },
        Draft::new(Kind::Reply),
        Draft::new(Kind::Failure),
    ];
    for (at, draft) in drafts.into_iter().enumerate() {
        let mut lane = Lane::open(&scheduler, &config.node, node(WORKER, Some(0))).unwrap();
        lane.post(draft);
        assert_eq!(lane.answer(1), Heard::Closed, "{at}");
    }
    assert_eq!(missing(&mut scheduler), "server 0, worker 0");
}

/// What a node says again is not done again.
#[test]
fn what_is_said_twice_is_heard_once() {
    let (_scheduler, _, mut lanes) = complete(2);
    let (mut worker, _) = lanes.remove(1);
    let waits = worker.begin(&barrier("a"));
    let again = (worker.said, waits);
    for _ in 0..3 {
        worker.say_as(ASK, again, &barrier("a"));
    }
    let (mut other, _) = lanes.remove(1);
    let met = Heard::Answer(json!({ "Asked": [] }));
    assert_eq!(other.ask(&barrier("a")), met);
    assert_eq!(worker.answer(waits), met);
    worker.say_as(ASK, again, &barrier("a"));
    assert!(matches!(worker.ask(&missing_at("a")), Heard::Refused(_)), "it waits no more");
}

/// A session is its node's: nobody else resumes it, and a node that was lost has none.
#[test]
fn a_session_is_resumed_by_its_node_alone() {
    let (mut scheduler, config, mut lanes) = complete(2);
    let resume = |identity: Identity| {
        let mut lane = Lane::open(&scheduler, &config.node, identity).unwrap();
        lane.say_as(RESUME, (0, 0), &json!({ "cluster": lane.cluster, "is_unheard": false }));
        lane
    };
    for stranger in [node(WORKER, Some(0)), node(GUEST, None)] {
        let mut stranger = resume(stranger);
        stranger.begin(&json!("nonsense")); // it does not wait
        let why = stranger.hear(|arrival, message| match (arrival, message) {
            (_, Some(message)) if is_said(message, &[GONE]) => Some(said(message)),
            (Arrival::Lost { .. }, _) => panic!("it is not told why"),
            _ => None,
        });
        assert!(why.contains("counted this node as lost"), "{why}");
    }
    // One of which nothing was acknowledged begins, whatever became of the scheduler before.
    let mut driver = Lane::open(&scheduler, &config.node, node(GUEST, None)).unwrap();
    driver.say_as(RESUME, (0, 0), &json!({ "cluster": 0, "is_unheard": true }));
    let begin = json!({ "Begin": { "job": "a job", "visits": false } });
    assert_eq!(driver.ask(&begin), Heard::Answer(Value::Null));
    drop(driver);
    // A node goes on where it was, on the new lane; the old one is closed.
    let (mut worker, identity) = lanes.remove(1);
    let waits = worker.begin(&barrier("a"));
    let mut missing = worker.ask(&missing_at("nobody's"));
    assert!(matches!(missing, Heard::Refused(_)));
    let mut resumed = resume(identity);
    (resumed.said, resumed.asked) = (worker.said, worker.asked);
    assert_eq!(worker.answer(0), Heard::Closed);
    let (mut other, _) = lanes.remove(1);
    let met = Heard::Answer(json!({ "Asked": [] }));
    assert_eq!(other.ask(&barrier("a")), met);
    assert_eq!(resumed.answer(waits), met);
    missing = resumed.ask(&missing_at("a"));
    assert!(matches!(missing, Heard::Refused(_)));
    scheduler.check_members().unwrap();
    // One whose lane breaks is lost at once, as long as the scheduler lives.
    drop(resumed);
    let error = scheduler.watch(|| true).unwrap_err().to_string();
    assert!(error.contains("worker 0"), "{error}");
}

#[test]
fn barriers_have_bounds() {
    let (mut scheduler, _, mut lanes) = complete(2);
    let scheduler = &mut scheduler;
    let (mut worker, _) = lanes.remove(1);
    // It waits at one barrier at a time, so that names do not pile up; the other members continue.
    let mut first = worker.begin(&barrier("a"));
    for name in ["b", "a", "b"] {
        let next = worker.begin(&barrier(name));
        let heard = worker.answer(first);
        assert!(matches!(&heard, Heard::Refused(why) if why.contains("no longer")), "{heard:?}");
        first = next;
    }
    let heard = worker.ask(&missing_at("a"));
    assert!(matches!(&heard, Heard::Refused(why) if why.contains("does not wait")), "{heard:?}");
    let heard = worker.ask(&missing_at("b"));
    assert_eq!(heard, Heard::Answer(json!({ "Missing": [{ "Worker": 1 }] })));
    assert!(matches!(worker.answer(first), Heard::Refused(_)));
    let heard = worker.ask(&missing_at("nobody's"));
    assert!(matches!(heard, Heard::Refused(_)), "{heard:?}");
    let waits = worker.begin(&barrier("c"));
    let (mut other, _) = lanes.remove(1);
    let met = Heard::Answer(json!({ "Asked": [] }));
    assert_eq!(other.ask(&barrier("c")), met);
    assert_eq!(worker.answer(waits), met);
    // A server is none of the workers.
    let (server, _) = &mut lanes[0];
    let heard = server.ask(&barrier("c"));
    assert!(matches!(&heard, Heard::Refused(why) if why.contains("none of workers")), "{heard:?}");
    let long = barrier(&"x".repeat(257));
    assert_eq!(other.ask(&long), Heard::Closed);
    let error = scheduler.check_members().unwrap_err().to_string();
    assert!(error.contains("worker 1") && error.contains("257 bytes"), "{error}");
}

#[test]
fn a_sign_of_life_counts_for_who_proved_it_alone() {
    let (mut scheduler, config, mut lanes) = complete(2);
    let (scheduler, node_config) = (&mut scheduler, &config.node);
    let alive = json!({ "Alive": {} });
    let identities: Vec<_> = lanes.iter().map(|(_, identity)| *identity).collect();
    // Another start of worker 0, a node of another rank or role, and one without a rank; then the
    // lane of the member itself.
    for liar in [
        node(WORKER, Some(0)),
        Identity { rank: Some(1), ..identities[1] },
        Identity { role: SERVER, ..identities[1] },
        Identity { rank: None, ..identities[1] },
    ] {
        let mut lane = Lane::open(scheduler, node_config, liar).unwrap();
        assert_eq!(lane.ask(&alive), Heard::Closed, "{liar:?}");
        scheduler.check_members().unwrap(); // a node that leaves affects nobody else
    }
    let mut hearts: Vec<_> = [identities[0], identities[2]]
        .map(|identity| Lane::open(scheduler, node_config, identity).unwrap())
        .into();
    // It says so as well when a loss has ended the cluster.
    let is_pulse = |heard: &Heard| matches!(heard, Heard::Answer(it) if it["ended"].is_null());
    // Heartbeats that end on one lane may continue on another.
    let mut brief = Lane::open(scheduler, node_config, identities[2]).unwrap();
    let heard = brief.ask(&alive);
    assert!(is_pulse(&heard), "{heard:?}");
    drop(brief);
    let began = Instant::now();
    let error = loop {
        for heart in &mut hearts {
            let heard = heart.ask(&alive);
            assert!(is_pulse(&heard), "{heard:?}");
        }
        if let Err(error) = scheduler.check_members() {
            break error.to_string();
        }
        assert!(began.elapsed() < TIMEOUT, "nobody misses worker 0");
    };
    assert!(error.contains("worker 0") && error.contains("no heartbeat"), "{error}");
    // A member's main lane is not for heartbeats.
    assert_eq!(lanes[2].0.ask(&alive), Heard::Closed);
}

#[test]
fn reports_count_from_who_runs_the_task_and_once() {
    let (mut scheduler, _, mut lanes) = complete(2);
    let task = scheduler.submit(Target::Worker(0), "app", &Value::Null).unwrap();
    let number = lanes[1].0.task();
    for (at, says) in [(2, "another's"), (0, "a server's"), (1, "its own"), (1, "its second")] {
        lanes[at].0.say(ANSWER, number, &json!({ "Ok": says }));
        lanes[at].0.say(ANSWER, number + 1, &json!({ "Ok": "nobody's task" }));
        for _ in 0..20 {
            lanes[at].0.endpoint.poll().unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(scheduler.wait(task).unwrap(), [json!("its own")]);
}

/// Nothing at all is an answer to news, and none to a task: nobody waits for its end.
#[test]
fn a_report_that_says_nothing_loses_the_worker() {
    let (mut scheduler, _, mut lanes) = complete(2);
    let task = scheduler.submit(Target::Worker(0), "app", &Value::Null).unwrap();
    let number = lanes[1].0.task();
    lanes[1].0.say(ANSWER, number, &Value::Null);
    let error = scheduler.wait(task).unwrap_err();
    assert!(matches!(&error, Error::NodeLost { node, .. } if node.contains("worker 0")), "{error}");
}

/// A worker's lane has room for a number of tasks; one more is an error, and room for the end
/// stays.
#[test]
fn a_worker_has_a_bounded_number_of_tasks() {
    let (mut scheduler, _, mut lanes) = complete(2);
    let mut submit = || scheduler.submit(Target::Worker(0), "app", &Value::Null);
    let tasks: Vec<_> = std::iter::from_fn(|| submit().ok()).take(1000).collect();
    assert_eq!(tasks.len(), 60);
    let error = submit().unwrap_err().to_string();
    assert!(error.contains("worker 0 has 60 tasks") && error.contains("wait for one"), "{error}");
    // Neither worker was sent a part of a task that was refused.
    assert!(scheduler.submit(Target::Workers, "app", &Value::Null).is_err());
    let others = scheduler.submit(Target::Worker(1), "app", &Value::Null).unwrap();
    let number = lanes[2].0.task();
    lanes[2].0.say(ANSWER, number, &json!({ "Ok": "it was the first" }));
    assert_eq!(scheduler.wait(others).unwrap(), [json!("it was the first")]);
    let numbers: Vec<_> = tasks.iter().map(|_| lanes[1].0.task()).collect();
    lanes[1].0.say(ANSWER, numbers[0], &json!({ "Ok": null }));
    assert_eq!(scheduler.wait(tasks[0]).unwrap(), [Value::Null]);
    assert!(matches!(scheduler.wait(tasks[0]), Err(Error::UnknownTimestamp { .. })), "once only");
    scheduler.submit(Target::Worker(0), "app", &Value::Null).unwrap();
}

#[test]
fn a_lane_that_says_nothing_is_closed() {
    let config = config(1, 1);
    let scheduler = SchedulerClient::bind(&config).unwrap();
    let mut silent = Lane::open(&scheduler, &config.node, node(WORKER, Some(0))).unwrap();
    let began = Instant::now();
    loop {
        silent.endpoint.poll().unwrap();
        let arrivals = std::iter::from_fn(|| silent.endpoint.take());
        if arrivals.into_iter().any(|arrival| matches!(arrival, Arrival::Lost { .. })) {
            break;
        }
        assert!(began.elapsed() < TIMEOUT, "it is kept for ever");
        silent.endpoint.wait(Duration::from_millis(5)).unwrap();
    }
}

/// A node of the job that is no scheduler cannot give orders.
#[test]
fn members_obey_a_scheduler_only() {
    let mut config = config(1, 1).node;
    let van = VanConfig { identity: node(SERVER, Some(0)), ..config.van_config(0) };
    let mut server = Endpoint::new(open(Van::Tcp, &van).unwrap(), 0, van.credits);
    config.scheduler = server.lanes.address().to_owned();
    let ended = AtomicBool::new(false);
    let error = std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let outcome = run_worker(&config, None, &Apps::default(), false);
            ended.store(true, Ordering::Relaxed);
            outcome
        });
        while !ended.load(Ordering::Relaxed) {
            server.poll().unwrap();
            while server.take().is_some() {}
            server.wait(Duration::from_millis(5)).unwrap();
        }
        worker.join().unwrap()
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("another node of this job"), "{error}");
}

#[test]
fn resets_do_not_keep_a_cluster_apart() {
    let mut config = config(2, 2);
    config.node.join_timeout = TIMEOUT;
    config.node.van = Van::Tcp;
    // The port is known before the scheduler is there, as on a cluster.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    config.node.scheduler = free.local_addr().unwrap().to_string();
    drop(free);
    let stop = Arc::new(AtomicBool::new(false));
    let vandals: Vec<_> = (0..2)
        .map(|_| {
            let (stop, address) = (stop.clone(), config.node.scheduler.clone());
            std::thread::spawn(move || {
                let mut resets = 0;
                while !stop.load(Ordering::Relaxed) {
                    match TcpStream::connect(&address) {
                        Ok(lane) => {
                            let lane = socket2::Socket::from(lane);
                            lane.set_linger(Some(Duration::ZERO)).unwrap();
                            resets += 1;
                        }
                        Err(_) => std::thread::sleep(Duration::from_millis(1)),
                    }
                }
                resets
            })
        })
        .collect();
    let cluster = Cluster::launch(&config, Launch::Threads(handles(), Apps::default()));
    stop.store(true, Ordering::Relaxed);
    let resets: u32 = vandals.into_iter().map(|vandal| vandal.join().unwrap()).sum();
    let mut cluster = cluster.unwrap();
    let task = cluster.submit(Target::Workers, "none", &Value::Null).unwrap();
    let outcome = cluster.wait(task); // by now all workers have found their servers
    assert!(matches!(&outcome, Err(Error::TaskFailed { .. })), "{outcome:?}");
    cluster.shutdown().unwrap();
    assert!(resets > 0, "the scheduler was never found");
}
