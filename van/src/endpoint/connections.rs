//! All lanes of an endpoint: connecting and closing them, and what the layers above ask of a lane.
//!
//! Path: worker > slicer > filter > message > codec > **endpoint** > transport.

use std::time::Duration;

use super::connection::{Connection, Rules, lane};
use crate::error::{Error, Result};
use crate::gauge::{ByVan, Gauge};
use crate::memory::{Buffer, Pool};
use crate::metrics::Counters;
use crate::transport::{Clock, Limits, MIXED, PeerId, Transport};
use crate::wire::Offer;

/// The lanes of one thread to all its peers: the sending half of an endpoint.
pub struct Connections {
    pub(super) transport: Box<dyn Transport>,
    pub(super) memory: Pool,
    pub(super) limits: Limits,
    /// Whether the transport is made of several, so that lanes differ.
    is_mixed: bool,
    clock: Clock,
    pub(super) node: u32,
    pub(super) credits: u16,
    /// Indexed by peer number; `None` once the peer is gone.
    pub(super) lanes: Vec<Option<Connection>>,
    /// Whether a peer waits for a landing because memory was short.
    pub(super) starved: bool,
    /// Whether it is so, or there are peers to forget.
    pub(super) has_chores: bool,
    /// Lanes that had an open frame since the last poll.
    pub(super) open: Vec<PeerId>,
    /// Lanes that this side closed and has not reported yet.
    pub(super) closed: Vec<(PeerId, Error)>,
    /// Peers whose loss the last poll reported. Memory offered to them can be withdrawn until the
    /// next poll.
    pub(super) lost: Vec<PeerId>,
    /// Counters of messages; the transport counts everything else.
    pub(super) counted: Counters,
    /// Shows them to other threads.
    gauge: Gauge,
}

impl Connections {
    pub(super) fn new(transport: Box<dyn Transport>, node: u32, credits: u16) -> Self {
        let about = transport.about();
        let limits = about.limits;
        let is_mixed = about.name == MIXED;
        let memory = about.memory.clone();
        let clock = about.clock.clone();
        Connections {
            transport,
            memory,
            limits,
            is_mixed,
            clock,
            node,
            credits,
            lanes: Vec::new(),
            starved: false,
            has_chores: false,
            open: Vec::with_capacity(16),
            closed: Vec::new(),
            lost: Vec::new(),
            counted: Counters::default(),
            gauge: Gauge::default(),
        }
    }

    /// Name of the van.
    pub fn van(&self) -> &'static str {
        self.transport.about().name
    }

    /// Address to which peers connect.
    pub fn address(&self) -> &str {
        &self.transport.about().address
    }

    /// Id of this node.
    pub fn node(&self) -> u32 {
        self.node
    }

    /// Length of the longest image that fits into one frame, in bytes.
    #[inline]
    pub fn eager_bytes(&self) -> usize {
        self.limits.frame_bytes
    }

    /// Whether the van lends `bytes` bytes of values to `peer`, which then reads them where they
    /// lie, without memory of its own for them. While too many bytes are on loan, the peer gets a
    /// copy.
    #[inline]
    pub fn lends(&self, peer: PeerId, bytes: usize) -> bool {
        bytes >= self.limits_of(peer).lent_bytes_min
    }

    /// Those of the van of the lane to `peer`, or what all its vans understand until it is up.
    #[inline(always)]
    fn limits_of(&self, peer: PeerId) -> &Limits {
        match self.is_mixed {
            false => &self.limits,
            true => self.limits_of_lane(peer),
        }
    }

    #[inline(never)]
    fn limits_of_lane(&self, peer: PeerId) -> &Limits {
        &self.transport.about_of(peer).limits
    }

    /// Whether the van of the lane to `peer` checks all bytes.
    #[inline(always)]
    pub(super) fn checks_bytes(&self, peer: PeerId) -> bool {
        self.limits_of(peer).checks_bytes
    }

    /// What the van of the lane to `peer` does with frames.
    pub(super) fn rules(&self, peer: PeerId) -> Rules {
        let &Limits { checks_bytes, copy_bytes, .. } = self.limits_of(peer);
        Rules { checks_bytes, copy_bytes }
    }

    /// Name of the van that carries the lane to `peer`; `None` while several vans may come to.
    pub fn van_of(&self, peer: PeerId) -> Option<&'static str> {
        Some(self.transport.about_of(peer).name).filter(|van| *van != MIXED)
    }

    /// The port that the lane to `peer` goes over, if its van has ports.
    pub fn port_of(&self, peer: PeerId) -> Option<&str> {
        self.transport.about_of(peer).port.as_deref()
    }

    /// The vans that carry lanes now, each with how many.
    pub fn by_van(&self) -> ByVan {
        let mut by_van = ByVan::new();
        let open = self.lanes.iter().enumerate().filter(|(_, lane)| lane.is_some());
        for (number, _) in open {
            let Some(van) = self.van_of(PeerId(number as u32)) else { continue };
            match by_van.iter_mut().find(|(name, _)| *name == van) {
                Some((_, count)) => *count += 1,
                None => by_van.push((van, 1)),
            }
        }
        by_van
    }

    /// Memory in which messages are built and values land.
    #[inline]
    pub fn memory(&self) -> &Pool {
        &self.memory
    }

    /// The transport's clock.
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Adds the time of a computation to the clock; see [`Clock::charge`].
    ///
    /// # Errors
    /// As [`Clock::charge`].
    pub fn charge(&mut self, work: Duration) -> Result<()> {
        self.clock.charge(work)
    }

    /// Counters of the transport and of the messages that this endpoint sent and received.
    pub fn counters(&self) -> Counters {
        let Counters { messages_sent, messages_received, message_bytes_copied, .. } = self.counted;
        Counters {
            messages_sent,
            messages_received,
            message_bytes_copied,
            ..self.transport.counters()
        }
    }

    /// What shows to other threads what this one does.
    pub fn gauge(&self) -> &Gauge {
        &self.gauge
    }

    /// Shows by `gauge` from now on.
    pub fn show_by(&mut self, gauge: Gauge) {
        self.gauge = gauge;
    }

    pub(super) fn connect(&mut self, address: &str) -> Result<PeerId> {
        let peer = self.transport.connect(address)?;
        self.enter(peer).name = address.to_owned();
        Ok(peer)
    }

    /// Lets one request be posted to a peer that has not said hello.
    pub(super) fn admit_early(&mut self, peer: PeerId) {
        let lane = self.enter(peer);
        (lane.credits, lane.credits_max) = (1, 1);
    }

    pub(super) fn disconnect(&mut self, peer: PeerId) {
        self.transport.disconnect(peer);
        if let Some(lane) = self.lanes.get_mut(peer.0 as usize) {
            *lane = None;
        }
        self.lost.retain(|lost| *lost != peer);
    }

    /// Number of requests that can be posted to `peer` now.
    #[inline]
    pub fn credits(&self, peer: PeerId) -> usize {
        self.lanes
            .get(peer.0 as usize)
            .and_then(Option::as_ref)
            .map_or(0, |lane| lane.credits.into())
    }

    /// Number of requests that each peer may have outstanding here.
    pub fn credits_max(&self) -> u16 {
        self.credits
    }

    /// Offers `into` to `peer` for the answer to the request that [`Connections::post`] posts with
    /// this offer.
    ///
    /// # Errors
    /// As [`Transport::offer`].
    pub fn offer(&mut self, peer: PeerId, into: Buffer) -> Result<Offer> {
        self.transport.offer(peer, into)
    }

    /// Withdraws offered memory and returns it.
    ///
    /// # Errors
    /// As [`Transport::withdraw`].
    pub fn withdraw(&mut self, peer: PeerId, key: u64) -> Result<Buffer> {
        if let Ok(lane) = lane(&mut self.lanes, peer) {
            lane.places.remove(key);
        }
        self.transport.withdraw(peer, key)
    }

    /// Does what is due before the transport is asked again: shows its counters to whoever asks,
    /// and posts the open frames.
    #[inline(always)]
    pub(super) fn settle(&mut self) {
        if self.gauge.is_asked() {
            show(self);
        }
        self.close_frames();
    }

    /// Grants wanted landings, posts the open frames, and makes the transport forget the peers
    /// whose loss was reported.
    pub(super) fn do_chores(&mut self) {
        if self.starved {
            self.feed();
        }
        self.close_frames();
        for peer in std::mem::take(&mut self.lost) {
            self.transport.disconnect(peer);
        }
        self.has_chores = self.starved || !self.closed.is_empty();
    }

    pub(super) fn enter(&mut self, peer: PeerId) -> &mut Connection {
        let index = peer.0 as usize;
        if self.lanes.len() <= index {
            self.lanes.resize_with(index + 1, || None);
        }
        self.lanes[index].get_or_insert_default()
    }

    /// Closes the lane to a peer that broke the protocol, or for which memory ran out.
    /// [`Arrival::Lost`](super::Arrival::Lost) will report it.
    #[cold]
    pub(super) fn drop_lane(&mut self, peer: PeerId, error: &Error) {
        let Ok(lane) = lane(&mut self.lanes, peer) else { return };
        let address = std::mem::take(&mut lane.name);
        let reason = format!("dropped by this side: {error}");
        self.disconnect(peer);
        self.has_chores = true;
        self.closed.push((peer, Error::PeerLost { peer, address, reason: reason.into() }));
    }
}

/// Shows to whoever asks what the lanes do.
#[cold]
fn show(lanes: &Connections) {
    lanes.gauge.show(lanes.counters(), lanes.by_van());
}
