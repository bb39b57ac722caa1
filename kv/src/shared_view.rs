//! The view of server threads where no scheduler tells of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::membership::Membership;
use crate::rechain::{self, Rechain};
use crate::worker::{News, Worker, hear_by};

/// Which server threads are lost, and which shards with copies have moved: for workers of one
/// process, where no scheduler tells of it.
#[derive(Clone)]
pub struct SharedView(Arc<Mutex<Membership>>);

impl SharedView {
    /// Of so many server threads, each in a process of its own, none of which is lost.
    pub fn new(servers: usize) -> SharedView {
        let addresses = vec![String::new(); servers];
        let view = Membership { addresses, threads: 1, ..Membership::default() };
        SharedView(Arc::new(Mutex::new(view)))
    }

    /// Makes a worker hear of it, about every `backoff` while it waits, and move shards with copies
    /// by it; as [`Admin::watch_servers`](crate::Admin::watch_servers).
    pub fn tell(&self, worker: &mut Worker, backoff: Duration) {
        let (seen, changed) = (self.clone(), self.clone());
        let news = move || {
            let view = seen.view();
            Ok(News { lost: view.lost.iter().copied().collect(), events: view.events.clone() })
        };
        let change = move |changes: &[Rechain]| changed.change(changes);
        hear_by(worker, Box::new(news), Box::new(change), backoff);
    }

    /// Makes a server thread count as lost, for good.
    pub fn lose(&self, server: usize) {
        self.view().lost.insert(server);
    }

    /// Number of the changes so far beside losses.
    pub fn changes(&self) -> usize {
        self.view().events.len()
    }

    fn view(&self) -> MutexGuard<'_, Membership> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, changes: &[Rechain]) -> Result<Option<usize>> {
        let mut view = self.view();
        let event = rechain::event(&view, changes);
        let event = event.map_err(|why| Error::Config(why.to_string()))?;
        Ok(event.map(|event| {
            view.enter(event);
            view.events.len()
        }))
    }
}
