//! What tasks of workers take and give, as JSON.

use anyhow::Result;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Does a worker's part of a bench. Its task and its answer travel as JSON, an error as text with
/// all its causes.
pub(super) fn answered<T: DeserializeOwned, A: Serialize>(
    body: Value,
    work: impl FnOnce(T) -> Result<A>,
) -> Result<Value, String> {
    let task = serde_json::from_value(body).map_err(anyhow::Error::from);
    let answer = task.and_then(work).and_then(|answer| Ok(serde_json::to_value(answer)?));
    answer.map_err(|error| format!("{error:#}"))
}
