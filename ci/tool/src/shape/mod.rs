//! `shape`: counts what the rules of style limit, and holds the counts to `ci/shape.toml`.
//!
//! Only production code counts, by crate. A count must equal its ceiling: over it the code has
//! grown worse, under it the ceiling is to be lowered, so that numbers only fall. `--lower` does
//! that, and never raises one. `--list KIND` prints each place that counts.
//!
//! Kinds: `several_files` (types whose inherent `impl` blocks lie in several files),
//! `long_functions`, `string_errors` (`Result<_, String>`), `repeated_names` (types less names of
//! types, by crate and over all), `circles` (files that stand in one) and `arrows_back` (see
//! `imports.rs`);
//! `methods` and `fields` (types with more than the limit, each with its reason), and `waits`
//! (fields in which requests wait, each by its name).

mod functions;
mod imports;
mod types;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use toml_edit::{DocumentMut, Item, TableLike, value};

use crate::code::{CRATES, Crate, Place};
use types::{FIELDS_MAX, METHODS_MAX, Type};

const USAGE: &str = "usage: shape [--lower | --list KIND]";
const CEILINGS: &str = "ci/shape.toml";
/// The key of what is counted over all crates.
const ALL: &str = "all";

/// Runs the command at the top of the repository.
///
/// # Errors
/// Says what is over or under its ceiling, or why nothing could be counted.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let top = Path::new(".");
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => check(top, &CRATES),
        ["--lower"] => lower(top, &CRATES),
        ["--list", kind] => {
            let places = Counted::read(top, &CRATES, &Ceilings::read(top)?)?.places(kind)?;
            places.iter().for_each(|place| println!("{place}"));
            Ok(())
        }
        _ => Err(USAGE.to_owned()),
    }
}

fn check(top: &Path, crates: &[&str]) -> Result<(), String> {
    let ceilings = Ceilings::read(top)?;
    let faults = ceilings.compare(&Counted::read(top, crates, &ceilings)?);
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
}

fn lower(top: &Path, crates: &[&str]) -> Result<(), String> {
    let mut ceilings = Ceilings::read(top)?;
    let counted = Counted::read(top, crates, &ceilings)?;
    ceilings.lower(&counted);
    let text = ceilings.0.to_string();
    fs::write(top.join(CEILINGS), text).map_err(|error| format!("{CEILINGS}: {error}"))?;
    let faults = ceilings.compare(&counted);
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
}

/// A type with more of something than the limit: how many, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Large {
    count: usize,
    place: Place,
}

/// What was counted.
#[derive(Debug, Default)]
struct Counted {
    /// By crate and kind.
    places: BTreeMap<String, BTreeMap<&'static str, Vec<Place>>>,
    /// Types over a limit: by `methods` or `fields`, and by the type's full name.
    large: BTreeMap<&'static str, BTreeMap<String, Large>>,
    /// Fields in which requests wait.
    waits: Vec<Place>,
}

impl Counted {
    fn read(top: &Path, crates: &[&str], ceilings: &Ceilings) -> Result<Counted, String> {
        let mut counted = Counted::default();
        let mut all: Vec<Type> = Vec::new();
        let held = ceilings.waiting("types");
        for folder in crates {
            let code = Crate::read(top, folder)?;
            let found = types::types(&code);
            let imports = imports::imports(&code);
            let kinds = [
                ("several_files", types::several_files(&found)),
                ("long_functions", functions::long_functions(&code)),
                ("string_errors", functions::string_errors(&code)),
                ("repeated_names", types::repeated_names(&found)),
                ("circles", imports.circles),
                ("arrows_back", imports.arrows_back),
            ];
            counted.places.insert((*folder).to_owned(), kinds.into());
            for place in ceilings.waiting("folder") {
                counted.waits.append(&mut types::fields_that_hold(&code, &place, &held));
            }
            all.extend(found);
        }
        let repeated = [("repeated_names", types::repeated_names(&all))];
        counted.places.insert(ALL.to_owned(), repeated.into());
        counted.large.insert("methods", large(&all, METHODS_MAX, "methods", |t| t.methods));
        counted.large.insert("fields", large(&all, FIELDS_MAX, "fields", |t| t.fields));
        Ok(counted)
    }

    /// Each place that counts for a kind.
    fn places(&self, kind: &str) -> Result<Vec<Place>, String> {
        if kind == "waits" {
            return Ok(self.waits.clone());
        }
        if let Some(large) = self.large.get(kind) {
            return Ok(large.values().map(|large| large.place.clone()).collect());
        }
        let by_crate = self.places.iter().filter(|(name, _)| *name != ALL);
        let lists: Vec<&Vec<Place>> = by_crate.filter_map(|(_, kinds)| kinds.get(kind)).collect();
        if lists.is_empty() {
            return Err(format!("no kind {kind}; ci/tool/src/shape/mod.rs lists them"));
        }
        Ok(lists.into_iter().flatten().cloned().collect())
    }
}

fn large(
    types: &[Type],
    most: usize,
    what: &str,
    count: impl Fn(&Type) -> usize,
) -> BTreeMap<String, Large> {
    let over = types.iter().filter(|found| count(found) > most);
    let entry = |found: &Type| {
        let count = count(found);
        let what = format!("{} has {count} {what}", found.name);
        (found.full_name(), Large { count, place: Place { what, ..found.place.clone() } })
    };
    over.map(entry).collect()
}

/// The file of ceilings, which keeps its comments when it is written.
#[derive(Debug)]
struct Ceilings(DocumentMut);

impl Ceilings {
    fn read(top: &Path) -> Result<Ceilings, String> {
        let text = fs::read_to_string(top.join(CEILINGS));
        let text = text.map_err(|error| format!("{CEILINGS}: {error}"))?;
        let parsed = text.parse::<DocumentMut>();
        Ok(Ceilings(parsed.map_err(|error| format!("{CEILINGS}: {error}"))?))
    }

    fn table(&self, path: &[&str]) -> Option<&dyn TableLike> {
        let mut item = self.0.as_item();
        for name in path {
            item = item.get(name)?;
        }
        item.as_table_like()
    }

    /// The texts of a list in `[waits]`; a single text is a list of one.
    fn waiting(&self, name: &str) -> Vec<String> {
        let item = self.table(&["waits"]).and_then(|table| table.get(name));
        let one = item.and_then(Item::as_str).map(str::to_owned);
        let list = item.and_then(Item::as_array).into_iter().flatten();
        one.into_iter().chain(list.filter_map(|text| text.as_str().map(str::to_owned))).collect()
    }

    /// A line for each count that is not its ceiling.
    fn compare(&self, counted: &Counted) -> Vec<String> {
        let mut faults = Vec::new();
        for (name, kinds) in &counted.places {
            let table = self.table(&["ceilings", name]);
            for (kind, places) in kinds {
                let ceiling = table.and_then(|table| number(table.get(kind)?)).unwrap_or(0);
                let what = format!("{name}: {kind}");
                let remedy = format!("`ci/lib/tool shape --list {kind}` prints each");
                faults.extend(fault(&what, places.len(), ceiling, &remedy));
            }
        }
        for (kind, types) in &counted.large {
            faults.extend(self.compare_large(kind, types));
        }
        faults.extend(self.compare_waits(&counted.waits));
        faults
    }

    fn compare_large(&self, kind: &str, types: &BTreeMap<String, Large>) -> Vec<String> {
        let table = self.table(&[kind]);
        let entry = |name: &str| table.and_then(|table| table.get(name)?.as_table_like());
        let mut faults = Vec::new();
        for (name, large) in types {
            let Some(entry) = entry(name) else {
                faults.push(format!(
                    "{}: cut it by job, or give its reason in {CEILINGS}",
                    large.place
                ));
                continue;
            };
            let ceiling = entry.get("most").and_then(number).unwrap_or(0);
            let what = format!("{name}: {kind}");
            faults.extend(fault(&what, large.count, ceiling, "cut it by job"));
            if entry.get("why").and_then(Item::as_str).is_none_or(|why| why.trim().is_empty()) {
                faults.push(format!("{name}: {kind}: {CEILINGS} gives no reason (`why`)"));
            }
        }
        let listed = table.into_iter().flat_map(|table| table.iter());
        let gone = listed.filter(|(name, _)| !types.contains_key(*name));
        faults.extend(gone.map(|(name, _)| {
            format!(
                "{name}: {kind}: within the limit, or gone; lower the ceiling: take out its line"
            )
        }));
        faults
    }

    fn compare_waits(&self, waits: &[Place]) -> Vec<String> {
        let listed: BTreeSet<String> = self.waiting("fields").into_iter().collect();
        let found: BTreeSet<&String> = waits.iter().map(|place| &place.what).collect();
        let new = waits.iter().filter(|place| !listed.contains(&place.what));
        let new = new.map(|place| {
            format!("{place}: another place where requests wait; use one that {CEILINGS} names")
        });
        let gone = listed.iter().filter(|name| !found.contains(name));
        let gone =
            gone.map(|name| format!("{name}: waits: no such field; take it out of {CEILINGS}"));
        new.chain(gone).collect()
    }

    /// Lowers each ceiling to its count, and takes out the lines of what is gone. Raises none.
    fn lower(&mut self, counted: &Counted) {
        for (name, kinds) in &counted.places {
            for (kind, places) in kinds {
                let path = ["ceilings", name.as_str()];
                self.lower_number(&path, kind, places.len());
            }
        }
        for (kind, types) in &counted.large {
            let listed = self.table(&[kind]).into_iter().flat_map(|table| table.iter());
            let names: Vec<String> = listed.map(|(name, _)| name.to_owned()).collect();
            for name in names {
                match types.get(&name) {
                    Some(large) => self.lower_number(&[kind, &name], "most", large.count),
                    None => self.take_out(kind, &name),
                }
            }
        }
        let fields = self.0.get_mut("waits").and_then(|table| table.get_mut("fields"));
        if let Some(fields) = fields.and_then(Item::as_array_mut) {
            fields.retain(|name| {
                counted.waits.iter().any(|place| Some(&*place.what) == name.as_str())
            });
        }
    }

    fn take_out(&mut self, kind: &str, name: &str) {
        if let Some(table) = self.0.get_mut(kind).and_then(Item::as_table_like_mut) {
            table.remove(name);
        }
    }

    fn lower_number(&mut self, path: &[&str], name: &str, count: usize) {
        let mut item = Some(self.0.as_item_mut());
        for part in path {
            item = item.and_then(|item| item.get_mut(part));
        }
        let Some(ceiling) = item.and_then(|item| item.get_mut(name)) else { return };
        if number(ceiling).is_some_and(|ceiling| ceiling > count) {
            *ceiling = value(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}

fn number(item: &Item) -> Option<usize> {
    item.as_integer().and_then(|number| usize::try_from(number).ok())
}

fn fault(what: &str, count: usize, ceiling: usize, remedy: &str) -> Option<String> {
    match count.cmp(&ceiling) {
        std::cmp::Ordering::Equal => None,
        std::cmp::Ordering::Greater => {
            Some(format!("{what}: {count}, {ceiling} at most; {remedy}"))
        }
        std::cmp::Ordering::Less => Some(format!(
            "{what}: lower the ceiling to {count} (it is {ceiling}): ci/lib/tool shape --lower"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Folder;

    const GOOD: &str = "mod a; pub struct One;";

    /// A repository of one crate, with these ceilings and this code in `src/a.rs`.
    fn of(ceilings: &str, code: &str) -> Folder {
        let top = Folder::new();
        top.write("x/src/lib.rs", GOOD);
        top.write("x/src/a.rs", code);
        top.write("ci/shape.toml", ceilings);
        top
    }

    fn faults(ceilings: &str, code: &str) -> String {
        check(of(ceilings, code).path(), &["x"]).err().unwrap_or_default()
    }

    fn repeat(count: usize, text: impl Fn(usize) -> String) -> String {
        (0..count).map(text).collect()
    }

    #[test]
    fn good_code_needs_no_ceilings() {
        assert_eq!(faults("", "pub struct Two;"), "");
    }

    #[test]
    fn each_thing_counted_fails_where_it_is_planted() {
        let long = format!("fn f() {{\n{}}}", "f();\n".repeat(71));
        for (kind, code) in [
            ("several_files", "pub struct T; impl T {} mod b;"),
            ("long_functions", long.as_str()),
            ("string_errors", "fn f() -> Result<u8, String> {}"),
            ("repeated_names", "pub struct One;"),
            ("circles", "mod b; pub struct T;"),
            ("arrows_back", "mod b; fn f() { b::g(); } pub struct T;"),
        ] {
            let top = of("", code);
            top.write("x/src/a/b.rs", "impl super::T {} pub fn g() { crate::a::f(); }");
            if kind == "circles" {
                top.write("x/src/a.rs", "mod b; use b::g; pub struct T;");
            }
            let said = check(top.path(), &["x"]).unwrap_err();
            let count = if kind == "circles" { 2 } else { 1 };
            assert!(said.contains(&format!("x: {kind}: {count}, 0 at most")), "{kind}: {said}");
        }
    }

    #[test]
    fn a_large_type_needs_a_reason_and_keeps_to_its_number() {
        let methods =
            format!("struct T; impl T {{ {} }}", repeat(26, |n| format!("fn f{n}() {{}}")));
        assert!(faults("", &methods).contains("T has 26 methods: cut it by job"));
        let fields = format!("struct T {{ {} }}", repeat(13, |n| format!("f{n}: u8,")));
        assert!(faults("", &fields).contains("T has 13 fields: cut it by job"));
        let line = |most, why| {
            format!("[fields]\n\"x/src/a.rs T\" = {{ most = {most}, why = \"{why}\" }}")
        };
        assert_eq!(faults(&line(13, "it is a row"), &fields), "");
        assert!(faults(&line(13, " "), &fields).contains("gives no reason"));
        assert!(faults(&line(12, "a row"), &fields).contains("fields: 13, 12 at most"));
        assert!(faults(&line(14, "a row"), &fields).contains("lower the ceiling to 13"));
        assert!(faults(&line(13, "a row"), "struct T;").contains("take out its line"));
    }

    #[test]
    fn a_place_to_wait_is_named_and_exists() {
        let waits = |fields| {
            format!("[waits]\nfolder = \"x/src\"\ntypes = [\"Held\"]\nfields = [{fields}]")
        };
        let code = "struct T { held: Vec<Held> }";
        assert_eq!(faults(&waits("\"T::held\""), code), "");
        assert!(faults(&waits(""), code).contains("T::held: another place where requests wait"));
        assert!(
            faults(&waits("\"T::held\", \"T::x\""), code).contains("T::x: waits: no such field")
        );
    }

    #[test]
    fn ceilings_fall_and_never_rise() {
        let text = "# Why.\n[ceilings.x]\nstring_errors = 3 # too many\nrepeated_names = 0\n";
        let top = of(text, "pub struct One; fn f() -> Result<u8, String> {}");
        let said = check(top.path(), &["x"]).unwrap_err();
        assert!(said.contains("string_errors: lower the ceiling to 1 (it is 3)"), "{said}");
        let said = lower(top.path(), &["x"]).unwrap_err();
        assert!(said.contains("repeated_names: 1, 0 at most"), "{said}");
        let lowered = top.read("ci/shape.toml");
        assert!(lowered.contains("string_errors = 1"), "{lowered}");
        assert!(lowered.contains("# Why.") && lowered.contains("repeated_names = 0"), "{lowered}");
    }

    #[test]
    fn what_is_gone_leaves_the_file() {
        let top = of(
            "[methods]\n\"x/src/a.rs T\" = { most = 30, why = \"once\" }\n\
             [waits]\nfolder = \"x\"\ntypes = [\"H\"]\nfields = [\"T::h\"]\n",
            "",
        );
        lower(top.path(), &["x"]).unwrap();
        let left = top.read("ci/shape.toml");
        assert!(!left.contains("T\"") && !left.contains("T::h"), "{left}");
    }

    #[test]
    fn a_kind_lists_its_places() {
        let top = of("", "fn f() -> Result<u8, String> {}");
        let ceilings = Ceilings::read(top.path()).unwrap();
        let counted = Counted::read(top.path(), &["x"], &ceilings).unwrap();
        let places = counted.places("string_errors").unwrap();
        assert_eq!(places[0].to_string(), "x/src/a.rs:1: Result<_, String>");
        assert!(counted.places("others").unwrap_err().contains("no kind others"));
    }
}
