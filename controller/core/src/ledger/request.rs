//! Request ids: what makes sending a request again harmless (P8; design 3, "Request ids").

/// How long an effect is remembered at least, in led ms; and how old a generated id may be, in
/// wall ms, before it is refused if nothing remembers it.
pub(super) const REQUEST_WINDOW_MS: u64 = 24 * 3600 * 1000;

/// Longest request id, in bytes: a user's key is a name, not a document.
pub(super) const REQUEST_ID_MAX: usize = 256;

/// Request ids remembered beyond their evicted jobs: at 150 bytes each, 150 MB at the most. Past
/// it the oldest go, and ids generated before them are refused as expired.
pub(super) const REMEMBERED_MAX: usize = 1_000_000;

/// A request id. UUIDs, which nearly all are, take 16 bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RequestId {
    /// A UUID in its canonical text form.
    Uuid([u8; 16]),
    /// Anything else: a user's key, or a stream id with a line number.
    Text(Box<str>),
}

impl RequestId {
    /// From its text.
    pub fn parse(text: &str) -> RequestId {
        match parse_uuid(text) {
            Some(bytes) => RequestId::Uuid(bytes),
            None => RequestId::Text(text.into()),
        }
    }

    /// Whether it was generated before the memory of requests begins: 24 h ago, or at the given
    /// floor. If nothing remembers it, doing it could be the second time.
    pub(super) fn expired(&self, wall_ms: u64, floor_wall_ms: u64) -> bool {
        let oldest = wall_ms.saturating_sub(REQUEST_WINDOW_MS).max(floor_wall_ms);
        self.made_at_wall_ms().is_some_and(|made| made < oldest)
    }

    /// When a generated id was made, wall ms: of a UUIDv7, also one followed by `/` and a line
    /// number. `None` for any other text: it tells no time.
    pub fn made_at_wall_ms(&self) -> Option<u64> {
        let bytes = match self {
            RequestId::Uuid(bytes) => *bytes,
            RequestId::Text(text) => parse_uuid(text.split_once('/')?.0)?,
        };
        let [a, b, c, d, e, f, version, ..] = bytes;
        (version >> 4 == 7).then(|| u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
    }
}

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RequestId::Text(text) => f.write_str(text),
            RequestId::Uuid(bytes) => {
                for (i, byte) in bytes.iter().enumerate() {
                    if matches!(i, 4 | 6 | 8 | 10) {
                        f.write_str("-")?;
                    }
                    write!(f, "{byte:02x}")?;
                }
                Ok(())
            }
        }
    }
}

/// Lower-case canonical form only, so that the text of a parsed id is what was sent.
fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    if text.len() != 36 {
        return None;
    }
    let mut out = [0u8; 16];
    let mut nibbles = 0usize;
    for (i, byte) in text.bytes().enumerate() {
        if matches!(i, 8 | 13 | 18 | 23) {
            if byte != b'-' {
                return None;
            }
            continue;
        }
        let value = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return None,
        };
        let slot = out.get_mut(nibbles / 2)?;
        *slot = (*slot << 4) | value;
        nibbles += 1;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const V7: &str = "0190163d-8694-739b-aea5-966c26f8ad91";

    #[test]
    fn a_uuid_reads_back_as_written_and_tells_its_time() {
        let id = RequestId::parse(V7);
        assert!(matches!(id, RequestId::Uuid(_)));
        assert_eq!(id.to_string(), V7);
        assert_eq!(id.made_at_wall_ms(), Some(0x0190_163d_8694));
        let line = RequestId::parse(&format!("{V7}/17"));
        assert_eq!(line.made_at_wall_ms(), Some(0x0190_163d_8694));
        assert_eq!(line.to_string(), format!("{V7}/17"));
    }

    #[test]
    fn other_texts_tell_no_time() {
        for text in ["", "nightly", &V7.to_uppercase(), "0190163d-8694-439b-aea5-966c26f8ad91"] {
            let id = RequestId::parse(text);
            assert_eq!(id.made_at_wall_ms(), None, "{text}");
            assert_eq!(id.to_string(), *text);
        }
    }
}
