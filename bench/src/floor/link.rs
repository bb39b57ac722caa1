//! One queue pair to one peer, set up by the connection manager, and how to wait for it. It carries
//! the floor's requests, or the messages of `bench verbs`.
//!
//! The private data of the connection describe its work, so a connection carries one kind of work
//! and no protocol: the next kind takes a new connection.

use std::cell::{Ref, RefCell};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use caravan_van::rdma::verbs::{
    Batch, Channel, CmEvent, CmKind, Completion, CompletionQueue, Connection, ConnectionKey,
    Device, Domain, Exposed, Outcome, QueuePair, ReceiveQueue, Slot, sleep,
};
use caravan_van::wait::{Idle, Next};
use caravan_van::{Buffer, Pool, Wait};

/// How long the other side may take for anything.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long resolving an address or a route may take.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Empty polls between two checks of the connection.
const POLLS_A_CHECK: u32 = 512;
/// Longest sleep without a check of the connection.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// How long a failed queue pair waits for the event that the other side hung up, which explains the
/// failure.
const GOODBYE: Duration = Duration::from_secs(2);
/// Tries of the transport before a peer counts as lost.
const RETRIES: u8 = 7;
/// Receives that are posted together.
const RECEIVES_AT_ONCE: usize = 16;
/// Most memory of a link, in bytes.
const MEMORY_BYTES_MAX: usize = 16 << 30;

/// The capacity of a queue pair.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) sends: usize,
    /// Messages that may come before their memory is given back; [`RECEIVES_AT_ONCE`] more receives
    /// are posted.
    pub(crate) receives: usize,
    /// Bytes of each.
    pub(crate) receive_bytes: usize,
    /// Messages of at most so many bytes go inside the work request, if the device can.
    pub(crate) inline_bytes: usize,
}

/// Exposed memory of the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) address: u64,
    pub(crate) key: u32,
}

impl Remote {
    /// From words of the other side; address 0 stands for no memory. The low half of `key` counts.
    pub(crate) fn at(address: u64, key: u64) -> Option<Self> {
        (address != 0).then_some(Remote { address, key: key as u32 })
    }
}

/// The outcome of the work of a queue pair.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// A message. [`Link::message`] shows it until [`Link::give_back`] frees its place.
    Message { slot: Slot, bytes: u32, imm: u32 },
    /// A write into memory of this side.
    Written { imm: u32 },
    /// The answer to a read.
    Read { memory: Buffer },
}

/// The events of the connection manager, for a listener and the links that came of it.
struct Events {
    channel: Rc<Channel>,
    /// Requests to connect, with their private data.
    requests: RefCell<VecDeque<(Connection, Vec<u8>)>>,
}

impl Events {
    fn open() -> Result<Rc<Self>> {
        let channel = Channel::open().context("cannot open the RDMA connection manager")?;
        Ok(Rc::new(Events { channel, requests: RefCell::default() }))
    }

    /// The next event of one connection, if there is one; keeps requests for later.
    fn poll(&self, key: ConnectionKey) -> Result<Option<CmEvent>> {
        while let Some(mut event) = self.channel.next().context("the connection manager fails")? {
            if let Some(request) = event.request.take() {
                self.requests.borrow_mut().push_back((request, event.private_data));
            } else if event.key == key {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// Waits for `kind`; any other event of that connection is its end.
    fn expect(&self, key: ConnectionKey, kind: CmKind) -> Result<CmEvent> {
        let began = Instant::now();
        loop {
            match self.poll(key)? {
                Some(event) if event.kind == kind => return Ok(event),
                Some(CmEvent { kind: CmKind::Rejected, private_data, .. }) => {
                    let reason = String::from_utf8_lossy(&private_data);
                    match reason.trim_matches('\0') {
                        "" => bail!("nobody listens there"),
                        reason => bail!("turned away: {reason}"),
                    }
                }
                Some(event) => {
                    bail!("{:?} instead of {kind:?}, status {}", event.kind, event.status)
                }
                None => self.sleep(SLEEP_MAX)?,
            }
            ensure!(began.elapsed() < PATIENCE, "no {kind:?} within {PATIENCE:?}");
        }
    }

    fn sleep(&self, timeout: Duration) -> Result<()> {
        sleep(&[self.channel.fd()], timeout)?;
        Ok(())
    }
}

/// Accepts requests for links.
pub(crate) struct Listener {
    events: Rc<Events>,
    connection: Connection,
}

impl Listener {
    /// Listens at an address of an RDMA device; port 0 takes a free one.
    pub(crate) fn bind(address: SocketAddr) -> Result<Self> {
        let events = Events::open()?;
        let connection = Connection::new(&events.channel)?;
        let listen = || {
            connection.bind(address)?;
            connection.listen(16)
        };
        listen().with_context(|| format!("cannot listen at {address} by RDMA"))?;
        Ok(Listener { events, connection })
    }

    pub(crate) fn address(&self) -> Result<SocketAddr> {
        self.connection.local_address().context("the listener has no address")
    }

    /// Waits for the next request, without a limit.
    pub(crate) fn next(&self) -> Result<Asked> {
        loop {
            while self.events.poll(self.connection.key())?.is_some() {}
            if let Some((connection, said)) = self.events.requests.borrow_mut().pop_front() {
                return Ok(Asked { events: self.events.clone(), connection, said });
            }
            self.events.sleep(SLEEP_MAX)?;
        }
    }
}

/// A request for a link.
pub(crate) struct Asked {
    events: Rc<Events>,
    connection: Connection,
    pub(crate) said: Vec<u8>,
}

impl Asked {
    /// Makes this side of the link; [`Link::accept`] completes it.
    pub(crate) fn link(self, room: Room, wait: Wait) -> Result<Link> {
        Link::new(self.events, self.connection, room, wait)
    }

    /// Rejects the request.
    pub(crate) fn reject(self, why: &str) -> Result<()> {
        let fits = why.floor_char_boundary(REASON_BYTES_MAX);
        Ok(self.connection.reject(&why.as_bytes()[..fits])?)
    }
}

/// Bytes of a reason that fit into a rejection.
const REASON_BYTES_MAX: usize = 140;

/// One side of a connection.
pub(crate) struct Link {
    // Dropped first: the device may still use the other fields through it.
    queue: QueuePair,
    receives: ReceiveQueue,
    completions: Rc<CompletionQueue>,
    domain: Rc<Domain>,
    memory: Pool,
    events: Rc<Events>,
    wait: Wait,
    idle: Idle,
    sends: usize,
    /// Receives given back since others were posted.
    supplied: usize,
    batch: Batch,
    read: Vec<Buffer>,
    hung_up: bool,
}

impl Link {
    /// Resolves the route to a listener, from one address of this machine or from any;
    /// [`Link::connect`] completes the link.
    pub(crate) fn dial(
        from: Option<IpAddr>,
        to: SocketAddr,
        room: Room,
        wait: Wait,
    ) -> Result<Self> {
        let events = Events::open()?;
        let connection = Connection::new(&events.channel)?;
        let key = connection.key();
        let from = from.map(|address| SocketAddr::new(address, 0));
        let resolve = || {
            connection.resolve_address(from, to, RESOLVE_TIMEOUT)?;
            events.expect(key, CmKind::AddressResolved)?;
            connection.resolve_route(RESOLVE_TIMEOUT)?;
            events.expect(key, CmKind::RouteResolved)
        };
        resolve().with_context(|| format!("no way to {to} by RDMA"))?;
        Link::new(events, connection, room, wait)
    }

    fn new(events: Rc<Events>, connection: Connection, room: Room, wait: Wait) -> Result<Self> {
        let device = connection.device().context("the connection has no RDMA device")?;
        let domain = Domain::new(device)?;
        // A failed queue pair completes all it holds, receives too.
        let completions =
            CompletionQueue::new(device, room.sends + room.receives + RECEIVES_AT_ONCE + 1)?;
        let posted = room.receives + RECEIVES_AT_ONCE;
        let mut receives = ReceiveQueue::new(&domain, posted)?;
        let memory = Pool::registered(MEMORY_BYTES_MAX, domain.clone());
        for _ in 0..posted {
            receives.supply(memory.allocate(room.receive_bytes)?)?;
        }
        receives.ring()?;
        let queue = QueuePair::new(
            connection,
            &domain,
            &completions,
            &receives,
            room.sends,
            room.inline_bytes,
        )?;
        Ok(Link {
            sends: queue.room(),
            queue,
            receives,
            completions,
            domain,
            memory,
            events,
            wait,
            idle: Idle::new(wait),
            supplied: 0,
            batch: Batch::new(),
            read: Vec::with_capacity(16),
            hung_up: false,
        })
    }

    /// Completes a dialled link with private data; returns those of the other side.
    pub(crate) fn connect(&self, said: &[u8]) -> Result<Vec<u8>> {
        let connection = self.connection();
        connection.connect(said, RETRIES).context("cannot ask for a link by RDMA")?;
        Ok(self.events.expect(connection.key(), CmKind::Established)?.private_data)
    }

    /// Completes a requested link with private data.
    pub(crate) fn accept(&self, said: &[u8]) -> Result<()> {
        let connection = self.connection();
        connection.accept(said).context("cannot accept a link by RDMA")?;
        self.events.expect(connection.key(), CmKind::Established)?;
        Ok(())
    }

    /// Memory that the other side may write and read: zeros that end with `contents`. It begins at
    /// a page, since memory across pages costs a device more.
    pub(crate) fn expose(&self, bytes: usize, contents: &[u8]) -> Result<Exposed> {
        let mut memory = Pool::new(MEMORY_BYTES_MAX).allocate(bytes)?;
        memory.fill(0);
        memory[bytes - contents.len()..].copy_from_slice(contents);
        Ok(Exposed::new(&self.domain, memory, true)?)
    }

    /// Registered memory for messages.
    pub(crate) fn memory(&self) -> &Pool {
        &self.memory
    }

    pub(crate) fn wait_policy(&self) -> Wait {
        self.wait
    }

    pub(crate) fn device(&self) -> Device {
        self.domain.device()
    }

    pub(crate) fn queue(&mut self) -> &mut QueuePair {
        &mut self.queue
    }

    /// Sends that the device has not finished, as far as completions tell.
    pub(crate) fn under_way(&self) -> usize {
        self.sends - self.queue.room()
    }

    /// A message in the memory that received it.
    #[inline]
    pub(crate) fn message(&self, slot: &Slot, bytes: u32) -> Result<Ref<'_, [u8]>> {
        self.receives.message(slot, bytes).context("a receive ended that was not posted")
    }

    /// Frees the place of a message; its receive is posted together with [`RECEIVES_AT_ONCE`]
    /// others.
    #[inline]
    pub(crate) fn give_back(&mut self, slot: Slot) -> Result<()> {
        self.receives.again(slot);
        self.supplied += 1;
        if self.supplied == RECEIVES_AT_ONCE {
            self.receives.ring()?;
            self.supplied = 0;
        }
        Ok(())
    }

    /// Appends arrivals; returns whether anything completed, sends included.
    fn poll(&mut self, arrivals: &mut Vec<Arrival>) -> Result<bool> {
        if self.completions.poll(&mut self.batch)? == 0 {
            return Ok(false);
        }
        while let Some(completion) = self.batch.next() {
            let Completion { outcome, status, .. } = completion?;
            if !status.is_ok() {
                if self.awaits_goodbye()? {
                    break;
                }
                bail!("the queue pair failed: {status}");
            }
            match outcome {
                Outcome::Sent(through) => {
                    self.queue.retire(through, &mut self.read);
                    arrivals.extend(self.read.drain(..).map(|memory| Arrival::Read { memory }));
                }
                Outcome::Received { slot, bytes, imm, written, .. } => {
                    let imm = imm.unwrap_or(0);
                    if written {
                        self.give_back(slot)?;
                        arrivals.push(Arrival::Written { imm });
                    } else {
                        arrivals.push(Arrival::Message { slot, bytes, imm });
                    }
                }
            }
        }
        Ok(true)
    }

    /// Waits by the policy until something completes; `false` when the other side hung up.
    pub(crate) fn wait(&mut self, arrivals: &mut Vec<Arrival>, busy: bool) -> Result<bool> {
        let mut polls = 0u32;
        self.idle.begin(if busy { PATIENCE } else { Duration::MAX });
        while !self.poll(arrivals)? {
            polls = polls.wrapping_add(1);
            let mut checks = polls.is_multiple_of(POLLS_A_CHECK);
            match self.idle.after_empty_look() {
                Next::Look => {}
                Next::Sleep(left) => {
                    self.sleep(left)?;
                    checks = true;
                }
                Next::Return => bail!("the other side said nothing for {PATIENCE:?}"),
            }
            if checks && self.is_hung_up()? {
                return Ok(false);
            }
        }
        Ok(!self.hung_up)
    }

    /// Sleeps until something completes or happens to the connection.
    fn sleep(&mut self, left: Duration) -> Result<()> {
        self.completions.arm()?;
        if self.completions.poll(&mut self.batch)? == 0 {
            let fds = [self.completions.fd(), self.events.channel.fd()];
            sleep(&fds, left.min(SLEEP_MAX))?;
            self.completions.take_notices()?;
        }
        Ok(())
    }

    /// Checks memory until `is_written`, yielding by the policy: a write wakes no sleeping thread.
    /// `false` when the other side hung up.
    pub(crate) fn watch(&mut self, is_written: impl Fn() -> bool) -> Result<bool> {
        let mut polls = 0u32;
        while !is_written() {
            self.wait.give_way();
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(POLLS_A_CHECK) && self.is_hung_up()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until at most `most` sends are in flight; `false` when the other side hung up.
    pub(crate) fn drain_to(&mut self, most: usize, arrivals: &mut Vec<Arrival>) -> Result<bool> {
        while self.under_way() > most {
            if !self.wait(arrivals, true)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sleeps until the other side hangs up, which alone uses this side's memory.
    pub(crate) fn sleep_until_goodbye(&mut self) -> Result<()> {
        while !self.is_hung_up()? {
            self.events.sleep(SLEEP_MAX)?;
        }
        Ok(())
    }

    fn connection(&self) -> &Connection {
        self.queue.connection().expect("every link is made over one")
    }

    /// Whether the other side has hung up.
    fn is_hung_up(&mut self) -> Result<bool> {
        while let Some(event) = self.events.poll(self.connection().key())? {
            self.hung_up |= matches!(
                event.kind,
                CmKind::Disconnected | CmKind::TimewaitExit | CmKind::DeviceRemoved
            );
        }
        Ok(self.hung_up)
    }

    /// Waits a while for the event that the other side hung up; whether it came.
    fn awaits_goodbye(&mut self) -> Result<bool> {
        let began = Instant::now();
        while !self.is_hung_up()? {
            if began.elapsed() > GOODBYE {
                return Ok(false);
            }
            self.events.sleep(GOODBYE / 10)?;
        }
        Ok(true)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if !self.hung_up {
            // An error means that the connection has ended already.
            let _ = self.connection().disconnect();
        }
    }
}
