//! Which form of the metrics a scraper asks for, by its `Accept` (RFC 9110, 12.5.1). Who asks for
//! neither gets the older one, which everything reads.

use crate::metrics::Form;
use hyper::header::{ACCEPT, HeaderMap};

/// Weights are counted in thousandths: three digits is all that they may have.
const WHOLE: u16 = 1000;

/// How much a request wants each form.
#[derive(Default)]
struct Wants {
    open: u16,
    text: Option<u16>,
    text_any: Option<u16>,
    any: Option<u16>,
}

/// The form to answer in: the newer one where it is named and not wanted less than plain text.
pub fn form(headers: &HeaderMap) -> Form {
    let mut wants = Wants::default();
    let lines = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    lines.flat_map(|line| line.split(',')).for_each(|range| wants.add(range));
    // The nearest range counts.
    let text = wants.text.or(wants.text_any).or(wants.any).unwrap_or(0);
    if wants.open > 0 && wants.open >= text { Form::OpenMetrics } else { Form::Text }
}

impl Wants {
    /// Takes note of one range: `application/openmetrics-text; version=1.0.0; q=0.5`.
    fn add(&mut self, range: &str) {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let (mut version, mut weight) = (None, WHOLE);
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            let value = value.trim().trim_matches('"');
            match name.trim() {
                name if name.eq_ignore_ascii_case("q") => weight = thousandths(value),
                name if name.eq_ignore_ascii_case("version") => version = Some(value),
                _ => {}
            }
        }
        let most = |known: Option<u16>| Some(known.map_or(weight, |known| known.max(weight)));
        match (kind.as_str(), version) {
            ("application/openmetrics-text", None | Some("1.0.0")) => {
                self.open = self.open.max(weight);
            }
            ("text/plain", None | Some("0.0.4")) => self.text = most(self.text),
            ("text/*", _) => self.text_any = most(self.text_any),
            ("*/*", _) => self.any = most(self.any),
            _ => {}
        }
    }
}

/// A weight of `0`, `0.5` or `1.000`. What is none counts as not wanted.
fn thousandths(text: &str) -> u16 {
    let (whole, rest) = text.split_once('.').unwrap_or((text, ""));
    let digits = rest.len() <= 3 && rest.bytes().all(|byte| byte.is_ascii_digit());
    match whole {
        "1" if digits => WHOLE,
        "0" if digits => format!("{rest:0<3}").parse().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[&str]) -> Form {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(ACCEPT, line.parse().unwrap());
        }
        form(&headers)
    }

    #[test]
    fn the_newer_form_is_for_who_names_it_and_does_not_want_it_less() {
        for line in [
            "application/openmetrics-text",
            "Application/OpenMetrics-Text; Version=1.0.0; charset=utf-8",
            "application/openmetrics-text;version=\"1.0.0\";q=0.5, text/plain;version=0.0.4;q=0.5",
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
             application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;q=0.9,\
             text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
            "text/plain;q=0.1, */*, application/openmetrics-text;q=0.2",
        ] {
            assert_eq!(of(&[line]), Form::OpenMetrics, "{line}");
        }
        assert_eq!(of(&["text/plain;q=0.5", "application/openmetrics-text"]), Form::OpenMetrics);
    }

    #[test]
    fn everybody_else_gets_text() {
        assert_eq!(of(&[]), Form::Text);
        for line in [
            "",
            "*/*",
            "text/html, application/xhtml+xml, */*;q=0.8",
            "application/*",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=0.000",
            "application/openmetrics-text;q=many",
            "application/openmetrics-text;q=0.5, text/plain",
            "application/openmetrics-text;q=0.5, */*",
            "application/openmetrics-text;version=0.0.1",
            "application/openmetrics-texts",
        ] {
            assert_eq!(of(&[line]), Form::Text, "{line}");
        }
    }
}
