//! Goal: rows as Arrow are those of the table, for other programs too; a file that is damaged or of
//! something else is refused with its reason, and takes no more memory than its bytes.
//! Method: records are rewritten as Arrow and back; pyarrow, where `CARAVAN_TEST_PYARROW` names a
//! Python that has it, reads such a file and writes its rows again in other batches.

use std::path::Path;
use std::process::Command;

use caravan_kv::export::{Format, rewrite_rows};
use caravan_kv::{TableSpec, ValueType};

fn table(value: ValueType, width: u32) -> TableSpec {
    TableSpec::new(1, "t", value, width)
}

/// Binary records of a table: `count` rows with values of every size and sign.
fn records(spec: &TableSpec, count: u64) -> Vec<u8> {
    let mut text = String::new();
    for at in 0..count {
        let len = if spec.width == 0 { at % 4 } else { u64::from(spec.width) };
        text.push_str(&(at * (u64::MAX / count)).to_string());
        for value in 0..len {
            let number = (at * 7 + value * 3) % 251;
            let word = match spec.value {
                ValueType::U8 | ValueType::U32 | ValueType::U64 => number.to_string(),
                ValueType::I32 | ValueType::I64 => (100 - number as i64).to_string(),
                _ => match number % 9 {
                    0 => "-0".to_owned(),
                    1 => "inf".to_owned(),
                    _ => (100.0 / number as f64 - 3.0).to_string(),
                },
            };
            text.push_str(&format!(" {word}"));
        }
        text.push('\n');
    }
    rewrite_rows(spec, Format::Text, &mut text.as_bytes(), Format::Binary).unwrap()
}

fn rewrite(
    spec: &TableSpec,
    from: Format,
    mut bytes: &[u8],
    into: Format,
) -> Result<Vec<u8>, String> {
    rewrite_rows(spec, from, &mut bytes, into).map_err(|error| error.to_string())
}

fn read(spec: &TableSpec, file: &[u8]) -> Result<Vec<u8>, String> {
    rewrite(spec, Format::Arrow, file, Format::Binary)
}

fn written(spec: &TableSpec, records: &[u8]) -> Vec<u8> {
    rewrite(spec, Format::Binary, records, Format::Arrow).unwrap()
}

/// All kinds of tables, with enough rows for several batches and with none.
fn tables() -> impl Iterator<Item = (TableSpec, Vec<u8>)> {
    let kinds = ValueType::ALL.into_iter().flat_map(|value| [0, 1, 3].map(|width| (value, width)));
    kinds.flat_map(|(value, width)| {
        let spec = table(value, width);
        let of = |count| (spec.clone(), records(&spec, count));
        [of(0), of(2), of(70_000)]
    })
}

#[test]
fn rows_come_back() {
    for (spec, records) in tables() {
        let file = written(&spec, &records);
        assert!(read(&spec, &file).unwrap() == records, "{:?} {}", spec.value, spec.width);
    }
    // Bits that are no number survive as well.
    let spec = table(ValueType::F32, 1);
    let bits = 0x7fa0_1234_u32;
    let record = [&9_u64.to_le_bytes()[..], &1_u32.to_le_bytes(), &bits.to_le_bytes()].concat();
    assert_eq!(read(&spec, &written(&spec, &record)).unwrap(), record);
}

#[test]
fn a_file_that_was_cut_off_is_refused() {
    for width in [0, 3] {
        let spec = table(ValueType::F32, width);
        let file = written(&spec, &records(&spec, 9));
        for len in 0..file.len() {
            let said = read(&spec, &file[..len]).unwrap_err();
            assert!(said.contains("cut off"), "{len} of {} bytes: {said}", file.len());
        }
    }
}

/// Bytes that reading a file may take besides those of the file.
const BYTES_MAX: u64 = 200_000;

#[test]
fn no_damage_makes_it_panic_or_take_memory() {
    let (mut refused, mut read_all) = (0, 0);
    for (value, width) in [(ValueType::F64, 0), (ValueType::U32, 2), (ValueType::BF16, 1)] {
        let spec = table(value, width);
        let file = written(&spec, &records(&spec, 5));
        for at in 0..file.len() {
            for damage in [0x01, 0x80, 0xff] {
                let mut file = file.clone();
                file[at] ^= damage;
                let mut said = Ok(Vec::new());
                let took = allocation_counter::measure(|| said = read(&spec, &file));
                assert!(took.bytes_max < BYTES_MAX, "byte {at} ^ {damage}: {took:?}, {said:?}");
                *(if said.is_ok() { &mut read_all } else { &mut refused }) += 1;
            }
        }
    }
    // Arrow has no checksums: changed values, names and padding are not seen.
    println!("{refused} damaged files were refused, {read_all} were read");
    assert!(refused > read_all / 4, "{refused} refused, {read_all} read");
}

#[test]
fn what_is_no_such_table_is_named() {
    let floats = table(ValueType::F32, 3);
    let file = written(&floats, &records(&floats, 2));
    let doubles = read(&table(ValueType::F64, 3), &file).unwrap_err();
    assert!(doubles.contains("the table takes lists of Float64"), "{doubles}");
    let wide = read(&table(ValueType::F32, 4), &file).unwrap_err();
    assert!(wide.contains("row 1: key 0 comes with 3 values, and rows have 4"), "{wide}");
    let mut twice = file.clone();
    twice.extend_from_slice(&file);
    for (bytes, says) in [
        (&b""[..], "cut off"),
        (b"1 2 3\n4 5 6\n", "no message of Arrow's IPC"),
        (b"A table of text", "neither a file of Arrow's IPC nor a stream"),
        (
            &[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0x70, 1, 2, 3],
            "head of a message has 1879048192 bytes",
        ),
        (&[0xff, 0xff, 0xff, 0xff, 8, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9], "is damaged"),
        (&twice, "footer"),
    ] {
        let said = read(&floats, bytes).unwrap_err();
        assert!(said.contains(says), "{said}");
    }
}

/// Reads a file, checks it, and writes its rows as a file of small batches, as a stream, and
/// compressed.
const PYTHON: &str = r#"
import sys, pyarrow as pa
folder, of = sys.argv[1:]
table = pa.ipc.open_file(f"{folder}/ours").read_all()
table.validate(full=True)
assert table.column_names == ["key", "values"], table.schema
assert pa.types.is_uint64(table.schema.field("key").type), table.schema
item = table.schema.field("values").type.value_type
assert str(item) == of, (item, of)
keys = table["key"].to_pylist()
assert keys == sorted(keys)
values = [[value.as_py() for value in row] for row in table["values"]]
again = pa.table({"key": pa.array(keys, pa.uint64()), "values": pa.array(values, pa.list_(item))})
with pa.ipc.new_file(f"{folder}/file", again.schema) as out:
    out.write_table(again, max_chunksize=7)
with pa.ipc.new_stream(f"{folder}/stream", again.schema) as out:
    out.write_table(again.slice(0, 50))
    out.write_table(again.slice(50))
options = pa.ipc.IpcWriteOptions(compression="lz4")
with pa.ipc.new_file(f"{folder}/compressed", again.schema, options=options) as out:
    out.write_table(again)
with pa.ipc.new_file(f"{folder}/nulls", again.schema) as out:
    out.write_table(pa.table({"key": pa.array([1, 2], pa.uint64()), "values": pa.array([None, [None]], pa.list_(item))}))
wider = again.append_column("more", pa.array([""] * len(again)))
with pa.ipc.new_file(f"{folder}/wider", wider.schema) as out:
    out.write_table(wider)
print(pa.__version__)
"#;

#[test]
fn pyarrow_reads_and_writes_tables() {
    let Some(python) = std::env::var_os("CARAVAN_TEST_PYARROW") else {
        eprintln!("skipped: pyarrow (set CARAVAN_TEST_PYARROW to a Python that has it)");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    for (value, of) in [
        (ValueType::F32, "float"),
        (ValueType::F64, "double"),
        (ValueType::U32, "uint32"),
        (ValueType::U64, "uint64"),
        (ValueType::I64, "int64"),
        (ValueType::BF16, "float"),
    ] {
        for width in [0, 2] {
            let spec = table(value, width);
            let records = records(&spec, 120);
            std::fs::write(folder.path().join("ours"), written(&spec, &records)).unwrap();
            println!(
                "{value:?}, {width} values a row: pyarrow {}",
                run(&python, folder.path(), of)
            );
            assert!(read(&spec, &at("file")).unwrap() == records, "a file of {value:?}");
            assert!(read(&spec, &at("stream")).unwrap() == records, "a stream of {value:?}");
            for (name, says) in [
                ("compressed", "record batch 1: it is compressed"),
                ("nulls", "record batch 1: it has nulls"),
                ("wider", "its columns are key, values, more"),
            ] {
                let said = read(&spec, &at(name)).unwrap_err();
                assert!(said.contains(says), "{said}");
            }
        }
    }
}

/// Returns what the program printed.
fn run(python: &std::ffi::OsStr, folder: &Path, of: &str) -> String {
    let output = Command::new(python).args(["-c", PYTHON]).arg(folder).arg(of).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
