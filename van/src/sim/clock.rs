//! Virtual time and turns. Packets in flight are in `clock/flights.rs`.
//!
//! Nodes are threads, but exactly one runs at any moment: the one that holds the turn. It gives the
//! turn away only when it waits; then time jumps to the next event, and the node of that event runs
//! next. So the whole simulation is one sequence of steps, the same for the same seed.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::resume_unwind;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use super::faults::{Faults, Random};
use super::hosts::{Hosts, Pace};
use super::{Stopped, Unwind};
use flights::{Card, Cut, Flight, Port, SlowWire};

mod flights;

/// The thread that made the network: the first participant.
pub(super) const MAIN: usize = 0;

/// Shortest wait, so that time passes even for a node that spins on `wait(0)`.
pub(super) const WAIT_MIN: Duration = Duration::from_micros(1);

/// Longer waits have no end.
const FOREVER: Duration = Duration::from_secs(1 << 40);

/// Empty polls in a row, without a wait, after which a node is assumed to spin forever: polls take
/// no simulated time.
const IDLE_POLLS_MAX: u64 = 10_000_000;

/// The simulation, shared by its threads.
pub(super) struct World(Mutex<Core>);

/// The state of the simulation.
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
    /// By port, the one that has taken over its address.
    successors: BTreeMap<u32, u32>,
    /// Numbers given out.
    numbers: u64,
    participants: Vec<Participant>,
    /// Pending wake-ups: time, a random number that orders those of the same instant, participant.
    alarms: BTreeSet<(Duration, u64, usize)>,
    running: usize,
    cuts: Vec<Cut>,
    slow_wires: Vec<SlowWire>,
    /// True while all participants but [`MAIN`] are being stopped.
    stopping: bool,
}

/// A node's thread and machine.
struct Participant {
    name: String,
    /// The participant whose machine it runs on: itself, or the node that it is a thread of.
    machine: usize,
    pace: Pace,
    /// The clock of its machine, if it is the first there.
    hands: Hands,
    card: Card,
    /// Parked while others run; known from its first turn on.
    thread: Option<Thread>,
    activity: Activity,
    /// Its entry in `alarms`.
    alarm: Option<(Duration, u64, usize)>,
    idle_polls: u64,
    /// It gets no turn before this time.
    frozen_until: Duration,
    /// Why it must stop.
    stop: Option<Stopped>,
}

/// What a participant is doing.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Activity {
    /// Holds the turn, or has not had it yet.
    Running,
    /// In [`Transport::wait`](crate::Transport::wait): an arrival ends it.
    Waiting,
    /// Lets time pass; nothing wakes it early.
    Sleeping,
    /// Waits until this participant ends.
    Joining(usize),
    /// Has ended.
    Done,
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
            successors: BTreeMap::new(),
            numbers: 0,
            participants: Vec::new(),
            alarms: BTreeSet::new(),
            running: MAIN,
            cuts: Vec::new(),
            slow_wires: Vec::new(),
            stopping: false,
        };
        core.enter("main", MAIN, None);
        core.participants[MAIN].thread = Some(thread::current());
        World(Mutex::new(core))
    }

    /// Locks the state. A poisoned lock is fine: a node may panic while it reads the state (a stuck
    /// simulation does), never while it changes it.
    pub(super) fn lock(&self) -> MutexGuard<'_, Core> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets others run until `activity` is over: after `timeout`, or when what it waits for has
    /// come. A caller that spins must pass at least [`WAIT_MIN`].
    ///
    /// # Errors
    /// The reason, if the caller must stop.
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
        pass_turn(core);
        let core = self.await_turn(me);
        core.participants[me].stop.clone().map_or(Ok(()), Err)
    }

    /// Stops the calling participant: unwinds a node, panics on [`MAIN`].
    ///
    /// # Errors
    /// The reason again if it already unwinds.
    pub(super) fn stop_here(&self, stopped: Stopped) -> Result<(), Stopped> {
        let me = self.lock().running();
        match stopped {
            stopped if std::thread::panicking() => Err(stopped),
            stopped if me == MAIN => panic!("{stopped}"),
            _ => resume_unwind(Box::new(Unwind)),
        }
    }

    fn await_turn(&self, me: usize) -> MutexGuard<'_, Core> {
        loop {
            let mut core = self.lock();
            if core.running == me {
                core.participants[me].activity = Activity::Running;
                core.participants[me].idle_polls = 0;
                return core;
            }
            drop(core);
            thread::park();
        }
    }

    /// Waits for the first turn of a new participant, in its thread.
    ///
    /// # Errors
    /// The reason, if it must not start.
    pub(super) fn first_turn(&self, me: usize) -> Result<(), Stopped> {
        self.lock().participants[me].thread = Some(thread::current());
        let core = self.await_turn(me);
        core.participants[me].stop.clone().map_or(Ok(()), Err)
    }

    /// Ends a participant; `stopped` is the reason if it did not end by itself.
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
        pass_turn(core);
    }

    /// Lets time pass for the calling node, whatever arrives meanwhile.
    ///
    /// # Errors
    /// As [`World::carry_on`].
    pub(super) fn sleep(&self, time: Duration) -> crate::Result<()> {
        self.carry_on(self.pause(self.lock(), Activity::Sleeping, time))
    }

    /// Goes on after a pause.
    ///
    /// # Errors
    /// Why the node must not, if its thread unwinds already.
    pub(super) fn carry_on(&self, went: Result<(), Stopped>) -> crate::Result<()> {
        went.or_else(|stopped| self.stop_here(stopped)).map_err(|stopped| stopped.as_error())
    }

    /// Stops all other participants and returns when they have ended. Called at the end of the
    /// network, on its own thread.
    pub(super) fn end(&self) {
        let mut core = self.lock();
        if core.running != MAIN {
            return;
        }
        core.stop_all(None);
        pass_turn(core);
        self.await_turn(MAIN).stopping = false;
    }
}

/// Hands the turn to the participant of the next event. Its thread is woken only when the state is
/// unlocked, so that it need not wait for the lock; one that has yet to begin looks by itself.
fn pass_turn(mut core: MutexGuard<'_, Core>) {
    let next = core.next();
    core.clear_alarm(next);
    core.running = next;
    let thread = core.participants[next].thread.clone();
    drop(core);
    if let Some(thread) = thread {
        thread.unpark();
    }
}

impl Core {
    pub(super) fn now(&self) -> Duration {
        self.now
    }

    /// The time on the clock of the running participant's machine.
    pub(super) fn local_now(&self) -> Duration {
        self.hands().at(self.now)
    }

    /// How long a time on that clock takes.
    pub(super) fn lasts(&self, time: Duration) -> Duration {
        self.hands().lasts(time)
    }

    fn hands(&self) -> &Hands {
        &self.participants[self.participants[self.running].machine].hands
    }

    /// Makes the clock of the node called `name` run `rate` times as fast from now on. False if
    /// there is no such node.
    pub(super) fn skew(&mut self, name: &str, rate: f64) -> bool {
        let Some(id) = self.living(name) else { return false };
        let machine = self.participants[id].machine;
        let hands = &mut self.participants[machine].hands;
        *hands = Hands { set_at: self.now, showed: hands.at(self.now), rate };
        true
    }

    pub(super) fn trace(&self) -> u64 {
        self.trace.finish()
    }

    /// The participant that holds the turn, which must be the calling thread.
    pub(super) fn running(&self) -> usize {
        let participant = &self.participants[self.running];
        assert!(
            participant.thread.as_ref().map(Thread::id) == Some(thread::current().id()),
            "a simulated network was used from a thread it does not know while {} runs; start nodes with Network::spawn",
            participant.name
        );
        self.running
    }

    /// Why the running participant must stop.
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

    /// Adds a participant with a machine of its own, which runs once it gets the turn.
    pub(super) fn add_participant(&mut self, name: &str) -> usize {
        self.add(name, self.participants.len())
    }

    /// As [`Core::add_participant`], on the machine of the running participant.
    pub(super) fn add_thread(&mut self, name: &str) -> usize {
        self.add(name, self.participants[self.running()].machine)
    }

    fn add(&mut self, name: &str, machine: usize) -> usize {
        let stop = self.stop().cloned();
        let id = self.enter(name, machine, stop);
        self.set_alarm(id, self.now);
        id
    }

    fn enter(&mut self, name: &str, machine: usize, stop: Option<Stopped>) -> usize {
        let id = self.participants.len();
        let pace = Pace::new(self.seed, machine, &self.hosts.stragglers);
        self.participants.push(Participant::new(name, machine, pace, stop));
        id
    }

    /// The name of the machine of participant `id`.
    fn machine_of(&self, id: usize) -> &String {
        &self.participants[self.participants[id].machine].name
    }

    /// How long `work`, given at full speed, takes the running participant.
    pub(super) fn takes(&mut self, work: Duration) -> Duration {
        let me = self.running();
        let now = self.now;
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

    /// Stops all threads of the node called `name` where they wait. False if there is no such node.
    pub(super) fn crash(&mut self, name: &str) -> bool {
        let threads = self.threads_of(name);
        for &id in &threads {
            let node = self.participants[id].name.clone();
            self.participants[id].stop = Some(Stopped::Crashed { node });
            self.set_alarm(id, self.now);
        }
        !threads.is_empty()
    }

    /// Gives the threads of the node called `name` no turn for `duration`. False if there is no
    /// such node.
    pub(super) fn freeze(&mut self, name: &str, duration: Duration) -> bool {
        let until = self.now.saturating_add(duration);
        let threads = self.threads_of(name);
        threads.iter().for_each(|&id| self.participants[id].frozen_until = until);
        !threads.is_empty()
    }

    /// The living participants on the machine of the node called `name`; none on that of [`MAIN`].
    fn threads_of(&self, name: &str) -> Vec<usize> {
        let machine = self.living(name).map(|id| self.participants[id].machine);
        let is_one =
            |&id: &usize| Some(self.participants[id].machine) == machine && !self.is_done(id);
        let all = if machine == Some(MAIN) { 0..0 } else { 0..self.participants.len() };
        all.filter(is_one).collect()
    }

    /// Counts an empty poll.
    ///
    /// # Panics
    /// After too many without a wait.
    pub(super) fn polled_in_vain(&mut self) {
        let participant = &mut self.participants[self.running];
        participant.idle_polls += 1;
        assert!(
            participant.idle_polls < IDLE_POLLS_MAX,
            "{} polls in vain and never waits, so that simulated time stands still; call Transport::wait in between",
            participant.name
        );
    }

    /// A number that was never given out before.
    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Time until a silent peer is reported lost.
    pub(super) fn detection(&self) -> Duration {
        self.faults.detection
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

    /// Advances time to the next event and returns the participant that runs next.
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
                let Participant { frozen_until, ref stop, .. } = self.participants[id];
                if frozen_until > self.now && stop.is_none() {
                    self.set_alarm(id, frozen_until);
                    continue;
                }
                (self.now, id).hash(&mut self.trace);
                return id;
            }
        }
        let others = MAIN + 1..self.participants.len();
        others.into_iter().find(|&id| !self.is_done(id)).unwrap_or(MAIN)
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

    /// Stops every participant when it next gets the turn: [`MAIN`] last, and only if there is a
    /// reason.
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

/// A clock that may run too fast or too slow.
struct Hands {
    /// When it was set last, what it showed then, and how much faster than time it runs since.
    set_at: Duration,
    showed: Duration,
    rate: f64,
}

impl Default for Hands {
    fn default() -> Self {
        Hands { set_at: Duration::ZERO, showed: Duration::ZERO, rate: 1.0 }
    }
}

impl Hands {
    fn at(&self, now: Duration) -> Duration {
        let since = now.saturating_sub(self.set_at);
        self.showed + if self.is_right() { since } else { since.mul_f64(self.rate) }
    }

    fn lasts(&self, time: Duration) -> Duration {
        match self.is_right() || time >= FOREVER {
            true => time,
            false => time.div_f64(self.rate),
        }
    }

    fn is_right(&self) -> bool {
        self.rate.to_bits() == 1.0_f64.to_bits()
    }
}

impl Participant {
    fn new(name: &str, machine: usize, pace: Pace, stop: Option<Stopped>) -> Participant {
        Participant {
            name: name.to_owned(),
            machine,
            pace,
            hands: Hands::default(),
            card: Card::default(),
            thread: None,
            activity: Activity::Running,
            alarm: None,
            idle_polls: 0,
            frozen_until: Duration::ZERO,
            stop,
        }
    }
}
