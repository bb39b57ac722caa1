//! Packets in flight: from port to port, over cards that carry one after the other, past cuts. This
//! module knows nothing of connections beyond the port a packet goes to.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::hash::Hash;
use std::time::Duration;

use super::{Activity, Core};
use crate::sim::packet::{End, Link, Load, Packet};

/// Packets that have arrived for one transport.
pub(super) struct Port {
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

/// A node's network card: when each direction is free again.
#[derive(Default)]
pub(super) struct Card {
    sends_until: Duration,
    receives_until: Duration,
}

/// A packet in flight.
pub(super) struct Flight {
    pub(super) at: Duration,
    /// A random number that orders arrivals of the same instant.
    pub(super) tie: u64,
    number: u64,
    to: End,
    packet: Packet,
    /// How long it will occupy the receiver's card, until that has begun.
    card: Option<Duration>,
}

/// No packets pass from one node to another until an instant.
pub(super) struct Cut {
    from: String,
    to: String,
    until: Duration,
}

/// A wire between two nodes that takes so many times as long to send.
pub(super) struct SlowWire {
    between: [String; 2],
    factor: f64,
}

impl Core {
    /// Makes the wire between two nodes `factor` times as slow.
    pub(in crate::sim) fn slow(&mut self, one: &str, other: &str, factor: f64) {
        self.slow_wires.push(SlowWire { between: [one.to_owned(), other.to_owned()], factor });
    }

    /// Holds back packets from one node to another for `duration`.
    pub(in crate::sim) fn cut(&mut self, from: &str, to: &str, duration: Duration) {
        let until = self.now.saturating_add(duration);
        self.cuts.push(Cut { from: from.to_owned(), to: to.to_owned(), until });
    }

    /// Opens a port for the running participant. One that takes over the address of another port is
    /// reached in its stead by whoever connects from now on; what is under way to that one is not
    /// for it.
    pub(in crate::sim) fn open_port(&mut self, takes_over: Option<u32>) -> u32 {
        let number = u32::try_from(self.ports.len()).expect("fewer transports than 2^32");
        let owner = self.running();
        self.ports.push(Port { owner, state: PortState::Open, inbox: VecDeque::new() });
        self.successors.extend(takes_over.map(|port| (port, number)));
        number
    }

    /// The port that is reached at the address of this one.
    pub(in crate::sim) fn reached_at(&self, port: u32) -> u32 {
        self.successors.get(&port).copied().unwrap_or(port)
    }

    /// Closes a port and bounces packets to it, including those not taken yet. True if its node has
    /// crashed.
    pub(in crate::sim) fn close_port(&mut self, number: u32) -> bool {
        let port = &mut self.ports[number as usize];
        let crashed = self.participants[port.owner].stop.is_some();
        port.state = if crashed { PortState::Crashed } else { PortState::Closed };
        for (peer, packet) in std::mem::take(&mut port.inbox) {
            self.bounce(End { port: number, peer }, packet);
        }
        crashed
    }

    /// Takes an arrival from a port: the peer it is for, and the packet.
    pub(in crate::sim) fn take(&mut self, port: u32) -> Option<(u32, Packet)> {
        self.ports[port as usize].inbox.pop_front()
    }

    /// Whether something has arrived at a port.
    pub(in crate::sim) fn has_arrivals(&self, port: u32) -> bool {
        !self.ports[port as usize].inbox.is_empty()
    }

    /// Sends a packet of `load` behind those before it on `link`; returns when it has left.
    pub(in crate::sim) fn carry(
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
        let sending = self.sending(load.bytes, from, to);
        let mut left_at = ready_at.max(link.free_at).saturating_add(sending);
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

    /// How long the wire between two ports' owners is busy sending `bytes`.
    fn sending(&self, bytes: usize, from: End, to: End) -> Duration {
        let usual = self.faults.sending(bytes);
        let Some(to) = self.ports.get(to.port as usize) else { return usual };
        let from = self.machine_of(self.ports[from.port as usize].owner);
        let to = self.machine_of(to.owner);
        let is_between = |wire: &&SlowWire| {
            from != to && wire.between.contains(from) && wire.between.contains(to)
        };
        let slower = |usual: Duration, wire: &SlowWire| {
            let seconds = usual.as_secs_f64() * wire.factor;
            Duration::try_from_secs_f64(seconds).unwrap_or(usual)
        };
        self.slow_wires.iter().filter(is_between).fold(usual, slower)
    }

    /// When the last cut between two ports' owners ends; time zero if there is none.
    fn cut_until(&mut self, from: End, to: End) -> Duration {
        let now = self.now;
        self.cuts.retain(|cut| cut.until > now);
        let Some(to) = self.ports.get(to.port as usize) else { return Duration::ZERO };
        let from = self.machine_of(self.ports[from.port as usize].owner);
        let to = self.machine_of(to.owner);
        let between = |cut: &&Cut| from != to && cut.from == *from && cut.to == *to;
        self.cuts.iter().filter(between).map(|cut| cut.until).max().unwrap_or_default()
    }

    fn launch(&mut self, at: Duration, to: End, packet: Packet, card: Option<Duration>) {
        self.flights += 1;
        let tie = self.random.next();
        let number = self.flights;
        self.under_way.push(Flight { at, tie, number, to, packet, card });
    }

    /// Answers a packet for a closed port, if its sender expects an answer.
    fn bounce(&mut self, to: End, packet: Packet) {
        let (Packet::Connect { from, .. } | Packet::Accept { from, .. }) = packet else { return };
        let crashed =
            self.ports.get(to.port as usize).is_some_and(|p| p.state == PortState::Crashed);
        let delay = if crashed { self.faults.detection } else { Duration::ZERO };
        let flight = self.faults.flight(&mut self.random);
        let at = self.now.saturating_add(delay).saturating_add(flight);
        self.launch(at, from, Packet::Close(format!("nobody is at sim:{}", to.port)), None);
    }

    /// Puts the next arrival into its port; returns the participant it wakes.
    pub(super) fn arrive(&mut self) -> Option<usize> {
        let Flight { at, to, packet, card, .. } = self.under_way.pop()?;
        self.now = self.now.max(at);
        if let (Some(card), Some(port)) = (card, self.ports.get(to.port as usize)) {
            // The last byte would be here now if the card were idle.
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

/// Reversed: a [`BinaryHeap`] pops its greatest item, which must be the next to arrive.
impl Ord for Flight {
    fn cmp(&self, other: &Flight) -> Ordering {
        other.key().cmp(&self.key())
    }
}
