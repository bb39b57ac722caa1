//! What is counted of functions: those that are too long, and errors that are text.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::code::{Crate, Place, SourceFile};

/// Lines of code that a function's body may have.
pub(crate) const LINES_MAX: usize = 70;

/// Functions over [`LINES_MAX`], as clippy counts: lines of the body, less blank ones and comments.
/// A comment between `/*` and `*/` counts as code; the code has none.
pub(crate) fn long_functions(code: &Crate) -> Vec<Place> {
    each_file(code, |file| {
        let lines = file.text.lines().collect();
        let mut seen = Bodies { file, lines, places: Vec::new() };
        seen.visit_file(&file.code);
        seen.places
    })
}

/// Types `Result<…, String>`.
pub(crate) fn string_errors(code: &Crate) -> Vec<Place> {
    each_file(code, |file| {
        let mut seen = Results { file, places: Vec::new() };
        seen.visit_file(&file.code);
        seen.places
    })
}

fn each_file(code: &Crate, count: impl FnMut(&SourceFile) -> Vec<Place>) -> Vec<Place> {
    code.files.iter().flat_map(count).collect()
}

struct Bodies<'a> {
    file: &'a SourceFile,
    lines: Vec<&'a str>,
    places: Vec<Place>,
}

impl Bodies<'_> {
    fn measure(&mut self, name: &syn::Ident, body: &syn::Block) {
        let from = body.brace_token.span.open().end();
        let to = body.brace_token.span.close().start();
        let inside =
            self.lines.iter().enumerate().skip(from.line - 1).take(to.line - from.line + 1);
        let code = inside.filter(|(at, line)| {
            let number = at + 1;
            let end = if number == to.line { char_at(line, to.column) } else { line.len() };
            let begin = if number == from.line { char_at(line, from.column) } else { 0 };
            let part = line[begin..end.max(begin)].trim();
            !part.is_empty() && !part.starts_with("//")
        });
        let count = code.count();
        if count > LINES_MAX {
            let what = format!("{name} has {count} lines");
            self.places.push(Place::new(&self.file.path, name.span().start().line, what));
        }
    }
}

/// The byte at which a column, in characters, begins.
fn char_at(line: &str, column: usize) -> usize {
    line.char_indices().nth(column).map_or(line.len(), |(at, _)| at)
}

impl<'ast> Visit<'ast> for Bodies<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.measure(&item.sig.ident, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.measure(&item.sig.ident, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.measure(&item.sig.ident, body);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

struct Results<'a> {
    file: &'a SourceFile,
    places: Vec<Place>,
}

impl<'ast> Visit<'ast> for Results<'_> {
    fn visit_path_segment(&mut self, segment: &'ast syn::PathSegment) {
        if segment.ident == "Result"
            && let syn::PathArguments::AngleBracketed(arguments) = &segment.arguments
            && let Some(syn::GenericArgument::Type(syn::Type::Path(error))) = arguments.args.get(1)
            && error.path.is_ident("String")
        {
            let line = segment.span().start().line;
            self.places.push(Place::new(&self.file.path, line, "Result<_, String>"));
        }
        visit::visit_path_segment(self, segment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function of so many lines of code, in which blank ones and comments stand as well.
    fn function(lines: usize) -> String {
        format!("fn long() {{\n{}\n // a comment\n\n}}", "    f();\n".repeat(lines))
    }

    #[test]
    fn a_function_over_the_limit_is_found() {
        let at_limit = Crate::of(&[("src/lib.rs", &function(LINES_MAX))]);
        assert_eq!(long_functions(&at_limit), []);
        let over = Crate::of(&[("src/lib.rs", &format!("impl A {{ {} }}", function(71)))]);
        assert_eq!(long_functions(&over)[0].what, "long has 71 lines");
    }

    #[test]
    fn errors_that_are_text_are_found_wherever_they_stand() {
        let code = Crate::of(&[(
            "src/lib.rs",
            "fn f() -> Result<(), String> { let x: Option<std::result::Result<u8, String>>; }
             fn g() -> Result<String, u8> {} fn h() -> Result<String> {}",
        )]);
        assert_eq!(string_errors(&code).len(), 2);
    }
}
