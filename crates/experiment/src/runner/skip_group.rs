//! Groups of points that fail for the same reason: an object that one could not use fails for the
//! others too.

use super::PointRunner;
use crate::ExperimentError;
use crate::location::RunLocation;
use crate::point::applies_at;
use crate::point_state::{PointState, SkipGroup};

impl PointRunner<'_> {
    /// Finds the points that would fail like the one at `at`: their commands name `object` in the
    /// same network.
    ///
    /// Returns `None` if that point does not name the object itself, or if one that does was
    /// measured.
    pub(crate) fn find_skip_group(
        &self,
        object: &str,
        points: &[PointState],
        at: usize,
    ) -> Result<Option<SkipGroup>, ExperimentError> {
        // A busy object is still usable for a command with `force`, so forced points form their own
        // group.
        let group_key = |point: &PointState| -> Result<Option<(String, bool)>, ExperimentError> {
            let network = match &self.options.location {
                RunLocation::Lab => self.network(&point.setting, "1")?.map(|(key, _)| key),
                RunLocation::Host(_) => None,
            };
            let names = self.name_values(&point.setting, None, "1");
            let mut forced = Vec::new();
            let measures = self.experiment.measure.iter();
            for command in measures.filter(|command| applies_at(command, &point.setting)) {
                // A fixed directory, since the real one may have any name.
                let args = names.command_args(command, ".")?;
                forced.extend(forced_uses(&args, object));
            }
            let all_forced = !forced.contains(&false);
            Ok((!forced.is_empty()).then(|| (network.unwrap_or_default(), all_forced)))
        };
        let group_keys: Result<Vec<_>, _> = points.iter().map(group_key).collect();
        let group_keys = group_keys?;
        let (group_points, other_points): (Vec<usize>, Vec<usize>) = (0..points.len())
            .filter(|&index| !points[index].is_excluded())
            .partition(|&index| group_keys[index].is_some() && group_keys[index] == group_keys[at]);
        let is_measured = |&index: &usize| !points[index].runs.is_empty();
        let is_group = group_keys[at].is_some() && !group_points.iter().any(is_measured);
        Ok(is_group.then(|| SkipGroup {
            object: object.to_owned(),
            points: group_points
                .into_iter()
                .filter(|&index| index != at)
                .collect(),
            covers_all: other_points.is_empty(),
        }))
    }
}

/// Returns whether an argument names an object: `packet:eth0,force` names `eth0` but not `eth`.
fn names_object(arg: &str, object: &str) -> bool {
    let is_name_char = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    arg.match_indices(object).any(|(position, _)| {
        let (before, after) = (&arg[..position], &arg[position + object.len()..]);
        !object.is_empty() && !before.ends_with(is_name_char) && !after.starts_with(is_name_char)
    })
}

/// Returns for each argument that names `object` whether it forces the use of a busy one.
fn forced_uses(args: &[String], object: &str) -> Vec<bool> {
    let force_all = args.iter().any(|arg| arg == "--force");
    let naming_args = args.iter().filter(|arg| names_object(arg, object));
    let is_forced = |arg: &String| arg.split(',').skip(1).any(|option| option == "force");
    naming_args.map(|arg| force_all || is_forced(arg)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_names_only_complete_names() {
        for (arg, object, names) in [
            ("packet:eth0", "eth0", true),
            ("packet:eth0,force", "packet:eth0", true),
            ("eth0", "eth0", true),
            ("packet:eth01", "eth0", false),
            ("packet:eth0.7", "eth0", false),
            ("10.0.0.10", "10.0.0.1", false),
            ("-u", "", false),
        ] {
            assert_eq!(names_object(arg, object), names, "{arg} {object}");
        }
    }

    #[test]
    fn forced_and_plain_uses_are_distinguished() {
        for (line, forced) in [
            ("generate packet:eth0", &[false][..]),
            ("generate packet:eth0,force", &[true]),
            ("generate packet:eth0,queues=2,force", &[true]),
            ("generate packet:eth0 --force", &[true]),
            ("forward packet:eth0,force packet:eth0", &[true, false]),
            ("generate packet:eth1,force", &[]),
        ] {
            let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(forced_uses(&args, "eth0"), forced, "{line}");
        }
    }
}
