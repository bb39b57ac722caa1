//! Goal: a wait for a request returns its outcome once, in order, however the caller waits;
//! commands behave like other requests.
//! Method: server threads and a worker over real sockets, with shards that park pulls until their
//! clock has come.

use std::cell::RefCell;
use std::rc::Rc;

use crate::support::{Servers, config, handles, vans};
use caravan_kv::consistency::Admission;
use caravan_kv::server::{Pulled, Request};
use caravan_kv::{
    Error, Handles, Refusal, Refused, Shard, TableSpec, Timestamp, ValueType, Van, Worker,
};
use caravan_van::Pool;

const GIB: usize = 1 << 30;

#[test]
fn commands_reach_every_server_and_come_back_in_order() {
    let servers = Servers::start(vans()[0], 3, &config(4, GIB), &handles());
    let mut worker = servers.worker();
    let spec = TableSpec::new(1, "clocked", ValueType::I64, 1).handle("clocked");
    let table = worker.admin().create_table(&spec).unwrap();
    let asked = worker.command(table, b"ping").unwrap();
    assert_eq!(worker.wait(asked).unwrap().replies, vec![b"0:ping".to_vec(); 3]);
    let asked = worker.command(table, &vec![b'x'; 100_000]).unwrap();
    assert!(worker.wait(asked).unwrap().replies.iter().all(|reply| reply.len() == 100_002));
    let asked = worker.command(table, b"no").unwrap();
    let error = worker.wait(asked).unwrap_err();
    assert!(matches!(&error, Error::Refused { reason, .. } if reason == "it said no"), "{error}");
    let plain =
        worker.admin().create_table(&TableSpec::new(2, "plain", ValueType::I64, 1)).unwrap();
    let asked = worker.command(plain, b"ping").unwrap();
    assert!(worker.wait(asked).unwrap_err().to_string().contains("takes no commands"));
}

#[test]
fn callbacks_run_once_in_order_and_before_wait_returns() {
    let servers = Servers::start(Van::Tcp, 2, &config(64, GIB), &handles());
    let mut worker = servers.worker();
    let spec = TableSpec::new(1, "sums", ValueType::I64, 0);
    let table = worker.admin().create_table(&spec).unwrap();
    let said = Rc::new(RefCell::new(Vec::new()));
    let mut last = None;
    for n in 0..50 {
        // The tenth does not match the length of the key's row.
        let lengths = [1 + u32::from(n == 10)];
        let pushed =
            worker.push_varying(table, &[5], &lengths, &vec![1i64; lengths[0] as usize]).unwrap();
        let pulled = worker.pull(table, &[5]).unwrap();
        for (what, timestamp) in [("push", pushed), ("pull", pulled)] {
            let said = said.clone();
            let callback = move |outcome: Result<&caravan_kv::Answer, &Error>| {
                let value = outcome.map(|answer| answer.values::<i64>().to_vec());
                said.borrow_mut().push((n, what, value.map_err(ToString::to_string)));
            };
            worker.then(timestamp, Box::new(callback)).unwrap();
        }
        last = Some(pulled);
    }
    worker.wait(last.unwrap()).unwrap();
    let said = said.take();
    assert_eq!(said.len(), 100);
    for (at, (n, what, outcome)) in said.iter().enumerate() {
        assert_eq!((*n, *what), ((at / 2) as i64, ["push", "pull"][at % 2]));
        match outcome {
            Err(error) => assert!(*n == 10 && *what == "push" && error.contains("holds 1 values")),
            Ok(values) if *what == "push" => assert!(values.is_empty()),
            Ok(values) => assert_eq!(values[..], [n + i64::from(*n < 10)]),
        }
    }
    assert!(said.iter().any(|(_, _, outcome)| outcome.is_err()));
}

#[test]
fn waiting_twice_or_for_nothing() {
    let servers = Servers::start(Van::Tcp, 2, &config(64, GIB), &handles());
    let mut worker = servers.worker();
    assert!(matches!(
        worker.wait(Timestamp(12 << 20)),
        Err(Error::UnknownTimestamp { timestamp: 12 })
    ));
    let table = worker.admin().create_table(&TableSpec::new(1, "sums", ValueType::I64, 1)).unwrap();
    for never in [0, u64::MAX, 7, 1 << 40] {
        assert!(matches!(worker.wait(Timestamp(never)), Err(Error::UnknownTimestamp { .. })));
        assert!(worker.then(Timestamp(never), Box::new(|_| panic!("never"))).is_err());
    }
    let pushed = worker.push(table, &[1, u64::MAX], &[1i64, 2]).unwrap();
    let pulled = worker.pull(table, &[1, u64::MAX]).unwrap();
    assert_eq!(worker.wait(pulled).unwrap().values::<i64>(), [1, 2]);
    assert!(worker.is_done(pushed).unwrap());
    assert!(worker.wait(pushed).unwrap().values.is_none());
    assert!(worker.wait(pushed).unwrap().values.is_none());
    assert!(worker.wait(pulled).unwrap().values.is_none(), "it was returned before");
    let called = Rc::new(RefCell::new(0));
    for over in [pushed, pulled] {
        let called = called.clone();
        worker
            .then(over, Box::new(move |outcome| *called.borrow_mut() += u32::from(outcome.is_ok())))
            .unwrap();
    }
    assert_eq!(*called.borrow(), 2, "what is over is over at once");
}

#[test]
fn parked_requests_are_released_in_order() {
    for van in vans() {
        let servers = Servers::start(van, 1, &config(64, GIB), &handles());
        let mut worker = servers.worker();
        let spec = TableSpec::new(1, "clocked", ValueType::I64, 1).handle("clocked");
        let table = worker.admin().create_table(&spec).unwrap();
        let pull = |worker: &mut Worker, clock, key| {
            worker.set_clock(clock);
            worker.pull(table, &[key]).unwrap()
        };
        // Waits for two pushes, one, two, and for the pull of key 5, which itself waits for one
        // push.
        let waiting = [(3, 1), (2, 1), (1, 1), (2, 1), (1, 5)];
        let waiting = waiting.map(|(clock, key)| pull(&mut worker, clock, key));
        let now = pull(&mut worker, 0, 1);
        assert_eq!(worker.wait(now).unwrap().values::<i64>(), [1]);
        assert!(!worker.is_done(waiting[2]).unwrap());
        worker.push(table, &[1], &[0i64]).unwrap();
        let number =
            |worker: &mut Worker, at: usize| worker.wait(waiting[at]).unwrap().values::<i64>()[0];
        // The push releases those for clock 1, in order; the second of them advances the clock and
        // releases those for clock 2.
        assert_eq!([2, 4, 1, 3].map(|at| number(&mut worker, at)), [2, 3, 4, 5]);
        assert!(!worker.is_done(waiting[0]).unwrap());
        worker.push(table, &[1], &[0i64]).unwrap();
        assert_eq!(number(&mut worker, 0), 6);
    }
}

/// Of similar requests in a row, one may be parked and one refused; the others are still served in
/// order.
#[test]
fn requests_in_a_row_are_each_parked_refused_or_served() {
    /// Answers with the number of the request. Key 7 waits for a push of key 0; key 3 is always
    /// refused.
    #[derive(Default)]
    struct Choosy {
        clock: u64,
        served: u64,
    }
    impl Shard for Choosy {
        fn admit(&self, request: &Request<'_>) -> Admission {
            let waits = request.keys == [7] && self.clock == 0;
            if waits { Admission::AfterClock(1) } else { Admission::Now }
        }
        fn clock(&self) -> u64 {
            self.clock
        }
        fn push(&mut self, request: &Request<'_>, _: &Pool) -> Result<(), Refused> {
            self.clock += u64::from(request.keys == [0]);
            self.served += u64::from(!request.pulls);
            if request.keys == [3] { Err(Refusal::Shape.because("not this one")) } else { Ok(()) }
        }
        fn pull(&mut self, request: &Request<'_>) -> Result<Pulled<'_>, Refused> {
            self.served += 1;
            if request.keys == [3] {
                Err(Refusal::Shape.because("not this one"))
            } else {
                Ok(Pulled::Bytes(8))
            }
        }
        fn read(&mut self, _: &Request<'_>, into: &mut [u8]) {
            into.copy_from_slice(&self.served.to_le_bytes());
        }
    }
    let choosy = |_: &_, _: _, _: &_| Ok(Box::new(Choosy::default()) as Box<dyn Shard>);
    let handles = Handles::default().with("choosy", choosy);
    for (van, make) in vans().into_iter().flat_map(|van| (0..3).map(move |make| (van, make))) {
        let servers = Servers::start(van, 1, &config(64, GIB), &handles);
        let mut worker = servers.worker();
        let spec = TableSpec::new(1, "choosy", ValueType::I64, 1).handle("choosy");
        let table = worker.admin().create_table(&spec).unwrap();
        let request = |worker: &mut Worker, key: u64| match make {
            0 => worker.push(table, &[key], &[1i64]).unwrap(),
            1 => worker.pull(table, &[key]).unwrap(),
            _ => worker.push_pull(table, &[key], &[1i64]).unwrap(),
        };
        let made: Vec<_> = (1..=10).map(|key| request(&mut worker, key)).collect();
        let mut numbers: Vec<i64> = Vec::new();
        for (key, timestamp) in (1..=10).zip(&made).filter(|(key, _)| *key != 7) {
            match worker.wait(*timestamp) {
                Ok(answer) => numbers.extend(answer.values::<i64>()),
                Err(error) => assert!(
                    key == 3
                        && matches!(&error, Error::Refused { reason, .. } if reason == "not this one"),
                    "{key}: {error}"
                ),
            }
        }
        assert!(!worker.is_done(made[6]).unwrap(), "it waits");
        let expected = match make {
            0 => vec![],
            1 => vec![1, 2, 4, 5, 6, 7, 8, 9],
            _ => vec![1, 2, 3, 4, 5, 6, 7, 8],
        };
        assert_eq!(numbers, expected);
        let releases = worker.push(table, &[0], &[1i64]).unwrap();
        worker.wait(releases).unwrap();
        assert_eq!(worker.wait(made[6]).unwrap().values::<i64>().len(), usize::from(make > 0));
    }
}
