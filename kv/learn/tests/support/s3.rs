//! An S3-style store on this machine, in memory: GET with ranges, HEAD, PUT whole and in parts,
//! copies, DELETE and lists.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Objects by bucket and key.
type Objects = Mutex<BTreeMap<String, Vec<u8>>>;

/// A store that serves until the process ends.
pub(crate) struct Store {
    objects: Arc<Objects>,
    pub(crate) endpoint: String,
}

impl Store {
    pub(crate) fn start() -> Store {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let objects = Arc::new(Objects::default());
        let shared = objects.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, objects) = (stream.unwrap(), shared.clone());
                std::thread::spawn(move || while serve(&stream, &objects).is_some() {});
            }
        });
        Store { objects, endpoint }
    }

    pub(crate) fn put(&self, name: &str, bytes: Vec<u8>) {
        self.objects.lock().unwrap().insert(name.to_owned(), bytes);
    }

    /// What tools of S3 read to find it.
    pub(crate) fn variables(&self) -> [(&'static str, String); 5] {
        [
            ("AWS_ENDPOINT", self.endpoint.clone()),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", "key".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "secret".to_owned()),
        ]
    }
}

struct Asked {
    method: String,
    /// Bucket and key.
    name: String,
    query: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// The next request of a connection; `None` at its end.
fn asked(stream: &TcpStream) -> Option<Asked> {
    let mut input = BufReader::new(stream);
    let mut line = String::new();
    input.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?);
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        input.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let count = headers.get("content-length").map_or(0, |count| count.parse().unwrap());
    let mut body = vec![0; count];
    input.read_exact(&mut body).ok()?;
    let name = path.trim_start_matches('/').to_owned();
    Some(Asked { method, name, query: query.to_owned(), headers, body })
}

/// Answers a request. Objects whose name ends in `flaky` are there every second time, and those in
/// `replaced` are others every time.
fn serve(stream: &TcpStream, objects: &Objects) -> Option<()> {
    static REQUESTS: Mutex<u64> = Mutex::new(0);
    let asked = asked(stream)?;
    let request = {
        let mut requests = REQUESTS.lock().unwrap();
        *requests += 1;
        *requests
    };
    assert!(asked.headers["authorization"].starts_with("AWS4-HMAC-SHA256 Credential=key/"));
    let mut objects = objects.lock().unwrap();
    if asked.name.ends_with("flaky") && request % 2 == 0 {
        return answer(stream, "503 Slow Down", &[], Some(b"")).ok();
    }
    let listed = asked.query.split('&').find_map(|word| word.strip_prefix("prefix="));
    if asked.query.contains("list-type=2") {
        let prefix = format!("{}/{}", asked.name, listed.unwrap_or("").replace("%2F", "/"));
        let xml = list(&objects, &asked.name, &prefix);
        return answer(stream, "200 OK", &[], Some(xml.as_bytes())).ok();
    }
    match &asked.method[..] {
        "POST" => {
            let body = in_parts(&asked, &mut objects);
            answer(stream, "200 OK", &[], Some(body.as_bytes())).ok()
        }
        "PUT" => {
            let source = asked.headers.get("x-amz-copy-source");
            let copied = source.and_then(|source| objects.get(source).cloned());
            objects.insert(asked.name + &part(&asked.query), copied.unwrap_or(asked.body));
            answer(stream, "200 OK", &[tag(0)], Some(b"")).ok()
        }
        "DELETE" => {
            objects.remove(&asked.name);
            answer(stream, "204 No Content", &[], Some(b"")).ok()
        }
        method => {
            let Some(bytes) = objects.get(&asked.name) else {
                let body = (method == "GET").then_some(&b"<Error/>"[..]);
                return answer(stream, "404 Not Found", &[], body).ok();
            };
            let tag = tag(if asked.name.ends_with("replaced") { request } else { 0 });
            if asked.headers.get("if-match").is_some_and(|wanted| *wanted != tag.1) {
                return answer(stream, "412 Precondition Failed", &[], Some(b"")).ok();
            }
            get(stream, &asked, bytes, tag).ok()
        }
    }
}

fn tag(number: u64) -> (&'static str, String) {
    ("etag", format!("\"{number}\""))
}

/// What stands behind the name of a part, so that they are in their order.
fn part(query: &str) -> String {
    let part = query.split('&').find_map(|word| word.strip_prefix("partNumber="));
    part.map_or(String::new(), |part| format!("?{:05}", part.parse::<u32>().unwrap()))
}

/// Begins to take an object in parts, or puts them together.
fn in_parts(asked: &Asked, objects: &mut BTreeMap<String, Vec<u8>>) -> &'static str {
    if asked.query.starts_with("uploads") {
        return "<InitiateMultipartUploadResult><UploadId>1</UploadId>\
                </InitiateMultipartUploadResult>";
    }
    let begin = format!("{}?", asked.name);
    let parts: Vec<String> =
        objects.keys().filter(|name| name.starts_with(&begin)).cloned().collect();
    let whole = parts.iter().filter_map(|part| objects.remove(part)).flatten().collect();
    objects.insert(asked.name.clone(), whole);
    "<CompleteMultipartUploadResult><ETag>0</ETag></CompleteMultipartUploadResult>"
}

fn get(
    stream: &TcpStream,
    asked: &Asked,
    bytes: &[u8],
    tag: (&'static str, String),
) -> std::io::Result<()> {
    let changed = ("last-modified", "Wed, 01 Jan 2020 00:00:00 GMT".to_owned());
    if asked.method == "HEAD" {
        let count = ("content-length", bytes.len().to_string());
        return answer(stream, "200 OK", &[tag, changed, count], None);
    }
    let range = asked.headers.get("range").and_then(|range| range.strip_prefix("bytes="));
    let Some((begin, last)) = range.and_then(|range| range.split_once('-')) else {
        return answer(stream, "200 OK", &[tag, changed], Some(bytes));
    };
    let (begin, last): (usize, usize) = (begin.parse().unwrap(), last.parse().unwrap());
    let last = last.min(bytes.len() - 1);
    let range = ("content-range", format!("bytes {begin}-{last}/{}", bytes.len()));
    answer(stream, "206 Partial Content", &[tag, changed, range], Some(&bytes[begin..=last]))
}

fn list(objects: &BTreeMap<String, Vec<u8>>, bucket: &str, prefix: &str) -> String {
    let found = objects.iter().filter(|(name, _)| name.starts_with(prefix));
    let entries = found.map(|(name, bytes)| {
        let key = &name[bucket.len() + 1..];
        format!(
            "<Contents><Key>{key}</Key><LastModified>2020-01-01T00:00:00Z</LastModified>\
             <ETag>0</ETag><Size>{}</Size></Contents>",
            bytes.len()
        )
    });
    let entries: String = entries.collect();
    format!("<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>")
}

/// Without a body, the headers have its length.
fn answer(
    mut stream: &TcpStream,
    status: &str,
    headers: &[(&str, String)],
    body: Option<&[u8]>,
) -> std::io::Result<()> {
    let mut text = format!("HTTP/1.1 {status}\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if let Some(body) = body {
        text.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    text.push_str("\r\n");
    stream.write_all(&[text.as_bytes(), body.unwrap_or_default()].concat())
}
