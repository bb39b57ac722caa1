//! What a row is, and the macro [`row!`] that derives its columns from its fields.

use serde::Serialize;

/// One line of `--json`, and what people read instead. Names and order of the fields are a
/// contract with scripts.
pub(crate) trait Row: Serialize {
    /// The value of `row` in the JSON.
    const KIND: &'static str;
    /// Whether people do not see it, since another row shows the same.
    const IS_FOR_SCRIPTS: bool = false;

    /// The lines above the first row of a kind.
    fn heading(&self) -> Option<String> {
        None
    }

    /// The row for people, without the end of the line.
    fn text(&self) -> String;

    /// Number of wrong answers.
    fn wrong(&self) -> u64 {
        0
    }
}

/// A row as JSON has it.
#[derive(Serialize)]
pub(super) struct Tagged<'a, R> {
    pub(super) row: &'static str,
    #[serde(flatten)]
    pub(super) fields: &'a R,
}

/// Declares a row of a table: a struct, and from the same fields the columns that people read.
///
/// ```ignore
/// row! {
///     /// One row of `caravan bench latency`.
///     #[derive(Debug, Serialize)]
///     pub(crate) struct Latency is "latency" {
///         van: String => "van",                 // shown as it is, in a column of that name
///         p50_us: f64 => "p50" as figure,       // shown as a function of it
///         seed: u64,                            // in the JSON only
///         wrong: u64 => "wrong"
///             ; "seed" |row| row.seed,          // and another column, made of the whole row
///     }
///     title |_| "latency: round trip, µs";      // in the heading, after `# `
///     counts wrong;                             // the field that counts wrong answers, if any
/// }
/// ```
macro_rules! row {
    (
        $(#[$meta:meta])*
        pub(crate) struct $name:ident is $kind:literal {
            $(
                $(#[$field_meta:meta])*
                $field:ident: $type:ty $(=> $column:literal $(as $format:path)?)?
                $(; $extra:literal |$of:ident| $cell:expr)*,
            )*
        }
        title |$titled:pat_param| $title:expr;
        $(counts $wrong:ident;)?
    ) => {
        $(#[$meta])*
        pub(crate) struct $name {
            $($(#[$field_meta])* pub(crate) $field: $type,)*
        }

        impl $name {
            fn columns(&self) -> Vec<$crate::report::Column> {
                vec![$(
                    $($crate::report::Column {
                        name: $column,
                        cell: $crate::report::row!(@cell self.$field $(, $format)?),
                    },)?
                    $($crate::report::Column {
                        name: $extra,
                        cell: {
                            let $of = self;
                            $cell.to_string()
                        },
                    },)*
                )*]
            }
        }

        impl $crate::report::Row for $name {
            const KIND: &'static str = $kind;

            fn heading(&self) -> Option<String> {
                let $titled = self;
                let names = self.columns().into_iter().map(|column| column.name);
                Some(format!("\n# {}\n{}", $title, $crate::report::line(names)))
            }

            fn text(&self) -> String {
                $crate::report::line(self.columns().into_iter().map(|column| column.cell))
            }

            $(fn wrong(&self) -> u64 {
                self.$wrong
            })?
        }
    };
    (@cell $value:expr) => { $value.to_string() };
    (@cell $value:expr, $format:path) => { $format(&$value) };
}
pub(crate) use row;

#[derive(Debug)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) cell: String,
}

/// Cells side by side: the first two are names, to the left, the others figures, to the right. An
/// empty one takes no place.
pub(crate) fn line<S: AsRef<str>>(cells: impl IntoIterator<Item = S>) -> String {
    let aligned = cells.into_iter().enumerate().map(|(at, cell)| match (at, cell.as_ref()) {
        (0, cell) => format!("{cell:<6}"),
        (1, cell) => format!("{cell:<10}"),
        (_, "") => String::new(),
        (_, cell) => format!("{cell:>10}"),
    });
    aligned.collect()
}

/// Enough digits for small and large figures to be compared by eye.
pub(crate) fn figure(value: &f64) -> String {
    match value.abs() {
        v if v > 0.0 && v < 0.001 => format!("{value:.2e}"),
        v if v < 10.0 => format!("{value:.3}"),
        v if v < 1000.0 => format!("{value:.2}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::figure;

    #[test]
    fn figures_keep_their_digits_and_only_0_is_0() {
        for (value, shown) in
            [(0.0, "0.000"), (1.6e-5, "1.60e-5"), (0.00123, "0.001"), (8.25, "8.250")]
        {
            assert_eq!(figure(&value), shown);
        }
        assert_eq!([12.345, 1234.5].map(|value| figure(&value)), ["12.35", "1234"]);
    }
}
