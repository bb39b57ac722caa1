//! No order, repetition or omission of calls makes a controller panic, and what it says of a
//! request holds together.

use caravan_kv::consistency::{
    Access, Asp, BoundedDelay, Bsp, Controller, DataCentric, MapRecorder, Parked, RingRecorder,
    SparseSsp, Ssp, Verdict,
};
use proptest::prelude::*;

#[derive(Debug, Clone)]
struct Request {
    worker: u32,
    clock: u64,
    reads: bool,
    writes: bool,
    keys: Vec<u64>,
}

impl Request {
    fn access(&self) -> Access<'_> {
        let Request { worker, clock, reads, writes, ref keys } = *self;
        Access { worker, clock, reads, writes, keys }
    }
}

#[derive(Debug, Clone)]
enum Call {
    Join(u32, u64),
    Advance(u32, u64, u64),
    Leave(u32),
    Bound(u64),
    Announce(Request),
    Admit(Request),
    Arrive(Request),
}

/// Small clocks mostly, and the largest now and then.
fn clock() -> impl Strategy<Value = u64> {
    prop_oneof![12 => 0..8u64, 1 => u64::MAX - 2..=u64::MAX]
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let worker = 0..4u32;
    let key = prop_oneof![12 => 0..10u64, 1 => Just(u64::MAX)];
    let keys = proptest::collection::btree_set(key, 0..5);
    let request = (worker.clone(), clock(), any::<bool>(), any::<bool>(), keys).prop_map(
        |(worker, clock, reads, writes, keys)| {
            let keys = keys.into_iter().collect();
            Request { worker, clock, reads, writes, keys }
        },
    );
    let request = request.boxed();
    let call = prop_oneof![
        2 => (worker.clone(), clock()).prop_map(|(worker, clock)| Call::Join(worker, clock)),
        4 => (worker.clone(), clock(), clock()).prop_map(|(w, c, d)| Call::Advance(w, c, d)),
        1 => worker.prop_map(Call::Leave),
        1 => clock().prop_map(Call::Bound),
        2 => request.clone().prop_map(Call::Announce),
        3 => request.clone().prop_map(Call::Admit),
        8 => request.prop_map(Call::Arrive),
    ];
    proptest::collection::vec(call, 0..120)
}

fn controllers() -> Vec<Box<dyn Controller>> {
    type Ringed = SparseSsp<RingRecorder>;
    let recorder = RingRecorder::new(0, 8, Ringed::versions(1, 2));
    vec![
        Box::new(Asp::new(2)),
        Box::new(Bsp::new(2)),
        Box::new(Ssp::new(3, 1)),
        Box::new(BoundedDelay::new(2, 1)),
        Box::new(SparseSsp::new(2, 1, 2, MapRecorder::default())),
        Box::new(SparseSsp::new(2, 1, 2, recorder)),
        Box::new(DataCentric::new(2, Some(0), 3)),
        Box::new(DataCentric::new(2, Some(2), 1)),
        Box::new(DataCentric::new(2, Some(u64::MAX), 1)),
        Box::new(DataCentric::new(2, None, 0)),
    ]
}

fn call(controller: &mut dyn Controller, parked: &mut Parked<Request>, call: &Call) {
    match call {
        Call::Join(worker, clock) => drop(controller.join(*worker, *clock).checked_add(1)),
        Call::Advance(worker, clock, disclosed) => {
            controller.advance(*worker, *clock, *disclosed);
        }
        Call::Leave(worker) => {
            let others = |request: &Request| request.worker != *worker;
            parked.retain(|request| others(request) || controller.outlives(&request.access()));
            controller.leave(*worker);
            assert_eq!(controller.members().clock(*worker), None);
        }
        Call::Bound(bound) => drop(controller.set_bound(*bound)),
        Call::Announce(request) => drop(controller.announce(&request.access())),
        Call::Admit(request) => drop(controller.admit(&request.access())),
        Call::Arrive(request) => {
            if controller.announce(&request.access()).is_ok()
                && let Verdict::Park(wait_reason) = controller.admit(&request.access())
            {
                assert!(
                    controller.is_blocked(&wait_reason),
                    "{request:?} waits for {wait_reason:?}"
                );
                let order = controller.order(&request.access());
                parked.park(order, wait_reason, request.clone());
            }
        }
    }
    parked.rewind();
    while let Some((request, verdict)) = parked.next(controller, Request::access) {
        assert!(!matches!(verdict, Verdict::Park(_)), "{request:?} is not parked any more");
    }
}

proptest! {
    #[test]
    fn nothing_panics(calls in calls()) {
        for mut controller in controllers() {
            let mut parked = Parked::default();
            for one in &calls {
                call(&mut *controller, &mut parked, one);
            }
            // As many as are expected come, and all leave.
            for worker in 0..4 {
                call(&mut *controller, &mut parked, &Call::Join(worker, 1));
                call(&mut *controller, &mut parked, &Call::Leave(worker));
            }
            prop_assert!(parked.is_empty(), "nobody waits for those who left");
        }
    }
}
