//! Own filters for tests.

use caravan_kv::filter::{Filter, OwnFilters};
use caravan_kv::{Refusal, Refused};

/// Leaves out bytes at the end that are 0.
struct Trim;

impl Filter for Trim {
    fn encode(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        out.extend_from_slice(&bytes[..end]);
        end < bytes.len()
    }

    fn decode(&mut self, bytes: &[u8], into: &mut [u8]) -> Result<(), Refused> {
        let place = into
            .get_mut(..bytes.len())
            .ok_or_else(|| Refusal::Shape.because("it is longer than its values"))?;
        place.copy_from_slice(bytes);
        Ok(())
    }
}

/// Sends bytes from the last to the first, always.
struct Turn;

impl Filter for Turn {
    fn encode(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        out.extend(bytes.iter().rev());
        true
    }

    fn decode(&mut self, bytes: &[u8], into: &mut [u8]) -> Result<(), Refused> {
        if bytes.len() != into.len() {
            return Err(Refusal::Shape.because(format!(
                "{} bytes came for {}",
                bytes.len(),
                into.len()
            )));
        }
        into.iter_mut().zip(bytes.iter().rev()).for_each(|(to, from)| *to = *from);
        Ok(())
    }
}

/// Those as "trim" and "turn".
pub(crate) fn own() -> OwnFilters {
    let own = OwnFilters::default().with("trim", |_| Ok(Box::new(Trim)));
    own.with("turn", |_| Ok(Box::new(Turn)))
}
