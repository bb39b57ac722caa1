//! What both sides of a connection tell each other while it is made, in the connection manager's private data.
//!
//! ```text
//! greeting   [hello 32 bytes][receive buffers kept for the other side u32][0 u32]     in a request, and in the answer
//! refusal    UTF-8 reason, zero padding                                               in a rejection
//! ```

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Rdma;
use super::queue_pair::RECEIVES;
use crate::wire::Hello;

/// What each side tells the other when a connection is made.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Greeting {
    pub(super) hello: Hello,
    /// Receive buffers that it keeps for the other side.
    pub(super) receives: U32,
    reserved: U32,
}

// What the connection manager leaves a caller of its 92 bytes.
const _: () = assert!(size_of::<Greeting>() <= 56);

impl Greeting {
    pub(super) fn of(rdma: &Rdma) -> Greeting {
        let mut hello = rdma.config.hello();
        hello.frame_bytes = U32::new(rdma.frame_bytes as u32);
        Greeting { hello, receives: U32::new(RECEIVES), reserved: U32::new(0) }
    }

    /// Reads a peer's greeting, which the connection manager pads, and checks that it speaks to us.
    pub(super) fn check(bytes: &[u8], cluster: u64) -> Result<Greeting, String> {
        let short =
            || format!("a greeting has {} bytes, not {}", size_of::<Greeting>(), bytes.len());
        let (greeting, _) = Greeting::read_from_prefix(bytes).map_err(|_| short())?;
        Hello::check(greeting.hello.as_bytes(), cluster)?;
        if greeting.receives.get() < 2 || greeting.reserved.get() != 0 {
            return Err("its greeting is malformed".to_owned());
        }
        Ok(greeting)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::config::VanConfig;

    #[test]
    fn strangers_and_malformed_greetings_are_turned_away() {
        let config = VanConfig { cluster: 7, ..VanConfig::default() };
        let greeting =
            Greeting { hello: config.hello(), receives: U32::new(2), reserved: U32::new(0) };
        let mut padded = greeting.as_bytes().to_vec();
        padded.resize(56, 0);
        assert_eq!(Greeting::check(&padded, 7).unwrap().receives.get(), 2);
        assert!(Greeting::check(&padded, 8).unwrap_err().contains("cluster"));
        assert!(Greeting::check(&padded[..39], 7).unwrap_err().contains("not 39"));
        for wrong in [
            Greeting { receives: U32::new(1), ..greeting },
            Greeting { reserved: U32::new(1), ..greeting },
        ] {
            assert!(Greeting::check(wrong.as_bytes(), 7).unwrap_err().contains("malformed"));
        }
    }
}
