//! Which file of a crate imports which: circles of files, and arrows that run back up.
//!
//! A file imports another where a `use` or a path in its code names something that is defined
//! there. A re-export (`pub use`) is no import; a name that was re-exported counts for the file
//! that defines it. What stands in macros is not seen.
//!
//! The rooms of a folder are its own `mod` file and each module below it, with all that is in it.
//! In the order of rooms that leaves the fewest, an *arrow back* is a pair of rooms of which the
//! lower imports the upper one. The sum is over all folders of a crate.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{Item, UseTree, Visibility};

use crate::code::{Crate, Place, name_of};

/// Arrows between files, by index in the crate, each with the line that it was found in first.
type Arrows = BTreeMap<(usize, usize), usize>;

/// What a path leads to.
#[derive(Debug, Clone)]
enum Target {
    Module(Vec<String>),
    /// A type, function or other item of that file.
    Item(usize),
    /// What a `use` in the module of this name names.
    Use(Vec<String>),
}

#[derive(Debug, Default)]
struct Module {
    file: usize,
    names: BTreeMap<String, Target>,
    globs: Vec<Vec<String>>,
}

/// The modules of a crate, by path, with the names in each.
struct Names(BTreeMap<Vec<String>, Module>);

/// How many `use` lines may lead from one to the next.
const STEPS_MAX: usize = 16;

impl Names {
    fn of(code: &Crate) -> Names {
        let mut names = Names(BTreeMap::new());
        for (file, source) in code.files.iter().enumerate() {
            names.add_module(file, &source.module, &source.code.items);
        }
        names
    }

    fn add_module(&mut self, file: usize, path: &[String], items: &[Item]) {
        let mut module = Module { file, ..Module::default() };
        for item in items {
            match item {
                Item::Use(item) => {
                    for import in flatten(&item.tree) {
                        match import.name {
                            Some(name) => _ = module.names.insert(name, Target::Use(import.path)),
                            None => module.globs.push(import.path),
                        }
                    }
                }
                Item::Mod(item) => {
                    let mut inner = path.to_vec();
                    inner.push(item.ident.to_string());
                    if let Some((_, items)) = &item.content {
                        self.add_module(file, &inner, items);
                    }
                    module.names.insert(item.ident.to_string(), Target::Module(inner));
                }
                item => {
                    if let Some(name) = name_of(item) {
                        module.names.insert(name, Target::Item(file));
                    }
                }
            }
        }
        self.0.insert(path.to_vec(), module);
    }

    /// The file that a path in a module leads to. Paths to other crates lead to none.
    fn file_of(&self, module: &[String], path: &[String]) -> Option<usize> {
        match self.resolve(module, path, STEPS_MAX)? {
            Target::Item(file) => Some(file),
            Target::Module(path) => Some(self.0.get(&path)?.file),
            Target::Use(_) => None,
        }
    }

    fn resolve(&self, module: &[String], path: &[String], steps: usize) -> Option<Target> {
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Target::Module(Vec::new()),
            "self" => Target::Module(module.to_vec()),
            "super" => Target::Module(module.split_last()?.1.to_vec()),
            name => self.look_up(module, name, steps)?,
        };
        while let Target::Module(here) = &at {
            let Some((next, behind)) = rest.split_first() else { break };
            at = match next.as_str() {
                "self" => Target::Module(here.clone()),
                "super" => Target::Module(here.split_last()?.1.to_vec()),
                name => self.look_up(here, name, steps)?,
            };
            rest = behind;
        }
        Some(at)
    }

    fn look_up(&self, module: &[String], name: &str, steps: usize) -> Option<Target> {
        let steps = steps.checked_sub(1)?;
        let here = self.0.get(module)?;
        match here.names.get(name) {
            // A name that another crate is imported by, too.
            Some(Target::Use(path)) if path.first().is_some_and(|first| first == name) => None,
            Some(Target::Use(path)) => self.resolve(module, path, steps),
            Some(target) => Some(target.clone()),
            None => here.globs.iter().find_map(|glob| match self.resolve(module, glob, steps)? {
                Target::Module(there) if there != module => self.look_up(&there, name, steps),
                _ => None,
            }),
        }
    }
}

/// One name of a `use`; a glob has none.
struct Import {
    name: Option<String>,
    path: Vec<String>,
}

fn flatten(tree: &UseTree) -> Vec<Import> {
    let mut imports = Vec::new();
    let mut open = vec![(Vec::new(), tree)];
    while let Some((mut path, tree)) = open.pop() {
        match tree {
            UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                open.push((path, &tree.tree));
            }
            UseTree::Group(group) => open.extend(group.items.iter().map(|t| (path.clone(), t))),
            UseTree::Glob(_) => imports.push(Import { name: None, path }),
            UseTree::Name(tree) if tree.ident == "self" => {
                imports.push(Import { name: path.last().cloned(), path });
            }
            UseTree::Name(tree) => {
                path.push(tree.ident.to_string());
                imports.push(Import { name: path.last().cloned(), path });
            }
            UseTree::Rename(tree) => {
                if tree.ident != "self" {
                    path.push(tree.ident.to_string());
                }
                imports.push(Import { name: Some(tree.rename.to_string()), path });
            }
        }
    }
    imports
}

fn arrows(code: &Crate) -> Arrows {
    let names = Names::of(code);
    let mut arrows = Arrows::new();
    for (file, source) in code.files.iter().enumerate() {
        let mut seen =
            Paths { names: &names, module: source.module.clone(), file, arrows: &mut arrows };
        seen.visit_file(&source.code);
    }
    arrows
}

struct Paths<'a> {
    names: &'a Names,
    module: Vec<String>,
    file: usize,
    arrows: &'a mut Arrows,
}

impl Paths<'_> {
    fn enter(&mut self, path: &[String], line: usize) {
        let to = self.names.file_of(&self.module, path).filter(|to| *to != self.file);
        if let Some(to) = to {
            self.arrows.entry((self.file, to)).or_insert(line);
        }
    }
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if matches!(item.vis, Visibility::Inherited) {
            let line = item.use_token.span.start().line;
            for import in flatten(&item.tree) {
                self.enter(&import.path, line);
            }
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1
            && path.leading_colon.is_none()
            && let Some(first) = path.segments.first()
        {
            let names: Vec<String> =
                path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.enter(&names, first.ident.span().start().line);
        }
        visit::visit_path(self, path);
    }
}

/// What is counted of the imports of a crate.
pub(crate) struct Imports {
    /// Files that import themselves by way of others.
    pub(crate) circles: Vec<Place>,
    /// Arrows that run back up.
    pub(crate) arrows_back: Vec<Place>,
}

/// Counts them.
pub(crate) fn imports(code: &Crate) -> Imports {
    let arrows = arrows(code);
    Imports { circles: circles(code, &arrows), arrows_back: arrows_back(code, &arrows) }
}

/// Each file that stands in a circle. So a large circle that falls apart into small ones counts as
/// the gain that it is.
fn circles(code: &Crate, arrows: &Arrows) -> Vec<Place> {
    let files = code.files.len();
    let reached: Vec<BTreeSet<usize>> = (0..files).map(|from| reach(from, arrows)).collect();
    let members = |file: usize| {
        let others = reached[file].iter().copied();
        others.filter(|other| reached[*other].contains(&file)).collect::<Vec<_>>()
    };
    let circles = (0..files).map(|file| (file, members(file)));
    let circles = circles.filter(|(_, members)| !members.is_empty());
    let place = |(file, members): (usize, Vec<usize>)| {
        let path = |at: usize| code.files[at].path.as_str();
        let what = format!("in a circle of {} files, of {}", members.len(), path(members[0]));
        Place::new(path(file), 1, what)
    };
    circles.map(place).collect()
}

fn reach(from: usize, arrows: &Arrows) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(at) = open.pop() {
        for (_, to) in arrows.range((at, 0)..=(at, usize::MAX)).map(|(pair, _)| pair) {
            if reached.insert(*to) {
                open.push(*to);
            }
        }
    }
    reached
}

/// The rooms of a folder that import each other, each pair with a place where it does.
type Rooms = BTreeMap<(String, String), Place>;

fn arrows_back(code: &Crate, arrows: &Arrows) -> Vec<Place> {
    let mut folders: BTreeMap<&[String], Rooms> = BTreeMap::new();
    for (&(from, to), &line) in arrows {
        let (from, to) = (&code.files[from], &code.files[to]);
        let pairs = from.module.iter().zip(&to.module);
        let folder = &from.module[..pairs.take_while(|(a, b)| a == b).count()];
        let room = |module: &[String]| {
            module.get(folder.len()).cloned().unwrap_or_else(|| "its own file".to_owned())
        };
        let pair = (room(&from.module), room(&to.module));
        let place = Place::new(&from.path, line, String::new());
        folders.entry(folder).or_default().entry(pair).or_insert(place);
    }
    let mut back = Vec::new();
    for (folder, rooms) in folders {
        let folder = if folder.is_empty() { "the crate".to_owned() } else { folder.join("::") };
        for (from, to) in fewest_back(rooms.keys().cloned().collect()) {
            let what = format!("in {folder}, {from} stands below {to} and imports it");
            back.push(Place { what, ..rooms[&(from, to)].clone() });
        }
    }
    back
}

/// Of these arrows, those that run back in the best order that moving one room at a time finds.
fn fewest_back(arrows: BTreeSet<(String, String)>) -> Vec<(String, String)> {
    let rooms: BTreeSet<&String> = arrows.iter().flat_map(|(from, to)| [from, to]).collect();
    let mut order: Vec<&String> = rooms.into_iter().collect();
    loop {
        let mut moved = false;
        for at in 0..order.len() {
            let room = order.remove(at);
            // Arrows back if it stood first; each room that it is put behind changes the number.
            let mut cost = order.iter().filter(|other| points(&arrows, other, room)).count() as i64;
            let mut best = (cost, 0);
            let mut here = cost;
            for (place, other) in order.iter().enumerate() {
                cost -= i64::from(points(&arrows, other, room));
                cost += i64::from(points(&arrows, room, other));
                best = best.min((cost, place + 1));
                if place + 1 == at {
                    here = cost;
                }
            }
            let to = if best.0 < here { best.1 } else { at };
            moved |= to != at;
            order.insert(to, room);
        }
        if !moved {
            break;
        }
    }
    let place = |room: &String| order.iter().position(|other| *other == room);
    arrows.iter().filter(|(from, to)| place(from) > place(to)).cloned().collect()
}

fn points(arrows: &BTreeSet<(String, String)>, from: &str, to: &str) -> bool {
    arrows.contains(&(from.to_owned(), to.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &str)]) -> (usize, usize) {
        let found = imports(&Crate::of(files));
        (found.circles.len(), found.arrows_back.len())
    }

    #[test]
    fn imports_that_go_one_way_are_no_circle() {
        let files = [
            ("src/lib.rs", "mod a; mod b; mod c;"),
            ("src/a.rs", "use crate::b::B; fn f() { super::c::f(); }"),
            ("src/b.rs", "use std::fmt; use super::c; pub struct B;"),
            ("src/c.rs", "pub fn f() {}"),
        ];
        assert_eq!(of(&files), (0, 0));
    }

    #[test]
    fn a_circle_is_found_by_use_and_by_path() {
        let files = [
            ("src/lib.rs", "mod a; mod b; mod c;"),
            ("src/a.rs", "use crate::b::B; pub struct A;"),
            ("src/b.rs", "fn f() { crate::c::g(); } pub struct B;"),
            ("src/c.rs", "type T = super::a::A; pub fn g() {}"),
        ];
        let found = imports(&Crate::of(&files));
        assert_eq!(found.circles[0].what, "in a circle of 3 files, of x/src/a.rs");
        assert_eq!((found.circles.len(), found.arrows_back.len()), (3, 1));
    }

    #[test]
    fn a_folder_whose_file_uses_what_uses_it_is_a_circle() {
        let files = [
            ("src/lib.rs", "mod a;"),
            ("src/a.rs", "mod b; use b::B; pub struct A(B);"),
            ("src/a/b.rs", "pub struct B; fn f(a: super::A) {}"),
        ];
        assert_eq!(of(&files), (2, 1));
    }

    #[test]
    fn a_name_counts_for_the_file_that_defines_it() {
        let files = [
            ("src/lib.rs", "mod a; mod b; pub use a::A; pub use b::*;"),
            ("src/a.rs", "use crate::B; pub struct A;"),
            ("src/b.rs", "pub struct B;"),
        ];
        let code = Crate::of(&files);
        let found: Vec<(&str, &str)> = arrows(&code)
            .keys()
            .map(|(from, to)| (code.files[*from].path.as_str(), code.files[*to].path.as_str()))
            .collect();
        assert_eq!(found, [("x/src/a.rs", "x/src/b.rs")]);
    }

    #[test]
    fn the_order_leaves_the_fewest_arrows_back() {
        let pairs = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "b"), ("a", "d"), ("b", "d")];
        let arrows = pairs.map(|(from, to)| (from.to_owned(), to.to_owned()));
        assert_eq!(fewest_back(arrows.into()), [("d".to_owned(), "b".to_owned())]);
    }
}
