//! Interleaved measurement: each round runs each candidate once, so that disturbances of the
//! machine affect all candidates equally. Ratios are computed per round.

use crate::row::Row;
use crate::sentinel::CacheRoundTrip;
use std::sync::OnceLock;

/// Words of the option `--only`, which select the rows whose names contain one of them. An empty
/// list selects all rows.
static ROW_SELECTION_WORDS: OnceLock<Vec<String>> = OnceLock::new();

/// Restricts the run to rows whose name contains one of the words; an empty list selects all rows.
pub(crate) fn select_rows(words: Vec<String>) {
    // The words are set only once, at the start of the program.
    let _ = ROW_SELECTION_WORDS.set(words);
}

/// Returns true if [`select_rows`] has selected the row.
pub(crate) fn is_row_selected(row: &str) -> bool {
    let words = ROW_SELECTION_WORDS.get().map_or(&[][..], Vec::as_slice);
    words.is_empty() || words.iter().any(|word| row.contains(word.as_str()))
}

/// A candidate of a comparison, with its name and the function that measures it. A larger result is
/// better.
pub(crate) struct Candidate<'c> {
    pub(crate) name: &'static str,
    pub(crate) measure: Box<dyn FnMut() -> Result<f64, String> + 'c>,
}

/// A goal: its name, the candidate, the reference, and the ratio to the reference that the
/// candidate must reach.
pub(crate) struct Goal {
    pub(crate) candidate: &'static str,
    pub(crate) reference: &'static str,
    pub(crate) goal: &'static str,
    pub(crate) target: f64,
}

/// The samples of one candidate, one for each round.
pub(crate) struct Samples {
    pub(crate) name: &'static str,
    pub(crate) values: Vec<f64>,
}

/// The direction in which a measured value improves: a rate upward, a cost downward.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BetterDirection {
    More,
    Less,
}

/// Measures all candidates `rounds` times, interleaved. Returns a row for each candidate, compared
/// with the first candidate, and a row for each goal, in which the goal's candidate is compared
/// with its reference. Returns no rows, without measuring, if [`select_rows`] has not selected
/// them.
pub(crate) fn measure_interleaved_rows(
    subject: (&'static str, &str, f64),
    unit: &'static str,
    rounds: usize,
    candidates: Vec<Candidate<'_>>,
    goals: &[Goal],
) -> Result<Vec<Row>, String> {
    if !is_row_selected(subject.1) {
        return Ok(Vec::new());
    }
    let (sentinel_ns, samples) = measure_interleaved(rounds, candidates)?;
    Ok(rows_of_samples(subject, (unit, BetterDirection::More), sentinel_ns, &samples, goals))
}

/// Measures all candidates `rounds` times, interleaved. Returns the round-trip time of a cache line
/// in ns during the measurement, and the samples of each candidate.
pub(crate) fn measure_interleaved(
    rounds: usize,
    mut candidates: Vec<Candidate<'_>>,
) -> Result<(f64, Vec<Samples>), String> {
    let mut samples: Vec<Samples> =
        candidates.iter().map(|c| Samples { name: c.name, values: Vec::new() }).collect();
    let mut sentinels = Vec::new();
    for round in 0..=rounds {
        let mut sentinel = CacheRoundTrip::measure();
        for (candidate, samples) in candidates.iter_mut().zip(&mut samples) {
            let value = (candidate.measure)()?;
            // The first round is a warm-up.
            if round > 0 {
                samples.values.push(value);
            }
        }
        sentinel = (sentinel + CacheRoundTrip::measure()) / 2.0;
        sentinels.push(sentinel);
    }
    Ok((median(&sentinels), samples))
}

/// Returns the rows for samples taken in rounds: a row for each candidate, compared with the first
/// candidate, and a row for each goal, in which the goal's candidate is compared with its
/// reference. A ratio above 1 means that the candidate is better.
pub(crate) fn rows_of_samples(
    (bench, row, x): (&'static str, &str, f64),
    (unit, better): (&'static str, BetterDirection),
    sentinel_ns: f64,
    samples: &[Samples],
    goals: &[Goal],
) -> Vec<Row> {
    let ratio = |(of, against): (&f64, &f64)| match better {
        BetterDirection::More => of / against,
        BetterDirection::Less => against / of,
    };
    let make = |of: &Samples, against: &Samples, goal: Option<&Goal>| Row {
        bench,
        row: row.to_owned(),
        candidate: of.name,
        reference: against.name,
        value: median(&of.values),
        unit,
        ratio: median(&of.values.iter().zip(&against.values).map(ratio).collect::<Vec<_>>()),
        n: of.values.len(),
        spread: [minimum(&of.values), maximum(&of.values)],
        sentinel_ns,
        goal: goal.map(|goal| goal.goal),
        target: goal.map(|goal| goal.target),
        x,
    };
    let Some(first) = samples.first() else { return Vec::new() };
    let mut rows: Vec<Row> = samples.iter().map(|of| make(of, first, None)).collect();
    for goal in goals {
        let named = |name| samples.iter().find(|s| s.name == name);
        if let (Some(of), Some(against)) = (named(goal.candidate), named(goal.reference)) {
            rows.push(make(of, against, Some(goal)));
        }
    }
    rows
}

/// Returns the median, or NaN if there are no values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.len(), sorted.get(sorted.len() / 2)) {
        (n, Some(upper)) if n % 2 == 0 => (sorted[n / 2 - 1] + upper) / 2.0,
        (_, Some(middle)) => *middle,
        _ => f64::NAN,
    }
}

fn minimum(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn maximum(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_hold_medians_and_ratios_by_round() {
        let candidates = vec![
            Candidate { name: "a", measure: Box::new(|| Ok(2.0)) },
            Candidate { name: "b", measure: Box::new(|| Ok(6.0)) },
        ];
        let goal = Goal { candidate: "b", reference: "a", goal: "G0", target: 2.5 };
        let rows =
            measure_interleaved_rows(("t", "r", 1.0), "x/s", 3, candidates, &[goal]).unwrap();
        assert_eq!(rows.iter().map(|r| r.ratio).collect::<Vec<_>>(), [1.0, 3.0, 3.0]);
        assert_eq!((rows[2].goal, rows[2].n), (Some("G0"), 3));
        assert_eq!(median(&[3.0, 1.0, 2.0, 10.0]), 2.5);
    }

    #[test]
    fn lower_cost_has_the_higher_ratio() {
        let samples =
            [("a", 6.0), ("b", 2.0)].map(|(name, value)| Samples { name, values: vec![value; 3] });
        let rows =
            rows_of_samples(("t", "r", 1.0), ("ns", BetterDirection::Less), 0.0, &samples, &[]);
        assert_eq!(rows.iter().map(|r| r.ratio).collect::<Vec<_>>(), [1.0, 3.0]);
    }
}
