//! The end of a handshake: the first message over the new connection is the proof, or is sealed
//! with the keys of a proof that came before. Not on the path.

use super::Rdma;
use super::connect::{Asked, Awaited, NOT_READY_TIMER, Peer, Stage};
use crate::handshake::{Reason, TAG, WELCOME_BYTES};
use crate::memory::Buffer;
use crate::transport::{Event, PeerId};
use crate::wire::Hello;

impl Rdma {
    /// Reads the welcome of a connection that this side requested, and answers with the proof.
    pub(super) fn established(&mut self, id: u32, private_data: &[u8]) {
        let Some(Peer { stage: Stage::Calling(lane, calling), beside, .. }) =
            self.peers.get_mut(id)
        else {
            return;
        };
        let Some(Asked::Manager(calling)) = calling.take() else { return };
        let _ = lane.queue_pair.set_receiver_not_ready_timer(NOT_READY_TIMER);
        // The connection manager may add padding.
        let welcome = &private_data[..private_data.len().min(WELCOME_BYTES)];
        let credentials = self.credentials.of_lane(*beside);
        let proved = credentials.prove(calling, welcome).and_then(|(proved, proof)| {
            self.rise(id, &proved.hello)?;
            Ok(self.send_proof(id, &proof)?)
        });
        if let Err(reason) = proved {
            self.lose(id, reason);
        }
    }

    /// Sends the first message.
    pub(super) fn send_proof(&mut self, id: u32, proof: &[u8]) -> Result<(), String> {
        let mut frame =
            self.about.memory.allocate(proof.len()).map_err(|error| error.to_string())?;
        frame.copy_from_slice(proof);
        let Some(lane) = self.peers.lane(id) else { return Ok(()) };
        lane.send_proof(frame.share()).map_err(|error| error.to_string())?;
        if lane.has_to_leave() {
            self.peers.eager.push(id);
        }
        Ok(())
    }

    /// Checks the first message of a welcomed peer, which must be its proof.
    ///
    /// # Errors
    /// The reason that it is not a valid proof.
    #[cold]
    pub(super) fn take_proof(&mut self, id: u32, proof: Buffer) -> Result<(), Reason> {
        let Some(Peer { stage: Stage::Answering(_, answering), .. }) = self.peers.get_mut(id)
        else {
            return Ok(());
        };
        let hello = match answering.take().ok_or("it proved itself twice")? {
            Awaited::Proof(answering) => self.credentials.check(answering, &proof)?.hello,
            Awaited::Seal(mut proved) => {
                let (_, opens) = proved.ciphers.as_mut().ok_or("it has no keys")?;
                let mut nothing = [0; TAG];
                opens.open(&proof, &mut nothing[..proof.len().min(TAG)])?;
                proved.hello
            }
        };
        Ok(self.rise(id, &hello)?)
    }

    /// Makes a peer of a connection whose other side has proved itself.
    ///
    /// # Errors
    /// The reason that the connection cannot be used.
    pub(super) fn rise(&mut self, id: u32, hello: &Hello) -> Result<(), String> {
        if hello.receives.get() < 2 {
            return Err("it keeps too few receive buffers".to_owned());
        }
        let Some(peer) = self.peers.take(id) else { return Ok(()) };
        let stage = match peer.stage {
            Stage::Calling(mut lane, _) | Stage::Answering(mut lane, _) => {
                let frame_bytes =
                    self.about.limits.frame_bytes.min(hello.frame_bytes.get() as usize);
                lane.greet(frame_bytes, hello.receives.get().into());
                Stage::Up(lane)
            }
            stage => stage,
        };
        self.peers.put(id, Peer { stage, ..peer });
        self.peers.handshaking -= 1;
        self.ready.push(Event::Connected { peer: PeerId(id), hello: *hello });
        Ok(())
    }
}
