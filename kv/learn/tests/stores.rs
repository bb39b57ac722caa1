//! Goal: objects of stores are read as files are, whole and in blocks, and train to the same model;
//! checkpoints lie there as in a folder; what cannot be read is named.
//! Method: a small S3-style store in this process. The tests proper run in a process of their own,
//! whose variables name it, and compare its objects with files of the same bytes.
#![cfg(feature = "stores")]

use crate::support::s3;
use std::fmt::Write;
use std::io::{Read, Seek, SeekFrom};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Command;

use caravan_kv::checkpoint::{Checkpoints, Disk, Folder};
use caravan_kv::objects::{self, Object};
use caravan_kv::{Apps, Cluster, ClusterConfig, Handles, Launch, TableSpec, ValueType};
use caravan_learn::data::{self, Examples, Shard};
use caravan_learn::sgd::{Settings, Sgd};
use caravan_learn::trainer::{self, Job, Reading, train};

/// Where the tests proper find the files.
const FOLDER: &str = "CARAVAN_TEST_STORE_FILES";

/// Rows enough for several blocks.
const ROWS: usize = 900;

fn rows() -> Vec<u8> {
    let mut text = String::new();
    for row in 0..ROWS {
        text.push_str(if row % 3 == 0 { "-1" } else { "+1" });
        for at in 0..100 {
            write!(text, " {}:{}", at * 50 + row % 37, 1 + (row + at) % 5).unwrap();
        }
        text.push('\n');
    }
    text.into_bytes()
}

#[test]
fn objects_are_as_files() {
    let (store, folder) = (s3::Store::start(), tempfile::tempdir().unwrap());
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, &rows()).unwrap();
    for (name, bytes) in
        [("plain", rows()), ("packed.gz", packed.finish().unwrap()), ("empty", Vec::new())]
    {
        std::fs::write(folder.path().join(name), &bytes).unwrap();
        store.put(&format!("bucket/data/{name}"), bytes);
    }
    store.put("bucket/flaky", rows());
    store.put("bucket/replaced", rows());
    let program = std::env::current_exe().unwrap();
    let mut proper = Command::new(program);
    proper.args(["--ignored", "--test-threads=1", "--nocapture"]).envs(store.variables());
    let output = proper.env(FOLDER, folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("6 passed"));
}

/// The file, and its address.
fn places(name: &str) -> (PathBuf, PathBuf) {
    let folder = std::env::var(FOLDER).unwrap();
    (Path::new(&folder).join(name), format!("s3://bucket/data/{name}").into())
}

fn read(path: &Path) -> caravan_learn::Result<Examples> {
    data::read(&[path.to_path_buf()], Shard::ALL, NonZeroUsize::MIN)
}

#[test]
#[ignore = "objects_are_as_files runs it"]
fn whole() {
    for name in ["plain", "packed.gz", "empty"] {
        let (file, address) = places(name);
        assert!(read(&address).unwrap() == read(&file).unwrap(), "{name}");
    }
    // Its store fails now and then.
    assert!(read("s3://bucket/flaky".as_ref()).unwrap() == read(&places("plain").0).unwrap());
}

#[test]
#[ignore = "objects_are_as_files runs it"]
fn from_anywhere() {
    let bytes = rows();
    let mut object = Object::open("s3://bucket/data/plain").unwrap();
    assert_eq!(object.total_bytes(), bytes.len() as u64);
    for (to, at) in [
        (SeekFrom::Start(bytes.len() as u64 - 3), bytes.len() - 3),
        (SeekFrom::End(-7), bytes.len() - 7),
        (SeekFrom::Start(70_000), 70_000),
        (SeekFrom::Current(-9_999), 60_001),
        (SeekFrom::End(5), bytes.len()),
    ] {
        object.seek(to).unwrap();
        let mut rest = Vec::new();
        object.read_to_end(&mut rest).unwrap();
        assert!(rest == bytes[at..], "{to:?}");
        object.seek(SeekFrom::Start(70_000)).unwrap();
    }
}

#[test]
#[ignore = "objects_are_as_files runs it"]
fn in_blocks() {
    let (file, address) = places("plain");
    let [of_file, of_object] = [file, address].map(|path| data::cut(&[path], 30_000).unwrap());
    assert!(of_file.len() > 5 && of_file.len() == of_object.len());
    for (file, object) in of_file.iter().zip(&of_object) {
        assert_eq!((file.begin, file.end), (object.begin, object.end));
        assert!(data::read_cut(file).unwrap() == data::read_cut(object).unwrap());
    }
}

#[test]
#[ignore = "objects_are_as_files runs it"]
fn trained_on() {
    let config = ClusterConfig { workers: 2, ..ClusterConfig::default() };
    let apps = trainer::app::<Sgd>(Apps::default());
    let mut cluster = Cluster::launch(&config, Launch::Threads(Handles::default(), apps)).unwrap();
    let mut train_on = |file: &Path, reading: Reading| {
        let job = Job { reading, passes: 2, ..Job::new(Settings::new(vec![file.to_path_buf()])) };
        let mut examples = Vec::new();
        let trained = train::<Sgd>(&mut cluster, &job, |it| examples.push(it.sums.examples));
        (trained.unwrap().rows, examples)
    };
    let (file, address) = places("packed.gz");
    let expected = train_on(&file, Reading::First);
    for reading in [Reading::First, Reading::Ahead] {
        assert!(train_on(&address, reading) == expected, "{reading:?}");
    }
    let (_, address) = places("plain");
    assert_eq!(train_on(&address, Reading::Near(50_000)).1, [ROWS as u64; 2]);
    cluster.shutdown().unwrap();
}

/// Names and bytes of the files in a store are those of a folder.
fn is_as_in(store: &str, folder: &Path) {
    let of_store = objects::disk(store.as_ref()).unwrap();
    let of_folder = Folder::new(folder);
    let mut names = of_folder.names().unwrap();
    names.sort_unstable();
    assert_eq!(names, ["2.0.0.rows", "2.manifest", "3.0.0.rows", "3.manifest"]);
    for name in names {
        let [mut one, mut other] = [Vec::new(), Vec::new()];
        of_store.open(&name).unwrap().read_to_end(&mut one).unwrap();
        of_folder.open(&name).unwrap().read_to_end(&mut other).unwrap();
        assert!(one == other, "{name}");
    }
}

/// Rows of a table that a checkpoint has in several parts.
const SAVED_ROWS: u64 = 1_500_000;

#[test]
#[ignore = "objects_are_as_files runs it"]
fn checkpoints() {
    let spec = TableSpec::new(1, "weights", ValueType::F64, 1).handle("assign");
    let launch = |servers| {
        let config = ClusterConfig { servers, ..ClusterConfig::default() };
        Cluster::launch(&config, Launch::Threads(Handles::default(), Apps::default())).unwrap()
    };
    let keys: Vec<u64> = (0..SAVED_ROWS).map(|key| key * (u64::MAX / SAVED_ROWS)).collect();
    let values: Vec<f64> = (0..SAVED_ROWS).map(|at| at as f64 / 3.0).collect();
    let open = |to: &str| Checkpoints::new(objects::disk(to.as_ref()).unwrap());
    let cluster = launch(1);
    let mut client = cluster.client().unwrap();
    let table = client.create_table(&spec).unwrap();
    for (keys, values) in keys.chunks(100_000).zip(values.chunks(100_000)) {
        let pushed = client.push(table, keys, values).unwrap();
        client.wait(pushed).unwrap();
    }
    let mut saved = open("s3://bucket/saved/");
    assert!(saved.list().unwrap().is_empty());
    assert_eq!(saved.create(&mut client, std::slice::from_ref(&spec)).unwrap(), 1);
    assert_eq!(saved.create(&mut client, std::slice::from_ref(&spec)).unwrap(), 2);
    let folder = tempfile::tempdir().unwrap();
    let mut local = open(folder.path().to_str().unwrap());
    assert_eq!(local.create(&mut client, std::slice::from_ref(&spec)).unwrap(), 1);
    assert_eq!(local.create(&mut client, std::slice::from_ref(&spec)).unwrap(), 2);
    let (place, mut values) = (SAVED_ROWS as usize / 3, values);
    values[place] = -1.0;
    let pushed = client.push(table, &keys[place..=place], &values[place..=place]).unwrap();
    client.wait(pushed).unwrap();
    for checkpoints in [&mut saved, &mut local] {
        checkpoints.create_increment(&mut client, std::slice::from_ref(&spec)).unwrap();
    }
    let changed = saved.manifest(3).unwrap();
    assert_eq!(changed.parent.map(|parent| parent.number), Some(2));
    assert_eq!(changed.tables[0].shards[0].rows, 1);
    drop(client);
    cluster.shutdown().unwrap();
    let mut saved = open("s3://bucket/saved");
    assert_eq!(saved.list().unwrap(), [1, 2, 3]);
    for checkpoints in [&mut saved, &mut local] {
        assert_eq!(checkpoints.prune(1).unwrap(), [1]);
        assert_eq!(checkpoints.list().unwrap(), [2, 3]);
    }
    let verified = saved.verify(2).unwrap();
    assert!(verified.tables[0].shards[0].bytes > 20 << 20, "it came in one part");
    is_as_in("s3://bucket/saved", folder.path());
    let cluster = launch(3);
    let mut client = cluster.client().unwrap();
    saved.restore(&mut client, 3).unwrap();
    let table = client.create_table(&spec).unwrap();
    let mut pulled: Vec<f64> = Vec::new();
    for keys in keys.chunks(100_000) {
        let asked = client.pull(table, keys).unwrap();
        pulled.extend(client.wait(asked).unwrap().values::<f64>());
    }
    assert!(pulled == values);
    drop(client);
    cluster.shutdown().unwrap();
    saved.disk().remove("2.0.0.rows").unwrap();
    for number in [2, 3, 4] {
        let said = saved.verify(number).unwrap_err().to_string();
        assert!(said.contains("not found"), "{said}");
    }
}

#[test]
#[ignore = "objects_are_as_files runs it"]
fn wrong_ones_are_named() {
    for (address, says) in [
        ("s3://bucket/data/missing", "not found"),
        ("s3://nowhere/data/plain", "not found"),
        ("s3://bucket", "name an object, as s3://BUCKET/KEY"),
        ("s3:///plain", "name an object, as s3://BUCKET/KEY"),
        ("s3://bucket/replaced", "was replaced while it was read"),
    ] {
        let said = caravan_kv::error::with_sources(&read(address.as_ref()).unwrap_err());
        println!("{said}");
        assert!(said.contains(address) && said.contains(says), "{said}");
    }
}
