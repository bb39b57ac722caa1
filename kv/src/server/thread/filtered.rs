//! Requests to tables with filters: they are decoded before the shard sees them, and their answers
//! are encoded.
//!
//! Path: codec > thread (**filtered**) > shard > store > answer.

use caravan_van::wire::Kind;
use caravan_van::{Draft, Message, PeerId, Values};

use super::answer::{answer, gather, post_coded};
use super::{Entry, ServerThread, Step, find};
use crate::filter::{FILTERED, List};
use crate::op::Op;
use crate::server::shard::{Pulled, Request};

impl ServerThread {
    /// Serves a request whose values are a block, if its operation is a filtered push.
    #[inline(never)]
    pub(super) fn serve_block(
        &mut self,
        peer: PeerId,
        message: &Message,
        list: Option<&List>,
    ) -> Result<Step, String> {
        let plain = Op::from_raw(message.op() & !FILTERED).filter(|plain| plain.pushes());
        let plain = plain.ok_or_else(|| format!("there is no operation {}", message.op()))?;
        match find(&mut self.tables, message.table())?.filters {
            None => Err("its values came filtered, and the table has no filters".to_owned()),
            Some(_) => self.serve(peer, message, list, plain),
        }
    }

    /// Serves an admitted request to a table with filters.
    #[inline(never)]
    pub(super) fn serve_filtered(
        &mut self,
        peer: PeerId,
        message: &Message,
        request: Request<'_>,
    ) -> Result<(), String> {
        let memory = self.endpoint.memory().clone();
        let Entry { shard, spec, filters, .. } = find(&mut self.tables, message.table())?;
        let filters = filters.as_mut().expect("the caller found filters");
        let decoded = filters.receive(spec, message, request.keys.len(), &memory)?;
        let mut request = request; // its lifetime shrinks to that of `decoded`
        if let Some(decoded) = &decoded {
            request.values = &decoded.values;
            request.lengths = decoded.lengths.as_deref().unwrap_or(request.lengths);
        }
        if request.pushes {
            shard.push(&request, &memory)?;
        }
        if !request.pulls {
            self.answer(peer, message.timestamp());
            return Ok(());
        }
        let (gathered, shared);
        let (lengths, values) = match shard.pull(&request)? {
            Pulled::Stored(values) => (&[][..], values),
            Pulled::Shared(values) => {
                shared = values;
                (&[][..], &shared[..])
            }
            Pulled::Bytes(bytes) => {
                gathered = gather(&memory, bytes, |into| shard.read(&request, into))?;
                (&[][..], &gathered[..])
            }
            Pulled::Varying(bytes) => {
                gathered = gather(&memory, bytes, |into| shard.read(&request, into))?;
                (shard.lengths(), &gathered[..])
            }
        };
        let endpoint = &mut self.endpoint;
        let posted = filters.answer(
            spec,
            lengths,
            values,
            &memory,
            |is_block, lengths, values, coding| {
                let op = if is_block { FILTERED } else { 0 };
                let values = Values::Copied(values);
                let draft = Draft { op, lengths, values, ..answer(Kind::Reply, message) };
                post_coded(endpoint, peer, draft, coding)
            },
        )?;
        self.check(peer, posted);
        Ok(())
    }
}
