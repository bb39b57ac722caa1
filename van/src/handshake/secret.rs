//! The secret of a cluster: 256 random bits that its nodes know, and nobody else.

use std::fmt;

/// A secret that nodes prove to each other.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; Secret::BYTES]);

/// Why a text is not a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a secret is {} hexadecimal digits, but this has {digits} characters{}", 2 * Secret::BYTES, other(.strange))]
pub struct SecretError {
    /// Characters of the text.
    digits: usize,
    /// Whether some are not hexadecimal digits.
    strange: bool,
}

fn other(strange: &bool) -> &'static str {
    if *strange { ", some not hexadecimal" } else { "" }
}

impl Secret {
    /// Its length.
    pub const BYTES: usize = 32;

    /// No secret: everybody knows it.
    pub const NONE: Secret = Secret([0; Secret::BYTES]);

    /// A new random secret.
    ///
    /// # Panics
    /// If the system has no random numbers; Linux has them from boot on.
    pub fn random() -> Secret {
        let mut bytes = [0; Secret::BYTES];
        getrandom::fill(&mut bytes).expect("the system has random numbers");
        Secret(bytes)
    }

    /// Parses the output of [`Secret::to_hex`], ignoring white space around it.
    ///
    /// # Errors
    /// [`SecretError`], which does not quote the text.
    pub fn from_hex(text: &str) -> Result<Secret, SecretError> {
        let text = text.trim();
        let strange = !text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let failed = SecretError { digits: text.chars().count(), strange };
        if strange || text.len() != 2 * Secret::BYTES {
            return Err(failed);
        }
        let mut bytes = [0; Secret::BYTES];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte =
                u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| failed.clone())?;
        }
        Ok(Secret(bytes))
    }

    /// The secret as 64 hexadecimal digits.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(super) fn bytes(&self) -> &[u8; Secret::BYTES] {
        &self.0
    }
}

impl From<[u8; Secret::BYTES]> for Secret {
    fn from(bytes: [u8; Secret::BYTES]) -> Secret {
        Secret(bytes)
    }
}

/// Hides the secret.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Secret::NONE { "Secret(none)" } else { "Secret(…)" })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn secrets_are_written_and_read() {
        let secret = Secret::random();
        assert_ne!(secret, Secret::random());
        assert_eq!(Secret::from_hex(&format!(" {}\n", secret.to_hex())).unwrap(), secret);
        assert_eq!(Secret::NONE.to_hex(), "0".repeat(64));
        assert!(!format!("{secret:?}").contains(&secret.to_hex()[..8]));
    }

    #[test]
    fn what_is_no_secret_is_refused_and_not_shown() {
        for text in
            ["", "hunter2", &"0".repeat(63), &"0".repeat(66), &"g".repeat(64), &"ä".repeat(32)]
        {
            let error = Secret::from_hex(text).unwrap_err().to_string();
            assert!(error.contains("64 hexadecimal digits"), "{error}");
            assert!(text.is_empty() || !error.contains(text), "{error}");
        }
    }
}
