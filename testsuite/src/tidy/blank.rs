//! Turns comments and the insides of literals to spaces, so that braces and words can be counted.

/// Where the reader is.
#[derive(Clone, Copy, PartialEq)]
enum At {
    Code,
    LineComment,
    BlockComment(u32),
    Text,
    RawText(usize),
    Char,
}

/// The same text, line for line and byte for byte, with comments and literals blanked.
pub fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = At::Code;
    let mut i = 0;
    while i < bytes.len() {
        let (next, taken, keep) = step(at, bytes, i);
        for &byte in &bytes[i..(i + taken).min(bytes.len())] {
            out.push(if keep || byte == b'\n' { byte } else { b' ' });
        }
        i += taken;
        at = next;
    }
    String::from_utf8(out).expect("whole characters are kept or blanked byte by byte")
}

/// From the place `i`: where the reader is then, how many bytes that took, and whether they stay.
fn step(at: At, bytes: &[u8], i: usize) -> (At, usize, bool) {
    let rest = &bytes[i..];
    match at {
        At::Code => in_code(bytes, i),
        At::LineComment if rest[0] == b'\n' => (At::Code, 1, true),
        At::LineComment => (at, 1, false),
        At::BlockComment(depth) if rest.starts_with(b"/*") => {
            (At::BlockComment(depth + 1), 2, false)
        }
        At::BlockComment(1) if rest.starts_with(b"*/") => (At::Code, 2, false),
        At::BlockComment(depth) if rest.starts_with(b"*/") => {
            (At::BlockComment(depth - 1), 2, false)
        }
        At::BlockComment(_) => (at, 1, false),
        At::Text | At::Char if rest[0] == b'\\' => (at, 2, false),
        At::Text if rest[0] == b'"' => (At::Code, 1, true),
        At::Char if rest[0] == b'\'' => (At::Code, 1, true),
        At::Text | At::Char => (at, 1, false),
        At::RawText(hashes) => {
            let closes = rest[0] == b'"'
                && rest.len() > hashes
                && rest[1..=hashes].iter().all(|&byte| byte == b'#');
            if closes { (At::Code, 1 + hashes, true) } else { (at, 1, false) }
        }
    }
}

fn in_code(bytes: &[u8], i: usize) -> (At, usize, bool) {
    let rest = &bytes[i..];
    if rest.starts_with(b"//") {
        return (At::LineComment, 2, false);
    }
    if rest.starts_with(b"/*") {
        return (At::BlockComment(1), 2, false);
    }
    let inside_a_word = i > 0 && (bytes[i - 1].is_ascii_alphanumeric() || bytes[i - 1] == b'_');
    match rest[0] {
        b'"' => (At::Text, 1, true),
        b'r' if !inside_a_word || matches!(bytes[i - 1], b'b' | b'c') => raw_start(rest),
        b'\'' if is_char(rest) => (At::Char, 1, true),
        _ => (At::Code, 1, true),
    }
}

fn raw_start(rest: &[u8]) -> (At, usize, bool) {
    let hashes = rest[1..].iter().take_while(|&&byte| byte == b'#').count();
    match rest.get(1 + hashes) {
        Some(b'"') => (At::RawText(hashes), 2 + hashes, true),
        _ => (At::Code, 1, true),
    }
}

/// A character literal, not a lifetime: an escape, or a quote behind one character.
fn is_char(rest: &[u8]) -> bool {
    let Some(&first) = rest.get(1) else { return false };
    let width = match first {
        b'\\' => return true,
        0..=0x7f => 1,
        0xc0..=0xdf => 2,
        0xe0..=0xef => 3,
        _ => 4,
    };
    rest.get(1 + width) == Some(&b'\'')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_lose_their_insides_and_nothing_else() {
        for (text, blanked) in [
            ("a // {\nb", "a     \nb"),
            ("a /* { /* } */ */ b", "a                 b"),
            (r#"f("{\"{", '{', '\'', b'}')"#, r#"f("    ", ' ', '  ', b' ')"#),
            (r###"r#"{"# r"{" br"}""###, r###"r#" "# r" " br" ""###),
            ("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}"),
            ("for_each(\"ä{\")", "for_each(\"   \")"),
        ] {
            assert_eq!(blank(text), blanked, "{text}");
        }
    }
}
