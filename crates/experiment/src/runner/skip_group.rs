//! Groups of points that fail for the same reason: an object that one could not use fails for the
//! others too.

use super::Runner;
use crate::ExperimentError;
use crate::location::Place;
use crate::point::applies;
use crate::run::Kept;

/// Points skipped for the same reason.
#[derive(Clone)]
pub(crate) struct Alike {
    /// Object that they name.
    pub(crate) object: String,
    /// Indices of the points still to be measured.
    pub(crate) points: Vec<usize>,
    /// True if no other points remain.
    pub(crate) is_all: bool,
}

impl Runner<'_> {
    /// Finds the points that would fail like the one at `at`: their commands name `object` in the
    /// same network.
    ///
    /// Returns `None` if that point does not name the object itself, or if one that does was
    /// measured.
    pub(crate) fn alike(
        &self,
        object: &str,
        points: &[Kept],
        at: usize,
    ) -> Result<Option<Alike>, ExperimentError> {
        // A busy object is still usable for a command with `force`, so forced points form their own
        // group.
        let place = |point: &Kept| -> Result<Option<(String, bool)>, ExperimentError> {
            let network = match &self.options.place {
                Place::Lab => self.network(&point.setting, "1")?.map(|(key, _)| key),
                Place::Host(_) => None,
            };
            let names = self.names(&point.setting, None, "1");
            let mut forced = Vec::new();
            let measures = self.experiment.measure.iter();
            for command in measures.filter(|command| applies(command, &point.setting)) {
                // A fixed directory, since the real one may have any name.
                let words = names.words(command, ".")?;
                forced.extend(forced_in(&words, object));
            }
            let all_forced = !forced.contains(&false);
            Ok((!forced.is_empty()).then(|| (network.unwrap_or_default(), all_forced)))
        };
        let places: Result<Vec<_>, _> = points.iter().map(place).collect();
        let places = places?;
        let (name_it, others): (Vec<usize>, Vec<usize>) = (0..points.len())
            .filter(|&other| !points[other].is_out())
            .partition(|&other| places[other].is_some() && places[other] == places[at]);
        let is_there = |&other: &usize| !points[other].runs.is_empty();
        let stays = places[at].is_some() && !name_it.iter().any(is_there);
        Ok(stays.then(|| Alike {
            object: object.to_owned(),
            points: name_it.into_iter().filter(|&other| other != at).collect(),
            is_all: others.is_empty(),
        }))
    }
}

/// Returns whether an argument names an object: `packet:eth0,force` names `eth0` but not `eth`.
fn names_it(word: &str, object: &str) -> bool {
    let goes_on = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    word.match_indices(object).any(|(at, _)| {
        let (before, after) = (&word[..at], &word[at + object.len()..]);
        !object.is_empty() && !before.ends_with(goes_on) && !after.starts_with(goes_on)
    })
}

/// Returns for each argument that names `object` whether it forces the use of a busy one.
fn forced_in(words: &[String], object: &str) -> Vec<bool> {
    let all = words.iter().any(|word| word == "--force");
    let naming = words.iter().filter(|word| names_it(word, object));
    let forced = |word: &String| word.split(',').skip(1).any(|option| option == "force");
    naming.map(|word| all || forced(word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_names_what_stands_in_it_whole() {
        for (word, object, names) in [
            ("packet:eth0", "eth0", true),
            ("packet:eth0,force", "packet:eth0", true),
            ("eth0", "eth0", true),
            ("packet:eth01", "eth0", false),
            ("packet:eth0.7", "eth0", false),
            ("10.0.0.10", "10.0.0.1", false),
            ("-u", "", false),
        ] {
            assert_eq!(names_it(word, object), names, "{word} {object}");
        }
    }

    #[test]
    fn what_is_asked_for_in_use_or_not_is_told_apart() {
        for (line, forced) in [
            ("generate packet:eth0", &[false][..]),
            ("generate packet:eth0,force", &[true]),
            ("generate packet:eth0,queues=2,force", &[true]),
            ("generate packet:eth0 --force", &[true]),
            ("forward packet:eth0,force packet:eth0", &[true, false]),
            ("generate packet:eth1,force", &[]),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(forced_in(&words, "eth0"), forced, "{line}");
        }
    }
}
