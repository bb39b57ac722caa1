//! Where a scheduler keeps its state, so that one that is started again goes on with it: a folder,
//! or an etcd.

#[cfg_attr(not(feature = "etcd"), path = "state_store/left_out.rs")]
mod etcd;
mod folder;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use self::etcd::Etcd;
use self::folder::Folder;
use crate::error::{Error, Result};

/// What comes of keeping something, or the reason why nothing does.
type Kept<T> = Result<T, Failure>;

/// Why nothing is kept.
#[derive(Debug, PartialEq, Eq)]
enum Failure {
    /// There is no room now.
    Full(String),
    Other(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Failure::Full(why) | Failure::Other(why)) = self;
        f.write_str(why)
    }
}

impl From<String> for Failure {
    fn from(why: String) -> Failure {
        Failure::Other(why)
    }
}

impl From<&str> for Failure {
    fn from(why: &str) -> Failure {
        Failure::Other(why.to_owned())
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Failure {
        Failure::Other(error.to_string())
    }
}

/// Pause before a state for which there was no room is written again.
pub(super) const AGAIN: Duration = Duration::from_millis(500);

/// What the address of an etcd begins with.
const SCHEME: &str = "http://";

/// The state store of a state.
pub(super) struct StateStore {
    /// Where it is, for people.
    place: String,
    kept: Place,
    /// Set while there is no room.
    full: Option<Full>,
}

/// A place without room for the state.
struct Full {
    why: String,
    /// When it is written again.
    again: Duration,
}

enum Place {
    Folder(Folder),
    Etcd(Etcd),
}

impl StateStore {
    /// Takes a folder, or a key of the etcd at this address, for the scheduler of a job.
    ///
    /// # Errors
    /// [`Error::Config`] names the place and the reason why it cannot be used.
    pub(super) fn open(place: &Path, job: u64) -> Result<StateStore> {
        let name = place.display().to_string();
        let kept = match name.starts_with(SCHEME) {
            true => Etcd::open(&name, job).map(Place::Etcd),
            false => Folder::open(place).map(Place::Folder),
        };
        match kept {
            Ok(kept) => Ok(StateStore { place: name, kept, full: None }),
            Err(why) => Err(failed("use", &name, &why)),
        }
    }

    /// The last state that was kept, if there is one.
    ///
    /// # Errors
    /// [`Error::Config`] names the place and the reason why it cannot be read.
    pub(super) fn load<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let state = match &mut self.kept {
            Place::Folder(folder) => folder.load(),
            Place::Etcd(etcd) => etcd.load(),
        };
        let parsed =
            state.and_then(|it| Ok(it.map(|it| serde_json::from_slice(&it)).transpose()?));
        parsed.map_err(|why| failed("read", &self.place, &why))
    }

    /// Keeps the state of this number, durably, at time `now`. Returns false if there is no room:
    /// then it is to be saved again in a while.
    ///
    /// # Errors
    /// [`Error::Config`] names the place and the reason why it cannot be written.
    pub(super) fn save(
        &mut self,
        now: Duration,
        number: u64,
        state: &impl Serialize,
    ) -> Result<bool> {
        if self.full.as_ref().is_some_and(|full| now < full.again) {
            return Ok(false);
        }
        let state = serde_json::to_vec(state)?;
        let saved = match &mut self.kept {
            Place::Folder(folder) => folder.save(number, &state),
            Place::Etcd(etcd) => etcd.save(&state),
        };
        let place = &self.place;
        match saved {
            Ok(()) => {
                if self.full.take().is_some() {
                    tracing::info!(place, "there is room for the scheduler's state again");
                }
                Ok(true)
            }
            Err(Failure::Full(why)) => {
                if self.full.is_none() {
                    let paused =
                        "no room for the scheduler's state: nothing changes until there is";
                    tracing::warn!(why, place, "{paused}");
                }
                self.full = Some(Full { why, again: now + AGAIN });
                Ok(false)
            }
            Err(why) => Err(failed("write", place, &why)),
        }
    }

    /// Why nothing is saved at present, if that is so.
    pub(super) fn paused(&self) -> Option<String> {
        let Full { why, .. } = self.full.as_ref()?;
        Some(format!("no room for the state of the scheduler in {}: {why}", self.place))
    }

    /// Where the state is, for people.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// Removes the state: the cluster has ended.
    pub(super) fn clear(&mut self) {
        let cleared = match &mut self.kept {
            Place::Folder(folder) => folder.clear(),
            Place::Etcd(etcd) => etcd.clear(),
        };
        if let Err(why) = cleared {
            tracing::warn!(%why, place = self.place, "cannot remove the scheduler's state");
        }
    }
}

fn failed(what: &str, place: &str, why: &Failure) -> Error {
    Error::Config(format!("cannot {what} {place} for the state of the scheduler: {why}"))
}

#[cfg(test)]
mod small_disk;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::cell::Cell;
    use std::fs;

    use serde_json::{Value, json};

    use super::super::super::session::Stamp;
    use super::super::state::{Kept, Lineage};
    use super::small_disk::SmallDisk;
    use super::*;

    const NOW: Duration = Duration::ZERO;

    /// Saves the next state of a cluster, which has its number in it.
    fn save(state_store: &mut StateStore, lineage: &mut Lineage) {
        let next = lineage.next();
        let state = json!(next.number());
        let address = String::new();
        let kept = Kept { lineage: next, job: 7, servers: 1, workers: 1, address, state };
        assert!(state_store.save(NOW, kept.lineage.number(), &kept).unwrap());
        *lineage = kept.lineage;
    }

    /// The files of a folder, without the lock.
    type Files = [Option<Vec<u8>>; 2];

    fn files(folder: &Path) -> Files {
        ["state-0", "state-1"].map(|name| fs::read(folder.join(name)).ok())
    }

    fn put(folder: &Path, files: &Files) {
        for (name, file) in ["state-0", "state-1"].iter().zip(files) {
            let path = folder.join(name);
            match file {
                Some(bytes) => fs::write(path, bytes).unwrap(),
                None => drop(fs::remove_file(path)),
            }
        }
    }

    /// Random numbers below a bound.
    fn draws() -> impl Fn(usize) -> usize {
        let last = Cell::new(11_u64);
        move |bound| {
            let next =
                last.get().wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            last.set(next);
            (next >> 33) as usize % bound
        }
    }

    /// Flips a bit of a file, cuts it, puts an earlier one in its place, or removes it.
    fn damage(
        draw: impl Fn(usize) -> usize,
        file: &mut Option<Vec<u8>>,
        earlier: &Option<Vec<u8>>,
    ) {
        let Some(bytes) = file else { return };
        match draw(8) {
            0..=3 => {
                let at = draw(bytes.len());
                bytes[at] ^= 1 << draw(8);
            }
            4 | 5 => bytes.truncate(draw(bytes.len())),
            6 => file.clone_from(earlier),
            _ => *file = None,
        }
    }

    /// Whatever becomes of the files, a scheduler finds a state that was kept, and no node has
    /// heard of a later one, or it knows that it has not. Each draw has its number in the message.
    #[test]
    fn a_damaged_or_older_state_is_never_taken_for_the_last() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let mut lineage = Lineage::new();
        let cluster = lineage.cluster;
        let (mut after, mut stamps) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let mut state_store = StateStore::open(folder, 7).unwrap();
            lineage.go_on();
            for _ in 0..3 {
                save(&mut state_store, &mut lineage);
                stamps.push(lineage.stamp());
                after.push(files(folder));
            }
        }
        let draw = draws();
        let [mut refused, mut older, mut last, mut lost] = [0; 4];
        for round in 0..1000 {
            // The nodes have heard of some states up to this one.
            let present = draw(after.len());
            let mut found = after[present].clone();
            let earlier = &after[draw(present + 1)];
            if draw(5) == 0 {
                found = earlier.clone();
            }
            (0..2).for_each(|at| damage(&draw, &mut found[at], &earlier[at]));
            put(folder, &found);
            let mut state_store = StateStore::open(folder, 7).unwrap();
            let kept = match state_store.load::<Kept<Value>>() {
                Ok(Some(kept)) => kept,
                Ok(None) => {
                    assert_ne!(Lineage::new().cluster, cluster);
                    lost += 1;
                    continue;
                }
                Err(error) => {
                    assert!(error.to_string().contains(&folder.display().to_string()), "{error}");
                    refused += 1;
                    continue;
                }
            };
            let mut lineage = kept.lineage;
            let number = lineage.number();
            assert_eq!((lineage.cluster, &kept.state), (cluster, &json!(number)), "{round}");
            assert!((1..=present as u64 + 1).contains(&number), "{round}: {number}");
            lineage.go_on();
            (older, last) = match number == present as u64 + 1 {
                true => (older, last + 1),
                false => (older + 1, last),
            };
            // However many states follow, those that the nodes have heard of come back to nobody.
            for saves in 0..=if round % 20 == 0 { 9 } else { 0 } {
                for heard in &stamps[..=present] {
                    assert_eq!(lineage.has(*heard), heard.number <= number, "{round}, {saves}");
                }
                if saves % 3 == 2 {
                    lineage.go_on();
                }
                save(&mut state_store, &mut lineage);
                assert!(lineage.has(lineage.stamp()) && lineage.has(Stamp::default()));
            }
            let why = lineage.error("/there", "worker 3", stamps[present]).to_string();
            assert!(why.contains("/there") && why.contains("worker 3"), "{why}");
        }
        println!("{refused} refused, {older} older, {last} last ones, {lost} lost");
        assert!([refused, older, last, lost].iter().all(|&times| times > 10));
    }

    #[test]
    fn a_full_disk_is_written_again_after_a_while() {
        let Some(folder) = SmallDisk::new(3) else { return }; // a lock and two states
        let mut state_store = StateStore::open(folder.path(), 7).unwrap();
        let full = folder.path().join("state-1");
        fs::write(&full, "").unwrap();
        fs::write(folder.path().join("state-0"), "").unwrap();
        let filler = SmallDisk::fill(folder.path(), &full);
        assert!(state_store.save(NOW, 1, &1).unwrap());
        assert!(!state_store.save(NOW, 2, &2).unwrap());
        assert!(state_store.paused().unwrap().contains(&folder.path().display().to_string()));
        fs::remove_file(&filler).unwrap();
        assert!(!state_store.save(NOW + AGAIN / 2, 2, &2).unwrap());
        assert!(state_store.save(NOW + AGAIN, 2, &2).unwrap());
        assert_eq!(state_store.paused(), None);
        fs::remove_file(&full).unwrap();
        fs::create_dir(&full).unwrap();
        let error = state_store.save(NOW, 4, &4).unwrap_err().to_string();
        assert!(error.contains("cannot write"), "{error}");
    }
}
