//! What is to be done next on which lane, and who does it: a plain call at once, or the kernel.
//!
//! Lanes are listed when there may be something to do for them; the lists are gone through before each system call of the ring.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > transport (ring, **stage**).

use super::super::operation::{Slot, Tag, cancel, is_later, user_data};
use super::{Done, Ring};
use crate::offers::Offers;

/// After this many tries without anything a lane is left to the kernel until something comes.
const MISSES_MAX: u32 = 1024;

impl Ring {
    /// Queues what there is to do. Lanes are tried only with the `offers` that calls may write to; without, all is left to the kernel.
    pub(super) fn stage(&mut self, mut offers: Option<&mut Offers>) {
        let eager = offers.is_some();
        // Sends go first: somebody waits for them.
        if !self.sends.is_empty() {
            let mut list = std::mem::take(&mut self.sends);
            list.retain(|&slot| !self.stage_send(slot, eager));
            self.sends = list;
        }
        if self.receives.is_empty() {
            std::mem::swap(&mut self.receives, &mut self.tries);
        } else {
            self.receives.append(&mut self.tries);
        }
        let mut list = std::mem::take(&mut self.receives);
        list.retain(|&slot| !self.stage_receive(slot, offers.as_deref_mut()));
        self.receives = list;
    }

    pub(super) fn list_send(&mut self, slot: Slot) {
        if let Some(lane) = &mut self.lanes[slot]
            && !std::mem::replace(&mut lane.send.listed, true)
        {
            self.sends.push(slot);
        }
    }

    pub(super) fn list_receive(&mut self, slot: Slot) {
        if let Some(lane) = &mut self.lanes[slot]
            && !std::mem::replace(&mut lane.receive.listed, true)
        {
            self.receives.push(slot);
        }
    }

    /// Sends on a lane that is tried by a plain call; what that does not take is left to the kernel.
    fn try_send(&mut self, slot: Slot) {
        let Some(lane) = &mut self.lanes[slot] else { return };
        let Some(result) = lane.send() else { return };
        self.counters.system_calls += 1;
        match result {
            Ok(bytes) => {
                lane.just_sent = true;
                lane.left(bytes, &mut self.counters);
            }
            Err(error) if is_later(&error) => {}
            Err(error) => self.done.push_back(Done::Sent(slot, Err(error))),
        }
    }

    /// Receives on a lane that is tried by a plain call; after too many that find nothing it is left to the kernel.
    fn try_receive(&mut self, slot: Slot, offers: &mut Offers) {
        let Some(lane) = &mut self.lanes[slot] else { return };
        self.counters.system_calls += 1;
        match lane.receive(offers) {
            Err(error) if is_later(&error) => {
                lane.misses =
                    lane.misses.map(|misses| misses + 1).filter(|&misses| misses < MISSES_MAX);
                self.eager -= usize::from(lane.misses.is_none());
                lane.receive.listed = true;
                self.tries.push(slot);
            }
            result => {
                lane.misses = Some(0);
                self.counters.bytes_received += *result.as_ref().unwrap_or(&0) as u64;
                self.done.push_back(Done::Received(slot, result));
            }
        }
    }

    /// Starts the lane's next send, if it is time; false when the submission queue is full.
    fn stage_send(&mut self, slot: Slot, eager: bool) -> bool {
        let Some(lane) = &mut self.lanes[slot] else { return true };
        lane.send.listed = false;
        let entry = match (lane.closing, lane.send.under_way) {
            (false, false) => {
                if eager && lane.misses.is_some() {
                    self.try_send(slot);
                }
                self.lane(slot).send_entry()
            }
            (true, true) if !lane.send.cancelled => Some(cancel(slot, Tag::Send)),
            _ => None,
        };
        let Some(entry) = entry else { return true };
        let closing = self.lane(slot).closing;
        let tag = if closing { Tag::Cancel } else { Tag::Send };
        let pushed = self.push(entry.user_data(user_data(slot, tag)));
        let lane = self.lanes[slot].as_mut().expect("it was there above");
        lane.send.staged(closing, pushed);
        if !closing {
            lane.just_sent = pushed;
            self.under_way += usize::from(pushed);
        }
        pushed
    }

    /// Starts the lane's next receive, if it is time; false when the submission queue is full.
    fn stage_receive(&mut self, slot: Slot, offers: Option<&mut Offers>) -> bool {
        let Some(lane) = &mut self.lanes[slot] else { return true };
        let offers = offers.filter(|_| lane.misses.is_some() && !lane.closing);
        if std::mem::take(&mut lane.just_sent) && offers.is_some() {
            self.tries.push(slot); // and so it is listed still
            return true;
        }
        lane.receive.listed = false;
        let entry = match (lane.closing, lane.receive.under_way, offers) {
            (false, false, Some(offers)) => {
                self.try_receive(slot, offers);
                return true;
            }
            (false, false, None) => lane.receive_entry(),
            (true, true, _) if !lane.receive.cancelled => cancel(slot, Tag::Receive),
            _ => return true,
        };
        let closing = lane.closing;
        let tag = if closing { Tag::Cancel } else { Tag::Receive };
        let pushed = self.push(entry.user_data(user_data(slot, tag)));
        let lane = self.lanes[slot].as_mut().expect("it was there above");
        lane.receive.staged(closing, pushed);
        self.under_way += usize::from(pushed && !closing);
        pushed
    }
}
