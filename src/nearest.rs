//! Finds the word that a mistyped one may mean.

/// The known word that differs least from `word`, in at most a third of its letters. Letter case
/// does not count.
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

/// The number of letters to insert, remove, replace or swap with their neighbour.
fn distance(one: &str, other: &str) -> usize {
    strsim::osa_distance(&one.to_lowercase(), &other.to_lowercase())
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
