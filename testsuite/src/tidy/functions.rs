//! Finds functions in blanked code and counts their lines.

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Line of its `fn`, from 0.
    pub line: usize,
    /// Lines from its `fn` to its closing brace.
    pub lines: usize,
}

/// Every function with a body, nested ones included.
pub fn functions(code: &str) -> Vec<Function> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        let starts_a_word = code[..at].chars().next_back().is_none_or(|c| !is_word(c));
        let name: String =
            code[at + 3..].trim_start().chars().take_while(|&c| is_word(c)).collect();
        if !starts_a_word || name.is_empty() {
            continue;
        }
        let Some(open) = body(code, at) else { continue };
        let Some(end) = end_of_block(code, open) else { continue };
        found.push(Function {
            name,
            line: code[..at].matches('\n').count(),
            lines: code[at..end].matches('\n').count() + 1,
        });
    }
    found
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Where the body of the function at `at` opens; `None` if it is only declared.
fn body(code: &str, at: usize) -> Option<usize> {
    let mut depth = 0_i32;
    for (offset, byte) in code[at..].bytes().enumerate() {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b'{' if depth == 0 => return Some(at + offset),
            b';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// The place behind the brace that closes the one at `open`; of a `;`, the place behind it.
pub(super) fn end_of_block(code: &str, open: usize) -> Option<usize> {
    let mut depth = 0_i32;
    for (offset, byte) in code[open..].bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(open + offset + 1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_measured_and_declarations_are_not() {
        let code =
            "trait T {\n    fn a(&self) -> [u8; 2];\n}\nfn b(x: [u8; 3])\nwhere\n{\n    {}\n}\n";
        assert_eq!(functions(code), [Function { name: "b".to_owned(), line: 3, lines: 5 }]);
    }

    #[test]
    fn a_function_inside_another_is_found_too() {
        let names: Vec<String> =
            functions("fn a() { fn b() {} }").into_iter().map(|f| f.name).collect();
        assert_eq!(names, ["a", "b"]);
    }
}
