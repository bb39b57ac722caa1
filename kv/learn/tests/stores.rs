//! Goal: objects of stores are read as files are, whole and in blocks, and train to the same model.
//! Method: files that `ci/stores` has put into an S3 store, and behind an HTTP server without
//! ranges, against the files themselves.
#![cfg(feature = "object-stores")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use caravan_kv::{Apps, Cluster, ClusterConfig, Handles, Launch};
use caravan_learn::data::{self, Examples, Shard};
use caravan_learn::kmeans::Points;
use caravan_learn::sgd::{Settings, Sgd};
use caravan_learn::trainer::{self, Job, Reading, train};

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run ci/stores"))
}

fn read(path: &Path) -> caravan_learn::Result<Examples> {
    data::read(&[path.to_path_buf()], Shard::ALL, NonZeroUsize::MIN)
}

/// The file, and its addresses.
fn places(name: &str) -> (PathBuf, [PathBuf; 2]) {
    let file = Path::new(&variable("CARAVAN_TEST_STORE")).join(name);
    let http = format!("{}/{name}", variable("CARAVAN_TEST_HTTP"));
    (file, [format!("s3://bucket/data/{name}").into(), http.into()])
}

#[test]
#[ignore = "needs the servers of ci/stores"]
fn objects_are_read_as_files_are() {
    for name in ["plain", "packed.gz", "empty"] {
        let (file, addresses) = places(name);
        let expected = read(&file).unwrap();
        for address in addresses {
            assert!(read(&address).unwrap() == expected, "{}", address.display());
        }
    }
    let (file, [s3, _]) = places("plain");
    assert!(Points::read(std::slice::from_ref(&s3)).unwrap() == Points::read(&[file]).unwrap());
}

#[test]
#[ignore = "needs the servers of ci/stores"]
fn blocks_of_an_object_are_those_of_its_file() {
    let (file, [s3, _]) = places("plain");
    let [of_file, of_object] = [file, s3].map(|path| data::cut(&[path], 100_000).unwrap());
    assert!(of_file.len() > 5);
    for (file, object) in of_file.iter().zip(&of_object) {
        assert_eq!((file.begin, file.end), (object.begin, object.end));
        assert!(data::read_cut(file).unwrap() == data::read_cut(object).unwrap());
    }
    assert_eq!(of_file.len(), of_object.len());
}

#[test]
#[ignore = "needs the servers of ci/stores"]
fn objects_train_as_files_do() {
    let config = ClusterConfig { workers: 2, ..ClusterConfig::default() };
    let apps = trainer::app::<Sgd>(Apps::default());
    let mut cluster = Cluster::launch(&config, Launch::Threads(Handles::default(), apps)).unwrap();
    let (file, [s3, http]) = places("packed.gz");
    let mut train_on = |files: Vec<PathBuf>, reading: Reading| {
        let job = Job { reading, passes: 2, ..Job::new(Settings::new(files)) };
        let mut examples = Vec::new();
        let trained = train::<Sgd>(&mut cluster, &job, |it| examples.push(it.sums.examples));
        (trained.unwrap().rows, examples)
    };
    let expected = train_on(vec![file], Reading::First);
    for address in [s3, http] {
        assert!(train_on(vec![address.clone()], Reading::Ahead) == expected, "{address:?}");
    }
    let (_, [plain, _]) = places("plain");
    assert_eq!(train_on(vec![plain], Reading::Near(50_000)).1, [900, 900]);
    cluster.shutdown().unwrap();
}

#[test]
#[ignore = "needs the servers of ci/stores"]
fn what_cannot_be_read_is_named() {
    let http = variable("CARAVAN_TEST_HTTP");
    for address in [
        "s3://bucket/data/missing".to_owned(),
        "s3://nowhere/data/plain".to_owned(),
        "s3://bucket".to_owned(),
        format!("{http}/missing"),
        "http://127.0.0.1:1/refused".to_owned(),
    ] {
        let error = read(Path::new(&address)).unwrap_err();
        let said = caravan_kv::error::with_sources(&error);
        assert!(said.contains(&address) && said.contains("cannot open"), "{said}");
        println!("{said}");
    }
    // The server of files has no ranges, so its objects have no blocks.
    let (_, [_, http]) = places("plain");
    let cuts = data::cut(&[http], 100_000).unwrap();
    let said = caravan_kv::error::with_sources(&data::read_cut(&cuts[1]).unwrap_err());
    println!("{said}");
    assert!(said.contains("plain"), "{said}");
}
