//! States in an etcd, by the JSON that it speaks over HTTP.
//!
//! A state is written only where the last one of this scheduler is still there. So when another
//! scheduler has gone on with the cluster, this one finds out before anybody hears of it again.

use std::time::{Duration, Instant};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Value, json};
use ureq::Agent;

use super::Kept;

/// How long a call may take.
const CALL_MAX: Duration = Duration::from_secs(2);

/// How long an etcd may answer nothing, as while it chooses another leader.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// Pause before a call is made again.
const PAUSE: Duration = Duration::from_millis(200);

/// The key of a job's scheduler in an etcd.
pub(super) struct Etcd {
    agent: Agent,
    /// Addresses of its members.
    members: Vec<String>,
    /// In base 64.
    key: String,
    /// Of the last state of this scheduler; 0 before there is one.
    revision: u64,
}

impl Etcd {
    /// Takes the key of a job, at members whose addresses commas separate.
    ///
    /// # Errors
    /// Why the etcd does not answer.
    pub(super) fn open(members: &str, job: u64) -> Kept<Etcd> {
        let config = Agent::config_builder();
        let config = config.timeout_global(Some(CALL_MAX)).http_status_as_error(false).build();
        let key = BASE64_STANDARD.encode(format!("caravan/{job:x}/scheduler"));
        let members = members.split(',').map(|it| it.trim_end_matches('/').to_owned()).collect();
        let etcd = Etcd { agent: config.into(), members, key, revision: 0 };
        etcd.call("range", &json!({ "key": etcd.key })).map(|_| etcd)
    }

    /// The last state that was kept, if there is one.
    ///
    /// # Errors
    /// Why the etcd does not answer, or what it has is none.
    pub(super) fn load(&mut self) -> Kept<Option<Vec<u8>>> {
        let found = self.call("range", &json!({ "key": self.key }))?;
        let Some((revision, state)) = kept_in(&found)? else { return Ok(None) };
        self.revision = revision;
        Ok(Some(state))
    }

    /// Keeps a state.
    ///
    /// # Errors
    /// Why the etcd refuses it; that another scheduler has written one.
    pub(super) fn save(&mut self, state: &[u8]) -> Kept<()> {
        let put =
            json!({ "requestPut": { "key": self.key, "value": BASE64_STANDARD.encode(state) } });
        let done = self.call("txn", &self.unless_changed(&put))?;
        if done["succeeded"] == true {
            self.revision = number(&done["header"]["revision"])?;
            return Ok(());
        }
        // An earlier call may have written it whose answer did not come.
        match kept_in(&done["responses"][0]["response_range"])? {
            Some((revision, found)) if found == state => {
                self.revision = revision;
                Ok(())
            }
            _ => Err("another scheduler has gone on with this cluster".to_owned()),
        }
    }

    /// Removes the state.
    ///
    /// # Errors
    /// Why the etcd refuses it.
    pub(super) fn clear(&mut self) -> Kept<()> {
        let delete = json!({ "requestDeleteRange": { "key": self.key } });
        self.call("txn", &self.unless_changed(&delete)).map(drop)
    }

    /// Has something done if the last state of this scheduler is there; else it is looked up.
    fn unless_changed(&self, what: &Value) -> Value {
        let is_last = json!({
            "key": self.key, "target": "MOD", "result": "EQUAL",
            "modRevision": self.revision.to_string(),
        });
        let look = json!({ "requestRange": { "key": self.key } });
        json!({ "compare": [is_last], "success": [what], "failure": [look] })
    }

    /// Calls the members in turn until one answers.
    fn call(&self, what: &str, body: &Value) -> Kept<Value> {
        let began = Instant::now();
        loop {
            let mut why = String::new();
            for member in &self.members {
                match self.call_member(member, what, body) {
                    Ok(answer) => return answer,
                    Err(error) => why = format!("{member} does not answer: {error}"),
                }
            }
            if began.elapsed() > SILENCE_MAX {
                return Err(why);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The answer of a member, or why it refuses.
    ///
    /// # Errors
    /// If it does not answer, or cannot for now.
    fn call_member(&self, member: &str, what: &str, body: &Value) -> Result<Kept<Value>, String> {
        let called = self.agent.post(format!("{member}/v3/kv/{what}")).send_json(body);
        let mut answer = called.map_err(|error| error.to_string())?;
        let status = answer.status();
        let text = answer.body_mut().read_to_string().map_err(|error| error.to_string())?;
        match status.as_u16() {
            200 => Ok(serde_json::from_str(&text).map_err(|error| error.to_string())),
            500.. => Err(format!("{status}: {text}")),
            _ => Ok(Err(format!("{member} says {status}: {text}"))),
        }
    }
}

/// The revision and the state in a list of what was found, unless that is empty.
fn kept_in(found: &Value) -> Kept<Option<(u64, Vec<u8>)>> {
    let Some(kept) = found["kvs"].get(0) else { return Ok(None) };
    let state = BASE64_STANDARD.decode(kept["value"].as_str().unwrap_or(""));
    let state = state.map_err(|error| error.to_string())?;
    Ok(Some((number(&kept["mod_revision"])?, state)))
}

fn number(value: &Value) -> Kept<u64> {
    let parsed = value.as_str().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| format!("{value} is no revision of an etcd"))
}
