//! What vans over sockets owe to those who connect and do not belong: nothing, at little cost, and
//! to nobody else's.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::net::Net;
use crate::handshake::{CALL_BYTES, Credentials, PROOF_BYTES, WELCOME_BYTES, refusal};
use crate::socket::CARRIER;
use crate::{Event, Secret, Transport, VanConfig};

/// Silent connections that are open at a time.
const SILENT: usize = 300;

/// Connections that are reset at once.
const RESETS: usize = 2000;

/// The settings of a node that has a secret.
fn config() -> VanConfig {
    VanConfig { cluster: 7, secret: Secret::from([7; 32]), ..VanConfig::default() }
}

/// Connects to `node` by hand.
fn dial<T: Transport>(net: &mut Net<T>, node: usize) -> TcpStream {
    let socket = TcpStream::connect(&net.van(node).about().address).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// The next `len` bytes that `socket` hears while the nodes run, or fewer at its end.
fn hear<T: Transport>(net: &mut Net<T>, socket: &mut TcpStream, len: usize) -> Vec<u8> {
    let mut heard = Vec::new();
    net.until("a stranger to hear something", |_| {
        let mut bytes = [0; 256];
        match socket.read(&mut bytes[..len - heard.len()]) {
            Ok(0) => return Some(()),
            Ok(count) => heard.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return Some(()), // reset, as what it said was not read
        }
        (heard.len() == len).then_some(())
    });
    heard
}

/// A handshake with somebody who knows the secret, as somebody else may have recorded it.
fn recorded<T: Transport>(net: &mut Net<T>) -> ([u8; CALL_BYTES], [u8; PROOF_BYTES]) {
    let credentials = Credentials::new(&config(), CARRIER);
    let (calling, call) = credentials.call();
    let mut socket = dial(net, 0);
    socket.write_all(&call).unwrap();
    let welcome = hear(net, &mut socket, WELCOME_BYTES);
    let (_, proof) = credentials.prove(calling, &welcome).unwrap();
    socket.write_all(&proof).unwrap();
    assert_eq!(net.rest(0).len(), 1, "it is a peer");
    drop(socket);
    assert_eq!(net.rest(0).len(), 1, "and is lost");
    (call, proof)
}

/// Who says again what a node once said gets a welcome that he cannot read, and no further.
pub fn a_recorded_handshake_gets_nobody_in<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let mut net = Net::with(&make, 2, config());
    let (call, proof) = recorded(&mut net);
    let mut socket = dial(&mut net, 0);
    socket.write_all(&call).unwrap();
    let welcome = hear(&mut net, &mut socket, WELCOME_BYTES);
    assert_eq!(welcome.len(), WELCOME_BYTES);
    socket.write_all(&proof).unwrap();
    assert!(hear(&mut net, &mut socket, 1).is_empty(), "it is hung up on");
    // A welcome that is sent back is no call, nor is a call a proof.
    for second in [&welcome[..], &call] {
        let mut socket = dial(&mut net, 0);
        let first = if second == welcome { &welcome[..] } else { &call };
        socket.write_all(first).unwrap();
        let _ = socket.write_all(second); // it may have hung up
        let heard = hear(&mut net, &mut socket, WELCOME_BYTES + 1);
        assert!([refusal().len(), WELCOME_BYTES].contains(&heard.len()), "{heard:02x?}");
    }
    assert!(net.rest(0).is_empty(), "nobody above hears of it");
    let (there, back) = net.connect(1, 0);
    net.exchange(1, there, 0, back);
}

/// Who proves himself and breaks the rules in the same breath is a peer that is lost, and nobody
/// after him is forgotten.
pub fn who_proves_himself_and_misbehaves_at_once_is_lost<T: Transport>(
    make: impl Fn(VanConfig) -> T,
) {
    let mut net = Net::with(&make, 1, config());
    let credentials = Credentials::new(&config(), CARRIER);
    let (calling, call) = credentials.call();
    let mut socket = dial(&mut net, 0);
    socket.write_all(&call).unwrap();
    let welcome = hear(&mut net, &mut socket, WELCOME_BYTES);
    let (_, proof) = credentials.prove(calling, &welcome).unwrap();
    socket.write_all(&[&proof[..], &[0xff; 64]].concat()).unwrap();
    let up = |event: &Event| matches!(event, Event::Connected { .. });
    let peer = net.event(0, "a peer", up, |event| event.peer());
    net.lost(0, peer);
    let mut silent = dial(&mut net, 0);
    assert!(hear(&mut net, &mut silent, 1).is_empty(), "it is hung up on in time");
}

/// Who connects and says nothing, or half a call, takes no memory of the pool and keeps nobody else
/// out.
pub fn half_open_connections_cost_little<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let mut net = Net::with(&make, 2, config());
    let (there, back) = net.connect(1, 0);
    net.exchange(1, there, 0, back);
    let reserved = net.van(0).about().memory.bytes_reserved();
    let half = &Credentials::new(&config(), CARRIER).call().1[..20];
    let sockets = Vec::from_iter((0..SILENT).map(|number| {
        let mut socket = dial(&mut net, 0);
        if number % 2 == 0 {
            socket.write_all(half).unwrap();
        }
        net.turn();
        socket
    }));
    assert!(net.rest(0).is_empty(), "nobody above hears of them");
    assert_eq!(net.van(0).about().memory.bytes_reserved(), reserved);
    net.exchange(1, there, 0, back);
    let (there, back) = net.connect(1, 0);
    net.exchange(1, there, 0, back);
    drop(sockets);
    net.exchange(1, there, 0, back);
}

/// Who connects and resets the connection, over and over, keeps nobody out.
pub fn a_flood_of_resets_keeps_nobody_out<T: Transport>(make: impl Fn(VanConfig) -> T) {
    let mut net = Net::with(&make, 2, config());
    let address = net.van(0).about().address.clone();
    let resets = std::thread::spawn(move || {
        for _ in 0..RESETS {
            let Ok(socket) = TcpStream::connect(&address) else { continue };
            let _ = socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO));
        }
    });
    while !resets.is_finished() {
        let (there, back) = net.connect(1, 0);
        net.exchange(1, there, 0, back);
        net.van(1).disconnect(there);
        net.lost(0, back);
    }
    resets.join().unwrap();
    assert!(net.rest(0).is_empty(), "nobody above hears of them");
}
