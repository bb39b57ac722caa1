//! What is counted of types: methods, fields, the files of their `impl` blocks, names used again,
//! and fields in which requests wait.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use crate::code::{Crate, Place, SourceFile, system_of};

/// Methods that a type may have without a reason.
pub(crate) const METHODS_MAX: usize = 25;
/// Fields that a type may have without a reason.
pub(crate) const FIELDS_MAX: usize = 12;

/// A struct, enum or union, with its inherent `impl` blocks.
#[derive(Debug)]
pub(crate) struct Type {
    pub(crate) name: String,
    pub(crate) place: Place,
    /// Of a struct or union; 0 of an enum.
    pub(crate) fields: usize,
    /// Inherent ones, with associated functions.
    pub(crate) methods: usize,
    /// Files with inherent `impl` blocks. Those for one operating system alone are left out, if the
    /// type is for others, too.
    pub(crate) files: BTreeSet<String>,
    system: Option<String>,
}

impl Type {
    /// `FILE NAME`, as exceptions name it.
    pub(crate) fn full_name(&self) -> String {
        format!("{} {}", self.place.file, self.name)
    }
}

/// All types of a crate. Those that macros make are not seen.
pub(crate) fn types(code: &Crate) -> Vec<Type> {
    let mut types = Vec::new();
    let mut by_name: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for file in &code.files {
        let mut seen = Definitions { file, types: Vec::new() };
        seen.visit_file(&file.code);
        for found in seen.types {
            by_name.entry(found.name.clone()).or_default().push(types.len());
            types.push(found);
        }
    }
    for file in &code.files {
        let mut seen = Impls { blocks: Vec::new() };
        seen.visit_file(&file.code);
        for block in seen.blocks {
            let candidates = by_name.get(&block.of).map_or(&[][..], Vec::as_slice);
            let Some(at) = owner(&types, candidates, file) else { continue };
            let of = &mut types[at];
            of.methods += block.methods;
            let system = block.system.as_ref().or(file.system.as_ref());
            if system.is_none() || system == of.system.as_ref() {
                of.files.insert(file.path.clone());
            }
        }
    }
    types
}

/// Which of several types of one name a block in a file is of: the one of the same file, or else of
/// the nearest module.
fn owner(types: &[Type], candidates: &[usize], file: &SourceFile) -> Option<usize> {
    let shared = |at: &usize| {
        let there = types[*at].place.file.trim_end_matches(".rs").trim_end_matches("/mod");
        let here = file.path.trim_end_matches(".rs").trim_end_matches("/mod");
        let same = there.split('/').zip(here.split('/')).take_while(|(a, b)| a == b).count();
        (same, there == here, std::cmp::Reverse(there.len()))
    };
    candidates.iter().copied().max_by_key(shared)
}

struct Definitions<'a> {
    file: &'a SourceFile,
    types: Vec<Type>,
}

impl Definitions<'_> {
    fn add(&mut self, name: &syn::Ident, attrs: &[syn::Attribute], fields: usize) {
        let name_text = name.to_string();
        self.types.push(Type {
            place: Place::new(&self.file.path, name.span().start().line, name_text.as_str()),
            name: name_text,
            fields,
            methods: 0,
            files: BTreeSet::new(),
            system: system_of(attrs).or_else(|| self.file.system.clone()),
        });
    }
}

impl<'ast> Visit<'ast> for Definitions<'_> {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.add(&item.ident, &item.attrs, item.fields.len());
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.add(&item.ident, &item.attrs, 0);
    }

    fn visit_item_union(&mut self, item: &'ast syn::ItemUnion) {
        self.add(&item.ident, &item.attrs, item.fields.named.len());
    }
}

/// An inherent `impl` block.
struct Block {
    of: String,
    methods: usize,
    system: Option<String>,
}

struct Impls {
    blocks: Vec<Block>,
}

impl<'ast> Visit<'ast> for Impls {
    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let (None, syn::Type::Path(path)) = (&item.trait_, &*item.self_ty)
            && let Some(last) = path.path.segments.last()
        {
            let methods = item.items.iter().filter(|item| matches!(item, syn::ImplItem::Fn(_)));
            self.blocks.push(Block {
                of: last.ident.to_string(),
                methods: methods.count(),
                system: system_of(&item.attrs),
            });
        }
        visit::visit_item_impl(self, item);
    }
}

/// Types whose inherent `impl` blocks lie in several files.
pub(crate) fn several_files(types: &[Type]) -> Vec<Place> {
    let spread = types.iter().filter(|found| found.files.len() > 1);
    let place = |found: &Type| {
        let what = format!("{} has impl blocks in {} files", found.name, found.files.len());
        Place { what, ..found.place.clone() }
    };
    spread.map(place).collect()
}

/// Types whose name another one has already: types less names.
pub(crate) fn repeated_names<'a>(types: impl IntoIterator<Item = &'a Type>) -> Vec<Place> {
    let mut first: BTreeMap<&str, &Place> = BTreeMap::new();
    let mut repeated = Vec::new();
    for found in types {
        match first.get(found.name.as_str()) {
            None => _ = first.insert(&found.name, &found.place),
            Some(place) => {
                let what = format!("{}, as at {}:{}", found.name, place.file, place.line);
                repeated.push(Place { what, ..found.place.clone() });
            }
        }
    }
    repeated
}

/// Struct fields in a folder that hold any number of values of one of these types: their type names
/// it between angle brackets. Each is called `TYPE::FIELD`.
pub(crate) fn fields_that_hold(code: &Crate, folder: &str, held: &[String]) -> Vec<Place> {
    let mut places = Vec::new();
    for file in code.files.iter().filter(|file| file.path.starts_with(folder)) {
        let mut seen = Holders { file, held, places: Vec::new() };
        seen.visit_file(&file.code);
        places.append(&mut seen.places);
    }
    places
}

struct Holders<'a> {
    file: &'a SourceFile,
    held: &'a [String],
    places: Vec<Place>,
}

impl<'ast> Visit<'ast> for Holders<'_> {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        for field in &item.fields {
            let mut named = Inside { held: self.held, depth: 0, found: false };
            named.visit_type(&field.ty);
            if let (true, Some(name)) = (named.found, &field.ident) {
                let line = name.span().start().line;
                let what = format!("{}::{name}", item.ident);
                self.places.push(Place::new(&self.file.path, line, what));
            }
        }
    }
}

/// Looks for a type between the angle brackets of a container.
struct Inside<'a> {
    held: &'a [String],
    depth: usize,
    found: bool,
}

/// What holds at most one value, or only wraps it.
const WRAPPERS: [&str; 4] = ["Option", "Box", "Rc", "Result"];

impl<'ast> Visit<'ast> for Inside<'_> {
    fn visit_path_segment(&mut self, segment: &'ast syn::PathSegment) {
        let name = segment.ident.to_string();
        self.found |= self.depth > 0 && self.held.contains(&name);
        let is_container = !WRAPPERS.contains(&name.as_str());
        self.depth += usize::from(is_container);
        visit::visit_path_segment(self, segment);
        self.depth -= usize::from(is_container);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &str)]) -> Vec<Type> {
        types(&Crate::of(files))
    }

    #[test]
    fn methods_and_fields_of_all_blocks_count() {
        let types = of(&[
            (
                "src/lib.rs",
                "mod a; struct T<X> { a: X, b: u8 } impl<X> T<X> { fn f() {} fn g() {} }",
            ),
            (
                "src/a.rs",
                "use super::T; impl T<u8> { fn h() {} } impl Clone for T<u8> { fn clone() {} }",
            ),
        ]);
        assert_eq!((types[0].methods, types[0].fields), (3, 2));
        assert_eq!(several_files(&types)[0].what, "T has impl blocks in 2 files");
    }

    #[test]
    fn a_system_of_its_own_is_no_second_file() {
        let spread = [
            ("src/lib.rs", "#[cfg(target_os = \"linux\")] mod linux; struct T; impl T {}"),
            ("src/linux.rs", "impl super::T { fn f() {} }"),
        ];
        assert_eq!(several_files(&of(&spread)), []);
        let all_for_linux = [
            ("src/lib.rs", "#[cfg(target_os = \"linux\")] mod linux;"),
            ("src/linux.rs", "mod more; struct T; impl T {}"),
            ("src/linux/more.rs", "impl super::T { fn f() {} }"),
        ];
        assert_eq!(several_files(&of(&all_for_linux)).len(), 1);
    }

    #[test]
    fn a_block_is_of_the_nearest_type_of_its_name() {
        let types = of(&[
            ("src/lib.rs", "mod a; mod b;"),
            ("src/a.rs", "mod c; struct T;"),
            ("src/a/c.rs", "impl super::T { fn f() {} }"),
            ("src/b.rs", "struct T; impl T { fn f() {} }"),
        ]);
        let counts: Vec<(usize, usize)> =
            types.iter().map(|t| (t.methods, t.files.len())).collect();
        assert_eq!(counts, [(1, 1), (1, 1)]);
    }

    #[test]
    fn names_used_again_count_once_less() {
        let types =
            of(&[("src/lib.rs", "struct A; mod m { struct A; } mod n { enum A {} } struct B;")]);
        let repeated = repeated_names(&types);
        assert_eq!(repeated.len(), 2);
        assert_eq!(repeated[0].what, "A, as at x/src/lib.rs:1");
    }

    #[test]
    fn a_container_of_a_waiting_type_is_found() {
        let code = Crate::of(&[(
            "src/lib.rs",
            "struct A { one: Option<Held>, held: VecDeque<Held>, by: Map<u32, Vec<Held>>, n: Held }",
        )]);
        let found = fields_that_hold(&code, "x/src", &["Held".to_owned()]);
        let names: Vec<&str> = found.iter().map(|place| place.what.as_str()).collect();
        assert_eq!(names, ["A::held", "A::by"]);
        assert_eq!(fields_that_hold(&code, "y/", &["Held".to_owned()]), []);
    }
}
