//! The end of a handshake: the proof is the first message over the new connection. Not on the path.

use super::Rdma;
use super::connect::{NOT_READY_TIMER, Peer, Stage};
use crate::handshake::WELCOME_BYTES;
use crate::memory::Buffer;
use crate::transport::{Event, PeerId};
use crate::wire::Hello;

impl Rdma {
    /// Reads the welcome of a connection that this side requested, and answers with the proof.
    pub(super) fn established(&mut self, id: u32, private_data: &[u8]) {
        let Some(Peer { stage: Stage::Calling(lane, calling), .. }) = self.peers.get_mut(id) else {
            return;
        };
        let Some(calling) = calling.take() else { return };
        let _ = lane.queue_pair.set_receiver_not_ready_timer(NOT_READY_TIMER);
        // The connection manager may add padding.
        let welcome = &private_data[..private_data.len().min(WELCOME_BYTES)];
        let proved = self.credentials.prove(calling, welcome).and_then(|(proved, proof)| {
            self.rise(id, &proved.hello)?;
            self.send_proof(id, &proof)
        });
        if let Err(reason) = proved {
            self.lose(id, reason);
        }
    }

    fn send_proof(&mut self, id: u32, proof: &[u8]) -> Result<(), String> {
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
    pub(super) fn take_proof(&mut self, id: u32, proof: Buffer) -> Result<(), String> {
        let Some(Peer { stage: Stage::Answering(_, answering), .. }) = self.peers.get_mut(id)
        else {
            return Ok(());
        };
        let answering = answering.take().ok_or("it proved itself twice")?;
        let proved = self.credentials.check(answering, &proof)?;
        self.rise(id, &proved.hello)
    }

    /// Makes a peer of a connection whose other side has proved itself.
    ///
    /// # Errors
    /// The reason that the connection cannot be used.
    fn rise(&mut self, id: u32, hello: &Hello) -> Result<(), String> {
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
