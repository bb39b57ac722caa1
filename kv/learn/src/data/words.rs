//! The words of a line of text.

pub(super) fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r')
}

/// The end of the word at `start`.
pub(super) fn word_end(text: &[u8], start: usize) -> usize {
    text[start..].iter().position(|&byte| is_blank(byte)).map_or(text.len(), |len| start + len)
}

/// The words of a line with their columns, counted from 0.
pub(super) fn words(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + text[at..].iter().position(|&byte| !is_blank(byte))?;
        at = word_end(text, start);
        Some((start, &text[start..at]))
    })
}
