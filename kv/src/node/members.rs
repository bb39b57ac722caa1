//! Who is in the cluster: which lane has proved to be whose, who has which seat, and who was not heard of for too long.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use caravan_van::PeerId;
use caravan_van::wire::Hello;

use super::control::{Join, Role};
use crate::config::ClusterConfig;
use crate::error::{Error, Result};

/// A node counts as lost after so many heartbeats without a sign of life.
pub(crate) const HEARTBEATS: u32 = 5;

/// A place in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Seat {
    pub(crate) role: Role,
    pub(crate) rank: usize,
}

impl fmt::Display for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role, self.rank)
    }
}

/// Why a lane of the control plane is closed by the scheduler.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Misdeed {
    /// Neither server nor worker.
    #[error("role {0} has no business with the scheduler")]
    Role(u8),
    /// More than one seat for one lane.
    #[error("it asked to join on a lane that is {0}'s already")]
    SecondJoin(Seat),
    /// Something only a member may ask, when all are in.
    #[error("it asked for {0} before all had joined")]
    NotJoined(&'static str),
    /// A sign of life on a lane that does not belong to a member.
    #[error("it gave signs of life for a node that it is not")]
    NotAlive,
    /// A name nobody would give.
    #[error("a barrier's name has {0} bytes; it may have {NAME_BYTES_MAX}", NAME_BYTES_MAX = super::barriers::NAME_BYTES_MAX)]
    LongName(usize),
    /// An answer that says neither yes nor no.
    #[error("it sent a failure, and members report")]
    Failure,
    /// A lane that is used for nothing.
    #[error("it said nothing for {:.1} s", .0.as_secs_f64())]
    Silent(Duration),
    /// What cannot be read.
    #[error(transparent)]
    Control(#[from] serde_json::Error),
    /// What cannot be answered.
    #[error(transparent)]
    Answer(#[from] Error),
}

/// A node that has a seat.
pub(crate) struct Member {
    /// Its lane, as long as it is not lost.
    pub(crate) peer: PeerId,
    /// Which request asked for the seat.
    pub(crate) joined_as: u64,
    /// What it said of itself; of the vans only the chosen one when that is known.
    pub(crate) said: Join,
    pub(crate) lost: Option<String>,
    incarnation: u64,
    /// When it last gave a sign of life, in time listened.
    seen: Duration,
}

impl Member {
    /// Where its threads listen, for the first of its vans that works.
    pub(crate) fn threads(&self) -> &[String] {
        let mut vans = self.said.vans.iter();
        vans.find_map(|van| van.threads.as_deref().ok()).unwrap_or_default()
    }
}

/// A connection, and what it is used for.
struct Lane {
    role: Role,
    rank: Option<usize>,
    incarnation: u64,
    opened: Duration,
    used: Used,
}

#[derive(Clone, Copy)]
enum Used {
    Nothing,
    /// It is this member's.
    Member(Seat),
    /// This member gives signs of life on it.
    Heart(Seat),
}

/// All members and lanes.
pub(crate) struct Members {
    sizes: [(Role, usize); 2],
    heartbeat: Duration,
    seats: BTreeMap<Seat, Member>,
    lanes: HashMap<PeerId, Lane>,
    /// Whether all have joined; before that, who leaves makes room for another.
    complete: bool,
    /// How long the scheduler has listened, and when it last did.
    listened: Duration,
    looked: Duration,
    /// When it last looked for those that are lost, in time listened.
    checked: Duration,
}

impl Members {
    /// Nobody yet, at this time.
    pub(crate) fn new(config: &ClusterConfig, now: Duration) -> Members {
        Members {
            sizes: [(Role::Server, config.servers), (Role::Worker, config.workers)],
            heartbeat: config.node.heartbeat,
            seats: BTreeMap::new(),
            lanes: HashMap::new(),
            complete: false,
            listened: Duration::ZERO,
            looked: now,
            checked: Duration::ZERO,
        }
    }

    /// Takes note that the scheduler listens. A pause in which it did not counts as one heartbeat: nobody is silent for that.
    pub(crate) fn listen(&mut self, now: Duration) {
        self.listened += now.saturating_sub(self.looked).min(self.heartbeat);
        self.looked = now;
    }

    /// Enters a lane and who it has proved to be.
    ///
    /// # Errors
    /// When that is nobody who belongs here.
    pub(crate) fn connected(&mut self, peer: PeerId, hello: &Hello) -> Result<(), Misdeed> {
        let role = Role::of(hello.role).ok_or(Misdeed::Role(hello.role))?;
        let rank = Some(hello.rank.get()).filter(|rank| *rank != Hello::NO_RANK);
        let lane = Lane {
            role,
            rank: rank.map(|rank| rank as usize),
            incarnation: hello.incarnation.get(),
            opened: self.listened,
            used: Used::Nothing,
        };
        self.lanes.insert(peer, lane);
        Ok(())
    }

    /// Gives a node the seat that its lane has proved it wants, or the first that is free; the inner error says why there is none.
    ///
    /// # Errors
    /// When the lane has one already, or gives signs of life.
    pub(crate) fn join(
        &mut self,
        peer: PeerId,
        joined_as: u64,
        said: Join,
    ) -> Result<Result<Seat>, Misdeed> {
        let lane = self.lanes.get_mut(&peer).ok_or(Misdeed::NotJoined("a seat"))?;
        if let Used::Member(seat) | Used::Heart(seat) = lane.used {
            return Err(Misdeed::SecondJoin(seat));
        }
        let Lane { role, rank, incarnation, .. } = *lane;
        let Some(seat) = self.free_seat(role, rank) else {
            let wish = rank.map_or(String::new(), |rank| format!(" {rank}"));
            let size = self.size(role);
            let why = format!("no place for {role}{wish}: this cluster has {size} of them");
            return Ok(Err(Error::Config(why)));
        };
        let seen = self.listened;
        let member = Member { peer, joined_as, said, lost: None, incarnation, seen };
        tracing::info!(node = describe(seat, &member), "joined");
        self.seats.insert(seat, member);
        self.lanes.entry(peer).and_modify(|lane| lane.used = Used::Member(seat));
        Ok(Ok(seat))
    }

    fn free_seat(&self, role: Role, wish: Option<usize>) -> Option<Seat> {
        let size = self.size(role);
        let mut ranks = wish.map_or(0..size, |rank| rank..size.min(rank.saturating_add(1)));
        let rank = ranks.find(|&rank| !self.seats.contains_key(&Seat { role, rank }))?;
        Some(Seat { role, rank })
    }

    /// Takes note of a sign of life of the member that a lane has proved to be.
    ///
    /// # Errors
    /// When it is no member, or this is a member's lane for other things.
    pub(crate) fn alive(&mut self, peer: PeerId) -> Result<(), Misdeed> {
        let lane = self.lanes.get_mut(&peer).ok_or(Misdeed::NotAlive)?;
        let Lane { role, rank: Some(rank), incarnation, .. } = *lane else {
            return Err(Misdeed::NotAlive);
        };
        let seat = Seat { role, rank };
        let member = self.seats.get_mut(&seat).filter(|member| member.incarnation == incarnation);
        let (Some(member), Used::Nothing | Used::Heart(_)) = (member, lane.used) else {
            return Err(Misdeed::NotAlive);
        };
        lane.used = Used::Heart(seat);
        member.seen = self.listened;
        Ok(())
    }

    /// The member that a lane is, when all are in.
    ///
    /// # Errors
    /// When it is none: it may not ask for `what`.
    pub(crate) fn of(&self, peer: PeerId, what: &'static str) -> Result<Seat, Misdeed> {
        match self.lanes.get(&peer).map(|lane| lane.used) {
            Some(Used::Member(seat)) if self.complete => Ok(seat),
            _ => Err(Misdeed::NotJoined(what)),
        }
    }

    /// Forgets a lane that is gone. Who has its seat by it loses that, and is returned; nobody else loses anything.
    pub(crate) fn leave(&mut self, peer: PeerId, reason: &str) -> Option<Seat> {
        let Used::Member(seat) = self.lanes.remove(&peer)?.used else { return None };
        if self.complete {
            let member = self.seats.get_mut(&seat);
            member.into_iter().for_each(|member| member.lost = Some(reason.to_owned()));
        } else {
            tracing::warn!(reason, "{seat} left before all had joined: its place is free again");
            self.seats.remove(&seat);
        }
        Some(seat)
    }

    /// Lanes that were used for nothing longer than a member may be silent.
    pub(crate) fn idle_lanes(&self) -> Vec<(PeerId, Misdeed)> {
        let idle = |(peer, lane): (&PeerId, &Lane)| {
            let silent = self.listened - lane.opened;
            let idle = matches!(lane.used, Used::Nothing) && silent > self.patience();
            idle.then_some((*peer, Misdeed::Silent(silent)))
        };
        self.lanes.iter().filter_map(idle).collect()
    }

    /// Takes note that all have joined, of which each says what is left to say; signs of life are waited for from now on.
    pub(crate) fn complete(&mut self, mut each: impl FnMut(&mut Member)) {
        self.complete = true;
        let seen = self.listened;
        self.seats.values_mut().for_each(|member| {
            member.seen = seen;
            each(member);
        });
    }

    /// Whether every seat is taken.
    pub(crate) fn all_are_in(&self) -> bool {
        self.seats.len() == self.sizes.iter().map(|(_, size)| size).sum::<usize>()
    }

    /// Whether nobody is left.
    pub(crate) fn all_are_gone(&self) -> bool {
        self.seats.values().all(|member| member.lost.is_some())
    }

    /// How many of a role there are to be.
    pub(crate) fn size(&self, role: Role) -> usize {
        self.sizes.iter().filter(|(of, _)| *of == role).map(|(_, size)| size).sum()
    }

    /// All that have a seat, servers first, in the order of ranks.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Seat, &Member)> {
        self.seats.iter().map(|(seat, member)| (*seat, member))
    }

    /// The worker of that rank, to send it something.
    ///
    /// # Errors
    /// [`Error::NodeLost`].
    pub(crate) fn worker(&self, rank: usize) -> Result<&Member> {
        let seat = Seat { role: Role::Worker, rank };
        match self.seats.get(&seat) {
            None => Err(Error::NodeLost { node: seat.to_string(), reason: "it never came".into() }),
            Some(member) => match &member.lost {
                None => Ok(member),
                Some(reason) => {
                    Err(Error::NodeLost { node: describe(seat, member), reason: reason.clone() })
                }
            },
        }
    }

    /// Whether nobody has looked for the lost for a heartbeat.
    pub(crate) fn check_is_due(&self) -> bool {
        self.listened - self.checked >= self.heartbeat
    }

    /// Whether all that joined are alive.
    ///
    /// # Errors
    /// [`Error::NodeLost`] names the first that is not.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.checked = self.listened;
        for (&seat, member) in &self.seats {
            let silent = self.listened - member.seen;
            let reason = match &member.lost {
                Some(reason) => reason.clone(),
                None if self.complete && member.said.beats && silent > self.patience() => {
                    format!("no sign of life for {:.1} s", silent.as_secs_f64())
                }
                None => continue,
            };
            return Err(Error::NodeLost { node: describe(seat, member), reason });
        }
        Ok(())
    }

    fn patience(&self) -> Duration {
        self.heartbeat * HEARTBEATS
    }

    /// Names those that have not joined.
    pub(crate) fn missing(&self) -> String {
        let seats = self.sizes.iter();
        let seats = seats.flat_map(|&(role, size)| (0..size).map(move |rank| Seat { role, rank }));
        let missing = seats.filter(|seat| !self.seats.contains_key(seat));
        missing.map(|seat| seat.to_string()).collect::<Vec<_>>().join(", ")
    }
}

/// A member as a person can find it.
pub(crate) fn describe(seat: Seat, member: &Member) -> String {
    match member.threads().first() {
        Some(address) => format!("{seat} (process {} at {address})", member.said.pid),
        None => format!("{seat} (process {})", member.said.pid),
    }
}
