//! A lane to a server thread on which anything can be said, as a hostile peer says it.

use std::time::Duration;

use caravan_kv::{Refusal, Refused};
use caravan_van::wire::{Coding, Kind};
use caravan_van::{Arrival, Draft, Endpoint, PeerId};

pub(crate) struct RawLane {
    pub(crate) endpoint: Endpoint,
    peer: PeerId,
    coding: Coding,
    timestamp: u64,
}

impl RawLane {
    /// Connects; what is said is coded so.
    pub(crate) fn to(address: &str, endpoint: Endpoint, coding: Coding) -> RawLane {
        let mut endpoint = endpoint;
        let peer = endpoint.connect(address).unwrap();
        while endpoint.lanes.credits(peer) == 0 {
            endpoint.wait(Duration::from_millis(10)).unwrap();
            endpoint.poll().unwrap();
            while endpoint.take().is_some() {}
        }
        RawLane { endpoint, peer, coding, timestamp: 0 }
    }

    /// What the server answers: nothing, or why it refuses.
    pub(crate) fn ask(&mut self, draft: Draft<'_>) -> Result<(), Refused> {
        self.timestamp += 1;
        let draft = Draft { timestamp: self.timestamp, ..draft };
        self.endpoint.lanes.post(self.peer, draft, &mut self.coding).unwrap();
        loop {
            self.endpoint.poll().unwrap();
            match self.endpoint.take() {
                Some(Arrival::Message { .. }) => {
                    let message = self.endpoint.pop().unwrap();
                    return match message.kind() {
                        Kind::Failure => {
                            let why = String::from_utf8_lossy(message.values()).into_owned();
                            Err(Refusal::from_number(message.command()).because(why))
                        }
                        _ => Ok(()),
                    };
                }
                Some(other) => panic!("{other:?}"),
                None => self.endpoint.wait(Duration::from_millis(100)).unwrap(),
            }
        }
    }
}
