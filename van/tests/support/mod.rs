//! What tests of several vans have in common.

use std::time::{Duration, Instant};

use caravan_van::{Buffer, Event, FRAME_PREFIX, PeerId, Transport};

/// Connects `a` to `b`; returns what each calls the other.
pub(crate) fn connect(a: &mut impl Transport, b: &mut impl Transport) -> (PeerId, PeerId) {
    let to_b = a.connect(&b.about().address).unwrap();
    let mut seen = [None, None];
    let began = Instant::now();
    while seen.iter().any(Option::is_none) {
        for (van, seen) in [a as &mut dyn Transport, b].into_iter().zip(&mut seen) {
            let mut events = Vec::new();
            van.wait(Duration::from_millis(1)).unwrap();
            van.poll(&mut events).unwrap();
            if let Some(Event::Connected { peer, .. }) = events.first() {
                *seen = Some(*peer);
            }
        }
        assert!(began.elapsed() < Duration::from_secs(20), "no connection");
    }
    assert_eq!(seen[0], Some(to_b));
    (to_b, seen[1].unwrap())
}

/// A frame with that payload.
pub(crate) fn frame(van: &impl Transport, payload: &[u8]) -> Buffer {
    let mut frame = van.about().memory.allocate(FRAME_PREFIX + payload.len()).unwrap();
    frame[FRAME_PREFIX..].copy_from_slice(payload);
    frame
}
