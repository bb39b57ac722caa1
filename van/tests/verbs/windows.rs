//! Memory windows: open to one peer, until its message or this side shuts them.

use super::*;

#[test]
fn a_peer_writes_through_a_window_until_it_is_closed() {
    let Some(_one) = device() else { return };
    let mut manager = Manager::new();
    let (mut a, mut b) = manager.pair(0);
    assert!(b.domain.device().capabilities().unwrap().windows);
    let mut window = Window::new(&b.domain).unwrap();
    let mut keys = Vec::new();
    for round in 0..3 {
        let open = b.open(window, 100_000);
        let data = a.data(99_992, round);
        let gather = Gather { head: data.slice(..8), tail: Some(data.slice(8..)) };
        let (address, key) = (open.address() + 8, open.remote_key());
        keys.push(key);
        a.do_now(Work::Write { data: gather, address, key, imm: Some(round.into()) });
        assert_eq!(b.received(), (Err(99_992), Some(round.into())));
        assert!(a.done().is_empty());
        let (closed, memory) = b.closed_by(&mut a, open, 20);
        assert_eq!((&memory[..8], &memory[8..]), (&[0; 8][..], &data[..]));
        window = closed;
    }
    keys.dedup();
    assert_eq!(keys.len(), 3, "each opening has a key of its own");
}

/// What was written just before, and not reported, has arrived when the message has that closes the
/// window.
#[test]
fn a_write_arrives_before_the_message_that_closes_its_window() {
    let Some(_one) = device() else { return };
    let mut manager = Manager::new();
    let (mut a, mut b) = manager.pair(64);
    let mut window = Window::new(&b.domain).unwrap();
    for round in 0..3 {
        let open = b.open(window, 10_000);
        let (address, key) = (open.address(), open.remote_key());
        let data = a.data(10_000, round);
        let write = Work::Write { data: data.clone().into(), address, key, imm: None };
        a.pair.push(write).unwrap();
        let (closed, memory) = b.closed_by(&mut a, open, 20 + 100 * usize::from(round));
        assert_eq!(memory[..], data[..]);
        window = closed;
    }
}

/// A proof is of the window that was open then, and of no later one.
#[test]
#[should_panic(expected = "does not close a window")]
fn a_proof_closes_no_other_window() {
    let Some(_one) = device() else { panic!("skipped, else: does not close a window") };
    let mut manager = Manager::new();
    let (mut a, mut b) = manager.pair(0);
    let [one, other] = [0; 2].map(|_| Window::new(&b.domain).unwrap());
    let (one, other) = (b.open(one, 4096), b.open(other, 4096));
    a.do_now(Work::SendLast { data: a.data(1, 0).into(), key: one.remote_key() });
    let Outcome::Received { taken_back: Some(taken), .. } = b.completion().outcome else {
        panic!("no key was taken back")
    };
    let proof = b.pair.taken_back(taken).unwrap();
    other.close(proof);
}

#[test]
fn a_write_after_closing_breaks_the_connection() {
    let Some(_one) = device() else { return };
    let mut manager = Manager::new();
    let (mut a, mut b) = manager.pair(0);
    let window = Window::new(&b.domain).unwrap();
    let open = b.open(window, 4096);
    let late = write(a.data(100, 1), &open, 0);
    let (_, memory) = b.closed_by(&mut a, open, 0);
    a.do_now(late);
    assert_eq!(a.failed(), "the peer does not allow access to that memory");
    assert_eq!(memory[..], [0; 4096]);
    a.do_now(Work::Notice { imm: 0 });
    assert_eq!(a.failed(), "cancelled, because the connection had failed before");
}

#[test]
fn a_revoked_window_is_shut_at_once() {
    let Some(_one) = device() else { return };
    let mut manager = Manager::new();
    let (mut a, mut b) = manager.pair(0);
    let window = Window::new(&b.domain).unwrap();
    let open = b.open(window, 4096);
    let late = write(a.data(100, 1), &open, 0);
    let memory = open.revoke();
    a.do_now(late);
    assert_eq!(a.failed(), "the peer does not allow access to that memory");
    assert_eq!(memory[..], [0; 4096]);
    assert!(Window::new(&b.domain).is_ok(), "the work that opened it was retired");
}

#[test]
fn a_window_revoked_on_the_chain_never_opens() {
    let Some(_one) = device() else { return };
    let mut manager = Manager::new();
    let (mut a, mut b) = manager.pair(0);
    let window = Window::new(&b.domain).unwrap();
    let open = b.pair.bind(window, b.pool.allocate(4096).unwrap()).unwrap();
    let late = write(a.data(100, 1), &open, 0);
    drop(open.revoke());
    let error = Window::new(&b.domain).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    b.do_now(Work::Probe);
    assert!(b.done().is_empty());
    assert!(Window::new(&b.domain).is_ok());
    a.do_now(late);
    assert_eq!(a.failed(), "the peer does not allow access to that memory");
}
