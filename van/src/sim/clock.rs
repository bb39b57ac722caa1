//! Virtual time: what is under way, who sleeps until when, and whose turn it is. Knows nothing of connections beyond the
//! port a packet goes to.
//!
//! Nodes are threads, but exactly one of them runs at any moment: the one that holds the turn. It gives the turn away only
//! when it waits; then time jumps to the next thing that happens, and whoever that concerns runs next. So the whole
//! simulation is one sequence of steps, the same for the same seed.

use std::cmp::Ordering;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::resume_unwind;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use super::faults::{Faults, Random};
use super::hosts::{Hosts, Pace};
use super::transport::{End, Link, Load, Packet};
use super::{Stopped, Unwind};

/// The thread that made the network: the first participant.
pub(super) const MAIN: usize = 0;

/// Shortest wait, so that a node that spins on `wait(0)` lets time pass.
pub(super) const WAIT_MIN: Duration = Duration::from_micros(1);

/// Polls in a row without a find or a wait after which a node is taken to spin for ever: time does not pass meanwhile.
const IDLE_POLLS_MAX: u64 = 10_000_000;

/// The simulation, as its threads share it.
pub(super) struct World(Mutex<Core>);

/// Everything that is simulated.
pub(super) struct Core {
    now: Duration,
    seed: u64,
    faults: Faults,
    hosts: Hosts,
    random: Random,
    /// A fingerprint of all steps so far.
    trace: DefaultHasher,
    under_way: BinaryHeap<Flight>,
    flights: u64,
    ports: Vec<Port>,
    participants: Vec<Participant>,
    /// Who wakes up by himself: when, a drawn number that orders those of the same instant, who.
    alarms: BTreeSet<(Duration, u64, usize)>,
    running: usize,
    cuts: Vec<Cut>,
    /// Set while everybody but [`MAIN`] is being stopped.
    stopping: bool,
}

/// Where packets for one transport pile up.
struct Port {
    owner: usize,
    state: PortState,
    inbox: VecDeque<(u32, Packet)>,
}

#[derive(Clone, Copy, PartialEq)]
enum PortState {
    Open,
    Closed,
    Crashed,
}

/// A node's thread, and its machine.
struct Participant {
    name: String,
    pace: Pace,
    card: Card,
    thread: Option<ThreadId>,
    turn: Arc<Condvar>,
    activity: Activity,
    /// Its entry in `alarms`.
    alarm: Option<(Duration, u64, usize)>,
    idle_polls: u64,
    /// Why it must not go on.
    stop: Option<Stopped>,
}

/// A node's network card: when each direction has nothing left to do.
#[derive(Default)]
struct Card {
    sends_until: Duration,
    receives_until: Duration,
}

/// What a participant does.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Activity {
    /// Holds the turn, or has not had it yet.
    Running,
    /// In [`Transport::wait`](crate::Transport::wait): an arrival ends it.
    Waiting,
    /// Lets time pass.
    Sleeping,
    /// Waits for another's end.
    Joining(usize),
    /// Has ended.
    Done,
}

/// A packet under way.
struct Flight {
    at: Duration,
    /// Drawn: orders arrivals of the same instant.
    tie: u64,
    number: u64,
    to: End,
    packet: Packet,
    /// How long it will keep the receiver's card busy, before that has begun with it.
    card: Option<Duration>,
}

/// No packets between two nodes until an instant.
struct Cut {
    between: [String; 2],
    until: Duration,
}

impl World {
    pub(super) fn new(seed: u64, faults: Faults, hosts: Hosts) -> World {
        let mut core = Core {
            now: Duration::ZERO,
            seed,
            faults,
            hosts,
            random: Random::new(seed),
            trace: DefaultHasher::new(),
            under_way: BinaryHeap::new(),
            flights: 0,
            ports: Vec::new(),
            participants: Vec::new(),
            alarms: BTreeSet::new(),
            running: MAIN,
            cuts: Vec::new(),
            stopping: false,
        };
        core.enter("main", None);
        core.participants[MAIN].thread = Some(std::thread::current().id());
        World(Mutex::new(core))
    }

    /// The core. A node may panic while it looks at it (a stuck simulation does), never while it changes it.
    pub(super) fn lock(&self) -> MutexGuard<'_, Core> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets others run until `activity` is over: until `timeout` has passed, or what it waits for has come. Who spins must
    /// give at least [`WAIT_MIN`].
    ///
    /// # Errors
    /// Says why the caller must not go on, if it has to stop.
    pub(super) fn pause(
        &self,
        mut core: MutexGuard<'_, Core>,
        activity: Activity,
        timeout: Duration,
    ) -> Result<(), Stopped> {
        let me = core.running();
        if let Some(stop) = &core.participants[me].stop {
            return Err(stop.clone());
        }
        core.participants[me].activity = activity;
        let at = core.now.saturating_add(timeout);
        if at < Duration::MAX {
            core.set_alarm(me, at);
        }
        let next = core.next();
        core.hand_to(next);
        let core = self.await_turn(core, me);
        core.participants[me].stop.clone().map_or(Ok(()), Err)
    }

    /// Ends the calling participant: unwinds a node, panics on [`MAIN`].
    ///
    /// # Errors
    /// The reason again when it unwinds already.
    pub(super) fn stop_here(&self, stopped: Stopped) -> Result<(), Stopped> {
        let me = self.lock().running();
        match stopped {
            stopped if std::thread::panicking() => Err(stopped),
            stopped if me == MAIN => panic!("{stopped}"),
            _ => resume_unwind(Box::new(Unwind)),
        }
    }

    fn await_turn<'a>(&self, mut core: MutexGuard<'a, Core>, me: usize) -> MutexGuard<'a, Core> {
        let turn = core.participants[me].turn.clone();
        while core.running != me {
            core = turn.wait(core).unwrap_or_else(PoisonError::into_inner);
        }
        core.participants[me].activity = Activity::Running;
        core.participants[me].idle_polls = 0;
        core
    }

    /// The first turn of a new participant, in its thread.
    ///
    /// # Errors
    /// Says why it must not even start.
    pub(super) fn first_turn(&self, me: usize) -> Result<(), Stopped> {
        let mut core = self.await_turn(self.lock(), me);
        core.participants[me].thread = Some(std::thread::current().id());
        core.participants[me].stop.clone().map_or(Ok(()), Err)
    }

    /// The last act of a participant: `stopped` says why when it did not end by itself.
    pub(super) fn last_turn(&self, me: usize, stopped: Option<Stopped>) {
        let mut core = self.lock();
        if let Some(Stopped::Panicked { .. }) = &stopped {
            core.stop_all(stopped.as_ref());
        }
        core.participants[me].stop = stopped;
        core.participants[me].activity = Activity::Done;
        core.clear_alarm(me);
        let now = core.now;
        for id in 0..core.participants.len() {
            if core.participants[id].activity == Activity::Joining(me) {
                core.set_alarm(id, now);
            }
        }
        let next = core.next();
        core.hand_to(next);
    }

    /// Stops everybody else and returns when they have ended. For the end of the network, on its own thread.
    pub(super) fn end(&self) {
        let mut core = self.lock();
        if core.running != MAIN {
            return;
        }
        core.stop_all(None);
        let next = core.next();
        core.hand_to(next);
        let mut core = self.await_turn(core, MAIN);
        core.stopping = false;
    }
}

impl Core {
    pub(super) fn now(&self) -> Duration {
        self.now
    }

    pub(super) fn trace(&self) -> u64 {
        self.trace.finish()
    }

    /// Who holds the turn, which must be the calling thread.
    pub(super) fn running(&self) -> usize {
        let participant = &self.participants[self.running];
        assert!(
            participant.thread == Some(std::thread::current().id()),
            "a simulated network was used from a thread it does not know while {} runs; start nodes with Network::spawn",
            participant.name
        );
        self.running
    }

    /// Why the running participant must not go on.
    pub(super) fn stop(&self) -> Option<&Stopped> {
        self.participants[self.running()].stop.as_ref()
    }

    /// Why `id` did not end by itself; `None` while it runs.
    pub(super) fn stop_of(&self, id: usize) -> Option<Stopped> {
        self.participants[id].stop.clone()
    }

    pub(super) fn is_done(&self, id: usize) -> bool {
        self.participants[id].activity == Activity::Done
    }

    /// Adds a participant that runs as soon as the turn comes to it.
    pub(super) fn add_participant(&mut self, name: &str) -> usize {
        let stop = self.stop().cloned();
        let id = self.enter(name, stop);
        self.set_alarm(id, self.now);
        id
    }

    fn enter(&mut self, name: &str, stop: Option<Stopped>) -> usize {
        let id = self.participants.len();
        let pace = Pace::new(self.seed, id, &self.hosts.stragglers);
        self.participants.push(Participant::new(name, pace, stop));
        id
    }

    /// How long the running participant takes to compute what `work` would take a node at full speed.
    pub(super) fn takes(&mut self, work: Duration) -> Duration {
        let (me, now) = (self.running(), self.now);
        self.participants[me].pace.takes(&self.hosts, now, work)
    }

    /// How long a processor is busy with a message of `bytes`.
    pub(super) fn handling(&self, bytes: usize) -> Duration {
        self.hosts.handling(bytes)
    }

    /// The number of the last participant called `name`, if it still runs.
    fn living(&self, name: &str) -> Option<usize> {
        let id = self.participants.iter().rposition(|p| p.name == name)?;
        (!self.is_done(id)).then_some(id)
    }

    /// Makes the node called `name` stop where it waits. False when there is no such node.
    pub(super) fn crash(&mut self, name: &str) -> bool {
        let Some(id) = self.living(name).filter(|&id| id != MAIN) else { return false };
        self.participants[id].stop = Some(Stopped::Crashed { node: name.to_owned() });
        self.set_alarm(id, self.now);
        true
    }

    /// Holds back packets between two nodes for `duration`.
    pub(super) fn cut(&mut self, one: &str, other: &str, duration: Duration) {
        let until = self.now.saturating_add(duration);
        self.cuts.push(Cut { between: [one.to_owned(), other.to_owned()], until });
    }

    /// Counts a poll that found nothing.
    ///
    /// # Panics
    /// When that has become a habit.
    pub(super) fn polled_in_vain(&mut self) {
        let participant = &mut self.participants[self.running];
        participant.idle_polls += 1;
        assert!(
            participant.idle_polls < IDLE_POLLS_MAX,
            "{} polls in vain and never waits, so that simulated time stands still; call Transport::wait in between",
            participant.name
        );
    }

    /// Opens a port for the running participant.
    pub(super) fn open_port(&mut self) -> u32 {
        let number = u32::try_from(self.ports.len()).expect("fewer transports than 2^32");
        let owner = self.running();
        self.ports.push(Port { owner, state: PortState::Open, inbox: VecDeque::new() });
        number
    }

    /// Closes a port; packets to it, also those it has not taken yet, come back. True when its node has crashed.
    pub(super) fn close_port(&mut self, number: u32) -> bool {
        let port = &mut self.ports[number as usize];
        let crashed = self.participants[port.owner].stop.is_some();
        port.state = if crashed { PortState::Crashed } else { PortState::Closed };
        for (peer, packet) in std::mem::take(&mut port.inbox) {
            self.bounce(End { port: number, peer }, packet);
        }
        crashed
    }

    /// What has arrived at a port: the peer it is for, and the packet.
    pub(super) fn take(&mut self, port: u32) -> Option<(u32, Packet)> {
        self.ports[port as usize].inbox.pop_front()
    }

    /// Whether something has arrived at a port.
    pub(super) fn has_arrivals(&self, port: u32) -> bool {
        !self.ports[port as usize].inbox.is_empty()
    }

    /// How long until a silent peer is reported.
    pub(super) fn detection(&self) -> Duration {
        self.faults.detection
    }

    /// Puts a packet of `load` on its way behind those before it on `link`; returns when it has left.
    pub(super) fn carry(
        &mut self,
        link: &mut Link,
        from: End,
        to: End,
        load: Load,
        packet: Packet,
    ) -> Duration {
        if link.broken {
            return self.now;
        }
        let ready_at = self.now.saturating_add(load.after);
        let card = if load.metered { self.hosts.passing(load.bytes) } else { None };
        let mut left_at =
            ready_at.max(link.free_at).saturating_add(self.faults.sending(load.bytes));
        if let Some(card) = card {
            let owner = self.ports[from.port as usize].owner;
            let sends_until = &mut self.participants[owner].card.sends_until;
            *sends_until = ready_at.max(*sends_until).saturating_add(card);
            left_at = left_at.max(*sends_until);
        }
        link.free_at = left_at;
        let heals_at = self.cut_until(from, to);
        if heals_at > self.now.saturating_add(self.faults.detection) {
            link.broken = true;
            let noticed_at = self.now.saturating_add(self.faults.detection);
            let reason = format!("nothing came through for {:?}", self.faults.detection);
            let closed = Packet::Close(reason.clone());
            self.launch(noticed_at.max(link.after_last()), to, closed, None);
            self.launch(noticed_at, from, Packet::Close(reason), None);
            return self.now;
        }
        let flight = self.faults.flight(&mut self.random);
        let at = left_at.max(heals_at).saturating_add(flight).max(link.after_last());
        link.last_arrival = at;
        self.launch(at, to, packet, card);
        left_at
    }

    /// When the last cut between two ports' owners ends; the start of time when there is none.
    fn cut_until(&mut self, from: End, to: End) -> Duration {
        let now = self.now;
        self.cuts.retain(|cut| cut.until > now);
        let Some(to) = self.ports.get(to.port as usize) else { return Duration::ZERO };
        let name = |port: &Port| &self.participants[port.owner].name;
        let (from, to) = (name(&self.ports[from.port as usize]), name(to));
        let between = |cut: &&Cut| cut.between.contains(from) && cut.between.contains(to);
        self.cuts.iter().filter(between).map(|cut| cut.until).max().unwrap_or_default()
    }

    fn launch(&mut self, at: Duration, to: End, packet: Packet, card: Option<Duration>) {
        self.flights += 1;
        let (tie, number) = (self.random.next(), self.flights);
        self.under_way.push(Flight { at, tie, number, to, packet, card });
    }

    /// Answers a packet for a port that is gone, if its sender expects one.
    fn bounce(&mut self, to: End, packet: Packet) {
        let (Packet::Connect { from, .. } | Packet::Accept { from, .. }) = packet else { return };
        let crashed =
            self.ports.get(to.port as usize).is_some_and(|p| p.state == PortState::Crashed);
        let delay = if crashed { self.faults.detection } else { Duration::ZERO };
        let flight = self.faults.flight(&mut self.random);
        let at = self.now.saturating_add(delay).saturating_add(flight);
        self.launch(at, from, Packet::Close(format!("nobody is at sim:{}", to.port)), None);
    }

    fn set_alarm(&mut self, id: usize, at: Duration) {
        self.clear_alarm(id);
        let alarm = (at, self.random.next(), id);
        self.participants[id].alarm = Some(alarm);
        self.alarms.insert(alarm);
    }

    fn clear_alarm(&mut self, id: usize) {
        if let Some(alarm) = self.participants[id].alarm.take() {
            self.alarms.remove(&alarm);
        }
    }

    fn hand_to(&mut self, id: usize) {
        self.clear_alarm(id);
        self.running = id;
        self.participants[id].turn.notify_one();
    }

    /// Lets time pass until somebody can go on: who.
    fn next(&mut self) -> usize {
        while !self.stopping {
            let arrival = self.under_way.peek().map(|flight| (flight.at, flight.tie));
            let alarm = self.alarms.first().map(|&(at, tie, _)| (at, tie));
            let woken = match (arrival, alarm) {
                (None, None) => {
                    self.stop_all(Some(&self.stuck()));
                    break;
                }
                (Some(arrival), alarm) if alarm.is_none_or(|alarm| arrival < alarm) => {
                    self.arrive()
                }
                _ => self.alarms.pop_first().map(|(at, _, id)| {
                    self.now = self.now.max(at);
                    id
                }),
            };
            if let Some(id) = woken {
                (self.now, id).hash(&mut self.trace);
                return id;
            }
        }
        let others = MAIN + 1..self.participants.len();
        others.into_iter().find(|&id| !self.is_done(id)).unwrap_or(MAIN)
    }

    /// Puts the next arrival into its port; returns whom that wakes.
    fn arrive(&mut self) -> Option<usize> {
        let Flight { at, to, packet, card, .. } = self.under_way.pop()?;
        self.now = self.now.max(at);
        if let (Some(card), Some(port)) = (card, self.ports.get(to.port as usize)) {
            // Its last byte would be here now if the card had nothing else to do.
            let receives_until = &mut self.participants[port.owner].card.receives_until;
            *receives_until = at.max(receives_until.saturating_add(card));
            let placed_at = *receives_until;
            self.launch(placed_at, to, packet, None);
            return None;
        }
        (self.now, to.port, to.peer, packet.fingerprint()).hash(&mut self.trace);
        match self.ports.get_mut(to.port as usize) {
            Some(port) if port.state == PortState::Open => {
                port.inbox.push_back((to.peer, packet));
                let owner = port.owner;
                (self.participants[owner].activity == Activity::Waiting).then_some(owner)
            }
            _ => {
                self.bounce(to, packet);
                None
            }
        }
    }

    fn stuck(&self) -> Stopped {
        let living = self.participants.iter().filter(|p| p.activity != Activity::Done);
        let waiting: Vec<String> = living
            .map(|p| match p.activity {
                Activity::Joining(id) => {
                    format!("{} for the end of {}", p.name, self.participants[id].name)
                }
                _ => format!("{} for a message", p.name),
            })
            .collect();
        Stopped::Stuck { now: self.now, waiting: waiting.join(", ") }
    }

    /// From now on everybody who gets the turn stops, [`MAIN`] last and only if there is a reason.
    fn stop_all(&mut self, reason: Option<&Stopped>) {
        self.stopping = true;
        for (id, participant) in self.participants.iter_mut().enumerate() {
            let ended = || Stopped::Ended { node: participant.name.clone() };
            if participant.activity != Activity::Done && participant.stop.is_none() {
                participant.stop = match reason {
                    None if id == MAIN => None,
                    reason => Some(reason.cloned().unwrap_or_else(ended)),
                };
            }
        }
    }
}

impl Participant {
    fn new(name: &str, pace: Pace, stop: Option<Stopped>) -> Participant {
        Participant {
            name: name.to_owned(),
            pace,
            card: Card::default(),
            thread: None,
            turn: Arc::new(Condvar::new()),
            activity: Activity::Running,
            alarm: None,
            idle_polls: 0,
            stop,
        }
    }
}

impl Flight {
    fn key(&self) -> (Duration, u64, u64) {
        (self.at, self.tie, self.number)
    }
}

impl PartialEq for Flight {
    fn eq(&self, other: &Flight) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Flight {}

impl PartialOrd for Flight {
    fn partial_cmp(&self, other: &Flight) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The next to arrive is the greatest: a [`BinaryHeap`] gives the greatest first.
impl Ord for Flight {
    fn cmp(&self, other: &Flight) -> Ordering {
        other.key().cmp(&self.key())
    }
}
