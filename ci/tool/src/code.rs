//! The production code of a crate: its files as the compiler finds them from `lib.rs` or `main.rs`
//! on, without what only tests have.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit_mut::{self, VisitMut};
use syn::{Attribute, ImplItem, Item, Meta, Token, punctuated::Punctuated};

/// The folders of the crates, from the bottom up, as they are named to the user.
pub(crate) const CRATES: [&str; 6] = ["numa", "van", "fallback-tcp", "kv", "kv/learn", "bench"];

/// Something counted, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) what: String,
}

impl Place {
    /// A place in a file.
    pub(crate) fn new(file: &str, line: usize, what: impl Into<String>) -> Place {
        Place { file: file.to_owned(), line, what: what.into() }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

/// One file of a crate.
pub(crate) struct SourceFile {
    /// From the top of the repository.
    pub(crate) path: String,
    pub(crate) text: String,
    /// Names from the crate's root on; the root itself has none.
    pub(crate) module: Vec<String>,
    /// Whether a condition on the operating system stands over the file, with its text.
    pub(crate) system: Option<String>,
    pub(crate) code: syn::File,
}

/// The production code of a crate, by file.
pub(crate) struct Crate {
    pub(crate) files: Vec<SourceFile>,
}

impl Crate {
    /// Reads a crate of the repository at `top`.
    ///
    /// # Errors
    /// Names the file that cannot be read or parsed.
    pub(crate) fn read(top: &Path, folder: &str) -> Result<Crate, String> {
        let source = top.join(folder).join("src");
        let root = ["lib.rs", "main.rs"].map(|name| source.join(name));
        let root = root.into_iter().find(|path| path.exists());
        let root = root.ok_or_else(|| format!("{folder}/src has neither lib.rs nor main.rs"))?;
        let mut reader = Reader { top, files: BTreeMap::new() };
        reader.read_file(&root, Vec::new(), None)?;
        Ok(Crate { files: reader.files.into_values().collect() })
    }

    /// A crate of these files, `(path, text)`, of which `src/lib.rs` comes first.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Crate {
        let top = crate::scratch::Folder::new();
        for (path, text) in files {
            top.write(&format!("x/{path}"), text);
        }
        Crate::read(top.path(), "x").unwrap()
    }
}

struct Reader<'a> {
    top: &'a Path,
    /// By path: a file that two `mod` lines name is read once.
    files: BTreeMap<PathBuf, SourceFile>,
}

impl Reader<'_> {
    fn read_file(
        &mut self,
        path: &Path,
        module: Vec<String>,
        system: Option<String>,
    ) -> Result<(), String> {
        if self.files.contains_key(path) {
            return Ok(());
        }
        let name = path.strip_prefix(self.top).unwrap_or(path).display().to_string();
        let text = fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
        let mut code = syn::parse_file(&text).map_err(|error| {
            format!("{name}:{}: cannot be parsed: {error}", error.span().start().line)
        })?;
        Production.visit_file_mut(&mut code);
        let is_folder = ["lib.rs", "main.rs", "mod.rs"].iter().any(|name| path.ends_with(name));
        let folder = if is_folder { path.with_file_name("") } else { path.with_extension("") };
        let mut found = Vec::new();
        find_modules(&code.items, &folder, path, &module, &system, &mut found);
        let file = SourceFile { path: name, text, module, system, code };
        self.files.insert(path.to_owned(), file);
        for (path, module, system) in found {
            self.read_file(&path, module, system)?;
        }
        Ok(())
    }
}

/// A file that a `mod` line names, its module, and the system it is for.
type Found = (PathBuf, Vec<String>, Option<String>);

fn find_modules(
    items: &[Item],
    folder: &Path,
    file: &Path,
    module: &[String],
    system: &Option<String>,
    found: &mut Vec<Found>,
) {
    for item in items {
        let Item::Mod(item) = item else { continue };
        let name = item.ident.to_string();
        let mut inner = module.to_vec();
        inner.push(name.clone());
        let system = system.clone().or_else(|| system_of(&item.attrs));
        match &item.content {
            Some((_, items)) => {
                find_modules(items, &folder.join(&name), file, &inner, &system, found);
            }
            None => {
                let flat = folder.join(format!("{name}.rs"));
                let path = match path_of(&item.attrs) {
                    Some(path) => file.with_file_name(path),
                    None if flat.exists() => flat,
                    None => folder.join(&name).join("mod.rs"),
                };
                found.push((path, inner, system));
            }
        }
    }
}

fn path_of(attrs: &[Attribute]) -> Option<String> {
    attrs.iter().find_map(|attr| match &attr.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    })
}

/// The condition on the operating system among these attributes.
pub(crate) fn system_of(attrs: &[Attribute]) -> Option<String> {
    let conditions = attrs.iter().filter(|attr| attr.path().is_ident("cfg"));
    let mut texts = conditions.filter_map(|attr| match &attr.meta {
        Meta::List(list) => Some(list.tokens.to_string()),
        _ => None,
    });
    texts.find(|text| {
        let mut words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.any(|word| ["target_os", "target_family", "unix", "windows"].contains(&word))
    })
}

/// Takes out what only tests have: what stands under `cfg(test)`, alone or among other conditions
/// that all have to hold, and what is marked as a test.
struct Production;

impl VisitMut for Production {
    fn visit_file_mut(&mut self, file: &mut syn::File) {
        file.items.retain(|item| !is_for_tests(attributes(item)));
        visit_mut::visit_file_mut(self, file);
    }

    fn visit_item_mod_mut(&mut self, item: &mut syn::ItemMod) {
        if let Some((_, items)) = &mut item.content {
            items.retain(|item| !is_for_tests(attributes(item)));
        }
        visit_mut::visit_item_mod_mut(self, item);
    }

    fn visit_item_impl_mut(&mut self, item: &mut syn::ItemImpl) {
        item.items.retain(|item| match item {
            ImplItem::Fn(item) => !is_for_tests(&item.attrs),
            ImplItem::Const(item) => !is_for_tests(&item.attrs),
            _ => true,
        });
        visit_mut::visit_item_impl_mut(self, item);
    }

    fn visit_fields_named_mut(&mut self, fields: &mut syn::FieldsNamed) {
        let named = std::mem::take(&mut fields.named);
        let kept = named.into_iter().filter(|field| !is_for_tests(&field.attrs));
        fields.named = kept.collect();
        visit_mut::visit_fields_named_mut(self, fields);
    }
}

macro_rules! attributes {
    ($item:expr, $($kind:ident)*) => {
        match $item {
            $(Item::$kind(item) => &item.attrs,)*
            _ => &[],
        }
    };
}

fn attributes(item: &Item) -> &[Attribute] {
    attributes!(item, Const Enum ExternCrate Fn ForeignMod Impl Macro Mod Static Struct Trait Type
        Union Use)
}

/// The name that an item defines in its module; modules and imports have other rules.
pub(crate) fn name_of(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

fn is_for_tests(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attr| {
        attr.path().is_ident("test")
            || attr.path().is_ident("cfg")
                && attr.parse_args::<Meta>().is_ok_and(|condition| needs_tests(&condition))
    })
}

fn needs_tests(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => path.is_ident("test") || path.is_ident("doctest"),
        Meta::List(list) if list.path.is_ident("all") => list
            .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
            .is_ok_and(|parts| parts.iter().any(needs_tests)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(code: &Crate) -> Vec<&str> {
        code.files.iter().map(|file| file.path.as_str()).collect()
    }

    #[test]
    fn files_are_those_that_modules_name() {
        let code = Crate::of(&[
            ("src/lib.rs", "mod a; mod b { mod c; } #[path = \"elsewhere.rs\"] mod d;"),
            ("src/a.rs", "mod e;"),
            ("src/a/e.rs", ""),
            ("src/b/c/mod.rs", ""),
            ("src/elsewhere.rs", ""),
            ("src/nobody.rs", "fn is_no_part"),
        ]);
        let expected = [
            "x/src/a/e.rs",
            "x/src/a.rs",
            "x/src/b/c/mod.rs",
            "x/src/elsewhere.rs",
            "x/src/lib.rs",
        ];
        assert_eq!(paths(&code), expected);
        assert_eq!(code.files[2].module, ["b", "c"]);
    }

    #[test]
    fn tests_are_no_production_code() {
        let code = Crate::of(&[(
            "src/lib.rs",
            "#[cfg(test)] mod gone; #[cfg(all(test, unix))] mod gone_too;
             #[cfg(any(test, feature = \"f\"))] struct Kept { #[cfg(test)] gone: u8, kept: u8 }
             impl Kept { #[cfg(test)] fn gone() {} fn kept() {} }
             #[test] fn gone() {}",
        )]);
        let items = &code.files[0].code.items;
        assert_eq!(items.len(), 2);
        let (Item::Struct(kept), Item::Impl(block)) = (&items[0], &items[1]) else { panic!() };
        assert_eq!((kept.fields.len(), block.items.len()), (1, 1));
    }

    #[test]
    fn a_system_is_known_from_its_condition() {
        let code = Crate::of(&[
            (
                "src/lib.rs",
                "#[cfg(target_os = \"linux\")] mod a; #[cfg(feature = \"unix_x\")] mod b;",
            ),
            ("src/a.rs", ""),
            ("src/b.rs", ""),
        ]);
        let systems: Vec<bool> = code.files.iter().map(|file| file.system.is_some()).collect();
        assert_eq!(systems, [true, false, false]);
    }

    #[test]
    fn a_file_that_cannot_be_parsed_is_named_with_its_line() {
        let top = crate::scratch::Folder::new();
        top.write("x/src/lib.rs", "\nfn {");
        assert!(Crate::read(top.path(), "x").err().unwrap().starts_with("x/src/lib.rs:2: "));
        assert!(Crate::read(top.path(), "y").err().unwrap().contains("neither lib.rs nor main.rs"));
    }
}
