//! The contract among strangers and in trouble: what goes wrong with a peer is reported, once, and
//! stays with that peer.

use zerocopy::little_endian::U64;

use super::carry::reclaim;
use super::net::{Net, UNTOUCHED, check};
use crate::wire::Offer;
use crate::{Error, Frame, PeerId, Secret, Transport, VanConfig};

/// Who belongs to another cluster, or has another secret, is refused, hears no more than that, and
/// is nobody's peer.
pub fn strangers_are_refused<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let secret = Secret::from([7; 32]);
    let own = VanConfig { secret: secret.clone(), ..VanConfig::default() };
    let mut net = Net::with(&make, 2, own);
    let address = net.van(0).about().address.clone();
    for other in [
        VanConfig { cluster: 8, secret, ..VanConfig::default() },
        VanConfig { cluster: 7, secret: Secret::from([8; 32]), ..VanConfig::default() },
        VanConfig { cluster: 7, ..VanConfig::default() },
    ] {
        let stranger = net.add(make(other));
        let peer = net.van(stranger).connect(&address).unwrap();
        let error = net.lost(stranger, peer);
        assert!(error.to_string().contains("refused this node"), "{error}");
        assert!(net.rest(0).is_empty(), "nobody above hears of a stranger");
        assert!(net.rest(stranger).is_empty());
    }
    let (there, back) = net.connect(1, 0);
    net.exchange(1, there, 0, back);
    assert_eq!(back, PeerId(0), "strangers take no numbers for good");
}

/// A node that does not accept connects to others, and nobody connects to it.
pub fn a_node_that_does_not_accept_connects<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let mut net = Net::new(&make, 1);
    let client =
        net.add(make(VanConfig { cluster: 7, node: 101, accepts: false, ..VanConfig::default() }));
    assert_eq!(net.van(client).about().address, "");
    let (there, back) = net.connect(client, 0);
    net.exchange(client, there, 0, back);
    net.exchange(0, back, client, there);
}

/// Where nobody listens any more, connecting fails at once or soon, and names the address.
pub fn nobody_there_is_reported<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let mut net = Net::new(&make, 2);
    let address = net.van(1).about().address.clone();
    net.vans[1] = None;
    let error = match net.van(0).connect(&address) {
        Ok(peer) => net.lost(0, peer),
        Err(error) => error,
    };
    assert!(matches!(error, Error::Connect { .. } | Error::PeerLost { .. }), "{error}");
    assert!(error.to_string().contains(&address), "{error} names {address}");
    assert!(net.van(0).connect("no address at all").is_err());
}

/// A peer that comes back is a new peer; the old number stays dead.
pub fn reconnects_under_a_new_number<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let (mut net, there, back) = Net::pair(&make);
    net.van(0).disconnect(there);
    net.lost(1, back);
    let (again, back_again) = net.connect(0, 1);
    assert!(again != there && back_again != back);
    is_dead(&mut net, 0, there);
    is_dead(&mut net, 1, back);
    net.exchange(0, again, 1, back_again);
    net.exchange(1, back_again, 0, again);
}

/// Once withdrawn, an offer is gone: for its owner, who must not ask twice, and for the peer, who
/// is lost if it tries.
pub fn withdrawn_memory_is_out_of_reach<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let mut net = Net::new(&make, 3);
    let ((there, back), (friend, friend_back)) = (net.connect(1, 0), net.connect(2, 0));
    let memory = net.van(0).about().memory.allocate(1000).unwrap();
    let address = memory.as_ptr();
    let old = net.offer_memory(0, back, memory);
    let other = net.van(0).withdraw(friend_back, old.key.get()).unwrap_err();
    assert!(matches!(other, Error::OutsideOffer { .. }), "another peer's: {other}");
    let mut memory = net.van(0).withdraw(back, old.key.get()).unwrap();
    assert_eq!(memory.as_ptr(), address);
    let twice = net.van(0).withdraw(back, old.key.get()).unwrap_err();
    assert!(matches!(twice, Error::OutsideOffer { .. }), "{twice}");
    // The next offer may well take the place of the first one in some table.
    memory.fill(0xee);
    let new = net.offer_memory(0, back, memory);
    misdeed(&mut net, (there, back), &old);
    let memory = net.van(0).withdraw(back, new.key.get()).unwrap();
    assert!(memory.iter().all(|&byte| byte == 0xee), "a stale offer reaches nothing");
    net.exchange(2, friend, 0, friend_back);
}

/// What this side can see is wrong, it says at once, and nobody is lost: a write past the offer, or
/// one that begins where none may, at other than multiples of 8 below 4096.
pub fn a_local_write_past_an_offer_is_refused<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let (mut net, there, back) = Net::pair(&make);
    let offer = net.offer(1, back, 10_000);
    for (at, len) in [(0, 10_001), (4088, 5913), (8, 9993)] {
        let data = net.bytes(0, 1, len);
        let error = net.van(0).post_write(there, data.into(), &offer, at).unwrap_err();
        assert!(matches!(error, Error::OutsideOffer { .. }), "{at}+{len}: {error}");
    }
    for at in [1, 4, 4092, 4096, 8000, u64::MAX, u64::MAX - 7] {
        let data = net.bytes(0, 1, 8);
        let error = net.van(0).post_write(there, data.into(), &offer, at).unwrap_err();
        assert!(matches!(error, Error::WriteAt { at: found } if found == at), "{at}: {error}");
    }
    let data = net.bytes(0, 2, 5912);
    net.van(0).post_write(there, data.into(), &offer, 4088).unwrap();
    net.written(1, back).check(&offer, 4088, 2, 5912);
    net.exchange(0, there, 1, back);
}

/// An offer is for one write. Who writes it again is lost, and reaches neither that memory nor what
/// was offered since: a van may only take the one place that is offered for the one meant until it
/// knows better, and so there are two.
pub fn a_second_write_to_an_offer_loses_the_writer<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let mut net = Net::new(&make, 3);
    let ((there, back), (friend, friend_back)) = (net.connect(1, 0), net.connect(2, 0));
    let offer = net.offer(0, back, 1000);
    let data = net.bytes(1, 3, 1000);
    net.van(1).post_write(there, data.into(), &offer, 0).unwrap();
    let written = net.written(0, back);
    let since = [(); 2].map(|()| net.offer(0, back, 1000));
    misdeed(&mut net, (there, back), &offer);
    written.check(&offer, 0, 3, 1000);
    for since in since {
        let memory = net.van(0).withdraw(back, since.key.get()).unwrap();
        assert!(memory.iter().all(|&byte| byte == UNTOUCHED));
    }
    net.exchange(2, friend, 0, friend_back);
}

/// A peer that writes past the memory it was offered is lost. The node and its other peers go on.
pub fn a_write_past_an_offer_loses_the_writer<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let mut net = Net::new(&make, 3);
    let ((there, back), (friend, friend_back)) = (net.connect(1, 0), net.connect(2, 0));
    let into = net.van(0).about().memory.allocate(1000).unwrap();
    let offer = net.offer_memory(0, back, into);
    misdeed(&mut net, (there, back), &Offer { len: U64::new(1001), ..offer });
    assert!(net.van(0).withdraw(back, offer.key.get()).is_ok());
    net.exchange(2, friend, 0, friend_back);
}

/// Knowing another peer's offer does not help.
pub fn a_write_into_somebody_elses_offer_loses_the_writer<T: Transport>(
    make: impl Fn(VanConfig) -> T,
) {
    let mut net = Net::new(&make, 3);
    let ((there, back), (friend, friend_back)) = (net.connect(1, 0), net.connect(2, 0));
    let mut into = net.van(0).about().memory.allocate(1000).unwrap();
    into.fill(0xee);
    let offer = net.offer_memory(0, friend_back, into);
    misdeed(&mut net, (there, back), &offer);
    let memory = net.van(0).withdraw(friend_back, offer.key.get()).unwrap();
    assert!(memory.iter().all(|&byte| byte == 0xee));
    net.exchange(2, friend, 0, friend_back);
}

/// Node 1 writes all of `offer`, which it must not; asserts that nodes 0 and 1 lose each other over
/// it, and nothing arrives.
fn misdeed<T: Transport>(net: &mut Net<T>, (there, back): (PeerId, PeerId), offer: &Offer) {
    let data = net.bytes(1, 6, offer.len.get() as usize);
    net.van(1).post_write(there, data.into(), offer, 0).unwrap();
    net.send(1, there, 1, 10);
    let error = net.lost(0, back);
    assert!(matches!(error, Error::PeerLost { .. }), "{error}");
    net.lost(1, there);
    for node in [0, 1] {
        let rest = net.rest(node);
        assert!(rest.is_empty(), "nothing follows: {rest:?}");
    }
    is_dead(net, 0, back);
}

/// When a transport is dropped its peers hear of it once; what it had been offered can be withdrawn
/// then.
pub fn a_lost_peer_is_reported_once<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let (mut net, there, back) = Net::pair(&make);
    let into = net.van(0).about().memory.allocate(1000).unwrap();
    let offer = net.offer_memory(0, there, into);
    let late = net.van(0).about().memory.allocate(1000).unwrap();
    let forgotten = net.offer_memory(0, there, late);
    net.send(1, back, 8, 77);
    net.turn();
    net.vans[1] = None;
    check(&net.frame(0, there), 8, 77);
    let error = net.lost(0, there);
    assert!(matches!(error, Error::PeerLost { peer, .. } if peer == there), "{error}");
    is_dead(&mut net, 0, there);
    assert_eq!(net.van(0).withdraw(there, offer.key.get()).unwrap().len(), 1000);
    let rest = net.rest(0);
    assert!(rest.is_empty(), "nothing follows: {rest:?}");
    net.van(0).disconnect(there);
    assert!(net.van(0).withdraw(there, forgotten.key.get()).is_err(), "until disconnect");
}

/// What is posted to a peer that goes away, and cannot all have left, is not held for it; nor is
/// the memory of a write that came in only in part.
pub fn what_was_posted_to_a_lost_peer_comes_home<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let (mut net, there, back) = Net::pair(&make);
    let data = net.bytes(0, 1, 32 << 20);
    for _ in 0..4 {
        let offer = net.offer(1, back, data.len());
        net.van(0).post_write(there, data.clone().into(), &offer, 0).unwrap();
    }
    net.turn();
    net.vans[1] = None;
    net.lost(0, there);
    let data = reclaim(&mut net, data).share();
    let other = net.add(make(VanConfig { cluster: 7, node: 102, ..VanConfig::default() }));
    let (other_back, again) = net.connect(other, 0);
    let into = net.van(other).about().memory.allocate(data.len()).unwrap();
    let address = into.as_ptr();
    let offer = net.offer_memory(other, other_back, into);
    net.van(0).post_write(again, data.clone().into(), &offer, 0).unwrap();
    // One poll alone: the write has begun to leave, and on most vans cannot have ended.
    net.van(0).poll(&mut Vec::new()).unwrap();
    net.van(0).disconnect(again);
    reclaim(&mut net, data);
    net.lost(other, other_back);
    // Wherever the memory is: with an event, with an offer that was not used, or dropped in the
    // middle of its write.
    net.rest(other);
    drop(net.van(other).withdraw(other_back, offer.key.get()));
    let again = net.van(other).about().memory.allocate(32 << 20).unwrap();
    assert_eq!(again.as_ptr(), address, "it comes home");
}

/// Disconnecting is silent here, a loss there, and takes back what was offered.
pub fn disconnecting_forgets<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let (mut net, there, back) = Net::pair(&make);
    let into = net.van(0).about().memory.allocate(1000).unwrap();
    let offer = net.offer_memory(0, there, into);
    net.van(0).disconnect(there);
    net.lost(1, back);
    assert!(net.van(0).withdraw(there, offer.key.get()).is_err());
    is_dead(&mut net, 0, there);
    net.van(0).disconnect(there);
    net.van(0).disconnect(PeerId(there.0 + 1000));
    assert!(net.rest(0).is_empty() && net.rest(1).is_empty());
}

/// Asserts that nothing can be posted or offered to `peer`.
fn is_dead<T: Transport>(net: &mut Net<T>, node: usize, peer: PeerId) {
    let nobody = |error: &Error| matches!(error, Error::NotConnected { peer: of } if *of == peer);
    let frame = net.framed(node, 1, 8);
    let data = net.bytes(node, 1, 8);
    let into = net.van(node).about().memory.allocate(8).unwrap();
    let offer = Offer { key: U64::new(0), address: U64::new(0), len: U64::new(8) };
    let lent = Frame::Lent { frame: net.framed(node, 1, 8), values: data.clone() };
    for frame in [frame.into(), Frame::Borrowed(&[1; 8]), lent] {
        let error = net.van(node).post_send(peer, frame).unwrap_err();
        assert!(nobody(&error), "{error}");
    }
    let error = net.van(node).post_write(peer, data.into(), &offer, 0).unwrap_err();
    assert!(nobody(&error), "{error}");
    let error = net.van(node).offer(peer, into).unwrap_err();
    assert!(nobody(&error), "{error}");
}
