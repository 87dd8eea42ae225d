//! Limits of memory and of levels for the values of a text: a page of YAML aliases could fill any
//! memory.

use serde_json::Value;

use super::{Lines, Placed};

/// The values of a file may take about this many bytes.
const MAX_MEMORY: usize = 1 << 30;
/// No honest text makes more of itself: YAML's shortest object has four bytes.
const MEMORY_PER_BYTE: usize = 256;
/// Values may be nested this deeply, which is the limit of serde_json too.
pub(super) const MAX_DEPTH: usize = 127;

/// Counts the memory that the values of a text take, in bytes.
pub(super) struct Budget {
    pub(super) left: usize,
    all: usize,
}

impl Budget {
    pub(super) fn of(text: &str) -> Budget {
        let all = text
            .len()
            .saturating_mul(MEMORY_PER_BYTE)
            .saturating_add(1 << 16)
            .min(MAX_MEMORY);
        Budget { left: all, all }
    }

    pub(super) fn spend(&mut self, size: usize) -> Result<(), String> {
        match self.left.checked_sub(size) {
            Some(left) => self.left = left,
            None if self.all < MAX_MEMORY => {
                return Err("aliases expand this file too much".into());
            }
            None => {
                return Err(format!(
                    "its values would take more than {} MiB of memory",
                    MAX_MEMORY >> 20
                ));
            }
        }
        Ok(())
    }
}

/// The bytes that a value takes by itself, with its lines.
pub(super) fn weight(value: &Value) -> usize {
    const VALUE: usize = size_of::<Value>() + size_of::<Lines>();
    VALUE
        + match value {
            Value::String(text) => text.len() + 16,
            // A map has room for eleven entries at once.
            Value::Object(object) if !object.is_empty() => {
                640 + object.keys().map(|key| key.len() + VALUE).sum::<usize>()
            }
            _ => 0,
        }
}

/// Charges a copy of a value and of all values in it.
pub(super) fn copied(placed: &Placed, budget: &mut Budget) -> Result<(), String> {
    fn whole(value: &Value) -> usize {
        weight(value)
            + match value {
                Value::Array(list) => list.iter().map(whole).sum(),
                Value::Object(object) => object.values().map(whole).sum(),
                _ => 0,
            }
    }
    budget.spend(whole(&placed.0))
}

/// The levels of lists and objects in a value.
pub(super) fn depth(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(depth).max().unwrap_or(0),
        Value::Object(object) => 1 + object.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}
