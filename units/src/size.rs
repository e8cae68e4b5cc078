//! Sizes: `2G` and `2GiB` are 2·2³⁰ bytes; a bare number and `2GB` are refused.

/// Why a text is no size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// A number without a unit.
    #[error("a size needs a unit: {0}G or {0}M")]
    Bare(String),
    /// `2GB` is 2·10⁹ for some and 2·2³⁰ for others.
    #[error(
        "{number}{unit}B has two readings, powers of 1000 or of 1024: write {number}{unit} (1024)"
    )]
    TwoReadings {
        /// The number as typed.
        number: String,
        /// Its unit letter.
        unit: char,
    },
    /// Not one of the forms.
    #[error("not a size: write it as 512M, 2G or 1.5G (powers of 1024)")]
    Form,
    /// Above what a u64 holds.
    #[error("too large: at most 16383P")]
    TooLarge,
}

const UNITS: [(char, u32); 6] = [('B', 0), ('K', 10), ('M', 20), ('G', 30), ('T', 40), ('P', 50)];

/// Reads a size in bytes: digits, at most three decimals, one of B K M G T P (or KiB…), any case.
pub fn size(text: &str) -> Result<u64, SizeError> {
    let text = text.trim();
    let end = text.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
    let (number, unit) = text.split_at(end);
    if number.is_empty() {
        return Err(SizeError::Form);
    }
    let (shift, letter) = match unit.to_ascii_uppercase().as_str() {
        "" => return Err(SizeError::Bare(number.to_owned())),
        unit => unit_shift(number, unit)?,
    };
    scaled(number, shift, letter)
}

/// Writes bytes so that [`size`] reads the same back: `1536M`.
pub fn exact_size(bytes: u64) -> String {
    let (letter, shift) = UNITS
        .into_iter()
        .rev()
        .find(|(_, shift)| bytes != 0 && bytes.is_multiple_of(1 << shift))
        .unwrap_or(('B', 0));
    format!("{}{letter}", bytes >> shift)
}

fn unit_shift(number: &str, unit: &str) -> Result<(u32, char), SizeError> {
    let letter = unit.chars().next().ok_or(SizeError::Form)?;
    let shift = UNITS.iter().find(|(u, _)| *u == letter).ok_or(SizeError::Form)?.1;
    match &unit[letter.len_utf8()..] {
        "" => Ok((shift, letter)),
        "IB" if shift > 0 => Ok((shift, letter)),
        "B" if shift > 0 => Err(SizeError::TwoReadings { number: number.to_owned(), unit: letter }),
        _ => Err(SizeError::Form),
    }
}

fn scaled(number: &str, shift: u32, letter: char) -> Result<u64, SizeError> {
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    let bad_point = number.contains('.') && (decimals.is_empty() || letter == 'B');
    if whole.is_empty() || bad_point || decimals.len() > 3 || decimals.contains('.') {
        return Err(SizeError::Form);
    }
    let thousandths: u128 =
        format!("{whole}{decimals:0<3}").parse().map_err(|_| SizeError::TooLarge)?;
    let bytes = thousandths.checked_mul(1 << shift).ok_or(SizeError::TooLarge)? / 1000;
    u64::try_from(bytes).map_err(|_| SizeError::TooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, bytes) in [
            ("2G", 2 << 30),
            ("512m", 512 << 20),
            ("1.5G", 1536 << 20),
            ("1KiB", 1024),
            ("88B", 88),
            ("0M", 0),
            ("16383P", 16_383 << 50),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_has_two_readings_is_refused() {
        assert_eq!(
            size("4").map_err(|e| e.to_string()),
            Err("a size needs a unit: 4G or 4M".to_owned())
        );
        assert!(matches!(size("2GB"), Err(SizeError::TwoReadings { .. })));
        for text in ["", "G", "-1G", "1.G", ".5G", "1.2345G", "1.5B", "1..5G", "2X", "2GG", "1 G"] {
            assert!(size(text).is_err(), "{text}");
        }
        assert_eq!(size("99999999P"), Err(SizeError::TooLarge));
    }

    proptest! {
        #[test]
        fn a_written_size_reads_back(bytes: u64) {
            prop_assert_eq!(size(&exact_size(bytes)), Ok(bytes));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,10}|[0-9.]{1,12}[KMGTPiB]{0,3}") {
            if let Ok(bytes) = size(&text) {
                prop_assert_eq!(size(&exact_size(bytes)), Ok(bytes));
            }
        }
    }
}
