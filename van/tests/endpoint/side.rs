//! One end of a lane, driven by hand.

use super::*;

/// An endpoint, its one peer, and the messages that came.
pub(super) struct Side {
    pub(super) endpoint: Endpoint,
    pub(super) peer: PeerId,
    pub(super) came: VecDeque<Message>,
    /// Timestamps of requests that were answered with nothing.
    pub(super) answered: Vec<u64>,
    /// Timestamp, memory and length of answers that were placed.
    pub(super) placed: VecDeque<(u64, Buffer, usize)>,
    pub(super) lost: Option<Error>,
}

impl Side {
    pub(super) fn new(network: &Network, config: &VanConfig) -> Side {
        Side::over(Box::new(network.transport(config)), config)
    }

    /// An end of a lane over any transport.
    pub(super) fn over(transport: Box<dyn Transport>, config: &VanConfig) -> Side {
        let endpoint = Endpoint::new(transport, 7, config.credits);
        let (came, placed) = (VecDeque::new(), VecDeque::new());
        Side { endpoint, peer: PeerId(0), came, answered: Vec::new(), placed, lost: None }
    }

    /// Timestamps of all that there is to take: messages and placed answers.
    pub(super) fn timestamps(&mut self) -> Vec<u64> {
        let mut timestamps = Vec::new();
        while let Some(arrival) = self.endpoint.take() {
            timestamps.push(match arrival {
                Arrival::Message { .. } => self.endpoint.pop().unwrap().timestamp(),
                Arrival::Placed { timestamp, .. } => timestamp,
                other => panic!("{other:?}"),
            });
        }
        timestamps
    }

    pub(super) fn poll(&mut self) -> bool {
        let any = self.endpoint.poll().unwrap();
        while let Some(arrival) = self.endpoint.take() {
            match arrival {
                Arrival::Connected { peer, .. } => self.peer = peer,
                Arrival::Message { .. } => {
                    let message = self.endpoint.pop().unwrap();
                    match message.kind() == Kind::Reply && message.is_ack() {
                        true => self.answered.push(message.timestamp()),
                        false => self.came.push_back(message),
                    }
                }
                Arrival::Placed { timestamp, memory, len, .. } => {
                    self.placed.push_back((timestamp, memory, len));
                }
                Arrival::Lost { error, .. } => self.lost = Some(error),
            }
        }
        any
    }

    /// Posts a request that wants its answer placed in `bytes` bytes; returns the offer.
    pub(super) fn ask(&mut self, timestamp: u64, bytes: usize, values: Values<'_>) -> Offer {
        let place = self.endpoint.lanes.memory().allocate(bytes).unwrap();
        let offer = self.endpoint.lanes.offer(self.peer, place).unwrap();
        let draft = Draft { timestamp, values, offer: Some(offer), ..Draft::new(Kind::Request) };
        self.endpoint.lanes.post(self.peer, draft, &mut Coding::plain()).unwrap();
        offer
    }

    pub(super) fn post(
        &mut self,
        kind: Kind,
        timestamp: u64,
        values: Values<'_>,
    ) -> Result<(), Error> {
        let draft = Draft { timestamp, values, ..Draft::new(kind) };
        self.endpoint.lanes.post(self.peer, draft, &mut Coding::plain())
    }
}

/// Two endpoints on a lane.
pub(super) fn pair(network: &Network, config: &VanConfig) -> (Side, Side) {
    let (mut a, mut b) = (Side::new(network, config), Side::new(network, config));
    let address = b.endpoint.lanes.address().to_owned();
    a.peer = a.endpoint.connect(&address).unwrap();
    while a.endpoint.lanes.credits(a.peer) == 0 {
        settle(&mut a, &mut b);
    }
    (a, b)
}

/// Lets both sides work until nothing happens any more.
pub(super) fn settle(a: &mut Side, b: &mut Side) {
    let mut since = a.endpoint.lanes.now();
    while a.endpoint.lanes.now() < since + 3 * BACKOFF {
        a.endpoint.wait(BACKOFF).unwrap();
        b.endpoint.wait(BACKOFF).unwrap();
        if a.poll() | b.poll() {
            since = a.endpoint.lanes.now();
        }
    }
}

pub(super) fn filled(side: &Side, bytes: usize, seed: u64) -> caravan_van::Shared {
    let mut buffer = side.endpoint.lanes.memory().allocate(bytes).unwrap();
    buffer
        .iter_mut()
        .enumerate()
        .for_each(|(i, byte)| *byte = (i as u64 * 31).wrapping_add(seed) as u8);
    buffer.share()
}

pub(super) fn is_filled(values: &[u8], bytes: usize, seed: u64) -> bool {
    values.len() == bytes
        && values
            .iter()
            .enumerate()
            .all(|(i, &byte)| byte == (i as u64 * 31).wrapping_add(seed) as u8)
}
