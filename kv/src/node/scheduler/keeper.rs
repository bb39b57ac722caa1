//! Where a scheduler keeps its state, so that one that is started again goes on with it: a folder,
//! or an etcd.

#[cfg_attr(not(feature = "etcd"), path = "keeper/left_out.rs")]
mod etcd;
mod folder;

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use self::etcd::Etcd;
use self::folder::Folder;
use crate::error::{Error, Result};

/// What comes of keeping something, or the reason why nothing does.
type Kept<T> = Result<T, String>;

/// What the address of an etcd begins with.
const SCHEME: &str = "http://";

/// The keeper of a state.
pub(super) struct Keeper {
    /// Where it is, for people.
    place: String,
    kept: Place,
}

enum Place {
    Folder(Folder),
    Etcd(Etcd),
}

impl Keeper {
    /// Takes a folder, or a key of the etcd at this address, for the scheduler of a job.
    ///
    /// # Errors
    /// [`Error::Config`] names the place and the reason why it cannot be used.
    pub(super) fn open(place: &Path, job: u64) -> Result<Keeper> {
        let name = place.display().to_string();
        let kept = match name.starts_with(SCHEME) {
            true => Etcd::open(&name, job).map(Place::Etcd),
            false => Folder::open(place).map(Place::Folder),
        };
        match kept {
            Ok(kept) => Ok(Keeper { place: name, kept }),
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
        let parsed = state.and_then(|state| {
            let parsed = state.map(|state| serde_json::from_slice(&state)).transpose();
            parsed.map_err(|error| error.to_string())
        });
        parsed.map_err(|why| failed("read", &self.place, &why))
    }

    /// Keeps a state, durably.
    ///
    /// # Errors
    /// [`Error::Config`] names the place and the reason why it cannot be written.
    pub(super) fn save(&mut self, state: &impl Serialize) -> Result<()> {
        let state = serde_json::to_vec(state)?;
        let saved = match &mut self.kept {
            Place::Folder(folder) => folder.save(&state),
            Place::Etcd(etcd) => etcd.save(&state),
        };
        saved.map_err(|why| failed("write", &self.place, &why))
    }

    /// Removes the state: the cluster has ended.
    pub(super) fn clear(&mut self) {
        let cleared = match &mut self.kept {
            Place::Folder(folder) => folder.clear(),
            Place::Etcd(etcd) => etcd.clear(),
        };
        if let Err(why) = cleared {
            tracing::warn!(why, place = self.place, "cannot remove the scheduler's state");
        }
    }
}

fn failed(what: &str, place: &str, why: &str) -> Error {
    Error::Config(format!("cannot {what} {place} for the state of the scheduler: {why}"))
}
