//! The verbs layer on a device: two queue pairs of one process, connected to each other.
//!
//! Runs where `CARAVAN_TEST_DEVICE` names one and `CARAVAN_TEST_ADDRESS` its address (`ci/vm` makes
//! both), and says so where not.
#![cfg(all(target_os = "linux", feature = "rdma"))]

mod ends;
mod windows;

use std::net::SocketAddr;
use std::process::Command;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use caravan_van::rdma::verbs::{
    Batch, Channel, CmEvent, CmKind, Completion, CompletionQueue, Connection, ConnectionKey,
    Domain, Exposed, OpenWindow, Outcome, PortState, QueuePair, ReceiveQueue, Window, Work,
    available, sleep,
};
use caravan_van::transport::Gather;
use caravan_van::{Buffer, Error, Pool, Shared};

use ends::{End, Manager, write};

const PATIENCE: Duration = Duration::from_secs(20);
const RECEIVES: usize = 8;
const RECEIVE_BYTES: usize = 4096;
const SENDS: usize = 32;

/// Held by each test on the device, so that one can count what is left over.
fn device() -> Option<MutexGuard<'static, ()>> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    if std::env::var_os("CARAVAN_TEST_DEVICE").is_none() {
        eprintln!("skipped: CARAVAN_TEST_DEVICE names no RDMA device (ci/vm makes one)");
        return None;
    }
    available().unwrap();
    Some(ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner))
}

fn address() -> SocketAddr {
    let ip = std::env::var("CARAVAN_TEST_ADDRESS").unwrap_or_else(|_| "10.77.0.1".to_owned());
    SocketAddr::new(ip.parse().unwrap(), 0)
}

#[test]
fn the_program_starts_where_the_libraries_are_missing() {
    let program = std::env::current_exe().unwrap();
    let loaded = Command::new(program).env("LD_TRACE_LOADED_OBJECTS", "1").output().unwrap();
    let loaded = String::from_utf8(loaded.stdout).unwrap();
    assert!(loaded.contains("libc"), "the loader lists libraries: {loaded}");
    assert!(!loaded.contains("ibverbs") && !loaded.contains("rdmacm"), "{loaded}");
}

#[test]
fn messages_arrive_in_order_with_their_numbers() {
    let Some(_one) = device() else { return };
    let mut manager = Manager::new();
    let (mut a, mut b) = manager.pair(64);
    assert_eq!(a.pair.inline_bytes(), 64);
    let (short, long) = (a.data(64, 1), a.data(4000, 2));
    let gather = Gather { head: short.clone(), tail: Some(long.slice(..1000)) };
    let none = Gather { head: short.slice(..0), tail: Some(long.slice(..10)) };
    for (tag, data) in
        [short.clone().into(), long.clone().into(), gather, none].into_iter().enumerate()
    {
        a.pair.push(Work::Send { data, imm: Some(70 + tag as u32) }).unwrap();
    }
    a.pair.push(Work::Notice { imm: u32::MAX }).unwrap();
    assert_eq!(a.pair.room(), SENDS - 5);
    a.pair.ring(true).unwrap();
    let both = [&short[..], &long[..1000]].concat();
    let wanted = [&short[..], &long[..], &both[..], &long[..10]];
    for (imm, data) in (70..).zip(wanted) {
        assert_eq!(b.received(), (Ok(data.to_vec()), Some(imm)));
    }
    assert_eq!(b.received(), (Ok(Vec::new()), Some(u32::MAX)));
    assert!(long.slice(..).reclaim().is_err(), "the ledger holds it");
    assert!(a.done().is_empty());
    assert_eq!(a.pair.room(), SENDS);
    assert!(long.reclaim().is_ok() && short.reclaim().is_ok(), "all was let go");
}

#[test]
fn inline_data_is_let_go_at_once() {
    let Some(_one) = device() else { return };
    let mut manager = Manager::new();
    let (mut a, mut b) = manager.pair(1 << 20);
    let inline = a.pair.inline_bytes();
    assert!((64..1 << 20).contains(&inline), "degraded to {inline}");
    let data = a.data(inline, 5);
    a.pair.push(Work::Send { data: data.clone().into(), imm: Some(0) }).unwrap();
    a.pair.ring(true).unwrap();
    let mut reused = data.reclaim().unwrap();
    let sent = reused.to_vec();
    reused.fill(0);
    assert_eq!(b.received().0, Ok(sent));
    let user = Shared::from(bytes::Bytes::from_static(&[7; 40]));
    a.do_now(Work::Send { data: user.into(), imm: Some(0) });
    assert_eq!(b.received().0, Ok(vec![7; 40]));
    assert_eq!(a.done().len() + a.done().len(), 0);
}

#[test]
fn memory_of_the_user_is_registered_on_the_way() {
    let Some(_one) = device() else { return };
    let mut manager = Manager::new();
    let (mut a, mut b) = manager.pair(0);
    assert_eq!(a.pair.inline_bytes(), 0);
    for shared in [
        Shared::from(bytes::Bytes::from(vec![3; 999])),
        Shared::from(bytes::Bytes::from_static(&[5; 999])),
        Buffer::adopt(vec![4u8; 999]).share(),
    ] {
        let wanted = shared.to_vec();
        a.do_now(Work::Send { data: shared.into(), imm: Some(0) });
        assert_eq!(b.received().0, Ok(wanted));
        a.done();
    }
}

#[test]
fn exposed_memory_is_read_and_written() {
    let Some(_one) = device() else { return };
    let mut manager = Manager::new();
    let (mut a, b) = manager.pair(16);
    let mut memory = b.pool.allocate(20_000).unwrap();
    memory.fill(6);
    let exposed = Exposed::new(&b.domain, memory, true).unwrap();
    let (address, key) = (exposed.address(), exposed.remote_key());
    let data = a.data(8, 0xf0).into();
    a.do_now(Work::Write { data, address: address + 8, key, imm: None });
    a.do_now(Work::Read { into: a.pool.allocate(20_000).unwrap(), address, key });
    assert!(a.done().is_empty());
    let copy = a.done().pop().unwrap();
    assert_eq!((copy[7], copy[8], copy[15], copy[16]), (6, 0xf0, 0xf7, 6));
    assert_eq!(exposed.word(8), u64::from_le_bytes(copy[8..16].try_into().unwrap()));
    assert_eq!(exposed.word(19_992), 0x0606_0606_0606_0606);
    assert_eq!(exposed.close()[..], copy[..]);
    a.do_now(Work::Read { into: a.pool.allocate(8).unwrap(), address, key });
    assert_eq!(a.failed(), "the peer does not allow access to that memory");
}

#[test]
#[should_panic(expected = "no word at 4096")]
fn a_word_outside_of_exposed_memory_is_a_bug() {
    let Some(_one) = device() else { panic!("skipped, else: no word at 4096") };
    let mut manager = Manager::new();
    let (a, _b) = manager.pair(0);
    let exposed = Exposed::new(&a.domain, a.pool.allocate(4096).unwrap(), false).unwrap();
    exposed.word(4096);
}

#[test]
fn a_full_queue_is_an_error_and_always_drains() {
    let Some(_one) = device() else { return };
    let mut manager = Manager::new();
    let (mut a, b) = manager.pair(0);
    let (mut c, _d) = manager.pair(0);
    for _ in 0..SENDS {
        a.pair.push(Work::Probe).unwrap();
    }
    let error = a.pair.push(Work::Probe).unwrap_err();
    assert!(
        matches!(&error, Error::Os { source, .. } if source.kind() == std::io::ErrorKind::WouldBlock),
        "{error}"
    );
    a.pair.ring(true).unwrap();
    let completion = a.completion();
    assert!(completion.status.is_ok());
    let Outcome::Sent(through) = completion.outcome else { panic!() };
    assert!(!c.pair.retire(through, &mut Vec::new()), "of another queue pair");
    assert_eq!((a.pair.room(), c.pair.room()), (0, SENDS));
    assert_eq!(b.receives.posted(), RECEIVES, "the peer noticed nothing");
    let too_long = a.domain.device().capabilities().unwrap().message_bytes_max;
    if too_long < 64 << 20 {
        let data = Buffer::adopt(vec![0u8; too_long + 1]).share().into();
        let error = c.pair.push(Work::Send { data, imm: Some(0) }).unwrap_err();
        assert!(matches!(error, Error::FrameTooLong { .. }), "{error}");
    }
}

#[test]
fn a_receive_queue_takes_what_it_has_room_for() {
    let Some(_one) = device() else { return };
    let mut manager = Manager::new();
    let (mut a, mut b) = manager.pair(0);
    assert_eq!((b.receives.posted(), b.receives.room()), (RECEIVES, 0));
    let error = b.receives.supply(b.pool.allocate(64).unwrap()).unwrap_err();
    assert!(error.to_string().contains("ibv_post_srq_recv"), "{error}");
    a.do_now(Work::Notice { imm: 1 });
    a.do_now(Work::Notice { imm: 2 });
    for end in [true, false] {
        let Outcome::Received { slot, bytes, .. } = b.completion().outcome else { panic!() };
        if end {
            assert!(a.receives.take(slot, bytes).is_none(), "of another queue");
        } else {
            assert_eq!(b.receives.take(slot, bytes).unwrap().len(), 0);
        }
    }
    assert_eq!(b.receives.room(), 1);
    b.receives.supply(Buffer::adopt(vec![0u64; 8])).unwrap();
    b.receives.ring().unwrap();
    b.receives.ring().unwrap();
    assert_eq!(b.receives.posted(), RECEIVES);
}

#[test]
fn a_message_longer_than_its_buffer_fails() {
    let Some(_one) = device() else { return };
    let mut manager = Manager::new();
    let (mut a, mut b) = manager.pair(0);
    a.do_now(Work::Send { data: a.data(RECEIVE_BYTES + 1, 0).into(), imm: Some(0) });
    eprintln!("here: {}; there: {}", a.failed(), b.failed()); // devices disagree on how to call it
}

#[test]
fn a_completion_queue_grows_with_what_is_in_it() {
    let Some(_one) = device() else { return };
    let mut manager = Manager::new();
    let (mut a, _b) = manager.pair(0);
    let before = a.completions.entries();
    for _ in 0..SENDS {
        a.do_now(Work::Probe);
    }
    a.completions.resize(4 * before).unwrap();
    assert!(a.completions.entries() >= 4 * before);
    for left in (0..SENDS).rev() {
        a.done();
        assert_eq!(a.pair.room(), SENDS - left);
    }
    assert!(a.completions.resize(usize::MAX).is_err());
    assert!(CompletionQueue::new(a.domain.device(), 1 << 30).is_err());
}

#[test]
fn both_sides_learn_of_a_failure_and_of_the_end() {
    let Some(_one) = device() else { return };
    let mut manager = Manager::new();
    let (mut a, b) = manager.pair(0);
    a.pair.fail().unwrap();
    a.do_now(Work::Notice { imm: 1 });
    assert_eq!(a.failed(), "cancelled, because the connection had failed before");
    a.pair.connection().unwrap().disconnect().unwrap();
    manager.expect(b.key(), CmKind::Disconnected);
    b.pair.connection().unwrap().disconnect().unwrap();
    manager.expect(a.key(), CmKind::Disconnected);
    let (c, d) = manager.pair(0);
    drop(c);
    manager.expect(d.key(), CmKind::Disconnected);
}

#[test]
fn nobody_there_and_no_are_told_apart_from_yes() {
    let Some(_one) = device() else { return };
    let mut manager = Manager::new();
    let listener = manager.listen();
    let to = listener.local_address().unwrap();
    let a = End::new(manager.resolve(to), 0);
    a.pair.connection().unwrap().connect(b"", 7).unwrap();
    let event = manager.expect(listener.key(), CmKind::ConnectRequest);
    event.request.unwrap().reject(b"no").unwrap();
    let event = manager.expect(a.key(), CmKind::Rejected);
    assert_eq!((event.private_data.get(..2), event.status), (Some(&b"no"[..]), 28));

    drop(listener);
    let b = End::new(manager.resolve(to), 0);
    b.pair.connection().unwrap().connect(b"", 7).unwrap();
    let event = manager.expect(b.key(), CmKind::Rejected);
    assert_eq!(event.status, 8, "no such service");

    let nowhere = Connection::new(&manager.channel).unwrap();
    assert!(nowhere.device().is_none() && nowhere.peer_address().is_none());
    assert!(nowhere.bind("198.51.100.1:0".parse().unwrap()).is_err());
    for refused in [
        nowhere.connect(&[], 7),
        nowhere.accept(&[]),
        nowhere.resolve_route(PATIENCE),
        nowhere.disconnect(),
        nowhere.reject(&[]),
    ] {
        refused.unwrap_err();
    }
    let unresolved = manager.resolve(to);
    assert!(unresolved.connect(&[0; 57], 7).is_err());
}

#[test]
fn the_device_tells_what_it_can() {
    let Some(_one) = device() else { return };
    let manager = Manager::new();
    let listener = manager.listen();
    let device = listener.device().unwrap();
    assert_eq!(device.name(), std::env::var("CARAVAN_TEST_DEVICE").unwrap());
    let able = device.capabilities().unwrap();
    eprintln!("{able:?}");
    assert!(able.queue_depth_max >= 256 && able.gather_max >= 2 && able.windows_max > 100);
    assert_eq!((able.port, able.port_state), (1, PortState::Active));
    assert!(able.mtu_bytes.is_power_of_two() && able.message_bytes_max > 1 << 20);
    while device.next_async_event().unwrap().is_some() {}
}

/// Whatever is dropped first: what others need stays, and in the end nothing is left.
#[test]
fn everything_is_given_back_in_any_order() {
    let Some(_one) = device() else { return };
    let count = || {
        let output = Command::new("rdma").args(["resource", "show"]).output();
        output.map(|output| String::from_utf8(output.stdout).unwrap()).unwrap_or_default()
    };
    drop(Manager::new().pair(0)); // the connection manager keeps the device open from now on
    let before = count();
    {
        let mut manager = Manager::new();
        let (mut a, mut b) = manager.pair(0);
        let window = Window::new(&b.domain).unwrap();
        let open = b.open(window, 100_000);
        let exposed = Exposed::new(&a.domain, a.pool.allocate(100).unwrap(), true).unwrap();
        for _ in 0..4 {
            a.pair.push(write(a.data(100_000, 1), &open, 0)).unwrap();
        }
        a.pair.ring(true).unwrap();
        let End { pair, receives, completions, pool, domain, .. } = b;
        drop((receives, domain, pool, completions));
        drop(manager);
        drop(a);
        drop(pair);
        assert_eq!(open.len(), 100_000);
        assert_eq!(open.revoke().len(), exposed.len() * 1000);
    }
    assert_eq!(count(), before);
    eprintln!("left: {before}");
}

/// In a process of its own, which may lock little: root could otherwise lock anything.
#[test]
fn too_little_lockable_memory_is_named_with_its_remedy() {
    const INSIDE: &str = "CARAVAN_TEST_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        let _one = device();
        let manager = Manager::new();
        let domain = Domain::new(manager.listen().device().unwrap()).unwrap();
        let pool = Pool::registered(64 << 20, domain);
        let error = pool.allocate(16 << 20).unwrap_err();
        assert!(matches!(error, Error::Register { len, .. } if len >= 16 << 20), "{error}");
        for part in ["cannot register", "8388608 bytes in all", "ulimit -l unlimited"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        return;
    }
    let Some(_one) = device() else { return };
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", "prlimit"]);
    command.arg("--memlock=8388608:8388608").arg(std::env::current_exe().unwrap());
    command.arg("too_little_lockable_memory_is_named_with_its_remedy").env(INSIDE, "1");
    match command.output() {
        Ok(output) => assert!(output.status.success(), "{output:?}"),
        Err(error) => eprintln!("skipped: no setpriv ({error})"),
    }
}

/// More messages than there are receives, none of which is ever taken out or replaced.
#[test]
fn messages_are_read_where_they_lie_and_their_places_used_again() {
    let Some(_one) = device() else { return };
    let mut manager = Manager::new();
    let (mut a, mut b) = manager.pair(0);
    for number in 0..3 * RECEIVES as u8 {
        let data = a.data(20, number);
        a.do_now(Work::Send { data: data.clone().into(), imm: None });
        let Outcome::Received { slot, bytes, .. } = b.completion().outcome else { panic!() };
        assert!(a.receives.message(&slot, bytes).is_none(), "of another queue");
        assert_eq!(b.receives.message(&slot, bytes).unwrap()[..], data[..]);
        assert_eq!(b.receives.message(&slot, u32::MAX).unwrap().len(), RECEIVE_BYTES);
        b.receives.again(slot);
        b.receives.ring().unwrap();
        assert_eq!(b.receives.posted(), RECEIVES);
        assert!(a.done().is_empty());
    }
}
