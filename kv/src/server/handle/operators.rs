//! Assign operators: `stored -= pushed` and so on, value by value.
//!
//! Path: codec > thread > shard > store (handle, **operators**) > answer.

use std::ops::{BitAnd, BitOr, BitXor};

use caravan_van::{KeyRange, Pool};

use super::options::take_none;
use super::{Number, Origin, Rule, rows, unsuited};
use crate::refusal::Refused;
use crate::server::shard::Shard;
use crate::table::{TableSpec, with_type};

/// Names of the handles that [`build`] knows.
pub(super) const NAMES: [&str; 8] = ["sub", "mul", "div", "min", "max", "and", "or", "xor"];

/// Changes the first slice by the second, which has as many values.
type Operator<V> = fn(&mut [V], &[V]);

/// Applies an operator to every value. It is called by its address, since a type for each operator
/// would multiply the code of the stores. Lent values are copied first: a division relies on its
/// check for 0.
struct Each<V>(Operator<V>);

impl<V: Number> Rule<V> for Each<V> {
    type Hidden = V;
    const BY_VALUE: bool = true;

    #[inline]
    fn apply(&mut self, _: Origin, _: u64, stored: &mut [V], _: &mut [V], pushed: &[V]) {
        (self.0)(stored, pushed);
    }
}

/// Builds a shard whose handle is one of [`NAMES`].
pub(super) fn build(
    spec: &TableSpec,
    range: KeyRange,
    memory: &Pool,
) -> Result<Box<dyn Shard>, Refused> {
    take_none(spec)?;
    match &*spec.handle {
        name @ ("and" | "or" | "xor") => with_type!(
            spec.value, V => rows(spec, range, Each(bitwise::<V>(name)), memory);
            I32 = i32, I64 = i64, U8 = u8, U32 = u32, U64 = u64;
            else Err(unsuited(spec, "i32, i64, u8, u32 and u64"))
        ),
        name => with_type!(
            spec.value, V => rows(spec, range, Each(arithmetic::<V>(name)), memory)
        ),
    }
}

/// An operator for all types: that of `name`, `max` if it is none of the others.
fn arithmetic<V: Number>(name: &str) -> Operator<V> {
    match name {
        "sub" => |stored, pushed| combine(stored, pushed, V::minus),
        "mul" => |stored, pushed| combine(stored, pushed, V::times),
        "div" => |stored, pushed| combine(stored, pushed, V::over),
        "min" => |stored, pushed| combine(stored, pushed, |a, b| if b < a { b } else { a }),
        _ => |stored, pushed| combine(stored, pushed, |a, b| if b > a { b } else { a }),
    }
}

/// An operator for integers: that of `name`, `xor` if it is none of the others.
fn bitwise<V>(name: &str) -> Operator<V>
where
    V: Number + BitAnd<Output = V> + BitOr<Output = V> + BitXor<Output = V>,
{
    match name {
        "and" => |stored, pushed| combine(stored, pushed, |a, b| a & b),
        "or" => |stored, pushed| combine(stored, pushed, |a, b| a | b),
        _ => |stored, pushed| combine(stored, pushed, |a, b| a ^ b),
    }
}

#[inline]
fn combine<V: Copy>(stored: &mut [V], pushed: &[V], operator: impl Fn(V, V) -> V) {
    stored.iter_mut().zip(pushed).for_each(|(a, b)| *a = operator(*a, *b));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_keep_what_cannot_be_compared_or_divided() {
        let mut values = [1.0, -0.0, f32::NAN];
        arithmetic("min")(&mut values, &[f32::NAN, 0.0, 2.0]);
        assert_eq!((values[0], values[1].is_sign_negative()), (1.0, true));
        assert!(values[2].is_nan());
        let mut values = [9, 9, i32::MIN];
        arithmetic("div")(&mut values, &[0, -2, -1]);
        assert_eq!(values, [9, -4, i32::MIN]);
        let mut values = [0b1100_u8, 0b1100, 7];
        bitwise("xor")(&mut values, &[0b1010, 0, 7]);
        assert_eq!(values, [0b0110, 0b1100, 0]);
    }
}
