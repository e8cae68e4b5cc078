//! Text from elsewhere, made fit for a terminal line, a table cell or a JSON string: names and
//! arguments may hold control characters, escape sequences or bytes that are no UTF-8.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// One line of text: what could move a cursor, end a line or reorder it is written as `\n`, `\x1b`,
/// `\u{202e}`.
pub fn line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        push_escaped(&mut out, c);
    }
    out
}

/// As [`line`], of bytes: those that are no UTF-8 are written as `\xff`.
pub fn bytes_line(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            push_escaped(&mut out, c);
        }
        push_hex(&mut out, chunk.invalid());
    }
    out
}

/// Bytes as a JSON string can hold them: valid text stays as it is (JSON has its own escapes), other
/// bytes are written as `\xff`.
pub fn bytes_text(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        push_hex(&mut out, chunk.invalid());
    }
    out
}

/// A command as one could type it: words with blanks or quotes are quoted.
pub fn command(words: &[Vec<u8>]) -> String {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"-_./=:,+@%".contains(b) || *b >= 0x80;
    let quoted = |word: &Vec<u8>| {
        let text = bytes_line(word);
        if !word.is_empty() && word.iter().all(plain) {
            return text;
        }
        format!("'{}'", text.replace('\'', r"'\''"))
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// True for a character that must not reach a terminal or split a line of JSON.
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{feff}')
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Columns that escaped text takes on a terminal.
pub fn width(text: &str) -> usize {
    text.width()
}

/// Text cut to `columns`, the last of them `…` if something is missing.
pub fn fit(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut out = String::new();
    let mut used = 0;
    for c in text.chars() {
        let wide = c.width().unwrap_or(0);
        if used + wide + 1 > columns {
            break;
        }
        used += wide;
        out.push(c);
    }
    if columns > 0 {
        out.push('…');
    }
    out
}

fn push_escaped(out: &mut String, c: char) {
    match c {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if is_unsafe(c) && c.is_ascii() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
        c if is_unsafe(c) => out.push_str(&format!("\\u{{{:x}}}", u32::from(c))),
        c => out.push(c),
    }
}

fn push_hex(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        out.push_str(&format!("\\x{byte:02x}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn escape_sequences_and_line_ends_are_shown_not_sent() {
        assert_eq!(
            line("a\nb\r\t\x1b[2J\u{9b}31m\u{202e}x"),
            "a\\nb\\r\\t\\x1b[2J\\u{9b}31m\\u{202e}x"
        );
        assert_eq!(bytes_line(b"a\xff\n"), "a\\xff\\n");
        assert_eq!(bytes_text("aé\n".as_bytes()), "aé\n");
        assert_eq!(bytes_text(b"\xe9"), "\\xe9");
        assert_eq!(line("日本 é"), "日本 é");
    }

    #[test]
    fn a_command_is_shown_as_one_could_type_it() {
        let words = |list: &[&[u8]]| list.iter().map(|w| w.to_vec()).collect::<Vec<_>>();
        assert_eq!(command(&words(&[b"sh", b"-c", b"echo 'a b'"])), r"sh -c 'echo '\''a b'\'''");
        assert_eq!(command(&words(&[b"true", b""])), "true ''");
        assert_eq!(command(&words(&[b"a\nb"])), "'a\\nb'");
    }

    #[test]
    fn cut_text_takes_no_more_than_its_columns() {
        assert_eq!(fit("abcdef", 4), "abc…");
        assert_eq!(fit("abcd", 4), "abcd");
        assert_eq!(fit("日本語", 4), "日…");
        assert_eq!(fit("abc", 0), "");
    }

    proptest! {
        #[test]
        fn nothing_unsafe_is_left(bytes: Vec<u8>, columns in 0usize..40) {
            let text = bytes_line(&bytes);
            prop_assert!(!text.chars().any(is_unsafe));
            prop_assert!(width(&fit(&text, columns)) <= columns);
        }
    }
}
