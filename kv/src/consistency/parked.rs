//! Requests that wait for a controller.

use super::{Access, Controller, Order, Verdict, WaitReason};

/// Parked requests, in the order in which they are looked at.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Parked<T> {
    held: Vec<Held<T>>,
    /// The next request to look at.
    at: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Held<T> {
    order: Order,
    /// `None` if it is to be asked again.
    wait_reason: Option<WaitReason>,
    request: T,
}

impl<T> Default for Parked<T> {
    fn default() -> Self {
        Parked { held: Vec::new(), at: 0 }
    }
}

impl<T> Parked<T> {
    /// Whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Number of requests that wait.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Parks a request behind those of equal order.
    pub fn park(&mut self, order: Order, wait_reason: WaitReason, request: T) {
        let at = self.held.partition_point(|held| held.order <= order);
        self.held.insert(at, Held { order, wait_reason: Some(wait_reason), request });
        self.at = 0;
    }

    /// Begins to look at all parked requests again, since something has changed that they may wait
    /// for.
    pub fn rewind(&mut self) {
        self.at = 0;
    }

    /// Asks about all parked requests again, whatever they waited for.
    pub fn ask_again(&mut self) {
        self.held.iter_mut().for_each(|held| held.wait_reason = None);
        self.at = 0;
    }

    /// Takes out the next request that need not wait any longer, with what the controller says of
    /// it; returns `None` if all others still wait. `access` says what a request does.
    pub fn next(
        &mut self,
        controller: &mut (impl Controller + ?Sized),
        access: impl Fn(&T) -> Access<'_>,
    ) -> Option<(T, Verdict)> {
        while let Some(held) = self.held.get_mut(self.at) {
            if held.wait_reason.is_some_and(|wait_reason| controller.is_blocked(&wait_reason)) {
                self.at += 1;
                continue;
            }
            let access = access(&held.request);
            let verdict = match access.touches() {
                true => controller.admit(&access),
                false if controller.members().slowest() < access.clock => {
                    Verdict::Park(WaitReason::Slowest(access.clock))
                }
                false => Verdict::Admit,
            };
            match verdict {
                Verdict::Park(wait_reason) => {
                    held.wait_reason = Some(wait_reason);
                    self.at += 1;
                }
                verdict => {
                    let Held { request, .. } = self.held.remove(self.at);
                    if verdict == Verdict::Admit && controller.releases() {
                        self.at = 0;
                    }
                    return Some((request, verdict));
                }
            }
        }
        None
    }

    /// All parked requests, in their order.
    pub fn into_requests(self) -> impl Iterator<Item = T> {
        self.held.into_iter().map(|held| held.request)
    }

    /// Whether any parked request is of a kind.
    pub fn any(&self, is_of_kind: impl FnMut(&T) -> bool) -> bool {
        self.held.iter().map(|held| &held.request).any(is_of_kind)
    }

    /// Drops the requests for which `keep` is false.
    pub fn retain(&mut self, mut keep: impl FnMut(&mut T) -> bool) {
        self.held.retain_mut(|held| keep(&mut held.request));
        self.at = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consistency::{Access, BoundedDelay};

    #[test]
    fn a_larger_bound_lets_parked_requests_go() {
        let mut delayed = BoundedDelay::new(2, 0);
        delayed.join(0, 1);
        delayed.join(1, 1);
        fn access(clock: &u64) -> Access<'_> {
            Access { worker: 0, clock: *clock, reads: true, writes: false, keys: &[] }
        }
        let mut parked = Parked::default();
        for clock in [2, 4] {
            let Verdict::Park(wait_reason) = delayed.admit(&access(&clock)) else {
                panic!("{clock}")
            };
            parked.park(Order::default(), wait_reason, clock);
        }
        assert_eq!(parked.next(&mut delayed, access), None);
        assert_eq!(delayed.set_bound(1), Ok(()));
        parked.ask_again();
        assert_eq!(parked.next(&mut delayed, access), Some((2, Verdict::Admit)));
        assert_eq!(parked.next(&mut delayed, access), None);
    }
}
