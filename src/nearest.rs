//! Finds the word that a mistyped one may mean.

/// The known word that differs least from `word`, in at most a third of its letters. Letter case does not count.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (word.chars().count() / 3).max(1);
    let near = known.into_iter().map(|one| (distance(word, one), one));
    near.filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, one)| one)
}

/// All words, in the order of their difference from `word`, then of their length.
pub fn by_distance<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut known: Vec<_> = known.into_iter().collect();
    known.sort_by_cached_key(|one| (distance(word, one), one.len(), *one));
    known
}

/// The number of letters to insert, remove, replace or swap with their neighbour (Damerau-Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let one: Vec<char> = one.to_lowercase().chars().collect();
    let other: Vec<char> = other.to_lowercase().chars().collect();
    let (mut before, mut above): (Vec<usize>, Vec<usize>) = (Vec::new(), (0..=other.len()).collect());
    for (i, a) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in other.iter().enumerate() {
            let replaced = above[j] + usize::from(a != b);
            let mut least = replaced.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == other[j - 1] && one[i - 1] == *b {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_hand_is_recognised_and_another_word_is_not() {
        let known = ["nodeName", "rails", "storeDir", "runDir", "pf"];
        for (word, meant) in [
            ("nodename", "nodeName"),
            ("rail", "rails"),
            ("rials", "rails"),
            ("storedirs", "storeDir"),
            ("runDri", "runDir"),
            ("fp", "pf"),
        ] {
            assert_eq!(nearest(word, known), Some(meant), "{word}");
        }
        for word in ["", "colour", "mtu", "directory"] {
            assert_eq!(nearest(word, known), None, "{word}");
        }
    }
}
