//! Two connected ends, and the connection manager that makes them.

use super::*;

/// One end, with queues of its own.
pub(super) struct End {
    pub(super) pair: QueuePair,
    pub(super) receives: ReceiveQueue,
    pub(super) completions: Rc<CompletionQueue>,
    pub(super) pool: Pool,
    pub(super) domain: Rc<Domain>,
    pub(super) seen: Vec<Completion>,
}

impl End {
    pub(super) fn new(connection: Connection, inline_bytes: usize) -> End {
        let device = connection.device().unwrap();
        let domain = Domain::new(device).unwrap();
        let completions = CompletionQueue::new(device, 100).unwrap();
        let mut receives = ReceiveQueue::new(&domain, RECEIVES).unwrap();
        let pool = Pool::registered(64 << 20, domain.clone());
        for _ in 0..RECEIVES {
            receives.supply(pool.allocate(RECEIVE_BYTES).unwrap()).unwrap();
        }
        receives.ring().unwrap();
        let pair =
            QueuePair::new(connection, &domain, &completions, &receives, SENDS, inline_bytes)
                .unwrap();
        End { pair, receives, completions, pool, domain, seen: Vec::new() }
    }

    pub(super) fn key(&self) -> ConnectionKey {
        self.pair.connection().unwrap().key()
    }

    pub(super) fn data(&self, len: usize, first: u8) -> Shared {
        let mut buffer = self.pool.allocate(len).unwrap();
        buffer.iter_mut().zip(0usize..).for_each(|(byte, i)| *byte = first.wrapping_add(i as u8));
        buffer.share()
    }

    pub(super) fn do_now(&mut self, work: Work) {
        self.pair.push(work).unwrap();
        self.pair.ring(true).unwrap();
    }

    /// The next completion, waiting for it asleep.
    pub(super) fn completion(&mut self) -> Completion {
        let deadline = Instant::now() + PATIENCE;
        while self.seen.is_empty() {
            self.completions.arm().unwrap();
            let mut batch = Batch::new();
            let found = self.completions.poll(&mut batch).unwrap();
            self.seen.extend(batch.map(Result::unwrap));
            if found == 0 {
                assert!(Instant::now() < deadline, "nothing ended");
                sleep(&[self.completions.fd()], Duration::from_secs(1)).unwrap();
                self.completions.take_notices().unwrap();
            }
        }
        self.seen.remove(0)
    }

    /// What was read by the work of the next completion, which is done.
    pub(super) fn done(&mut self) -> Vec<Buffer> {
        let completion = self.completion();
        assert!(completion.status.is_ok(), "{}", completion.status);
        assert_eq!(completion.queue, self.pair.number());
        let Outcome::Sent(through) = completion.outcome else { panic!("{completion:?}") };
        let mut read = Vec::new();
        assert!(self.pair.retire(through, &mut read));
        read
    }

    /// The next completion's status, of work that failed.
    pub(super) fn failed(&mut self) -> String {
        let completion = self.completion();
        assert!(!completion.status.is_ok());
        if let Outcome::Sent(through) = completion.outcome {
            let mut read = Vec::new();
            assert!(self.pair.retire(through, &mut read));
            assert!(read.is_empty(), "{read:?}");
        }
        completion.status.to_string()
    }

    /// The next message, in memory that goes back to the receive queue: what was received, or how
    /// much was written.
    pub(super) fn received(&mut self) -> (Result<Vec<u8>, u32>, Option<u32>) {
        let completion = self.completion();
        assert!(completion.status.is_ok(), "{}", completion.status);
        let Outcome::Received { slot, bytes, imm, written, .. } = completion.outcome else {
            panic!("{completion:?}")
        };
        let buffer = self.receives.take(slot, if written { u32::MAX } else { bytes }).unwrap();
        let what = if written { Err(bytes) } else { Ok(buffer.to_vec()) };
        drop(buffer);
        self.receives.supply(self.pool.allocate(RECEIVE_BYTES).unwrap()).unwrap();
        self.receives.ring().unwrap();
        (what, imm)
    }

    /// Lets the peer write `len` zeros.
    pub(super) fn open(&mut self, window: Window, len: usize) -> OpenWindow {
        let mut memory = self.pool.allocate(len).unwrap();
        memory.fill(0);
        let open = self.pair.bind(window, memory).unwrap();
        self.do_now(Work::Probe);
        // Soft-RoCE reports what opens a window by itself.
        while self.pair.room() < SENDS {
            assert!(self.done().is_empty());
        }
        open
    }

    /// Lets `peer` close a window, by a message of so many bytes.
    pub(super) fn closed_by(
        &mut self,
        peer: &mut End,
        open: OpenWindow,
        len: usize,
    ) -> (Window, Buffer) {
        peer.do_now(Work::SendLast { data: peer.data(len, 9).into(), key: open.remote_key() });
        let completion = self.completion();
        let Outcome::Received { slot, bytes, imm: None, written: false, taken_back: Some(taken) } =
            completion.outcome
        else {
            panic!("{completion:?}")
        };
        assert_eq!(bytes as usize, len);
        let message = self.receives.take(slot, bytes).unwrap();
        assert_eq!(message[..], peer.data(len, 9)[..]);
        self.receives.supply(self.pool.allocate(RECEIVE_BYTES).unwrap()).unwrap();
        self.receives.ring().unwrap();
        assert!(peer.done().is_empty());
        let proof = self.pair.taken_back(taken).unwrap();
        assert_eq!(proof.key(), open.remote_key());
        open.close(proof)
    }
}

pub(super) fn write(data: Shared, into: &OpenWindow, imm: u32) -> Work {
    let (address, key) = (into.address(), into.remote_key());
    Work::Write { data: data.into(), address, key, imm: Some(imm) }
}

/// What the connection manager tells, kept until it is asked for.
pub(super) struct Manager {
    pub(super) channel: Rc<Channel>,
    pub(super) events: Vec<CmEvent>,
}

impl Manager {
    pub(super) fn new() -> Manager {
        Manager { channel: Channel::open().unwrap(), events: Vec::new() }
    }

    pub(super) fn expect(&mut self, key: ConnectionKey, kind: CmKind) -> CmEvent {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(i) = self.events.iter().position(|e| e.key == key && e.kind == kind) {
                return self.events.remove(i);
            }
            match self.channel.next().unwrap() {
                Some(event) => self.events.push(event),
                None => {
                    assert!(Instant::now() < deadline, "no {kind:?} in {:?}", self.events);
                    sleep(&[self.channel.fd()], Duration::from_secs(1)).unwrap();
                }
            }
        }
    }

    pub(super) fn resolve(&mut self, to: SocketAddr) -> Connection {
        let connection = Connection::new(&self.channel).unwrap();
        connection.resolve_address(None, to, PATIENCE).unwrap();
        self.expect(connection.key(), CmKind::AddressResolved);
        connection.resolve_route(PATIENCE).unwrap();
        self.expect(connection.key(), CmKind::RouteResolved);
        connection
    }

    pub(super) fn listen(&self) -> Connection {
        let listener = Connection::new(&self.channel).unwrap();
        listener.bind(address()).unwrap();
        listener.listen(4).unwrap();
        listener
    }

    /// Two connected ends, both of which take up to `inline_bytes` inline.
    pub(super) fn pair(&mut self, inline_bytes: usize) -> (End, End) {
        let listener = self.listen();
        let to = listener.local_address().unwrap();
        assert_eq!(to.ip(), address().ip());
        let active = End::new(self.resolve(to), inline_bytes);
        active.pair.connection().unwrap().set_ack_timeout(14).unwrap();
        active.pair.connection().unwrap().connect(b"hello", 3).unwrap();

        let event = self.expect(listener.key(), CmKind::ConnectRequest);
        assert_eq!(event.private_data[..5], *b"hello");
        let passive = End::new(event.request.unwrap(), inline_bytes);
        passive.pair.connection().unwrap().accept(b"welcome").unwrap();
        let event = self.expect(active.key(), CmKind::Established);
        assert_eq!(event.private_data[..7], *b"welcome");
        self.expect(passive.key(), CmKind::Established);
        assert_eq!(active.pair.connection().unwrap().peer_address(), Some(to));
        active.pair.set_receiver_not_ready_timer(12).unwrap();
        passive.pair.set_receiver_not_ready_timer(12).unwrap();
        (active, passive)
    }
}
