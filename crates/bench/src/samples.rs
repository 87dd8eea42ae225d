//! The results: samples as they were taken, and the summaries of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::run::Counts;

/// The object of a measurement: the part of the page, contender, way and shape, and for parts that
/// grow the amount.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    pub part: String,
    pub contender: String,
    pub way: String,
    pub shape: String,
    pub x: u64,
}

/// One ADD or DEL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    pub part: String,
    pub contender: String,
    pub way: String,
    pub shape: String,
    pub x: u64,
    pub verb: String,
    pub round: usize,
    pub wall_us: u64,
    pub cpu_us: u64,
}

/// The counts of a traced call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    pub part: String,
    pub contender: String,
    pub way: String,
    pub shape: String,
    pub x: u64,
    pub verb: String,
    pub execs: u64,
    pub setns: u64,
    pub moves: u64,
    pub syscalls: u64,
    pub peak_kib: u64,
    pub instructions: Option<u64>,
}

/// A line of the summary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub part: String,
    pub contender: String,
    pub way: String,
    pub shape: String,
    pub x: u64,
    pub verb: String,
    pub n: usize,
    pub p50_us: u64,
    pub p99_us: u64,
    pub max_us: u64,
    pub cpu_us: u64,
}

impl Sample {
    pub fn key(&self) -> Key {
        Key {
            part: self.part.clone(),
            contender: self.contender.clone(),
            way: self.way.clone(),
            shape: self.shape.clone(),
            x: self.x,
        }
    }
}

impl Counted {
    pub fn new(key: &Key, verb: &str, counts: &Counts) -> Counted {
        Counted {
            part: key.part.clone(),
            contender: key.contender.clone(),
            way: key.way.clone(),
            shape: key.shape.clone(),
            x: key.x,
            verb: verb.to_owned(),
            execs: counts.execs,
            setns: counts.setns,
            moves: counts.moves,
            syscalls: counts.syscalls,
            peak_kib: counts.peak_kib,
            instructions: counts.instructions,
        }
    }
}

/// The smallest value that is not below `percent` of all; of sorted values.
pub fn percentile(sorted: &[u64], percent: usize) -> u64 {
    let at = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(at).copied().unwrap_or(0)
}

/// A line for each key and verb.
pub fn summarize(samples: &[Sample]) -> Vec<Summary> {
    let mut groups: BTreeMap<(Key, String), Vec<&Sample>> = BTreeMap::new();
    for sample in samples {
        groups
            .entry((sample.key(), sample.verb.clone()))
            .or_default()
            .push(sample);
    }
    let of_group = |((key, verb), samples): ((Key, String), Vec<&Sample>)| {
        let mut walls: Vec<u64> = samples.iter().map(|sample| sample.wall_us).collect();
        walls.sort_unstable();
        let cpu: u64 = samples.iter().map(|sample| sample.cpu_us).sum();
        let Key {
            part,
            contender,
            way,
            shape,
            x,
        } = key;
        let n = walls.len();
        Summary {
            part,
            contender,
            way,
            shape,
            x,
            verb,
            n,
            p50_us: percentile(&walls, 50),
            p99_us: percentile(&walls, 99),
            max_us: percentile(&walls, 100),
            cpu_us: cpu / u64::try_from(n).unwrap_or(1).max(1),
        }
    };
    groups.into_iter().map(of_group).collect()
}

/// Writes a table with a head.
pub fn write_csv<T: Serialize>(path: &Path, rows: &[T]) -> Result<(), String> {
    let told = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let mut writer = csv::Writer::from_path(path).map_err(|error| told(&error))?;
    for row in rows {
        writer.serialize(row).map_err(|error| told(&error))?;
    }
    writer.flush().map_err(|error| told(&error))
}

/// Reads such a table.
pub fn read_csv<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>, String> {
    let told = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let bytes = fs::read(path).map_err(|error| told(&error))?;
    let mut reader = csv::Reader::from_reader(bytes.as_slice());
    reader
        .deserialize()
        .collect::<Result<_, _>>()
        .map_err(|error| told(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn sample(contender: &str, x: u64, wall_us: u64) -> Sample {
        Sample {
            part: "leases".to_owned(),
            contender: contender.to_owned(),
            way: "direct".to_owned(),
            shape: "one".to_owned(),
            x,
            verb: "ADD".to_owned(),
            round: 0,
            wall_us,
            cpu_us: wall_us / 2,
        }
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!(
            [50, 99, 100].map(|percent| percentile(&hundred, percent)),
            [50, 99, 100]
        );
        assert_eq!(
            [50, 99, 100].map(|percent| percentile(&[7], percent)),
            [7; 3]
        );
        assert_eq!(percentile(&[1, 2, 3], 50), 2);
    }

    #[test]
    fn samples_and_their_summary_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.csv");
        let samples: Vec<_> = (1..=3)
            .map(|wall| sample("a, \"b\"", 5, wall * 1000))
            .collect();
        write_csv(&path, &samples).unwrap();
        assert_eq!(read_csv::<Sample>(&path).unwrap(), samples);
        let summary = summarize(&samples);
        assert_eq!(
            (
                summary[0].n,
                summary[0].p50_us,
                summary[0].max_us,
                summary[0].cpu_us
            ),
            (3, 2000, 3000, 1000)
        );
        write_csv(&path, &summary).unwrap();
        assert_eq!(read_csv::<Summary>(&path).unwrap(), summary);
    }
}
