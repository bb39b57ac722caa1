//! Goal: a table that was exported and imported into another number of servers has the same rows.
//! Method: real servers; the table is exported again from where it was imported.

use crate::support::{Servers, any, config};
use caravan_kv::export::{Format, export_table, import_table};
use caravan_kv::{Handles, TableSpec, ValueType, Worker};
use caravan_van::KeyRange;
use half::f16;

const KEYS: u64 = 3000;

/// Those that this build has.
const FORMATS: &[Format] = match cfg!(feature = "arrow") {
    true => &[Format::Text, Format::Binary, Format::Arrow],
    false => &[Format::Text, Format::Binary],
};

fn servers(count: usize) -> Servers {
    Servers::start(any(), count, &config(64, 1 << 28), &Handles::default())
}

/// Tables of each kind of rows.
fn specs() -> [TableSpec; 6] {
    [
        TableSpec::new(1, "sums", ValueType::I64, 1),
        TableSpec::new(2, "halves", ValueType::F16, 3).handle("assign"),
        TableSpec::new(3, "lists", ValueType::F32, 0).handle("assign"),
        TableSpec::new(4, "pairs", ValueType::F64, 2).handle("assign"),
        TableSpec::new(5, "counts", ValueType::U32, 1),
        TableSpec::new(6, "lists of counts", ValueType::U64, 0).handle("assign"),
    ]
}

/// Pushes values to keys over the whole range.
fn fill(worker: &mut Worker) {
    let keys: Vec<u64> = (0..KEYS).map(|key| key * (u64::MAX / KEYS)).collect();
    let [sums, halves, lists, pairs, counts, lists_of_counts] =
        specs().map(|spec| worker.admin().create_table(&spec).unwrap());
    let numbers: Vec<i64> = (0..KEYS as i64).map(|at| at * at - 5000).collect();
    let thirds: Vec<f16> = (0..3 * KEYS).map(|at| f16::from_f32(at as f32 / 3.0)).collect();
    let lengths: Vec<u32> = (0..KEYS as u32).map(|at| at % 4).collect();
    let count = lengths.iter().sum::<u32>();
    let sevenths: Vec<f32> = (0..count).map(|at| at as f32 / 7.0).collect();
    let ninths: Vec<f64> = (0..2 * KEYS).map(|at| at as f64 / -9.0).collect();
    let smalls: Vec<u32> = (0..KEYS as u32).map(|at| u32::MAX - at).collect();
    let bigs: Vec<u64> = (0..u64::from(count)).map(|at| u64::MAX - at).collect();
    let made = [
        worker.push(sums, &keys, &numbers).unwrap(),
        worker.push(halves, &keys, &thirds).unwrap(),
        worker.push_varying(lists, &keys, &lengths, &sevenths).unwrap(),
        worker.push(pairs, &keys, &ninths).unwrap(),
        worker.push(counts, &keys, &smalls).unwrap(),
        worker.push_varying(lists_of_counts, &keys, &lengths, &bigs).unwrap(),
    ];
    made.into_iter().for_each(|push| drop(worker.wait(push).unwrap()));
}

fn export(worker: &mut Worker, spec: &TableSpec, keys: KeyRange, format: Format) -> (u64, Vec<u8>) {
    let mut out = Vec::new();
    let rows = export_table(worker, spec, keys, format, &mut out).unwrap();
    (rows, out)
}

#[test]
fn tables_are_equal_in_another_number_of_servers() {
    let from = servers(2);
    let mut worker = from.worker();
    fill(&mut worker);
    let part = KeyRange::new(0, u64::MAX / KEYS * 100).unwrap();
    for (keys, rows) in [(KeyRange::ALL, KEYS), (part, 100)] {
        for &format in FORMATS {
            let to = servers(3);
            let mut other = to.worker();
            for spec in specs() {
                let exported = export(&mut worker, &spec, keys, format);
                assert_eq!(exported.0, rows);
                let imported = import_table(&mut other, &spec, format, &mut &exported.1[..]);
                assert_eq!(imported.unwrap(), rows);
                let again = export(&mut other, &spec, KeyRange::ALL, format);
                assert!(again == exported, "{} as {format:?}", spec.name);
            }
        }
    }
    let text = export(&mut worker, &specs()[0], part, Format::Text).1;
    assert!(text.starts_with(b"0 -5000\n6148914691236517 -4999\n"), "{:?}", &text[..40]);
}

#[test]
fn what_is_no_row_is_named() {
    let servers = servers(1);
    let mut worker = servers.worker();
    let [sums, halves, ..] = specs();
    for (spec, text, says) in [
        (&sums, "1 2\nx 3\n", "row 2: \"x\" is no key"),
        (&sums, "1 2\n\n", "row 2: it is empty"),
        (&sums, "1 2.5\n", "row 1: key 1: \"2.5\" is no value"),
        (&halves, "1 2 3\n", "row 1: key 1 comes with 2 values, and rows have 3"),
    ] {
        let said = import_table(&mut worker, spec, Format::Text, &mut text.as_bytes());
        let said = said.unwrap_err().to_string();
        assert!(said.contains(says), "{said}");
    }
    let short = [&5_u64.to_le_bytes()[..], &1_u32.to_le_bytes(), &[0; 7]].concat();
    let said = import_table(&mut worker, &sums, Format::Binary, &mut &short[..]).unwrap_err();
    assert!(said.to_string().contains("row 1: it is cut off"), "{said}");
    let steps = TableSpec::new(9, "steps", ValueType::F32, 1).handle("adam");
    let said = import_table(&mut worker, &steps, Format::Text, &mut &b""[..]).unwrap_err();
    assert!(said.to_string().contains("its handle adam"), "{said}");
}

#[test]
#[cfg(not(feature = "arrow"))]
fn a_build_without_arrow_says_how_to_get_it() {
    let servers = servers(1);
    let mut worker = servers.worker();
    let [spec, ..] = specs();
    let read = import_table(&mut worker, &spec, Format::Arrow, &mut &b""[..]);
    let written = export_table(&mut worker, &spec, KeyRange::ALL, Format::Arrow, &mut Vec::new());
    for said in [read, written] {
        let said = said.unwrap_err().to_string();
        assert!(said.contains("build it with --features arrow"), "{said}");
    }
}
