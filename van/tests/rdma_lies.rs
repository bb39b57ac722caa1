//! A peer of the RDMA van that lies: it claims to have closed a window that it did not close, or
//! another peer's, or to have written more than there is. It is lost, no write is reported, and no
//! other peer notices.
//!
//! The liar is made of verbs alone. Runs where `CARAVAN_TEST_DEVICE` names a device (`ci/vm` makes
//! one), and says so where not.
#![cfg(all(target_os = "linux", feature = "rdma"))]

use std::rc::Rc;
use std::time::{Duration, Instant};

use caravan_van::handshake::{Credentials, WELCOME_BYTES};
use caravan_van::rdma::Rdma;
use caravan_van::rdma::verbs::{
    Batch, Channel, CmKind, CompletionQueue, Connection, Domain, QueuePair, ReceiveQueue, Work,
};
use caravan_van::wire::Offer;
use caravan_van::{
    Buffer, Error, Event, FRAME_PREFIX, PeerId, Pool, RdmaConfig, RdmaConnect, Shared, Transport,
    VanConfig,
};

const PATIENCE: Duration = Duration::from_secs(20);

/// Bytes of every offer.
const OFFERED: usize = 4096;

/// In the key of an offer: it is a window. Below that, its place in its owner's table.
const WINDOW: u64 = 1 << 31;

/// A peer that has said hello, and from then on says what it likes.
struct Liar {
    pair: QueuePair,
    completions: Rc<CompletionQueue>,
    _receives: ReceiveQueue,
    pool: Pool,
    _channel: Rc<Channel>,
}

/// The device, connected to by the connection manager.
fn on(device: String) -> RdmaConfig {
    let connect = RdmaConnect::Manager;
    RdmaConfig { device: Some(device), connect, ..RdmaConfig::default() }
}

impl Liar {
    /// One that has proved itself to `van`, and what that calls it.
    fn connect(van: &mut Rdma) -> (Liar, PeerId) {
        let liar = Liar::prove(van, |proof| proof);
        let event = next(van);
        let Event::Connected { peer, .. } = event else { panic!("{event:?}") };
        liar.hears(van); // that its proof has left
        (liar, peer)
    }

    /// One that knows the secret, was welcomed by `van`, and says what `change` makes of its proof.
    fn prove(van: &mut Rdma, change: fn(Vec<u8>) -> Vec<u8>) -> Liar {
        let channel = Channel::open().unwrap();
        let connection = Connection::new(&channel).unwrap();
        connection.resolve_address(None, van.about().address.parse().unwrap(), PATIENCE).unwrap();
        expect(&channel, van, CmKind::AddressResolved);
        connection.resolve_route(PATIENCE).unwrap();
        expect(&channel, van, CmKind::RouteResolved);

        let device = connection.device().unwrap();
        let domain = Domain::new(device).unwrap();
        let completions = CompletionQueue::new(device, 100).unwrap();
        let mut receives = ReceiveQueue::new(&domain, 8).unwrap();
        let pool = Pool::registered(64 << 20, domain.clone());
        for _ in 0..8 {
            receives.supply(pool.allocate(8 << 10).unwrap()).unwrap();
        }
        receives.ring().unwrap();
        let pair = QueuePair::new(connection, &domain, &completions, &receives, 16, 0).unwrap();
        let credentials = Credentials::new(&VanConfig::default(), "rdma")
            .saying(|hello| hello.receives = 8.into());
        let (calling, call) = credentials.call();
        pair.connection().unwrap().connect(&call, 3).unwrap();
        let welcome = expect(&channel, van, CmKind::Established);
        let (_, proof) = credentials.prove(calling, &welcome[..WELCOME_BYTES]).unwrap();
        let mut liar = Liar { pair, completions, _receives: receives, pool, _channel: channel };
        let proof = liar.data(&change(proof.to_vec()));
        liar.says(vec![Work::Send { data: proof.into(), imm: Some(0) }]);
        liar
    }

    fn data(&self, bytes: &[u8]) -> Shared {
        let mut data = self.pool.allocate(bytes.len()).unwrap();
        data.copy_from_slice(bytes);
        data.share()
    }

    /// Until a frame has come, so that what the van did before is done.
    fn hears(&self, van: &mut Rdma) {
        let (mut batch, began) = (Batch::new(), Instant::now());
        while self.completions.poll(&mut batch).unwrap() == 0 {
            van.poll(&mut Vec::new()).unwrap();
            assert!(began.elapsed() < PATIENCE, "nothing came");
            std::thread::yield_now();
        }
        assert!(batch.all(|completion| completion.unwrap().status.is_ok()));
    }

    fn says(&mut self, work: Vec<Work>) {
        for work in work {
            self.pair.push(work).unwrap();
        }
        self.pair.ring(true).unwrap();
    }
}

fn expect(channel: &Rc<Channel>, van: &mut Rdma, kind: CmKind) -> Vec<u8> {
    let began = Instant::now();
    loop {
        match channel.next().unwrap() {
            Some(event) if event.kind == kind => return event.private_data,
            Some(event) => panic!("{:?}, not {kind:?}", event.kind),
            None => van.wait(Duration::from_millis(1)).unwrap(), // and keeps what comes
        }
        assert!(began.elapsed() < PATIENCE, "no {kind:?}");
    }
}

fn next(van: &mut Rdma) -> Event {
    let (mut events, began) = (Vec::new(), Instant::now());
    while events.is_empty() {
        van.wait(Duration::from_millis(1)).unwrap();
        van.poll(&mut events).unwrap();
        assert!(began.elapsed() < PATIENCE, "nothing came");
    }
    assert_eq!(events.len(), 1, "{events:?}");
    events.remove(0)
}

fn frame(van: &Rdma) -> Buffer {
    van.about().memory.allocate(FRAME_PREFIX + 8).unwrap()
}

/// Memory of zeros for `peer` to write.
fn offer(van: &mut Rdma, peer: PeerId) -> Offer {
    let mut memory = van.about().memory.allocate(OFFERED).unwrap();
    memory.fill(0);
    van.offer(peer, memory).unwrap()
}

/// The remote key of an offer.
fn key(offer: &Offer) -> u32 {
    (offer.key.get() >> 32) as u32
}

/// What says which offer was used, for a write that begins where it does.
fn notice(offer: &Offer) -> u32 {
    ((offer.key.get() & (WINDOW - 1)) << 12) as u32
}

/// The beginning of the message that closes a window.
fn last(notice: u32, len: u64) -> Vec<u8> {
    let words = [u64::from(notice), len];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// What a liar does with its offers, two of its own and one of an honest peer.
type Lie = fn(&Liar, &Offer, &Offer, &Offer) -> Vec<Work>;

fn close(liar: &Liar, key: u32, message: &[u8]) -> Vec<Work> {
    vec![Work::SendLast { data: liar.data(message).into(), key }]
}

fn lies() -> Vec<(&'static str, Lie)> {
    vec![
        ("did not close its window", |liar, own, _, _| {
            let (data, address) = (liar.data(&[7; 100]).into(), own.address.get());
            vec![Work::Write { data, address, key: key(own), imm: Some(notice(own)) }]
        }),
        ("which is not open", |liar, own, _, _| {
            let (data, address) = (liar.data(&[7; 100]).into(), own.address.get());
            vec![Work::Write { data, address, key: key(own), imm: Some(u32::MAX) }]
        }),
        ("without its immediate word", |liar, own, _, _| {
            vec![Work::Send { data: liar.data(&last(notice(own), 8)).into(), imm: None }]
        }),
        ("a window that is not the one of offer", |liar, own, second, _| {
            close(liar, key(own), &last(notice(second), 8))
        }),
        ("a window that is not the one of offer", |liar, own, _, honest| {
            close(liar, key(own), &last(notice(honest), 8))
        }),
        ("a window that is not the one of offer", |liar, own, _, _| {
            close(liar, key(own), &last(u32::MAX, 8))
        }),
        ("outside the 4096 bytes", |liar, own, _, _| {
            close(liar, key(own), &last(notice(own), OFFERED as u64 + 8))
        }),
        ("a write of 18446744073709551615 bytes", |liar, own, _, _| {
            close(liar, key(own), &last(notice(own), u64::MAX))
        }),
        ("ended a write of 2 bytes by 3 more", |liar, own, _, _| {
            close(liar, key(own), &[last(notice(own), 2), vec![7; 3]].concat())
        }),
        ("said nothing", |liar, own, _, _| close(liar, key(own), &[0; 15])),
        // Devices other than Soft-RoCE do not let it do that; it is lost in any case.
        ("", |liar, _, _, honest| close(liar, key(honest), &last(notice(honest), 8))),
    ]
}

#[test]
fn a_peer_that_lies_is_lost_and_nobody_else() {
    let Ok(device) = std::env::var("CARAVAN_TEST_DEVICE") else {
        eprintln!("skipped: CARAVAN_TEST_DEVICE names no RDMA device (`ci/vm` makes one)");
        return;
    };
    let config = VanConfig { rdma: on(device), ..VanConfig::default() };
    for (reason, lie) in lies() {
        listen_to(reason, lie, &config);
    }
}

#[test]
fn who_is_welcomed_and_does_not_prove_himself_is_nobodys_peer() {
    let Ok(device) = std::env::var("CARAVAN_TEST_DEVICE") else {
        eprintln!("skipped: CARAVAN_TEST_DEVICE names no RDMA device (`ci/vm` makes one)");
        return;
    };
    let mut van = Rdma::new(&VanConfig { rdma: on(device), ..VanConfig::default() }).unwrap();
    let changes: [fn(Vec<u8>) -> Vec<u8>; 3] = [
        |proof| proof.into_iter().map(|byte| byte ^ 1).collect(),
        |proof| proof[1..].to_vec(),
        |_| b"a frame, as if it were a peer".to_vec(),
    ];
    for change in changes {
        let _liar = Liar::prove(&mut van, change);
        for _ in 0..50 {
            let mut events = Vec::new();
            van.wait(Duration::from_millis(2)).unwrap();
            van.poll(&mut events).unwrap();
            assert!(events.is_empty(), "nobody above hears of it: {events:?}");
        }
    }
    Liar::connect(&mut van);
}

/// One lie, to a van that has an honest peer as well.
fn listen_to(reason: &str, lie: Lie, config: &VanConfig) {
    let (mut van, mut other) = (Rdma::new(config).unwrap(), Rdma::new(config).unwrap());
    // The honest peer calls: on Soft-RoCE windows open only once all earlier sends, such as a
    // proof, are acknowledged.
    let to_van = other.connect(&van.about().address).unwrap();
    let mut events = Vec::new();
    while events.is_empty() {
        other.wait(Duration::from_millis(1)).unwrap();
        other.poll(&mut Vec::new()).unwrap();
        van.wait(Duration::from_millis(1)).unwrap();
        van.poll(&mut events).unwrap();
    }
    let event = events.remove(0);
    let Event::Connected { peer: honest, .. } = event else { panic!("{event:?}") };

    let offers = [offer(&mut van, honest), offer(&mut van, honest)];
    let (mut liar, peer) = Liar::connect(&mut van);
    let own = [offer(&mut van, peer), offer(&mut van, peer)];
    assert!(own.iter().chain(&offers).all(|offer| offer.key.get() & WINDOW != 0));
    // What is offered holds from when something that follows it has arrived.
    let frames = [(peer, frame(&van)), (honest, frame(&van))];
    for (to, frame) in frames {
        van.post_send(to, frame.into()).unwrap();
    }
    liar.hears(&mut van);
    let event = next(&mut other);
    assert!(matches!(event, Event::Received { .. }), "{event:?}");

    liar.says(lie(&liar, &own[0], &own[1], &offers[0]));
    let event = next(&mut van);
    let Event::Lost { peer: lost, error: Error::PeerLost { reason: told, .. } } = event else {
        panic!("{reason}: {event:?}")
    };
    assert!(lost == peer && told.to_string().contains(reason), "{told}");
    assert_eq!(van.withdraw(peer, own[1].key.get()).unwrap()[..], [0; OFFERED], "{reason}");
    van.disconnect(peer);
    assert!(van.withdraw(peer, own[0].key.get()).is_err());

    // The honest one writes as if nothing had been.
    let data = Buffer::adopt(vec![7u8; OFFERED]).share();
    other.post_write(to_van, data.into(), &offers[1], 0).unwrap();
    other.poll(&mut Vec::new()).unwrap();
    let event = next(&mut van);
    let Event::Written { peer, memory, .. } = event else { panic!("{reason}: {event:?}") };
    assert!(peer == honest && memory[..] == [7; OFFERED], "{reason}");
    assert_eq!(van.withdraw(honest, offers[0].key.get()).unwrap()[..], [0; OFFERED]);
}
