//! What a benchmark found: a table for people and one line of JSON for scripts.

use std::fmt;
use std::time::{Duration, Instant};

/// One measured value, with its reference if there is one.
#[derive(Debug)]
pub struct Row {
    /// What was measured.
    pub what: String,
    /// Docket's value.
    pub docket: f64,
    /// The reference's value, in the same unit.
    pub reference: Option<f64>,
    /// Unit of both.
    pub unit: &'static str,
}

/// The rows of one benchmark.
#[derive(Debug)]
pub struct Report {
    /// Name of the benchmark.
    pub name: &'static str,
    /// What the reference is.
    pub reference: &'static str,
    /// What was measured.
    pub rows: Vec<Row>,
}

impl Row {
    fn ratio(&self) -> Option<f64> {
        self.reference.filter(|&reference| reference > 0.0).map(|reference| self.docket / reference)
    }
}

impl Report {
    /// The same as one JSON object.
    pub fn json(&self) -> serde_json::Value {
        let rows: Vec<serde_json::Value> = self
            .rows
            .iter()
            .map(|row| {
                serde_json::json!({
                    "what": row.what,
                    "docket": row.docket,
                    "reference": row.reference,
                    "ratio": row.ratio(),
                    "unit": row.unit,
                })
            })
            .collect();
        serde_json::json!({ "bench": self.name, "reference": self.reference, "rows": rows })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} (reference: {})", self.name, self.reference)?;
        writeln!(f, "  {:<44} {:>12} {:>12} {:>8}", "", "docket", "reference", "ratio")?;
        for row in &self.rows {
            let number = |value: Option<f64>, digits: usize| {
                value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
            };
            let what = format!("{}, {}", row.what, row.unit);
            let (own, other) = (number(Some(row.docket), 1), number(row.reference, 1));
            writeln!(f, "  {what:<44} {own:>12} {other:>12} {:>8}", number(row.ratio(), 2))?;
        }
        Ok(())
    }
}

/// Durations of one kind of operation.
pub struct Samples {
    histogram: hdrhistogram::Histogram<u64>,
    total: Duration,
}

impl Samples {
    /// Times `count` calls.
    pub fn of(count: usize, mut call: impl FnMut()) -> Samples {
        let mut samples = Samples::empty();
        for _ in 0..count {
            let begin = Instant::now();
            call();
            samples.add(begin.elapsed());
        }
        samples
    }

    /// No samples yet.
    pub fn empty() -> Samples {
        let histogram =
            hdrhistogram::Histogram::new(3).expect("three digits are a valid precision");
        Samples { histogram, total: Duration::ZERO }
    }

    /// Adds one duration.
    pub fn add(&mut self, span: Duration) {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self.histogram.record(nanos.max(1)).expect("a histogram that grows takes every duration");
        self.total += span;
    }

    /// The duration that this share (0 to 1) of the operations did not pass, in microseconds.
    pub fn micros(&self, share: f64) -> f64 {
        self.histogram.value_at_quantile(share) as f64 / 1000.0
    }

    /// Operations a second, one after the other.
    pub fn rate(&self) -> f64 {
        self.histogram.len() as f64 / self.total.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_keep_durations_of_every_size() {
        let mut samples = Samples::empty();
        for micros in [10, 1_000, 1_000_000] {
            samples.add(Duration::from_micros(micros));
        }
        assert!((samples.micros(0.5) - 1_000.0).abs() < 1.0, "{}", samples.micros(0.5));
        assert!((samples.rate() - 3.0).abs() < 0.01, "{}", samples.rate());
    }
}
