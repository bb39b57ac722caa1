//! Where the secret of a job comes from.

use std::path::PathBuf;

use caravan_van::Secret;

/// Source of a secret.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SecretSource {
    /// None given: the user's own, within this host.
    #[default]
    User,
    /// This secret.
    Given(Secret),
    /// The first line of standard input.
    StandardInput,
    /// This file, which only its owner may read.
    File(PathBuf),
    /// This one, of `CARAVAN_SECRET`.
    Variable(Secret),
    /// What `CARAVAN_SECRET` says, and the file of `CARAVAN_SECRET_FILE`: they have to be the same.
    Both(Box<SecretSource>, PathBuf),
}

impl SecretSource {
    /// This source, beside what another variable says.
    pub(crate) fn beside(self, other: SecretSource) -> SecretSource {
        match (self, other) {
            (SecretSource::User, one) | (one, SecretSource::User) => one,
            (SecretSource::File(file), said) | (said, SecretSource::File(file)) => {
                SecretSource::Both(Box::new(said), file)
            }
            (_, last) => last,
        }
    }
}
